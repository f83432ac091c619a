"""Combinations of answers about models over all runs: sums over few rows are refused, and nothing else.

Every attack is also run against a site whose policy allows it, where it succeeds.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.special import expit

from fco_cli.data.preparation import Recipe, agree
from fco_cli.data.statistics import Summary
from fco_cli.errors import UserError
from fco_cli.federation import settings
from fco_cli.federation.message import Message
from fco_cli.federation.policy import preset
from fco_cli.federation.site.isolation import FILE, SLOPES, RowSpan
from fco_cli.path.select import select
from tests.federation.conftest import NAMES
from tests.federation.site.conftest import refusal
from tests.federation.test_path import FEW

ROWS = 240
SIGNS = np.array([1.0, -1.0, -1.0, 1.0])
POLICY = {"max_equations_per_value": None}


def table_of(both: int, rows: int = ROWS, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return features, two indicators that `both` rows share, age and creatinine, and labels."""
    random = np.random.default_rng(seed)
    one, other = np.arange(rows) < rows // 3, np.arange(rows) >= rows // 3
    other[rows // 3 + 60 :] = False
    other[:both] = True
    x = np.column_stack([one, other, random.normal(size=(rows, 2)).round(2)]).astype(float)
    return x, (random.random(rows) < 0.4).astype(float)


@pytest.fixture
def hospital(attack, tmp_path):
    """Return a function that starts a session with a site that has a table, and prepares it."""

    def make(both: int, policy=None, rows: int = ROWS, **task):
        x, y = table_of(both, rows)
        np.savez(tmp_path / f"{rows}.npz", x=x, y=y, client=np.full(rows, "north"))
        attacker = attack(policy or preset("strict", **POLICY), tmp_path / f"{rows}.npz")
        attacker.apply(attacker.prepare(**task))
        return attacker

    return make


def cross_models(age: float = 0.0) -> np.ndarray:
    """Return models with neither, one, the other and both of two coefficients."""
    return np.array([[a, b, age, 0.0, 0.3] for a, b in product((0.0, 0.5), repeat=2)])


def gradients_of(attacker, models) -> np.ndarray | str:
    """Return the gradients of models, one a request, or the first refusal."""
    gradients = []
    for w in models:
        response = attacker.evaluate(w[None])
        if response.kind == "refused":
            return refusal(response)
        gradients.append(response.arrays["gradient"][0])
    return np.array(gradients)


@pytest.mark.parametrize("age", [0.0, 0.2])
@pytest.mark.parametrize("both", [1, 5, 9])
def test_cross_cells_of_few_rows(hospital, both, age):
    """With a coefficient of another column, the rows of a cell have different weights; those of all others cancel."""
    gradients = gradients_of(hospital(both, preset("research")), cross_models(age))
    x, _ = table_of(both)
    scores = cross_models(age)[:, :2] @ x[:, :2].T + cross_models(age)[:, 2:3] * x[:, 2] + 0.3
    expected = (SIGNS @ expit(scores))[:both] @ x[:both] / ROWS
    np.testing.assert_allclose((SIGNS @ gradients)[:4], expected, atol=1e-15)
    reason = gradients_of(hospital(both), cross_models(age))
    noun = "1 row" if both == 1 else f"{both} rows"
    assert reason == (
        f"answers whose combination is a sum over {noun} requested; the site's policy allows 10 or more (site.yaml: "
        "min_rows); drop or merge the columns x0 and x1, or use min_noise"
    )


def test_cross_cells_of_many_rows_are_answered(hospital):
    attacker = hospital(10)
    assert len(gradients_of(attacker, [*cross_models(), *cross_models(0.2), *cross_models(-0.1)])) == 12
    assert attacker.site.disclosure.ledger.read().steep_models == 0


def test_answers_of_earlier_sessions_count(hospital, tmp_path):
    """Also with another file that has the rows of the first, and after a write that did not end."""
    assert len(gradients_of(hospital(1), cross_models()[:3])) == 3
    path = tmp_path / "home" / "ledger" / FILE
    path.write_bytes(path.read_bytes() + b"\1\0\0\0\0\0\0\0\5")
    later = hospital(1)
    assert later.evaluate(cross_models(0.1)[:1]).kind == "evaluate"
    assert "a sum over 1 row" in gradients_of(later, cross_models()[3:])
    path.write_bytes(b"\7" * 16 + path.read_bytes())
    assert "is damaged" in gradients_of(hospital(1), cross_models()[3:])


def test_sessions_at_the_same_time(hospital):
    first, second = hospital(1), hospital(1)
    for k, attacker in enumerate((first, second, first)):
        assert len(gradients_of(attacker, cross_models()[k : k + 1])) == 1
    assert "a sum over 1 row" in gradients_of(second, cross_models()[3:])


def test_losses(hospital):
    """Differences of losses at close models are products of gradients; the loss of one patient remains."""
    step = np.array([0.0, 0.0, 1e-3, 0.0, 0.0])
    models = np.array([w + sign * step for w in cross_models() for sign in (1, -1)])
    for policy, expected in ((preset("research"), "evaluate"), (None, "refused")):
        attacker = hospital(1, policy)
        kinds = [attacker.evaluate(w[None], gradient=False).kind for w in models]
        assert kinds[-1] == expected
    assert kinds[:3] == ["evaluate"] * 3


def test_rounds(hospital):
    for policy, expected in ((preset("research"), "train"), (None, "refused")):
        attacker = hospital(1, policy)
        attacker.stack()
        kinds = [attacker.train(w[None], round=k).kind for k, w in enumerate(cross_models())]
        assert kinds == ["train"] * 3 + [expected]


def test_folds(hospital):
    """A fold holds out some of the 12 rows of a cross cell: gradients of all rows and of the fold differ by these."""
    attacker = hospital(12)
    assert len(gradients_of(attacker, cross_models())) == 4
    attacker.apply(
        attacker.prepare(fold={"deal": {"folds": 2, "by": "rows", "classes": False, "seed": 0, "draw": 0}, "number": 0})
    )
    held_out = attacker.site.data.fits[0].split.parts.validation[:12].sum()
    assert 0 < held_out < 10
    assert "requested; the site's policy allows 10 or more" in gradients_of(attacker, cross_models())


def corner_table(columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return indicators, all of which are 1 for one patient only, with large cells of fewer columns; and labels."""
    random = np.random.default_rng(0)
    x = random.integers(0, 2, (6 * ROWS, columns)).astype(float)
    x[x.all(axis=1), 0] = 0
    x[5] = 1
    return np.column_stack([x, random.normal(size=len(x))]), random.integers(0, 2, len(x)).astype(float)


@pytest.mark.parametrize(
    ("columns", "policy", "is_answered"), [(3, "research", True), (3, "strict", False), (4, "strict", True)]
)
def test_cells_of_more_columns(attack, tmp_path, columns, policy, is_answered):
    """Only cells of two and three columns are searched, a limit that docs/federation.md states."""
    x, y = corner_table(columns)
    np.savez(tmp_path / "corner.npz", x=x, y=y, client=np.full(len(y), "north"))
    models = np.array([[*w, 0.0, 0.2] for w in product((0.0, 0.5), repeat=columns)])
    attacker = attack(preset(policy, max_equations_per_value=None), tmp_path / "corner.npz")
    attacker.apply(attacker.prepare())
    found = gradients_of(attacker, models)
    if is_answered:
        cell = (-1.0) ** (models[:, :columns] > 0).sum(axis=1) @ found
        assert cell[columns] / cell[-1] == pytest.approx(x[5, columns], abs=1e-7)
    else:
        assert "a sum over 1 row requested" in found
        assert "the columns x0, x1 and x2" in found


def models_of_one_column(centers: np.ndarray, slope: float) -> np.ndarray:
    """Return models of four columns that use the first one only; their scores are 0 at the centers."""
    models = np.zeros((len(centers), 5))
    models[:, 0], models[:, -1] = slope, -slope * centers
    return models


def isolating_row(models: np.ndarray, values: np.ndarray, targets: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    """Return a row from a combination of gradients with slopes that are `targets` at values of the first column.

    The coefficients do not depend on any row; they add up to 0, so that labels cancel.
    """
    slopes = expit(models[:, 0] * values[:, None] + models[:, -1])
    lines = np.vstack([slopes, np.ones(len(models))])
    cell = np.linalg.lstsq(lines, np.append(targets, 0.0), rcond=None)[0] @ gradients
    return cell[:-1] / cell[-1]


def table_with(first: np.ndarray, special: float) -> tuple[np.ndarray, np.ndarray]:
    """Return rows with these values in the first column, those of patient 5 being special, and labels."""
    random = np.random.default_rng(3)
    x = np.column_stack([first, random.normal(size=(len(first), 2)).round(2), random.integers(0, 2, len(first))])
    x[5, 0] = special
    return x, random.integers(0, 2, len(first)).astype(float)


@pytest.mark.parametrize(
    ("values", "policy", "is_answered"), [(5, "research", True), (5, "strict", False), (30, "strict", True)]
)
def test_rare_values_of_a_column_of_numbers(attack, tmp_path, values, policy, is_answered):
    """Six gradients isolate one of five values; more than 12 values are not searched, as docs/federation.md states."""
    x, y = table_with(np.random.default_rng(1).integers(0, values - 1, 600).astype(float), values - 1.0)
    np.savez(tmp_path / "rare.npz", x=x, y=y, client=np.full(len(y), "north"))
    attacker = attack(preset(policy), tmp_path / "rare.npz")
    attacker.apply(attacker.prepare())
    models = models_of_one_column(np.linspace(0, values - 1, values + 1), 12 / values)
    found = gradients_of(attacker, models)
    if is_answered:
        grid = np.arange(values, dtype=float)
        row = isolating_row(models, grid, grid == values - 1, found)
        np.testing.assert_allclose(row, x[5], atol=1e-4)
    else:
        assert found == (
            "answers whose combination is a sum over 1 row requested; the site's policy allows 10 or more (site.yaml: "
            "min_rows); drop the column x0, or merge its rare values, or use min_noise"
        )


def test_a_value_far_from_all_others(attack, tmp_path):
    """A limit that docs/federation.md states: slopes that are almost 0 up to a value isolate the patient beyond it."""
    x, y = table_with(np.random.default_rng(1).random(600), 2.0)
    np.savez(tmp_path / "far.npz", x=x, y=y, client=np.full(len(y), "north"))
    attacker = attack(data=tmp_path / "far.npz")
    attacker.apply(attacker.prepare())
    models = models_of_one_column(np.linspace(-0.2, 1.2, 24), 6.0)
    grid = np.append(np.linspace(0, 1, 200), 1.5)
    row = isolating_row(models, grid, grid > 1, gradients_of(attacker, models))
    np.testing.assert_allclose(row, x[5], atol=0.03)


def test_fills_and_a_cross_cell(attack, tmp_path):
    """Two fills mark the rows without a value; with another column, few of them. No prepared column shows them."""
    x, y = table_with(np.random.default_rng(1).integers(0, 20, 600).astype(float), 3.0)
    x[:40, 0], x[:40, 3] = np.nan, 0.0
    x[7, 3] = 1.0
    np.savez(tmp_path / "missing.npz", x=x, y=y, client=np.full(len(y), "north"))
    for policy, answered in (("research", 4), ("strict", 3)):
        attacker, found = attack(preset(policy), tmp_path / "missing.npz"), []
        for fill in (7.0, 11.0):
            agreed = agree(Summary.from_plain(attacker.prepare().head["summary"]), Recipe(standardize=False))
            agreed = replace(agreed, fill=[fill, 0.0, 0.0, 0.0])
            assert attacker.send("apply", {"preparations": [agreed.as_json()], "outputs": 1, "start": None}).kind
            for both in (0.0, 0.5):
                response = attacker.evaluate(np.array([[0.1, 0.0, 0.0, both, -1.0]]))
                found += [response.arrays["gradient"][0]] if response.kind == "evaluate" else []
        assert len(found) == answered
        if answered == 4:
            cell = SIGNS @ np.array(found)
            np.testing.assert_allclose(cell[1:4] / cell[4], x[7, 1:], atol=1e-9)


def test_spans():
    random = np.random.default_rng(0)
    span, few, sets = RowSpan(), np.zeros(200), np.array([[5, 6, -1], [3, 50, 120], [3, 50, -1]])
    assert span.isolated(sets) is None
    span.resize(200)
    few[[3, 50, 120]] = 1.0, -2.0, 0.5
    others = random.normal(size=(40, 200))
    span.extend(others, 1e-9)
    assert (span.size, span.isolated(sets)) == (40, None)
    span.extend((others[0] + 1e-4 * few)[None], 1e-9)
    assert span.isolated(sets) == 1
    assert span.isolated(sets[2:]) is None
    span.extend(others + others[0], 1e-9)
    assert span.size == 41
    span.truncate(40)
    assert span.isolated(sets) is None


@pytest.fixture
def path_at(path_run, make_sites, tmp_path, monkeypatch, signed):
    """Return a function that runs a path between default sites with tables; it returns north's answered models."""

    def make(tables: dict, *options: str, masks: bool = False) -> tuple[Message | None, list[np.ndarray], RowSpan]:
        for name, (x, y) in tables.items():
            np.savez(tmp_path / f"{name}.npz", x=x, y=y, client=np.full(len(y), name))
        masked = {"mask_bits": 40, "all_credentials": {name: signed(name) for name in NAMES}} if masks else {}
        sites, answered = make_sites(tmp_path, policy=preset("strict", **POLICY), **masked), []
        monkeypatch.setattr(settings, "_connection", lambda *_: sites)
        where = ("federation=flare", f"federation.sites=[{','.join(NAMES)}]", "task.standardize=false", *options)
        run = path_run(*FEW, "task.loss=logistic", *where)
        connect, north = sites.connect, []

        def recording():
            link = connect()
            site = link.sites["north"]
            north.append(site)
            answer = site.handle

            def handle(content: bytes) -> bytes:
                response, question = answer(content), Message.unpacked(content)
                if question.kind in ("train", "evaluate") and Message.unpacked(response).kind != "refused":
                    answered.extend(w for values in question.arrays.values() if values.ndim == 2 for w in values)
                return response

            site.handle = handle
            return link

        sites.connect = recording
        refused = None
        try:
            select(run, run.path, lambda: None)
        except UserError as problem:
            refused = str(problem)
        return refused, answered, north[-1].data.models.spans[SLOPES]

    return make


@pytest.mark.ci
@pytest.mark.parametrize("masks", [False, True])
def test_a_path_on_binary_columns(path_at, masks):
    """It is refused before it discloses the patient of a cross cell."""
    tables = {name: (x[:, :2], y) for name, (x, y) in ((name, table_of(1, seed=k)) for k, name in enumerate(NAMES))}
    options = ("federation.masks=true", "hparams.fraction_bits=40") if masks else ()
    refused, answered, span = path_at(tables, *options, masks=masks)
    assert refused is not None
    assert "a sum over 1 row requested" in refused
    assert "drop or merge the columns x0 and x1" in refused
    assert len(answered) >= 3
    assert span.leverage.max() < 1 - 1e-5


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["continuous", "large cells"])
def test_paths_that_are_answered(path_at, kind):
    tables = {}
    for k, name in enumerate(NAMES):
        random = np.random.default_rng(k)
        x = random.normal(size=(400, 2)) if kind == "continuous" else random.integers(0, 2, (400, 2)).astype(float)
        tables[name] = x, (random.random(400) < expit(x[:, 0] - 1)).astype(float)
    refused, answered, span = path_at(tables)
    assert refused is None
    assert len(answered) > 20
    assert span.size > 3
