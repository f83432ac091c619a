"""Attacks on a site with the default policy: each is refused with one line, or its answer reveals no row."""

from __future__ import annotations

import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fco_cli.algorithms.transforms import NoTransform
from fco_cli.algorithms.transforms.clip_noise import ClipNoise
from fco_cli.data.preparation import Recipe, agree
from fco_cli.data.published import PUBLICATIONS
from fco_cli.data.statistics import Summary
from fco_cli.federation.message import Message
from fco_cli.federation.policy import Refusal, preset
from fco_cli.federation.schema import Noise
from fco_cli.federation.site.cells import are_record_numbers, merge_rare, merged_bins
from tests.federation.site.conftest import refusal

FOLD = {"folds": 5, "by": "rows", "classes": False, "seed": 0, "draw": 0}


def ready(attacker, **task):
    attacker.apply(attacker.prepare(**task))
    assert attacker.stack().kind == "stack"
    return attacker


def test_two_runs_that_differ_by_one_row(attack):
    """n mean - (n - 1) mean' of two preparations is the held-out row."""
    attacker = attack()
    assert attacker.prepare().head["training"] == 60
    reason = refusal(attacker.prepare(holdout="rows", holdout_fraction=0.0001))
    assert reason.startswith("a part (held-out rows) of 1 row requested; the site's policy allows 10 or more")


def test_nested_held_out_rows(attack):
    """Both parts are large enough, but their difference is one row."""
    attacker = attack()
    assert attacker.prepare(holdout="rows", holdout_fraction=0.25).head["held_out"] == 15
    reason = refusal(attacker.prepare(holdout="rows", holdout_fraction=0.267))
    assert "differs from another one by 1 row" in reason
    assert "differences of 10 or more (site.yaml: min_rows, refuse_differences)" in reason
    assert attacker.prepare(holdout="rows", holdout_fraction=0.5).head["held_out"] == 30


def test_a_new_version_of_the_file_with_one_more_row(attack, rows, tmp_path):
    attack().prepare()
    x, y = np.append(rows[0], [[1.0, 2.0, 3.0]], axis=0), np.append(rows[1], 1.0)
    np.savez(tmp_path / "new.npz", x=x, y=y, client=np.full(61, "north"))
    assert "differs from another one by 1 row" in refusal(attack(data=tmp_path / "new.npz").prepare())


def test_a_new_version_of_the_file_with_held_out_rows(attack, rows, tmp_path):
    """Training and held-out rows of both versions differ by many rows, but together by one: the patient's loss."""

    def total(attacker) -> np.ndarray:
        """Return the sums of the losses of three models over all rows."""
        prepared, w = attacker.prepare(holdout="rows", holdout_fraction=0.3), np.eye(4)[:3]
        if prepared.kind == "refused":
            assert "differs from another one by 1 row" in refusal(prepared)
            return np.full(3, np.nan)
        attacker.apply(prepared)
        values = [attacker.evaluate(w, gradient=False, part=part).arrays["value"] for part in ("training", "held_out")]
        return prepared.head["training"] * values[0] + prepared.head["held_out"] * values[1]

    x, y = np.insert(rows[0], 0, [1.0, 2.0, 3.0], axis=0), np.insert(rows[1], 0, 1.0)
    np.savez(tmp_path / "new.npz", x=x, y=y, client=np.full(61, "north"))
    patient = -np.log(np.expm1(total(attack(preset("demo"), tmp_path / "new.npz")) - total(attack(preset("demo")))))
    np.testing.assert_allclose(patient, [1.0, 2.0, 3.0], rtol=1e-9)
    assert np.isfinite(total(attack())).all()
    assert np.isnan(total(attack(data=tmp_path / "new.npz"))).all()


def test_the_analyst_s_seed_does_not_choose_rows(attack):
    """Splits and folds of any seed, and of any list of sites, are the same rows."""
    attacker = attack()
    first = attacker.prepare(seed=0, holdout="rows", holdout_fraction=0.3).head["summary"]["mean"]
    assert attacker.prepare(seed=7, holdout="rows", holdout_fraction=0.3).head["summary"]["mean"] == first
    of_fold = [
        attacker.prepare(seed=seed, fold={"deal": FOLD | {"seed": seed}, "number": 1}).head["summary"]["mean"]
        for seed in (0, 7)
    ]
    assert of_fold[0] == of_fold[1]
    assert attacker.site.disclosure.ledger.subsets() == 5  # two of the split, two of the fold, and the whole file


def test_research_accepts_the_analyst_s_seed(attack):
    attacker = attack(preset("research"))
    means = [attacker.prepare(seed=seed, holdout="rows").head["summary"]["mean"] for seed in (0, 7)]
    assert means[0] != means[1]


def test_many_folds_and_a_linear_solve(attack, rows):
    """60 questions about folds would determine 60 rows."""
    attacker, answered, reason = attack(), 0, ""
    for draw in range(60):
        response = attacker.prepare(fold={"deal": FOLD | {"draw": draw}, "number": 0})
        if response.kind == "refused":
            reason = refusal(response)
            break
        answered += 1
    assert answered <= 0.33 * 60
    assert "row subsets over all runs requested; the site's policy allows 19 for 60 rows" in reason


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"batch_size": 1, "steps": 1}, "a batch of 1 row requested; the site's policy allows 10 or more"),
        ({"batch_size": 9}, "a batch of 9 rows requested"),
        ({"batch_size": 57}, "a last batch of 3 rows requested"),
        ({"batch_size": 57, "last_batch": "drop"}, "unequal numbers of visits of rows requested"),
        ({"batch_size": 59, "steps": 1}, "unequal numbers of visits of rows requested"),
        ({"batch_size": 30, "steps": 1}, "unequal numbers of visits of rows requested; the site's policy allows equal"),
        ({"batch_size": 31, "steps": 3}, "unequal numbers of visits of rows requested"),
        ({"local_epochs": 10**6}, "1,000,000 local steps of one round requested; the site's policy allows 1,000"),
        ({"batch_size": 10, "local_epochs": 200}, "1,200 local steps of one round requested"),
    ],
)
def test_rounds_that_are_refused(attack, changes, expected):
    attacker = ready(attack())
    assert expected in refusal(attacker.train(**changes))
    assert attacker.site.disclosure.ledger.read().rounds == 0


def test_batch_1_returns_a_row_without_the_rule(attack, rows):
    """The attack itself: weights / bias of one step on one row are that row."""
    attacker = ready(attack(preset("demo")))
    assert "a batch of 1 row" in refusal(attacker.train(batch_size=1, steps=1))
    attacker.site.disclosure.check_batches = lambda *_: None
    w = attacker.train(batch_size=1, steps=1).arrays["w"][0]
    assert np.abs(rows[0] - w[:3] / w[3]).max(axis=1).min() < 1e-9


def test_batches_of_known_rows(attack):
    """The analyst cannot compute the batches of a seed; two sites draw different ones."""
    attacker = ready(attack())
    answers = [attacker.train(batch_size=20, seed=seed).arrays["w"][0] for seed in (0, 0, 1)]
    np.testing.assert_array_equal(answers[0], answers[1])
    assert not np.array_equal(answers[0], answers[2])
    exact = ready(attack(preset("research")))
    assert not np.array_equal(exact.train(batch_size=20).arrays["w"][0], answers[0])
    disclosure = attacker.site.disclosure
    seeds = [disclosure.batch_seed(0, size, 1, "keep", None) for size in (30, 31)]
    assert seeds[0] != seeds[1]  # otherwise the first batches would differ by one row


def test_one_request_with_thousands_of_models(attack):
    attacker = ready(attack())
    steep = np.random.default_rng(0).normal(size=(6000, 4)) * 1e6
    expected = "6,000 models of one request requested; the site's policy allows 100 (site.yaml: max_models_per_request)"
    assert refusal(attacker.evaluate(steep)) == expected


def test_the_budget_counts_models_and_numbers_over_all_sessions(attack):
    """Half of the 240 values of the table may be answered, over all messages and sessions."""
    answered, reason = 0, ""
    for attacker in [ready(attack()) for _ in range(3)]:
        while (response := attacker.evaluate(np.zeros((3, 4)), gradient=False)).kind == "evaluate":
            answered += sum(values.size for values in response.arrays.values())
        reason = refusal(response)
        attacker.site.audit.path.unlink()  # a rotated audit file does not reset the ledger
    assert answered == 84  # and three summaries of 12 numbers
    assert "numbers requested; " in reason
    assert "of 120 are left over all runs (site.yaml: max_equations_per_value)" in reason


def test_the_ten_thousandth_evaluation(attack):
    attacker = ready(attack(preset("strict", max_equations_per_value=None)))
    for _ in range(50):
        assert attacker.evaluate(np.zeros((100, 4)), gradient=False).kind == "evaluate"
    expected = "1 evaluated models requested; 0 of 5,000 are left over all runs (site.yaml: max_evaluations)"
    assert refusal(attacker.evaluate(gradient=False)) == expected


def test_concurrent_sessions_share_one_count(attack):
    attackers = [ready(attack(preset("demo", max_evaluations=6))) for _ in range(3)]

    def ask(attacker) -> int:
        return sum(attacker.evaluate().kind == "evaluate" for _ in range(5))

    with ThreadPoolExecutor(3) as executor:
        assert sum(executor.map(ask, attackers)) == 6


def test_a_damaged_ledger_answers_nothing(attack):
    attacker = ready(attack())
    attacker.site.disclosure.ledger.path.write_text("{")
    assert "is damaged; the site answers nothing without its ledger" in refusal(attacker.evaluate())


@pytest.mark.parametrize("sizes", [(512,), (512, 256)])
def test_a_full_disk_answers_nothing(attack, monkeypatch, sizes):
    """What cannot be counted is refused, and what cannot be audited either ends the request without an answer."""
    attacker, write = ready(attack()), os.pwrite

    def pwrite(file: int, content: bytes, offset: int) -> int:
        if len(content) in sizes:  # of the counts, and of the head of the audit file
            raise OSError(errno.ENOSPC, "no space left on device")
        return write(file, content, offset)

    before = attacker.site.disclosure.ledger.read()
    monkeypatch.setattr(os, "pwrite", pwrite)
    if len(sizes) == 1:
        assert refusal(attacker.evaluate()) == "failed with OSError; see the log of the site"
    else:
        with pytest.raises(OSError, match="no space left"):
            attacker.evaluate()
    monkeypatch.setattr(os, "pwrite", write)
    assert attacker.site.disclosure.ledger.read() == before
    assert attacker.evaluate().kind == "evaluate"


def test_extremes_are_not_single_values(attack, rows):
    summary = attack().prepare().head["summary"]
    for name in ("low", "high"):
        for k, value in enumerate(summary[name]):
            assert value not in rows[0][:, k]
            assert value % 0.25 == 0
    for low, mean, high in zip(summary["low"], summary["mean"], summary["high"], strict=True):
        assert low <= mean <= high
    assert (np.sort(rows[0], axis=0)[0] < summary["low"]).any()  # an outlier is not covered


@pytest.fixture
def table(tmp_path):
    """Write a CSV table: an identifier, a column with rare categories, a number."""
    random = np.random.default_rng(0)
    lines = ["mrn,ward,age,y"]
    for k in range(64):
        ward = "A" if k < 30 else "B" if k < 58 else f"rare{k % 3}"
        lines.append(f"MRN{k:05},{ward},{random.normal():.3f},{k % 2}")
    path = tmp_path / "north.csv"
    path.write_text("\n".join(lines))
    return path


def test_identifiers_stay_at_the_site(attack, table):
    attacker = attack(data=table, categorical=("mrn",))  # otherwise the reader refuses the column
    reason = refusal(attacker.send("describe"))
    assert reason.startswith("column 'mrn': 64 categories in 64 rows are identifiers, which are not sent")
    assert "MRN0" not in reason


NUMBERS = {
    "serial": lambda random, n: random.permutation(n) + 1001.0,
    "serial with gaps": lambda random, n: np.sort(random.choice(2 * n, n, replace=False)).astype(float),
    "repeated visits": lambda random, n: np.append(np.arange(n - 3), [4, 9, 9]).astype(float),
    "seven digits": lambda random, n: random.integers(10**6, 10**7, n).astype(float),
    "dates": lambda random, n: 19_000_000 + 10_000.0 * random.integers(0, 99, n) + 101 + random.integers(0, 28, n),
}
MEASUREMENTS = {
    "age": lambda random, n: random.normal(60, 12, n).round(),
    "uniform age": lambda random, n: random.integers(18, 95, n).astype(float),
    "cholesterol": lambda random, n: random.normal(240, 50, n).round(),
    "creatine kinase": lambda random, n: random.lognormal(5, 1, n).round(),
    "platelets": lambda random, n: random.normal(250_000, 60_000, n).round(-3),
    "weight": lambda random, n: random.normal(80, 15, n).round(1),
    "income": lambda random, n: random.lognormal(10.5, 0.6, n).round(-2),
    "sex": lambda random, n: random.integers(0, 2, n).astype(float),
    "missing": lambda random, n: np.full(n, np.nan),
    "huge": lambda random, n: random.normal(size=n) * 1e300,
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_record_numbers_stay_at_the_site(attack, rows, tmp_path, kind):
    x = rows[0].copy()
    x[:, 1] = NUMBERS[kind](np.random.default_rng(0), 60)
    np.savez(tmp_path / "numbers.npz", x=x, y=rows[1], client=np.full(60, "north"))
    reason = refusal(attack(data=tmp_path / "numbers.npz").send("describe"))
    assert reason == (
        "column 'x1': looks like record numbers, which are not sent; drop the column at the site (fco-federate join "
        "--drop) or, if it is a measurement, keep it (site.yaml: keep_numbers)"
    )
    policy = preset("strict", keep_numbers=["x1"])
    assert attack(policy, tmp_path / "numbers.npz").send("describe").kind == "describe"


@pytest.mark.parametrize("kind", MEASUREMENTS)
def test_measurements_are_no_record_numbers(kind):
    """Measurements at hospitals of any size are no record numbers, even if all values differ."""
    for n in (1, 10, 20, 50, 200, 2000):
        for seed in range(20):
            assert not are_record_numbers(MEASUREMENTS[kind](np.random.default_rng(seed), n)), (n, seed)


@pytest.mark.parametrize(("name", "folder"), [("heart", "heart_disease"), ("eicu", "eicu_demo")])
def test_no_column_of_a_published_table_looks_like_record_numbers(real_data, name, folder):
    """Neither at any of its hospitals nor in the whole table."""
    check_columns(PUBLICATIONS[name].read(str(real_data(folder)), 0))


def test_no_column_of_the_crime_table_looks_like_record_numbers(real_data):
    check_columns(PUBLICATIONS["crime"].read(str(real_data("communities_crime")), 2))


def check_columns(data):
    for rows in (np.ones(len(data.y), bool), *(data.client == name for name in data.clients)):
        for feature in set(range(data.x.shape[1])) - data.levels.keys():
            assert not are_record_numbers(np.asarray(data.x[rows, feature], float)), data.feature_names[feature]


def test_rare_categories_have_no_names(attack, table):
    attacker = attack(data=table, drop=("mrn",))
    response = attacker.prepare()
    assert response.head["summary"]["categories"] == {"ward": {"A": 30, "other": 34}}
    assert "rare" not in json.dumps(response.head)


def test_merged_categories_reach_the_minimum():
    assert merge_rare({"a": 30, "b": 12, "c": 4}, 10) == {"a": 30, "other": 16}
    assert merge_rare({"a": 30, "b": 12}, 10) == {"a": 30, "b": 12}
    assert merge_rare({"a": 3, "b": 4}, 10) == {"other": 7}
    assert merge_rare({"a": 30, "other": 11}, 10) == {"a": 30, "other": 11}


def test_merged_bins_reach_the_minimum():
    merged = merged_bins(np.array([1.0, 0, 4, 6, 0, 12, 3, 0]), 10)
    assert merged.tolist() == [0, 0, 0, 11, 0, 15, 0, 0]
    assert merged_bins(np.array([1.0, 2]), 10).tolist() == [0, 3]


def test_free_histogram_edges(attack, rows):
    """Bisecting edges gives every value; the site's grid has a few lines per standard deviation."""
    assert "share_histograms" in refusal_of_count(attack())
    attacker = attack(preset("strict", share_histograms=True))
    attacker.prepare()
    low, high, target = -4.0, 4.0, 30
    for _ in range(12):
        middle = (low + high) / 2
        counts = attacker.ask("count", {"fits": [0]}, edges=np.full((3, 16), middle)).arrays
        if "counts" not in counts:
            break
        low, high = (low, middle) if counts["counts"][0, 0] >= target else (middle, high)
    assert np.abs(np.sort(rows[0][:, 0]) - high).min() > 1e-3
    tail = attack(preset("strict", share_histograms=True, max_equations_per_value=None))
    tail.prepare()
    edges = np.tile(np.linspace(-4, 4, 16), (3, 1))
    counts = tail.ask("count", {"fits": [0]}, edges=edges).arrays["counts"]
    assert not ((counts > 0) & (counts < 10)).any()
    assert not ((counts > 50) & (counts < 60)).any()


def refusal_of_count(attacker) -> str:
    attacker.prepare()
    return refusal(attacker.ask("count", {"fits": [0]}, edges=np.zeros((3, 16))))


def test_histograms_are_limited(attack):
    attacker = attack(preset("demo", max_counts=8))
    attacker.prepare()
    for _ in range(8):
        assert attacker.ask("count", {"fits": [0]}, edges=np.zeros((3, 16))).kind == "count"
    assert "0 of 8 are left over all runs (site.yaml: max_counts)" in refusal(
        attacker.ask("count", {"fits": [0]}, edges=np.zeros((3, 16)))
    )


def test_small_numbers_of_hits_are_hidden(attack, rows, tmp_path):
    """Three rows are on the wrong side of a plane."""
    y = (rows[0][:, 0] > 0).astype(float)
    y[:3] = 1 - y[:3]
    np.savez(tmp_path / "planes.npz", x=rows[0], y=y, client=np.full(60, "north"))
    planes = np.array([[1.0, 0, 0, 0], [-1.0, 0, 0, 0]])
    exact = ready(attack(preset("demo"), tmp_path / "planes.npz")).evaluate(planes, gradient=False).arrays["hits"]
    assert exact.tolist() == [57, 3]
    policy = preset("strict", share_accuracy=True)
    hidden = ready(attack(policy, tmp_path / "planes.npz")).evaluate(planes, gradient=False).arrays["hits"]
    assert hidden.tolist() == [60, 0]


def test_curvature(attack):
    attacker = ready(attack())
    assert "a batch of 1 row" in refusal(attacker.send("smoothness", {"fit": 0, "seed": 0, "batch_size": 1}))
    assert attacker.send("smoothness", {"fit": 0, "seed": 0, "batch_size": 20}).kind == "smoothness"
    strict = ready(attack(preset("strict", max_parameters_per_row=0.05)))
    expected = "curvature of a model with 4 parameters requested; the site's policy allows 3 for 60 rows"
    assert expected in refusal(strict.send("smoothness", {"fit": 0, "seed": 0, "batch_size": 20}))


def test_hessians(attack):
    """A Hessian needs a model with few parameters per row; all of its numbers are counted."""
    attacker = ready(attack())
    before = attacker.site.disclosure.ledger.read()
    answer = attacker.hessian(np.zeros((2, 4)), hessians=1)
    assert {name: values.shape for name, values in answer.arrays.items()} == {
        "value": (2,), "gradient": (2, 4), "hessian": (1, 10),
    }  # fmt: skip
    after = attacker.site.disclosure.ledger.read()
    assert (after.evaluations - before.evaluations, after.numbers - before.numbers) == (2, 2 + 8 + 10)
    assert attacker.hessian(columns=[0, 3]).arrays["hessian"].shape == (1, 3)
    assert "columns: must be below 4, the number of parameters" in refusal(attacker.hessian(columns=[4]))
    assert "hessians: must be from 0 to 1" in refusal(attacker.hessian(hessians=2))
    assert "fit 1 of 1 does not exist" in refusal(attacker.send("hessian", {"fits": [FIT | {"fit": 1}]}))
    wide = ready(attack(preset("strict", max_parameters_per_row=0.05)))
    expected = "curvature of a model with 4 parameters requested; the site's policy allows 3 for 60 rows"
    assert expected in refusal(wide.hessian())
    assert expected in refusal(wide.hessian(columns=[0]))  # blocks of a matrix determine it, too
    noisy = attack(preset("strict", min_noise=1.0))
    assert noisy.site.disclosure.max_parameters(60, np.zeros((60, 1))) == 0
    assert "Hessians without noise requested" in refusal(noisy_hessian(noisy))
    listed = attack(preset("strict", messages=["describe", "prepare", "apply", "evaluate"]))
    listed.apply(listed.prepare())
    assert listed.site.disclosure.max_parameters(60, np.zeros((60, 1))) == 0
    assert "does not allow hessian" in refusal(listed.hessian())


FIT = {"jobs": 1, "weights": None, "hessians": 1}


def noisy_hessian(attacker) -> Message:
    attacker.send("describe")
    return attacker.send("hessian", {"fits": [FIT | {"fit": 0}]}, **{"w.0": np.zeros((1, 4))})


def test_unknown_answers_are_refused(attack):
    """Undeclared kinds of answers and uncounted numbers do not leave the site."""
    attacker = ready(attack())
    attacker.site.kinds["stack"] = lambda request, arrays: Message("", arrays={"rows": np.zeros((60, 3))})
    assert "answers to 'stack' are not covered by the site's disclosure control" in refusal(attacker.stack())
    attacker.site.kinds["forget"] = lambda request: Message("", {"rows": [1.0]})
    assert "not covered" in refusal(attacker.send("forget", {"tokens": []}))


def test_transforms_and_noise(attack):
    allowed = ready(attack(preset("demo", transforms=["none", "clip_noise"])))
    assert "does not allow topk" in refusal(allowed.stack(transform={"name": "topk"}, numbers=np.array([[0.1]])))
    attacker = attack(preset("demo", min_noise=2.0))
    attacker.send("describe")
    assert (
        "summaries of columns without noise requested; the site's policy allows 2 or more (site.yaml: min_noise)"
        in (refusal(attacker.prepare()))
    )


def test_overflows_of_masked_answers_are_limited(attack):
    """A sum discloses that a site was out of range: models scaled to the edge of the range would reveal its loss."""
    disclosure = attack(preset("strict", max_equations_per_value=None)).site.disclosure
    disclosure.start(3)
    disclosure.charge(20, evaluations=20)
    disclosure.charge_overflows(np.zeros(20, dtype=bool))
    disclosure.charge(1, evaluations=1)
    disclosure.charge_overflows(np.zeros(1, dtype=bool))
    with pytest.raises(Refusal, match=r"0 of 20 are left over all runs \(site.yaml: max_overflows\)"):
        disclosure.charge(1, evaluations=1)  # also of a model in range: a refusal of some would reveal which
    disclosure.start(1)
    disclosure.charge(1, evaluations=1)  # without masks


def test_a_preparation_cannot_mark_single_rows(attack, rows):
    """An indicator of one value of a column of numbers would select the patients with that value."""
    attacker = attack()
    summary = attacker.prepare().head["summary"]
    exact = repr(float(rows[0][7, 0]))
    preparation = {
        "version": 1, "columns": summary["columns"], "fill": [0.0] * 3, "flagged": [], "constant": [], "mean": [],
        "scale": [], "categories": {"x0": {"names": ["other", exact, "b"], "fill": [0.0, 0.0, 0.0]}},
    }  # fmt: skip
    response = attacker.send("apply", {"preparations": [json.dumps(preparation)], "outputs": 1, "start": None})
    assert refusal(response) == "column 'x0': indicators of numbers requested; they are allowed for categories"


def test_sums_count_rare_categories_as_other(attack, table):
    """Also if the analyst guesses their names; the numbers are counted."""
    attacker = attack(data=table, drop=("mrn",))
    response = attacker.prepare(exact=True)
    assert response.head["summary"] is None
    assert response.head["categories"] == {"ward": ["A", "other"]}
    names = {"ward": ["A", "other", "rare0", "rare1"]}
    sums = attacker.ask("summarize", {"categories": [names]}, center=np.zeros(2)).arrays["exact"]
    assert sums[[0, 1]].tolist() == [0, 64]  # numbers of the columns ward and age
    assert sums[6:].tolist() == [30, 34, 0, 0]
    assert attacker.site.disclosure.ledger.read().numbers == 3 * 2 + 4
    for head, reason in (
        ({"categories": [{"mrn": ["A"]}]}, "must be those of the site's columns"),
        ({"categories": [{"ward": ["A", "A"]}]}, "categories must be distinct"),
        ({"categories": [{"ward": []}]}, "length >= 1"),
    ):
        assert reason in refusal(attacker.ask("summarize", head, center=np.zeros(2)))
    assert "the array center.0 is missing" in refusal(attacker.send("summarize", {"categories": [{}]}))


def test_sums_of_columns_that_mark_few_rows(attack, rows, tmp_path):
    x = rows[0].copy()
    x[:, 1] = np.arange(60) < 3
    np.savez(tmp_path / "rare.npz", x=x, y=rows[1], client=np.full(60, "north"))
    reason = refusal(attack(data=tmp_path / "rare.npz").prepare(exact=True))
    assert "a column (x1) with another value of 3 rows requested" in reason


def test_rare_categories_have_no_indicators(attack, table):
    """Another site may have many rows of a category that is rare here."""
    attacker = attack(data=table, drop=("mrn",))
    summary = attacker.prepare().head["summary"]
    levels = {"ward": {"names": ["other", "A", "rare0"], "fill": [0.0, 0.0, 0.0]}}
    preparation = {
        "version": 1, "columns": summary["columns"], "fill": [0.0] * 2, "flagged": [], "constant": [], "mean": [],
        "scale": [], "categories": levels,
    }  # fmt: skip
    assert (
        attacker.send("apply", {"preparations": [json.dumps(preparation)], "outputs": 1, "start": None}).kind == "apply"
    )
    x = attacker.site.data.fits[0].rows().training.x
    assert x[:, :3].sum(axis=0).tolist() == [34, 30, 0]


def test_columns_that_mark_few_rows(attack, rows, tmp_path):
    x = rows[0].copy()
    x[:, 1] = np.arange(60) < 3  # a rare disease
    np.savez(tmp_path / "rare.npz", x=x, y=rows[1], client=np.full(60, "north"))
    reason = refusal(attack(data=tmp_path / "rare.npz").prepare())
    assert reason.startswith(
        "a column (x1) with another value of 3 rows requested; the site's policy allows 10 or more"
    )
    x[:, 1] = np.where(np.arange(60) < 57, rows[0][:, 1], np.nan)
    np.savez(tmp_path / "missing.npz", x=x, y=rows[1], client=np.full(60, "north"))
    attacker = attack(data=tmp_path / "missing.npz")
    summary = attacker.prepare().head["summary"]
    agreed = agree(Summary.from_plain(summary), Recipe(standardize=False, flag_missing=True))
    response = attacker.send("apply", {"preparations": [agreed.as_json()], "outputs": 1, "start": None})
    assert "an indicator of missing values (x1) of 3 rows requested" in refusal(response)


def test_an_exhausted_budget_answers_no_summary(attack):
    """A refused row subset is recorded; requesting it again is refused, too."""
    attacker = attack(preset("strict", max_equations_per_value=0.06))
    assert attacker.prepare().kind == "prepare"
    for _ in range(2):
        assert "max_equations_per_value" in refusal(attacker.prepare(holdout="rows", holdout_fraction=0.5))


def test_noise_below_the_minimum(attack):
    rules = attack(preset("strict", min_noise=2.0)).site.disclosure
    rules.start(sites=4)
    rules.check_multiplier(ClipNoise(), np.array([2.0, 3.0]))
    rules.check_message_noise(np.array([1.0]), np.array([1.0]))  # four shares of variance 1: 2 times the norm
    rules.check_evaluation_noise(Noise(most=1.0, deviation=1.0, rows=100.0))
    for call in (
        lambda: rules.check_multiplier(ClipNoise(), np.array([2.0, 1.9])),
        lambda: rules.check_multiplier(NoTransform(), None),
        lambda: rules.check_message_noise(np.array([0.9]), np.array([1.0])),
        lambda: rules.check_message_noise(None, np.array([np.inf])),
        lambda: rules.check_evaluation_noise(Noise(most=1.0, deviation=0.9, rows=100.0)),
        lambda: rules.check_evaluation_noise(None),
        lambda: rules.check_noise_free("curvature"),
    ):
        with pytest.raises(Refusal, match=r"policy allows 2 or more \(site.yaml: min_noise\)"):
            call()
