"""Paths of moments against an independent active-set method (homotopy) in extended precision."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np

from fco_cli.path.second_order import solve_by_moments
from fco_cli.path.solve import find_largest
from fco_cli.problem.data import ClientData
from fco_cli.problem.layout import stack_numbers
from fco_cli.problem.losses import all_losses
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers.penalties import L1

Extended = np.longdouble  # 64 bits of mantissa
CLIENTS, ROWS, FEATURES = 42, 20, 19


def solve(matrix, right):
    """Return the solution of a linear system by Gaussian elimination with pivots, in extended precision."""
    a = np.column_stack([matrix, right]).astype(Extended)
    for r in range(len(a)):
        pivot = r + int(np.abs(a[r:, r]).argmax())
        a[[r, pivot]] = a[[pivot, r]]
        a[r] /= a[r, r]
        for other in range(len(a)):
            if other != r:
                a[other] -= a[other, r] * a[r]
    return a[:, -1]


def homotopy(hessian, gradient, strengths):
    """Return the minimizers of g'w + w'Hw / 2 + strength |w|_1 for decreasing strengths, by their kinks (LARS)."""
    size, models = len(gradient), []
    w, slopes = np.zeros(size, Extended), -gradient.astype(Extended)
    support = [int(np.abs(slopes).argmax())]
    now, left = np.abs(slopes).max(), -1
    for strength in strengths:
        while True:
            signs = np.sign(slopes[support])
            direction = solve(hessian[np.ix_(support, support)], signs)
            change = hessian[:, support] @ direction
            length, event = now - Extended(strength), None
            for j in range(size):
                if j in support:
                    step = -w[j] / direction[support.index(j)]
                    if 0 < step < length:
                        length, event = step, j
                elif j != left:
                    for step in ((now - slopes[j]) / (1 - change[j]), (now + slopes[j]) / (1 + change[j])):
                        if 0 < step < length:
                            length, event = step, j
            w[support] += length * direction
            slopes -= length * change
            now, left = now - length, -1
            if event is None:
                break
            if event in support:
                w[event], left = 0, event
                support.remove(event)
            else:
                support.append(event)
        models.append(w.copy())
    return np.array(models)


def correlated_problem(noise=2e-4, shift=0.0):
    """Return a problem with groups of features whose correlations are 1 - noise^2 / 2."""
    random = np.random.default_rng(0)
    base = random.standard_normal((CLIENTS * ROWS, 6))
    x = base[:, np.arange(FEATURES) % 6] + noise * random.standard_normal((CLIENTS * ROWS, FEATURES))
    y = x[:, 0] - 0.7 * x[:, 7] + 0.5 * x[:, 14] + random.standard_normal(len(x))
    data = ClientData(x + shift, y, np.arange(0, len(x) + 1, ROWS))
    return Problem(data, Linear(FEATURES), all_losses()["squared"](), regularizer=L1(strength=0.1))


def compared(problem, count, ratio):
    """Return the path from moments and from the homotopy, with the bias eliminated from exact sums."""
    strengths = find_largest(problem) * np.geomspace(0.999, ratio, count)
    numbers = stack_numbers([replace(problem.regularizer, strength=one) for one in strengths])
    (ours,) = solve_by_moments([problem], numbers, 1e-8)
    x, y = problem.data.x.astype(Extended), problem.data.y.astype(Extended)
    x, y = x - x.mean(axis=0), y - y.mean()
    expected = homotopy(2 * x.T @ x / len(y), -2 * x.T @ y / len(y), strengths)
    return ours, ours.models[:, :-1], expected.astype(float)


def test_the_path_is_that_of_an_active_set_method_at_correlations_of_1_minus_1e_8():
    problem = correlated_problem(noise=np.sqrt(2e-8))
    pairs = np.corrcoef(problem.data.x.T)[np.triu_indices(FEATURES, 1)]
    assert 0.99999997 < pairs.max() < 0.999999995
    ours, models, expected = compared(problem, 60, 0.01)
    assert ours.converged.all()
    np.testing.assert_array_equal(models != 0, expected != 0)
    np.testing.assert_allclose(models, expected, rtol=0, atol=1e-8)
    assert len(np.unique((models != 0).sum(axis=1))) > 5


def test_shifted_columns_are_right(caplog):
    ours, models, expected = compared(correlated_problem(noise=0.5, shift=100.0), 20, 0.05)
    assert ours.converged.all()
    np.testing.assert_allclose(models, expected, rtol=0, atol=1e-8)
    assert "center the columns" not in caplog.text


def test_a_shift_that_costs_too_many_digits_is_warned_of(caplog):
    """Models are then not claimed to be solutions."""
    with caplog.at_level(logging.INFO):
        ours, models, expected = compared(correlated_problem(noise=0.5, shift=1e6), 20, 0.05)
    assert "moments: condition number " in caplog.text
    assert "19 columns are constant, or their means exceed 1,000 times" in caplog.text
    assert "to about 4 of 16 digits; center the columns (task.standardize=true)" in caplog.text
    assert np.abs(models - expected).max() > 1e-8
    assert not ours.converged.any()


def test_the_homotopy_satisfies_the_optimality_conditions():
    """The gradient has the size of the strength on the support, and is not larger elsewhere."""
    problem = correlated_problem(noise=0.5)
    strengths = find_largest(problem) * np.geomspace(0.999, 0.02, 10)
    x, y = problem.data.x - problem.data.x.mean(axis=0), problem.data.y - problem.data.y.mean()
    hessian, gradient = 2 * x.T @ x / len(y), -2 * x.T @ y / len(y)
    for w, strength in zip(homotopy(hessian, gradient, strengths), strengths, strict=True):
        slopes = hessian @ w + gradient
        assert (np.abs(slopes) <= strength * (1 + 1e-10)).all()
        np.testing.assert_allclose(slopes[w != 0], -strength * np.sign(w[w != 0]).astype(float), rtol=1e-10)
