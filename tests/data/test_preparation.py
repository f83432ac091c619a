"""The federated preparation equals that of the pooled rows, in any order of the clients."""

from __future__ import annotations

import json
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import StandardScaler

from fco_cli.data.format import Features, FederatedData, from_arrays
from fco_cli.data.preparation import Categories, Preparation, Recipe, agree, prepared
from fco_cli.data.statistics import (
    EXCHANGES,
    MAX_CATEGORIES,
    MEDIAN_BINS,
    MedianSearch,
    Summary,
    count_up_to_edges,
    merged,
)
from fco_cli.errors import UserError

WARDS = ["blue", "green", "red", "violet"]


def table(seed: int = 0, rows: int = 200) -> FederatedData:
    """Return data with two numeric and two categorical columns; all have missing values, one category is rare."""
    random = np.random.default_rng(seed)
    x = np.column_stack(
        [
            random.normal(50, 20, rows),
            random.exponential(3, rows),
            random.choice(4, rows, p=[0.5, 0.2, 0.28, 0.02]),
            random.integers(2, size=rows),
        ]
    )
    x[random.random(x.shape) < 0.2] = np.nan
    return from_arrays(
        "here",
        {
            "x": x,
            "y": np.zeros(rows),
            "client": random.choice(["a", "b", "c"], rows, p=[0.1, 0.3, 0.6]),
            "features": np.array(["age", "dose", "ward", "sex"]),
            "categories": np.array([*WARDS, "f", "m"]),
            "category_of": np.array([2, 2, 2, 2, 3, 3]),
        },
    )


def test_means_and_deviations_are_those_of_the_pooled_imputed_table():
    data = table()
    preparation = prepared(data, Recipe())
    numbers = StandardScaler().fit_transform(SimpleImputer().fit_transform(data.x[:, :2]))
    ours = preparation.apply(data.raw)
    np.testing.assert_allclose(ours[:, :2], numbers, atol=1e-12)
    assert preparation.features == ["age", "dose", "ward=other", "ward=blue", "ward=green", "ward=red", "sex=m"]
    np.testing.assert_allclose(ours.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(ours.std(axis=0), 1)
    given = ~np.isnan(data.x[:, 2])
    encoded = preparation.encode(data.raw)
    np.testing.assert_array_equal(
        encoded[given, 2:6].argmax(axis=1), np.array([1, 2, 3, 0])[data.x[given, 2].astype(int)]
    )
    np.testing.assert_allclose(encoded[~given, 2:6], [encoded[given, 2:6].mean(axis=0)] * (~given).sum())


def test_medians_replace_missing_values_and_flags_mark_them():
    data = table()
    preparation = prepared(data, Recipe(fill="median", flag_missing=True))
    encoded = preparation.encode(data.raw)
    names = preparation.features
    for k, name in enumerate(["age", "dose"]):
        values, missing = data.x[:, k], np.isnan(data.x[:, k])
        lower = np.sort(values[~missing])[((~missing).sum() + 1) // 2 - 1]
        assert abs(preparation.fill[k] - lower) <= (np.nanmax(values) - np.nanmin(values)) / 2**32
        assert (encoded[missing, names.index(name)] == preparation.fill[k]).all()
        np.testing.assert_array_equal(encoded[:, names.index(f"{name} is missing")], missing)
    lost = np.isnan(data.x[:, 2])
    assert (encoded[lost, names.index("ward=blue")] == 1).all()  # the most frequent
    standardized = preparation.apply(data.raw)
    np.testing.assert_allclose(standardized.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(standardized.std(axis=0), 1)


@settings(max_examples=50)
@given(st.lists(st.lists(st.floats(-1e6, 1e6) | st.just(np.nan), max_size=9), min_size=1, max_size=5))
def test_medians_have_the_stated_accuracy(clients):
    columns = [np.array(values)[:, None] for values in clients]
    pooled = np.concatenate(columns)[:, 0]
    pooled = np.sort(pooled[~np.isnan(pooled)])
    if not len(pooled):
        return
    search = MedianSearch(np.array([len(pooled)]), pooled[:1], pooled[-1:])
    while not search.finished:
        search = search.narrowed(count_up_to_edges(x, search.edges) for x in columns)
    width = (pooled[-1] - pooled[0]) / MEDIAN_BINS**EXCHANGES
    assert MEDIAN_BINS**EXCHANGES == 2**32
    assert abs(search.high[0] - pooled[(len(pooled) + 1) // 2 - 1]) <= width + 1e-9 * max(
        abs(pooled[0]), abs(pooled[-1]), 1e-300
    )


@pytest.mark.parametrize("shape", [(3, 40), (40, 3)])
def test_counts_are_the_same_by_rows_and_by_columns(shape):
    random = np.random.default_rng(0)
    x, edges = random.integers(9, size=shape).astype(float), np.sort(random.uniform(0, 9, (shape[1], MEDIAN_BINS)))
    x[random.random(shape) < 0.3] = np.nan
    np.testing.assert_array_equal(count_up_to_edges(x, edges), (x[:, :, None] <= edges).sum(axis=0))


def test_bitwise_independence_of_the_client_order():
    data = table()
    messages = [Summary.of(name, own) for name, own in data.by_client()]
    all_clients = {agree(merged(order), Recipe()).as_json() for order in permutations(messages)}
    assert all_clients == {prepared(data, Recipe()).as_json()}
    shuffled = data.take(np.argsort(data.client, kind="stable"))  # each client's rows keep their order
    assert prepared(shuffled, Recipe()).as_json() in all_clients


def test_messages_are_plain_json():
    data = table()
    data.x[data.client == "a", 1] = np.nan  # a client without any dose
    for name, own in data.by_client():
        message = Summary.of(name, own)
        again = Summary.from_plain(json.loads(json.dumps(message.plain(), allow_nan=False)))
        assert again.plain() == message.plain()
        assert again.low.tolist() == message.low.tolist()


def test_rare_categories_are_counted_over_all_clients():
    client = np.repeat(["a", "b", "c"], 6)
    x = np.array([0, 0, 0, 1, 1, 2] * 3, dtype=float)[:, None]
    arrays = {
        "x": x,
        "y": x[:, 0],
        "client": client,
        "categories": np.array(["p", "q", "r"]),
        "category_of": np.zeros(3, int),
    }
    data = from_arrays("here", arrays)
    assert prepared(data, Recipe(min_count=6)).features == [
        "x0=other",
        "x0=p",
        "x0=q",
    ]  # q: 2 rows at each of 3 clients
    assert prepared(data, Recipe(min_count=7)).features == ["x0=p"]  # the others are "other"
    assert prepared(data, Recipe(min_count=3)).features == ["x0=p", "x0=q", "x0=r"]


def test_a_stored_preparation_round_trips():
    preparation = prepared(table(), Recipe(flag_missing=True))
    assert Preparation.of_json(preparation.as_json(), "here") == preparation


@pytest.mark.parametrize(
    ("text", "expected_message"),
    [
        ("{}", "here: preparation.json: object missing required field `version`"),
        ("[", "here: preparation.json is not JSON"),
        ("[" * 10**6, "here: preparation.json is not JSON: nested too deeply"),
        ("[1]", "here: preparation.json: expected `object`, got `array`"),
        ('{"version": 1}', "here: preparation.json: object missing required field `columns`"),
        (
            Preparation(["a"], [], {}, []).as_json(),
            "here: preparation.json: columns must be distinct, with one fill value",
        ),
        (Preparation(["a"], [1], {}, ["b"]).as_json(), "here: preparation.json: categories and flagged must name col"),
        (Preparation(["a"], [1], {"a": Categories(["p"], [])}, []).as_json(), "category names must be distinct"),
        (Preparation(["a"], [1], {}, [], [1], []).as_json(), "here: preparation.json: mean and scale must have 1 numb"),
        (Preparation(["a"], [1], {}, [], [1], [0]).as_json(), "here: preparation.json: scale must be positive"),
        ('{"version": 2}', "here: preparation.json: version is 2, must be 1: from another release"),
    ],
)
def test_invalid_preparation_files_are_refused(text, expected_message):
    with pytest.raises(UserError) as problem:
        Preparation.of_json(text, "here")
    assert expected_message in str(problem.value)


def test_columns_of_a_new_table_are_matched_by_name():
    data = table()
    preparation = prepared(data, Recipe())
    order = [2, 0, 3, 1]
    new = Features("new.csv", data.x[:, order], [data.feature_names[k] for k in order], {0: WARDS, 2: ["f", "m"]})
    np.testing.assert_array_equal(preparation.apply(new), preparation.apply(data.raw))


@pytest.mark.parametrize(
    ("names", "levels", "expected_message"),
    [
        (["age", "dose", "ward"], {2: ["red"]}, "new.csv: its columns are not those of the model: missing columns sex"),
        (["age", "doze", "ward", "sex"], {}, "missing columns dose; unknown columns doze; did you mean doze?"),
        (["age", "dose", "ward", "sex", "note"], {}, "unknown columns note"),
        (["age", "dose", "ward", "sex"], {0: ["old"]}, "column 'age' holds texts; the model was trained on numbers"),
    ],
)
def test_a_table_of_other_columns_is_refused(names, levels, expected_message):
    new = Features("new.csv", np.zeros((1, len(names))), names, levels)
    with pytest.raises(UserError) as problem:
        prepared(table(), Recipe()).apply(new)
    assert expected_message in str(problem.value)


def test_an_unknown_category_is_other_or_missing():
    preparation = prepared(table(), Recipe())
    new = Features("new.csv", np.array([[1.0, 1, 0, 0]]), ["age", "dose", "ward", "sex"], {2: ["teal"], 3: ["x"]})
    row = dict(zip(preparation.features, preparation.encode(new)[0], strict=True))
    assert row["ward=other"] == 1
    assert row["sex=m"] == preparation.categories["sex"].fill[1]


def test_numeric_categories_are_matched_by_name():
    arrays = {"x": np.array([[0.0], [1], [0], [1]]), "y": np.zeros(4), "client": np.array(["a", "a", "b", "b"])}
    data = from_arrays("here", arrays | {"categories": np.array(["1", "2.5"]), "category_of": np.zeros(2, int)})
    preparation = prepared(data, Recipe(min_count=1, standardize=False))
    new = Features("new.csv", np.array([[2.5], [1], [np.nan]]), ["x0"], {})
    assert preparation.encode(new)[:, 0].tolist() == [1, 0, 0.5]


def test_constant_columns_are_listed_and_become_0():
    arrays = {"x": np.array([[1.0, 5, np.nan], [2, 5, np.nan]] * 2), "y": np.zeros(4), "client": np.array(list("aabb"))}
    preparation = prepared(data := from_arrays("here", arrays), Recipe())
    assert preparation.constant == ["x1", "x2"]
    assert (preparation.apply(data.raw)[:, 1:] == 0).all()


def test_rows_without_preparation_are_not_copied():
    arrays = {"x": np.arange(8.0).reshape(4, 2), "y": np.zeros(4), "client": np.array(list("aabb"))}
    data = from_arrays("here", arrays)
    assert prepared(data, Recipe(standardize=False)).apply(data.raw) is data.x


@pytest.mark.parametrize("dtype", ["uint8", "int64", "bool", "float32"])
@pytest.mark.parametrize("fill", ["mean", "median"])
def test_numbers_may_be_of_any_type(dtype, fill):
    x = np.random.default_rng(0).integers(2, size=(12, 3)).astype(dtype)
    data = from_arrays("here", {"x": x, "y": np.zeros(12), "client": np.repeat(["a", "b"], 6)})
    np.testing.assert_allclose(
        prepared(data, Recipe(fill=fill)).apply(data.raw), StandardScaler().fit_transform(x.astype(float)), atol=1e-6
    )


def messages(*tables: Features) -> list[Summary]:
    return [Summary.of(f"site {k}", own) for k, own in enumerate(tables)]


@pytest.mark.parametrize(
    ("other", "expected_message"),
    [
        (
            Features("b", np.ones((2, 1)), ["years"], {}),
            "client 'site 1': its columns differ from those of 'site 0': ward, years",
        ),
        (
            Features("b", np.ones((2, 1)), ["ward"], {}),
            "column 'ward': holds numbers at some clients and texts at others",
        ),
        (
            Features("b", np.arange(2000.0)[:, None], ["ward"], {0: [f"name {k}" for k in range(2000)]}),
            f"column 'ward': has 2001 categories (name 0, name 1, name 10 and 1998 more), at most {MAX_CATEGORIES}",
        ),
    ],
)
def test_sites_with_different_columns_are_refused(other, expected_message):
    with pytest.raises(UserError) as problem:
        merged(messages(Features("a", np.zeros((2, 1)), ["ward"], {0: ["red"]}), other))
    assert expected_message in str(problem.value)


def test_missing_values_can_be_refused():
    with pytest.raises(UserError, match=r"column 'age': \d+ values are missing, which task.fill=refuse does not allow"):
        prepared(table(), Recipe(fill="refuse"))
