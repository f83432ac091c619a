"""Differences of answers about models, preparations and terms; each answer is about many rows.

Every attack is also run against a site whose policy allows it, where it succeeds.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fco_cli.data.expressions import Call, Column, IsMissing, Number, Piecewise, Term
from fco_cli.data.preparation import Preparation, Recipe, agree
from fco_cli.data.statistics import Summary
from fco_cli.federation.policy import preset
from fco_cli.federation.site.data import sent_task
from fco_cli.problem.curvature import unpack
from tests.federation.coordinator.test_clients import task_of
from tests.federation.site.conftest import SITES, refusal

ROWS = 120


@pytest.fixture
def table():
    """Return columns pack_years (0 for others than smokers), smoker, age and creatinine, and labels."""
    random = np.random.default_rng(3)
    smoker = np.arange(ROWS) % 3 == 0
    years = np.where(smoker, np.round(random.gamma(3, 7, ROWS), 1) + 1, 0.0)
    age, creatinine = np.round(random.normal(60, 10, ROWS), 2), np.round(random.gamma(4, 0.3, ROWS), 3)
    x = np.column_stack([years, smoker, age, creatinine])
    return x, (random.random(ROWS) < 0.4).astype(float)


@pytest.fixture
def hospital(attack, tmp_path, table):
    """Return a function that starts a session with a site that has the table."""

    def make(policy=None, x=None, y=None, **changes):
        own_x, own_y = table
        x, y = own_x if x is None else x, own_y if y is None else y
        np.savez(tmp_path / "table.npz", x=x, y=y, client=np.full(len(y), "north"))
        return attack(policy or preset("strict", max_equations_per_value=None), tmp_path / "table.npz", **changes)

    return make


def matches(guess, x) -> bool:
    """Return True if a guess is a row of x."""
    return guess is not None and bool((np.abs(x - guess).max(axis=1) < 1e-3 * np.abs(x).max()).any())


def attack_by_a_column_of_zeros(attacker) -> np.ndarray | None:
    """Return a smoker from two models that are steep in pack-years and 0 for all others than smokers."""
    attacker.apply(attacker.prepare())
    before = None
    for threshold in np.arange(2.05, 60.0, 0.1):
        response = attacker.evaluate(np.array([[1e6, -1e6 * threshold, 0.0, 0.0, 0.0]]))
        if response.kind == "refused":
            return None
        gradient = ROWS * response.arrays["gradient"][0]
        if before is not None and abs(before[-1] - gradient[-1] - 1) < 1e-6:
            return (before - gradient)[:-1]
        before = gradient
    return None


def test_models_that_are_steep_for_one_category(hospital, table):
    assert matches(attack_by_a_column_of_zeros(hospital(preset("research"))), table[0])
    assert attack_by_a_column_of_zeros(hospital()) is None


def attack_by_kinks(attacker) -> np.ndarray | None:
    """Return a row from gradients of the Huber loss at three constants, between which one label is."""
    attacker.apply(attacker.prepare(loss="huber", huber_delta=1e-6))
    before = None
    for constant in np.arange(-3.0, 3.0, 0.01):
        response = attacker.evaluate(np.array([[0.0, 0.0, 0.0, 0.0, constant]]))
        if response.kind == "refused":
            return None
        gradient = response.arrays["gradient"][0] * ROWS / 4e-6
        if before is not None and abs(gradient[-1] - before[-1] - 1) < 1e-6:
            return (gradient - before)[:-1]
        before = gradient
    return None


def test_kinks_of_a_loss(hospital, table):
    y = np.random.default_rng(0).normal(size=ROWS)
    assert matches(attack_by_kinks(hospital(preset("research"), y=y)), table[0])
    assert attack_by_kinks(hospital(y=y)) is None


def attack_by_fills(attacker) -> np.ndarray | None:
    """Return the row with a missing creatinine from two preparations that fill it differently."""
    sums = []
    for fill in (0.0, 1.0):
        prepared = attacker.prepare()
        agreed = agree(Summary.from_plain(prepared.head["summary"]), Recipe(standardize=False))
        agreed = replace(agreed, fill=[*agreed.fill[:3], fill])
        attacker.features = 5
        attacker.send("apply", {"preparations": [agreed.as_json()], "outputs": 1, "start": None})
        response = attacker.evaluate(np.array([[0.0, 0.0, 0.0, 1.0, 0.0]]))
        if response.kind == "refused":
            return None
        sums.append(response.arrays["gradient"][0])
    difference = sums[1] - sums[0]
    return difference[:3] / difference[4] if difference[4] else None


def test_fills_do_not_mark_few_rows(hospital, table):
    x = table[0].copy()
    x[17, 3] = np.nan
    assert matches(attack_by_fills(hospital(preset("research"), x)), x[:, :3])
    assert not matches(attack_by_fills(hospital(None, x)), x[:, :3])


def test_fills_of_many_rows_are_those_of_the_run(hospital, table):
    x = table[0].copy()
    x[:20, 3] = np.nan
    assert attack_by_fills(hospital(None, x)) is not None


def attack_by_units(attacker) -> tuple[float, int]:
    """Return the largest age by bisection, from units in which larger values overflow; and the number of answers."""
    low, high, answers, limit = 40.0, 200.0, 0, float(np.sqrt(np.finfo("float32").max / 4))
    send = attacker.send
    attacker.send = lambda kind, head=None, **arrays: send(
        kind, (head or {}) | ({"dtype": "float32"} if kind == "prepare" else {}), **arrays
    )
    for _ in range(40):
        prepared = attacker.prepare()
        if prepared.kind == "refused":
            assert "rows as float32 requested; the site's policy allows float64" in refusal(prepared)
            break
        agreed = agree(Summary.from_plain(prepared.head["summary"]), Recipe(standardize=False))
        middle = (low + high) / 2
        agreed = replace(agreed, mean=[0.0] * 4, scale=[1.0, 1.0, middle / limit, 1.0])
        fits = {"preparations": [agreed.as_json()], "outputs": 1, "start": None}
        answers += (is_above := attacker.send("apply", fits).kind == "apply")
        low, high = (low, middle) if is_above else (middle, high)
    return (low + high) / 2, answers


def test_units_do_not_disclose_extremes(hospital, table):
    assert attack_by_units(hospital(preset("research")))[0] == pytest.approx(table[0][:, 2].max(), rel=1e-5)
    assert attack_by_units(hospital())[1] == 0
    prepared = (attacker := hospital()).prepare()
    agreed = agree(Summary.from_plain(prepared.head["summary"]), Recipe(standardize=False))
    for mean, scale in ((1e9, 1.0), (60.0, 1e-7)):
        far = replace(agreed, mean=[0.0, 0.0, mean, 0.0], scale=[1.0, 1.0, scale, 1.0])
        answer = attacker.send("apply", {"preparations": [far.as_json()], "outputs": 1, "start": None})
        assert "units of columns far from the values of the site requested" in refusal(answer)


def attack_by_centers(attacker, x, distance: float) -> np.ndarray | None:
    """Return the patient with the median of the third column, from two centers far from all values.

    With a scale of 1 + 2^-52, values above a threshold that moves with the center are rounded down once more.
    """
    column, found = np.sort(x[:, 2]), []
    start, unit = 1.5 * 2.0 ** np.ceil(np.log2(distance)), x[:, 2].std()
    for k in (len(column) // 2, len(column) // 2 + 1):
        digit = 2.0 ** (np.floor(np.log2(start)) - 52)
        center = float(np.rint((start + (column[k - 1] + column[k]) / 2) / digit) * digit)
        prepared = attacker.prepare()
        agreed = agree(Summary.from_plain(prepared.head["summary"]), Recipe(standardize=False))
        agreed = replace(agreed, mean=[0.0, 0.0, center, 0.0], scale=[1.0, 1.0, 1 + 2.0**-52, 1.0])
        if attacker.send("apply", {"preparations": [agreed.as_json()], "outputs": 1, "start": None}).kind == "refused":
            return None
        w = 2.0 ** np.rint(np.log2(4 / unit))
        answer = attacker.evaluate(np.array([[0.0, 0.0, w, 0.0, w * center]]))
        found.append(answer.arrays["gradient"][0])
    difference = found[0] - found[1]
    return difference[[0, 1, 3]] / difference[4]


def test_centers_do_not_mark_single_rows(hospital):
    """Two gradients gave a patient of the analyst's choice; the limit of centers is far above those of usual data."""
    random = np.random.default_rng(2)
    x = random.normal(size=(400, 4))
    target = x[np.argsort(x[:, 2])[len(x) // 2], [0, 1, 3]]
    y = random.integers(0, 2, 400).astype(float)
    for distance, precision in ((1e5, 0.02), (6e3, 0.1)):
        found = attack_by_centers(hospital(preset("research"), x, y), x, distance)
        np.testing.assert_allclose(found, target, atol=precision)
        assert attack_by_centers(hospital(None, x, y), x, distance) is None
    assert attack_by_centers(hospital(None, x, y), x, 2.0) is not None


STEEP = np.array([[0.0, 0.0, 1e6, 0.0, -6e7]])  # its scores are 0 at the age of 60
ZERO = np.zeros((1, 5))


def stacked(attacker, algo: str, options: list[float], rate: float = 1.0):
    """Bind an algorithm with these numbers of its options."""
    head = {
        "fit": 0, "stack": 1, "jobs": 1, "algo": {"name": algo}, "regularizer": {"name": "none"},
        "mirror": {"name": "euclidean"}, "transform": {"name": "none"},
    }  # fmt: skip
    one, none = np.ones(1), np.zeros((1, 1))
    numbers = np.array([options])
    answer = attacker.send(
        "stack", head, client_lr=rate * one, server_lr=one, psi=none, options=numbers, transform=none
    )
    assert answer.kind == "stack", answer.head


def train(attacker, number: int, received: dict, steps: int = 1):
    head = {
        "stack": 1, "tokens": ["0" * 32], "round": number, "seed": 0, "batch_size": 1000, "local_epochs": steps,
        "steps": None, "last_batch": "keep", "outcomes": {"north": [[number - 1, ["0" * 32]]] if number else []},
    }  # fmt: skip
    return attacker.ask("train", head, **received)


def personal(attacker):
    """Train a personal model with a large learning rate, and request its loss."""
    stacked(attacker, "ditto", [1.0, 1.0], 1e7)
    first = train(attacker, 0, {"z": ZERO, "c": ZERO, "t": np.zeros(1)})
    assert first.kind == "train", first.head
    return attacker.send("own", {"stack": 1, "tokens": ["0" * 32], "outcomes": {"north": [[0, ["0" * 32]]]}})


def remembered(attacker):
    """Let y_m of fedsplit grow by models that are not steep themselves, 2 w and -2 w in turn."""
    stacked(attacker, "fedsplit", [1e-12, 2.0])
    answer = None
    for number in range(60):
        answer = train(attacker, number, {"w": STEEP * (1e-7 if number % 2 else -1e-7)})
        if answer.kind == "refused":
            break
    return answer


def corrected(attacker):
    """Choose the gradient of the other clients so that a local step ends at a steep model, where a gradient is sent."""
    stacked(attacker, "s_dane", [1e9])
    return train(attacker, 1, {"v": ZERO, "gradient": -STEEP, "phase": np.ones(1)})


def line_search(attacker):
    """Request the loss along a step whose middle is steep and whose end is not."""
    stacked(attacker, "prox_newton", [0.0])
    return train(attacker, 0, {"query": ZERO, "step": STEEP})


@pytest.mark.parametrize("request_of", [personal, remembered, corrected, line_search])
def test_rounds_at_steep_models(hospital, request_of):
    """Methods that evaluate rows at other models than those that they receive."""
    for policy, expected in ((preset("research"), ("train", "own")), (None, ("refused",))):
        attacker = hospital(policy)
        attacker.apply(attacker.prepare())
        answer = request_of(attacker)
        assert answer.kind in expected, answer.head
        assert answer.kind != "refused" or "the curvature of few rows" in refusal(answer)


def step(column: str, threshold: float, times: str | None = None) -> Term:
    """Return the indicator of values from a threshold on, times a column."""
    cut = Piecewise(Column(column), (threshold,), ((0.0,), (1.0,)))
    return Term(f"{column} {threshold} {times}", (cut,) if times is None else (cut, Column(times)))


def smooth_step(threshold: float) -> Term:
    """Return a smooth step of age that is finite everywhere, times creatinine."""
    inner = Call("exp", (Call("multiply", (Number(40.0), Call("subtract", (Number(threshold), Column("x2"))))),))
    return Term(f"smooth {threshold}", (Call("exp", (Call("negative", (inner,)),)), Column("x3")))


def without_missing() -> list[Term]:
    """Return creatinine, and creatinine without the rows in which age is missing."""
    present = Call("subtract", (Number(1.0), IsMissing("x2")))
    return [Term("x3", (Column("x3"),)), Term("others", (Column("x3"), present))]


def attack_by_terms(attacker, x, requests) -> float | None:
    """Return the difference of the sums of two terms, requested together or one after another."""
    sums = []
    for terms in requests:
        prepared = attacker.prepare(formula="x0 + x1 + x2 + x3")
        base = agree(Summary.from_plain(prepared.head["summary"]), Recipe(standardize=False))
        base.terms.extend(terms)
        answer = attacker.send("terms", {"terms": {"fit": 0, "preparation": base.as_json()}})
        if answer.kind == "refused":
            return None
        sums += (np.array(answer.head["summary"]["mean"]) * len(x)).tolist()
    return abs(sums[0] - sums[1])


def thresholds(x) -> tuple[float, float, int]:
    """Return two ages between which one patient is, and that patient."""
    order = np.argsort(x[:, 2])
    middle = ROWS // 2
    while not x[order[middle - 1], 2] < x[order[middle], 2] < x[order[middle + 1], 2]:
        middle += 1
    ages = x[order[middle - 1 : middle + 2], 2]
    return float(ages[0] + ages[1]) / 2, float(ages[1] + ages[2]) / 2, int(order[middle])


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("kind", ["step", "smooth", "missing"])
def test_differences_of_terms(hospital, table, kind, together):
    x = table[0].copy()
    low, high, patient = thresholds(x)
    if kind == "missing":
        patient = 17
        x[patient, 2] = np.nan
        terms = without_missing()
    elif kind == "step":
        terms = [step("x2", low, "x3"), step("x2", high, "x3")]
    else:
        terms = [smooth_step(low), smooth_step(high)]
    requests = [terms] if together else [[one] for one in terms]
    found = attack_by_terms(hospital(preset("research"), x), x, requests)
    assert found == pytest.approx(x[patient, 3], rel=0.2 if kind == "smooth" else 1e-6)
    assert attack_by_terms(hospital(None, x), x, requests) is None


def attack_by_hessians(attacker) -> np.ndarray | None:
    """Return age and creatinine of the only diabetic smoker: an entry of a Hessian is about this patient alone."""
    attacker.apply(attacker.prepare())
    found = []
    for column in (2, 3):
        w = np.zeros((1, 6))
        w[0, column] = 0.01
        response = attacker.hessian(w)
        if response.kind == "refused":
            return None
        curvature = ROWS * unpack(response.arrays["hessian"])[0, 1, 4]  # p (1 - p), summed over diabetic smokers
        found.append(2 * np.arccosh(1 / np.sqrt(4 * curvature)) / 0.01)
    return np.array(found)


def with_diabetes(x):
    """Return the columns with an indicator of 25 patients, of whom one is a smoker."""
    diabetic = np.zeros(ROWS)
    diabetic[np.flatnonzero(x[:, 1] == 0)[:24]] = 1
    diabetic[3] = 1
    return np.column_stack([x, diabetic])


def test_entries_of_hessians_about_few_rows(hospital, table):
    x = with_diabetes(table[0])
    found = attack_by_hessians(hospital(preset("research"), x))
    np.testing.assert_allclose(found, x[3, 2:4], rtol=1e-6)
    strict = hospital(None, x)
    assert attack_by_hessians(strict) is None
    assert strict.site.data.fits[0].split is not None
    assert strict.evaluate().kind == "evaluate"  # gradients are about one column each


def test_hessians_of_columns_with_large_cross_cells_are_answered(hospital, table):
    x = with_diabetes(table[0])
    x[:, 4] = np.arange(ROWS) % 2
    attacker = hospital(None, x)
    attacker.apply(attacker.prepare())
    assert attacker.hessian().kind == "hessian"


def test_the_largest_eigenvalue_of_two_columns(hospital, table):
    """If all other columns have large units, it is that of the two: the sum of their products, about one patient."""
    x = with_diabetes(table[0])
    for policy, expected in ((preset("research"), "smoothness"), (None, "refused")):
        attacker = hospital(policy, x)
        attacker.apply(attacker.prepare())
        answer = attacker.send("smoothness", {"fit": 0, "seed": 0, "batch_size": ROWS})
        assert answer.kind == expected
    assert "a cross cell of two columns, in a Hessian, of 1 row requested" in refusal(answer)
    assert refusal(answer).endswith("set hparams.client_lr to a number")


def test_the_coordinator_is_told_that_hessians_are_refused(hospital, table):
    assert hospital(None, table[0]).prepare().head["max_parameters"] == 39
    assert hospital(None, with_diabetes(table[0])).prepare().head["max_parameters"] == 0


def test_columns_that_mark_few_rows_without_a_preparation(hospital, table):
    """Rows that need no preparation are not summarized; a column of one smoker would still mark this patient."""
    x = table[0].copy()
    x[:, 1] = np.arange(ROWS) == 3
    for policy, expected in ((preset("research"), "apply"), (None, "refused")):
        attacker = hospital(policy, x)
        head = {"seed": 0, "sites": SITES, "dtype": "float64", "classes": None, "summary": False, "folds": [None]}
        attacker.send("describe")
        options = sent_task(task_of(Path(), "logistic", standardize=False, fill="refuse", holdout="none"))
        assert attacker.send("prepare", head | {"task": options}).kind == "prepare"
        raw = Preparation([f"x{k}" for k in range(4)], [0.0] * 4, {}, [])
        answer = attacker.send("apply", {"preparations": [raw.as_json()], "outputs": 1, "start": None})
        assert answer.kind == expected, answer.head


def attack_by_a_cross_cell(attacker, size: float = 1.0, together: bool = True) -> np.ndarray | None:
    """Return the only diabetic smoker from four gradients, whose weights of all other patients cancel."""
    attacker.apply(attacker.prepare())
    models = np.zeros((4, 6))
    models[:, [1, 4]] = size * np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    models[:, 5] = 0.5
    gradients = []
    for part in [models] if together else models[:, None]:
        response = attacker.evaluate(part)
        if response.kind == "refused":
            assert "sum over 1 row requested" in refusal(response)
            assert "drop or merge the columns x1 and x4" in refusal(response)
            return None
        gradients += list(response.arrays["gradient"])
    cell = gradients[0] - gradients[1] - gradients[2] + gradients[3]
    return cell[:5] / cell[5]


@pytest.mark.parametrize("size", [1.0, 1e-2, 1e-4])
@pytest.mark.parametrize("together", [True, False])
def test_gradients_about_a_cross_cell(hospital, table, size, together):
    x = with_diabetes(table[0])
    found = attack_by_a_cross_cell(hospital(preset("research"), x), size, together)
    np.testing.assert_allclose(found, x[3], rtol=1e-2, atol=1e-2)
    strict = hospital(None, x)
    assert attack_by_a_cross_cell(strict, size, together) is None
    assert strict.site.disclosure.ledger.read().steep_models == 1


def attack_by_offsets(attacker) -> np.ndarray | None:
    """Return the row that an offset marks, from gradients of the squared loss with and without it."""
    sums = []
    for offset in (None, "x1"):
        prepared = attacker.prepare(loss="squared", formula="x0 + x2 + x3", offset=offset)
        if prepared.kind == "refused":
            return None
        base = agree(Summary.from_plain(prepared.head["summary"]), Recipe(standardize=False))
        base.terms.extend(Term(name, (Column(name),)) for name in ("x0", "x2", "x3"))
        attacker.features = 4
        applied = attacker.send("apply", {"preparations": [base.as_json()], "outputs": 1, "start": None})
        assert applied.kind == "apply", applied.head
        sums.append(attacker.evaluate().arrays["gradient"][0])
    return (sums[1] - sums[0])[:3] / (sums[1] - sums[0])[3]


def test_offsets_do_not_mark_few_rows(hospital, table):
    x = table[0].copy()
    x[:, 1] = np.arange(ROWS) == 3
    np.testing.assert_allclose(attack_by_offsets(hospital(preset("research"), x)), x[3, [0, 2, 3]])
    assert attack_by_offsets(hospital(None, x)) is None
    assert attack_by_offsets(hospital()) is not None  # an offset of many rows


def bind(attacker, algo: str, strength: float, rate: float, transform: dict, numbers: list[float]):
    """Bind an algorithm with an l1 penalty."""
    head = {
        "fit": 0, "stack": 1, "jobs": 1, "algo": {"name": algo}, "regularizer": {"name": "l1", "strength": strength},
        "mirror": {"name": "euclidean"}, "transform": transform,
    }  # fmt: skip
    one = np.ones(1)
    answer = attacker.send(
        "stack", head, client_lr=rate * one, server_lr=one, psi=np.array([[strength]]), options=np.zeros((1, 1)),
        transform=np.array([numbers]),
    )  # fmt: skip
    assert answer.kind == "stack", answer.head


def through_a_penalty(attacker):
    """Make two steps: the first to a steep model, the second back to 0, by labels for which both gradients cancel."""
    bind(attacker, "fedmid", 0.05, 1e9, {"name": "none"}, [0.0])
    answer = train(attacker, 0, {"w": np.zeros((1, 2))}, steps=2)
    assert answer.kind == "refused" or answer.arrays["w"][0, 0] == 0
    return answer


def behind_a_transform(attacker):
    """Clip the message, so that its sum with the first model is not steep."""
    bind(attacker, "fedmid", 0.0, 1e9, {"name": "clip_noise", "noise_multiplier": 0.0}, [1e-6, 0.0, 1e-5])
    return train(attacker, 0, {"w": np.zeros((1, 2))}, steps=2)


@pytest.mark.parametrize("request_of", [through_a_penalty, behind_a_transform])
def test_steep_models_between_local_steps(hospital, request_of):
    random = np.random.default_rng(1)
    z = np.linspace(-2, 2, ROWS)
    y = (z > 0) ^ (np.arange(ROWS) % 9 < 2)
    for policy, expected in ((preset("research"), "train"), (None, "refused")):
        attacker = hospital(policy, np.column_stack([z + 1e-6 * random.normal(size=ROWS)]), y.astype(float))
        attacker.apply(attacker.prepare())
        answer = request_of(attacker)
        assert answer.kind == expected, answer.head
