"""The Cox loss against its formula."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from fco_cli.errors import UserError
from fco_cli.problem.data import ClientData
from fco_cli.problem.losses import all_losses
from fco_cli.problem.losses.survival import TIES, Cox
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.problem import Problem
from fco_cli.problem.score_products import score_products_of

OFFSETS = np.array([0, 9, 20])


def rows(ties: bool = True) -> ClientData:
    random = np.random.default_rng(0)
    times = random.integers(1, 5, 20).astype(float) if ties else random.exponential(size=20)
    times[random.random(20) < 0.4] *= -1  # censored
    return ClientData(random.standard_normal((20, 3)), times, OFFSETS)


def by_formula(scores: np.ndarray, y: np.ndarray, ties: str = "breslow") -> float:
    """Return the negative log partial likelihood of one client per row."""
    total, e = 0.0, np.exp(scores)
    for time in np.unique(y[y > 0]):
        tied = y == time
        for r in range(tied.sum()):
            removed = r / tied.sum() * e[tied].sum() if ties == "efron" else 0.0
            total += np.log(e[abs(y) >= time].sum() - removed)
        total -= scores[tied].sum()
    return total / len(y)


def problem_of(data: ClientData, regularizer, ties: str = "breslow") -> Problem:
    return Problem(data, Linear(3), Cox(ties), regularizer=regularizer("l1", strength=0.02))


@pytest.mark.parametrize("has_ties", [True, False])
@pytest.mark.parametrize("ties", TIES)
def test_derivatives_are_those_of_the_formula(regularizer, ties, has_ties):
    """Value, gradient, Hessian, and score residuals, which add up to the gradient of their client."""
    data = rows(has_ties)
    problem, w = problem_of(data, regularizer, ties), np.random.default_rng(1).standard_normal((2, 4))
    w[:, 3] = 0.7  # the bias cancels

    def risk(v: np.ndarray) -> float:
        parts = [slice(low, high) for low, high in pairwise(OFFSETS)]
        return np.mean([by_formula(data.x[part] @ v[:3] + v[3], data.y[part], ties) for part in parts])

    risk_of_w = problem.risk(w)
    for j in range(2):
        assert risk_of_w.value[j] == pytest.approx(risk(w[j]), rel=1e-12)
        slopes = [(risk(w[j] + step) - risk(w[j] - step)) / 2e-6 for step in 1e-6 * np.eye(4)]
        np.testing.assert_allclose(risk_of_w.gradient[j], slopes, atol=1e-8)
    curved = problem.curvature(w)
    np.testing.assert_allclose(curved.gradient, risk_of_w.gradient, rtol=1e-12, atol=1e-15)
    for k, step in enumerate(1e-5 * np.eye(4)):
        differences = (problem.risk(w + step).gradient - problem.risk(w - step).gradient) / 2e-5
        np.testing.assert_allclose(curved.hessian[:, k], differences, atol=1e-8)
    assert not np.abs(curved.hessian[:, 3]).any()


@pytest.mark.parametrize("ties", TIES)
def test_a_permuted_tie_changes_nothing(regularizer, ties):
    """Efron's method gives tied events different denominators; robust sums must not depend on their order."""
    data, w = rows(), np.array([0.4, -0.7, 0.2, 0.0])
    order = np.append(np.random.default_rng(5).permutation(9), np.arange(9, 20))
    permuted = ClientData(data.x[order], data.y[order], OFFSETS)
    one, other = (
        score_products_of(each, np.ones(2) / 2, Linear(3), Cox(ties), w, np.arange(3)) for each in (data, permuted)
    )
    np.testing.assert_allclose(one.rows, other.rows, rtol=1e-12)
    np.testing.assert_allclose(one.clients, other.clients, rtol=1e-9, atol=1e-15)
    gradient = np.zeros((3, 3))
    for m in range(2):
        own = problem_of(data.client(m), regularizer, ties).risk(w[None]).gradient[0, :3] / 2
        gradient += np.outer(own, own)
    np.testing.assert_allclose(one.unpacked()[1], gradient, rtol=1e-9, atol=1e-15)


def test_the_order_of_rows_does_not_matter(regularizer):
    data, order = rows(), np.random.default_rng(2).permutation(9)
    permuted = ClientData(np.vstack([data.x[order], data.x[9:]]), np.append(data.y[order], data.y[9:]), OFFSETS)
    w = np.random.default_rng(1).standard_normal((1, 4))
    np.testing.assert_allclose(
        problem_of(data, regularizer).risk(w).gradient,
        problem_of(permuted, regularizer).risk(w).gradient,
        rtol=1e-12,
        atol=1e-15,
    )


@pytest.mark.ci
@pytest.mark.machine_code
@pytest.mark.parametrize("ties", TIES)
def test_machine_code_agrees_with_python(regularizer, make_algorithm, full_cohort, ties):
    problem = problem_of(rows(), regularizer, ties)
    w = np.random.default_rng(1).standard_normal((1, 4))
    gradient = problem.risk(w).gradient
    algorithm = make_algorithm("fedavg", problem, client_lr=1.0)
    result = algorithm.round({"w": w}, full_cohort(problem))
    np.testing.assert_allclose(result.state["w"], w - gradient, rtol=1e-12, atol=1e-14)


def test_concordance_counts_pairs_within_clients():
    random = np.random.default_rng(3)
    y, scores = rows().y, random.integers(0, 4, 20).astype(float)
    concordant = pairs = 0.0
    for low, high in ((0, 9), (9, 20)):
        for i in range(low, high):
            for k in range(low, high):
                longer = abs(y[k]) > y[i] or (y[k] < 0 and abs(y[k]) == y[i])
                if y[i] > 0 and longer:
                    pairs += 1
                    concordant += float(scores[i] > scores[k]) + 0.5 * float(scores[i] == scores[k])
    assert Cox().metrics(scores, y, OFFSETS)["concordance"] == pytest.approx(concordant / pairs)
    assert Cox().metrics(scores[:1], y[:1], np.array([0, 1])) == {"concordance": 0.5}


def test_labels_are_times_and_an_event_is_needed():
    cox = all_losses()["cox"]()
    np.testing.assert_array_equal(cox.accepts_labels(np.array([1.0, -2, 0, np.nan])), [True, True, False, False])
    assert not cox.accepts_labels(np.array([-1.0, -2])).any()


def test_row_weights_are_rejected(regularizer):
    data = rows()
    with pytest.raises(UserError, match=r"^task\.weights: the cox loss"):
        problem_of(ClientData(data.x, data.y, data.offsets, np.ones(20)), regularizer)
