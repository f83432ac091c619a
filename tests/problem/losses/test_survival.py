"""The Cox loss against its formula."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from fco_cli.errors import UserError
from fco_cli.problem.data import ClientData
from fco_cli.problem.losses import all_losses
from fco_cli.problem.losses.survival import Cox
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.problem import Problem

OFFSETS = np.array([0, 9, 20])


def rows(ties: bool = True) -> ClientData:
    random = np.random.default_rng(0)
    times = random.integers(1, 5, 20).astype(float) if ties else random.exponential(size=20)
    times[random.random(20) < 0.4] *= -1  # censored
    return ClientData(random.standard_normal((20, 3)), times, OFFSETS)


def by_formula(scores: np.ndarray, y: np.ndarray) -> float:
    """Return the negative log partial likelihood of one client per row (Breslow)."""
    events = [i for i in range(len(y)) if y[i] > 0]
    return sum(np.log(np.exp(scores[abs(y) >= y[i]]).sum()) - scores[i] for i in events) / len(y)


def problem_of(data: ClientData, regularizer) -> Problem:
    return Problem(data, Linear(3), Cox(), regularizer=regularizer("l1", strength=0.02))


@pytest.mark.parametrize("ties", [True, False])
def test_value_and_gradient_are_the_formulas(regularizer, ties):
    data = rows(ties)
    problem, w = problem_of(data, regularizer), np.random.default_rng(1).standard_normal((2, 4))
    w[:, 3] = 0.7  # the bias cancels

    def risk(v: np.ndarray) -> float:
        parts = [slice(low, high) for low, high in pairwise(OFFSETS)]
        return np.mean([by_formula(data.x[part] @ v[:3] + v[3], data.y[part]) for part in parts])

    risk_of_w = problem.risk(w)
    for j in range(2):
        assert risk_of_w.value[j] == pytest.approx(risk(w[j]), rel=1e-12)
        slopes = [(risk(w[j] + step) - risk(w[j] - step)) / 2e-6 for step in 1e-6 * np.eye(4)]
        np.testing.assert_allclose(risk_of_w.gradient[j], slopes, atol=1e-8)


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
def test_machine_code_agrees_with_python(regularizer, make_algorithm, full_cohort):
    problem = problem_of(rows(), regularizer)
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
