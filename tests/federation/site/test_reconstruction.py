"""Reconstruction of rows from all answers of a site: differences, linear solves, sparse recovery and a whole path.

Every attack is also run against a site whose policy allows it, where it recovers the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations, pairwise

import numpy as np
import pytest
from scipy import optimize
from scipy.optimize import linprog
from scipy.special import expit

from fco_cli.federation import settings
from fco_cli.federation.message import Message
from fco_cli.federation.policy import Policy, preset
from fco_cli.federation.site.data import SiteData
from fco_cli.federation.site.isolation import SLOPES
from fco_cli.path.select import select
from fco_cli.problem.data import FoldAssignment, HeldOut
from fco_cli.problem.streams import batches_of
from tests.federation.conftest import NAMES
from tests.federation.site.conftest import Attacker, refusal
from tests.federation.test_path import FEW

NORTH = NAMES.index("north")


def recovered(x: np.ndarray, guesses: np.ndarray) -> int:
    """Return the number of rows that a guess matches to three digits."""
    distance = np.abs(x[:, None] - guesses[None]).max(axis=2).min(axis=1, initial=np.inf)
    return int((distance < 1e-3).sum())


def least_squares(masks: list[np.ndarray], sums: list[np.ndarray], rows: int) -> np.ndarray:
    """Return the rows of smallest norm with these sums over row subsets."""
    if not masks:
        return np.zeros((rows, 3))
    return np.linalg.lstsq(np.array(masks, float), np.array(sums), rcond=None)[0]


def attack_by_folds(attacker: Attacker, y: np.ndarray) -> np.ndarray:
    """Request the means of many folds, which the attacker computes from the seed, and solve for the rows."""
    masks, sums = [], []
    for draw in range(2 * len(y)):
        deal = {"folds": 2, "by": "rows", "classes": False, "seed": 5, "draw": draw}
        response = attacker.prepare(fold={"deal": deal, "number": 0})
        if response.kind == "refused":
            break
        mask = ~HeldOut(FoldAssignment(**deal), 0).rows_of(NORTH, len(NAMES), y)
        masks.append(mask)
        sums.append(np.array(response.head["summary"]["mean"]) * response.head["training"])
    return least_squares(masks, sums, len(y))


def attack_by_batches(attacker: Attacker, y: np.ndarray) -> np.ndarray:
    """Request gradients at 0 of batches, which the attacker computes from the seed, and solve for the rows."""
    attacker.apply(attacker.prepare())
    attacker.stack()
    masks, sums, size = [], [], 20
    for number in range(2 * len(y)):
        response = attacker.train(batch_size=size, steps=1, round=number)
        if response.kind == "refused":
            break
        order, _, _ = batches_of(0, number, np.array([NORTH]), np.array([len(y)]), size, 1, "keep", 1)
        masks.append(np.bincount(order, minlength=len(y)))
        sums.append(response.arrays["w"][0, :3] * size)
    return least_squares(masks, sums, len(y)) / (y - 0.5)[:, None]


@pytest.mark.parametrize("policy", ["research", "demo"])
@pytest.mark.parametrize("attack_by", [attack_by_folds, attack_by_batches])
def test_linear_solves(attack, rows, attack_by, policy):
    x, y = rows
    assert recovered(x, attack_by(attack(preset(policy)), y)) == 60


@pytest.mark.parametrize("attack_by", [attack_by_folds, attack_by_batches])
def test_linear_solves_at_a_default_site(attack, rows, attack_by):
    x, y = rows
    attacker = attack()
    assert recovered(x, attack_by(attacker, y)) == 0
    assert attacker.number >= 5  # some questions were answered


def test_batches_of_two_sizes(attack, rows):
    """The first 30 and the first 31 rows of the same order: their gradients differ by a row."""
    for policy, count in ((preset("demo"), 1), (preset("strict"), 0)):
        attacker, sums = attack(policy), []
        attacker.apply(attacker.prepare())
        attacker.stack()
        for size in (30, 31):
            response = attacker.train(batch_size=size, steps=1)
            sums += [size * values[0] for values in response.arrays.values()]
        guesses = [(other - one)[:3] / (other - one)[3] for one, other in pairwise(sums)]
        assert recovered(rows[0], np.array(guesses).reshape(-1, 3)) == count


def attack_by_a_small_part(attacker: Attacker, fraction: float) -> np.ndarray:
    """Return the training rows of a small part: many gradients about few rows determine them, from any start.

    Labels enter a gradient by a constant, which the difference to the first one removes.
    """
    prepared = attacker.prepare(holdout="rows", holdout_fraction=fraction)
    attacker.apply(prepared)
    count, random, answers = prepared.head["training"], np.random.default_rng(1), []
    for w in 2 * random.normal(size=(60, 4)):
        response = attacker.evaluate(w[None])
        if response.kind != "refused":
            answers.append((w, response.arrays["gradient"][0]))
    models, gradients = (np.array(values) for values in zip(*answers, strict=True))

    def errors(x: np.ndarray) -> np.ndarray:
        x = x.reshape(count, 3)
        predicted = expit(models[:, :3] @ x.T + models[:, 3:])
        made = np.column_stack([predicted @ x, predicted.sum(axis=1)]) / count
        return ((made - made[0]) - (gradients - gradients[0])).ravel()

    return optimize.least_squares(errors, random.normal(size=3 * count), xtol=1e-15, ftol=1e-15).x.reshape(count, 3)


def test_many_gradients_of_a_small_part(attack, tmp_path):
    """The limit of numbers is that of the part, not only that of the table: 12 of 400 rows are training rows."""
    random = np.random.default_rng(1)
    x = random.normal(size=(400, 3))
    y = (x @ [1.0, -1.0, 0.5] + random.normal(size=400) > 0).astype(float)
    np.savez(tmp_path / "wide.npz", x=x, y=y, client=np.full(400, "north"))
    assert recovered(x, attack_by_a_small_part(attack(preset("demo"), tmp_path / "wide.npz"), 0.97)) == 12
    attacker = attack(data=tmp_path / "wide.npz")
    assert recovered(x, attack_by_a_small_part(attacker, 0.97)) == 0
    assert attacker.site.data.models.spans[SLOPES].size < 6
    assert attacker.site.disclosure.ledger.read().numbers < 0.5 * 400 * 4


def test_many_gradients_of_parts_that_differ_by_few_rows(attack, tmp_path):
    """Each part has few numbers for its rows, but their differences have many for 12 rows."""
    random = np.random.default_rng(1)
    x, y = random.normal(size=(400, 3)), random.integers(0, 2, 400).astype(float)
    np.savez(tmp_path / "wide.npz", x=x, y=y, client=np.full(400, "north"))
    models = 0.5 * random.normal(size=(40, 4))
    for policy, expected in ((preset("research"), 40), (preset("strict"), 4)):
        attacker, answered = attack(policy, tmp_path / "wide.npz"), []
        for fraction in (0.5, 0.53):
            attacker.apply(attacker.prepare(holdout="rows", holdout_fraction=fraction))
            answers = [attacker.evaluate(w[None]) for w in models]
            answered.append(sum(answer.kind == "evaluate" for answer in answers))
        assert answered == [40, expected]
    reason = refusal(next(answer for answer in answers if answer.kind == "refused"))
    assert reason == (
        "too many numbers about 12 rows (a part, or the difference of two) requested over all runs; the site's policy "
        "allows 0.5 per value (site.yaml: max_equations_per_value); use larger parts"
    )


def attack_by_steep_models(attacker: Attacker) -> np.ndarray:
    """Return rows from gradients at steep models: neighboring thresholds of a column with one row between them.

    At a steep model, the gradient is the sum of the rows above the threshold minus that of the positive rows.
    """
    attacker.apply(attacker.prepare())
    thresholds, slope, found = np.linspace(-2.0, 2.0, 200), 1e7, []
    before = None
    for threshold in thresholds:
        response = attacker.evaluate(np.array([[slope, 0.0, 0.0, -slope * threshold]]))
        if response.kind == "refused":
            break
        gradient = 60 * response.arrays["gradient"][0]
        if before is not None and abs(before[3] - gradient[3] - 1) < 1e-6:
            found.append((before - gradient)[:3])
        before = gradient
    return np.array(found).reshape(-1, 3)


def test_steep_models(attack, rows):
    """A few gradients are enough for a whole row; a default site answers none of them."""
    attacker = attack()
    assert recovered(rows[0], attack_by_steep_models(attacker)) == 0
    assert attacker.site.disclosure.ledger.read().steep_models == 1
    assert recovered(rows[0], attack_by_steep_models(attack(preset("demo")))) > 20


def test_steep_models_of_a_round(attack, rows):
    """Rounds return gradients at the broadcast model as well."""
    for policy, expected in ((preset("demo"), "train"), (preset("strict"), "refused")):
        attacker = attack(policy)
        attacker.apply(attacker.prepare())
        attacker.stack()
        steep = np.array([[1e7, 0.0, 0.0, 0.0]])
        assert attacker.train(steep).kind == expected
        assert attacker.train(steep / 1e7).kind == "train"


def test_refusals_of_steep_models_are_limited(attack):
    """The edge between refused and answered models discloses information: after 20 refusals nothing is answered."""
    attacker = attack(preset("strict", max_equations_per_value=None))
    attacker.apply(attacker.prepare())
    for _ in range(21):
        assert "a model with the curvature of few rows" in refusal(attacker.evaluate(np.array([[1e7, 0.0, 0.0, 0.0]])))
    expected = "0 of 20 are left over all runs (site.yaml: max_steep_models)"
    assert expected in refusal(attacker.evaluate(np.zeros((1, 4))))


def attack_by_hits(attacker: Attacker, x: np.ndarray, models: int = 150) -> np.ndarray:
    """Return labels from the numbers of hits of random models, by l1 decoding; the attacker knows all features."""
    attacker.apply(attacker.prepare())
    lines, hits = [], []
    for w in np.random.default_rng(8).normal(size=(models, 4)):
        response = attacker.evaluate(w[None], gradient=False)
        if "hits" not in response.arrays:
            break
        positive = x @ w[:3] + w[3] > 0
        lines.append(2.0 * positive - 1)  # hits = rows predicted negative + lines @ labels
        hits.append(response.arrays["hits"][0] - (~positive).sum())
    return l1_decoded(np.array(lines).reshape(-1, len(x)), np.array(hits), 0, 1)


def l1_decoded(lines: np.ndarray, numbers: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return the vector within bounds that minimizes |lines v - numbers|_1."""
    count, size = lines.shape
    if not count:
        return np.full(size, (low + high) / 2)
    cost = np.append(np.zeros(size), np.ones(count))
    slack = np.eye(count)
    above, below = np.hstack([lines, -slack]), np.hstack([-lines, -slack])
    bounds = [(low, high)] * size + [(0, None)] * count
    made = linprog(cost, np.vstack([above, below]), np.append(numbers, -numbers), bounds=bounds, method="highs")
    return made.x[:size]


def test_labels_by_sparse_recovery(attack, rows):
    """Hits are exact sums over rows that the analyst chooses by a model: they determine all labels."""
    x, y = rows
    attacker = attack()
    assert (np.abs(attack_by_hits(attacker, x) - y) < 0.1).sum() == 0
    assert attacker.evaluate().kind == "evaluate"  # only the hits are withheld
    for name in ("research", "demo"):
        assert (np.abs(attack_by_hits(attack(preset(name)), x) - y) < 0.1).sum() == 60


def labels_of_sums(x: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Return labels of 0 and 1 with these sums of x over the positive rows, from sums over both halves of the rows."""
    half = len(x) // 2
    labels = (np.arange(2**half)[:, None] >> np.arange(half)) & 1
    first, second = labels @ x[:half], sums - labels @ x[half:]
    order = np.argsort(first[:, 0])
    near = np.searchsorted(first[order, 0], second[:, 0])[:, None] + [-1, 0]
    near = order[np.clip(near, 0, len(order) - 1)]
    errors = np.abs(first[near] - second[:, None]).max(axis=2)
    best = np.unravel_index(errors.argmin(), errors.shape)
    return np.concatenate([labels[near[best]], labels[best[0]]])


def test_one_gradient_determines_the_labels_of_known_patients(attack, rows, tmp_path):
    """A limit of exact answers, which docs/federation.md states: the attacker knows all features of a small site."""
    x, y = (values[:30] for values in rows)
    path = tmp_path / "small.npz"
    np.savez(path, x=x, y=y, client=np.full(len(y), "north"))
    attacker = attack(data=path)
    attacker.apply(attacker.prepare())
    gradient = attacker.evaluate().arrays["gradient"][0]  # at 0: the mean of (1/2 - label) x
    np.testing.assert_array_equal(labels_of_sums(x, x.sum(axis=0) / 2 - 30 * gradient[:3]), y)


def attack_by_squares(attacker: Attacker, target: np.ndarray) -> float:
    """Return the label of a held-out patient with known features from mean squared losses of steep models.

    On the two sides of the patient's plane, the second differences of positive and negative rows have other signs.
    """
    attacker.apply(attacker.prepare(holdout="rows", holdout_fraction=0.5))
    slope, h = 1e4, 1e-3
    shifts = np.array([-2 * h, -h, 0.0, h, 2 * h])
    models = np.array([[slope, 0.0, 0.0, slope * (shift - target[0])] for shift in shifts])
    response = attacker.evaluate(models, gradient=False, part="held_out", spread=True)
    if "squares" not in response.arrays:
        return 0.5
    third = np.array([-0.5, 1.0, 0.0, -1.0, 0.5]) @ response.arrays["squares"]
    return float(third < 0)


def test_labels_by_squared_losses(attack, rows):
    x, y = rows
    assert attack_by_squares(attack(), x[0]) == 0.5
    attacker = attack(preset("demo"))
    attacker.prepare(holdout="rows", holdout_fraction=0.5)
    (held_out,) = np.nonzero(attacker.site.data.fits[0].split.parts[1])
    guesses = [attack_by_squares(attack(preset("demo")), x[i]) for i in held_out[:8]]
    assert guesses == y[held_out[:8]].tolist()


@dataclass
class Answers:
    """Answers of one site in a run, with the rows that each is about, which no analyst knows."""

    subsets: list[np.ndarray] = field(default_factory=list)  # masks of all parts
    trained: list[np.ndarray] = field(default_factory=list)  # masks of the summaries
    models: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)  # masks and models of the evaluations
    hits: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)  # those of answered numbers of hits


def answers_of_path(policy: Policy, path_run, make_sites, folder, monkeypatch, rows: int) -> tuple[np.ndarray, Answers]:
    """Run a whole path between three sites; return the rows of north and all that it answered."""
    random, x = np.random.default_rng(0), {}
    for name in NAMES:
        x[name] = random.normal(size=(rows, 3))
        y = (x[name] @ [1.0, -1.0, 0.5] + random.normal(size=rows) > 0).astype(float)
        np.savez(folder / f"{name}.npz", x=x[name], y=y, client=np.full(rows, name))
    sites, answers = make_sites(folder, policy=policy), Answers()
    monkeypatch.setattr(settings, "_connection", lambda *_: sites)
    where = ("federation=flare", f"federation.sites=[{','.join(NAMES)}]", "task.standardize=false")
    run = path_run(*FEW, "task.loss=logistic", *where)
    connect = sites.connect

    def recording():
        link = connect()
        site = link.sites["north"]
        answer = site.handle

        def handle(content: bytes) -> bytes:
            response = answer(content)
            record(answers, site.data, Message.unpacked(content), Message.unpacked(response))
            return response

        site.handle = handle
        return link

    sites.connect = recording
    select(run, run.path, lambda: None)
    return x["north"], answers


def record(answers: Answers, data: SiteData, question: Message, response: Message) -> None:
    assert response.kind != "refused", response.head
    if question.kind == "prepare":
        answers.subsets += [rows for fit in data.fits for rows in fit.split.parts if rows.any()]
        answers.trained += [fit.split.parts.training for fit in data.fits]
        return
    for name, models in question.arrays.items():
        array, _, fit = name.partition(".")
        if array in ("w", "query"):
            parts = data.fits[int(fit)].split.parts
            rows = parts[("training", "held_out", "test").index(question.head.get("part", "training"))]
            answers.models += [(rows, w) for w in models]
            answers.hits += [(rows, w) for w in models if f"hits.{fit}" in response.arrays]


def answered(x: np.ndarray, y: np.ndarray, answers: Answers) -> tuple[np.ndarray, np.ndarray]:
    """Return all answered numbers for a table x, and their derivatives by its values; labels and parts are known."""
    numbers, lines = [], []
    for rows in {rows.tobytes(): rows for rows in answers.trained}.values():
        mean = x[rows].mean(axis=0)
        for k in range(x.shape[1]):
            column = np.eye(x.shape[1])[k]
            numbers += [mean[k], ((x[rows, k] - mean[k]) ** 2).sum()]
            lines += [np.outer(rows / rows.sum(), column), np.outer(2 * rows * (x[:, k] - mean[k]), column)]
    for rows, w in {(rows.tobytes(), w.tobytes()): (rows, w) for rows, w in answers.models}.values():
        share, score = rows / rows.sum(), x @ w[:-1] + w[-1]
        predicted = np.exp(-np.logaddexp(0, -score))
        error, curvature = (predicted - y) * share, predicted * (1 - predicted) * share
        numbers += [(np.logaddexp(0, score) - y * score) @ share, error.sum(), *(error @ x)]
        lines += [np.outer(error, w[:-1]), np.outer(curvature, w[:-1])]
        for j in range(x.shape[1]):
            lines.append(np.outer(curvature * x[:, j], w[:-1]))
            lines[-1][:, j] += error
    return np.array(numbers), np.array(lines).reshape(len(lines), -1)


def solved(x: np.ndarray, y: np.ndarray, answers: Answers, start: np.ndarray) -> np.ndarray:
    """Return a table with the answers of x, found by the Levenberg-Marquardt method near `start`."""
    target, _ = answered(x, y, answers)
    guess, damping = start + 0.03 * np.random.default_rng(9).normal(size=x.shape), 1e-3
    numbers, lines = answered(guess, y, answers)
    scale = np.maximum(np.linalg.norm(lines, axis=1), 1e-12)
    for _ in range(12):
        lines = lines / scale[:, None]
        gram = lines @ lines.T + damping * np.eye(len(lines))
        step = (lines.T @ np.linalg.solve(gram, (target - numbers) / scale)).reshape(x.shape)
        new_numbers, new_lines = answered(guess + step, y, answers)
        if np.linalg.norm((target - new_numbers) / scale) < np.linalg.norm((target - numbers) / scale):
            guess, numbers, lines, damping = guess + step, new_numbers, new_lines, damping / 100
        else:
            lines, damping = lines * scale[:, None], damping * 30
    return guess


@pytest.mark.ci
def test_a_path_at_default_sites_determines_few_combinations_of_values(path_run, make_sites, tmp_path, monkeypatch):
    """All differences of row subsets reach the minimum, and no table with the same answers is close to the rows."""
    policy = preset("strict")
    x, answers = answers_of_path(policy, path_run, make_sites, tmp_path, monkeypatch, 1000)
    y = np.load(tmp_path / "north.npz")["y"]
    assert min(rows.sum() for rows in answers.subsets) >= policy.min_rows
    for one, other in combinations([np.ones(len(x), bool), *answers.subsets], 2):
        difference = int((one ^ other).sum())
        assert difference == 0 or difference >= policy.min_rows
    assert len(answers.models) > 200
    numbers, _ = answered(x, y, answers)
    assert len(numbers) <= policy.max_equations_per_value * len(x) * 4
    means = np.array([x[y == label].mean(axis=0) for label in (0, 1)])[y.astype(int)]  # of all rows with that label
    guess = solved(x, y, answers, means)
    assert recovered(x, guess) == 0
    error, unsolved = (np.sqrt(((one - x) ** 2).mean()) for one in (guess, means))
    assert error >= np.sqrt(1 - 1 / policy.min_rows) * unsolved
    assert determined_labels(x, answers) == 0


def determined_labels(x: np.ndarray, answers: Answers, costs: int = 4) -> int:
    """Return the number of labels that the answers determine to less than 0.5, for an attacker with all features.

    The labels are drawn anew: an accurate model alone discloses labels that depend on the features. Loss and gradient
    depend on labels by the sums of the positive rows only; hits by the side of every row. Pairs of solutions minimize
    and maximize random costs; a label that is equal in all of them is then minimized and maximized itself.
    """
    y, lines = np.random.default_rng(4).integers(2, size=len(x)).astype(float), []
    for rows in {rows.tobytes(): rows for rows, _ in answers.models}.values():
        lines += [rows.astype(float), *(rows * column for column in x.T)]
    for rows, w in answers.hits:
        lines.append(rows * np.where(x @ w[:-1] + w[-1] > 0, 1.0, -1.0))
    equations = np.unique(np.array(lines), axis=0)

    def pair(cost: np.ndarray) -> list[np.ndarray]:
        """Return solutions with the least and the greatest cost."""
        made = [linprog(c, A_eq=equations, b_eq=equations @ y, bounds=(0, 1), method="highs") for c in (cost, -cost)]
        assert [one.status for one in made] == [0, 0]
        return [one.x for one in made]

    random = np.random.default_rng(2)
    solutions = [solution for cost in random.normal(size=(costs, len(y))) for solution in pair(cost)]
    for i in range(len(y)):
        if np.ptp(solutions, axis=0)[i] < 0.5:
            solutions += pair(np.eye(len(y))[i])
    return int((np.ptp(solutions, axis=0) < 0.5).sum())


@pytest.mark.ci
def test_a_path_at_sites_that_share_accuracies_determines_labels(path_run, make_sites, tmp_path, monkeypatch):
    x, answers = answers_of_path(preset("research"), path_run, make_sites, tmp_path, monkeypatch, 60)
    assert len(answers.hits) > 100
    assert determined_labels(x, answers) >= 5
    answers.hits.clear()  # as at a default site
    assert determined_labels(x, answers) == 0


def test_more_answers_than_values_determine_all_rows(rows):
    """At a site without limits, this solver recovers every row."""
    x, y = rows
    everything = np.ones(60, bool)
    models = [(everything, w) for w in 2 * np.random.default_rng(3).normal(size=(300, 4))]
    answers = Answers([everything], [everything], models)
    assert recovered(x, solved(x, y, answers, x)) == 60
