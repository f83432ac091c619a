"""Tests of the exact solver of quadratic models: optimality for every psi, exact arithmetic, dependent columns."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from fco_cli.errors import UserError
from fco_cli.problem.layout import stack_numbers
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.quadratic_solver import minimize_quadratic, scalar_forms
from fco_cli.problem.regularizers import all_regularizers
from fco_cli.problem.regularizers.blockwise import Blockwise
from fco_cli.problem.regularizers.penalties import L1, ElasticNet
from fco_cli.problem.regularizers.sets import Box
from fco_cli.testing.problems import make_problem, make_regularizer

CONVEX = [name for name, kind in all_regularizers().items() if kind.convex]
PIECE = {"name": "elastic_net", "strength": 0.1, "l2_strength": 0.2}


def problem_with(name: str, features: int = 6):
    """Return a problem with a 2 x 3 matrix of weights and a bias."""
    kind = all_regularizers()[name]
    small = {"strength": 0.1, "group_size": 3, "radius": 0.5, "total": 0.5, "lower": -0.3}
    psi = Blockwise(blocks={"weights": PIECE}) if kind is Blockwise else make_regularizer(kind, **small)
    problem = make_problem()
    return replace(problem, model=Linear(features, weights_shape=(2, features // 2)), regularizer=psi)


def model_of(problem, jobs: int = 3, rows: int = 30, noise: float = 1.0):
    """Return a Hessian, the gradients of several jobs and the points at which these hold."""
    random = np.random.default_rng(0)
    size = problem.layout.size
    x, y = random.standard_normal((rows, size)), 2 * random.standard_normal((jobs, rows))
    x[:, 1] = x[:, 0] + noise * x[:, 1]
    at = random.standard_normal((jobs, size))
    return x.T @ x / rows, (at @ x.T - y) @ x / rows, at


def residual(problem, numbers, hessian, gradient, at, w) -> float:
    """Return |w - prox(w - slope)| of the quadratic model, the largest of all jobs."""
    return float(problem.kkt_residual(w, gradient + (w - at) @ hessian, numbers).max())


@pytest.mark.parametrize("noise", [1.0, 1e-3])
@pytest.mark.parametrize("name", CONVEX)
def test_solutions_are_optimal_for_every_convex_regularizer(name, noise):
    problem = problem_with(name)
    hessian, gradient, at = model_of(problem, noise=noise)
    numbers = np.repeat(problem.regularizer.numbers, 3)
    w = minimize_quadratic(problem, numbers, hessian[None], gradient, at)
    assert residual(problem, numbers, hessian, gradient, at, w) < 1e-12
    assert not problem.regularizer.constraint or problem.constraint_violation(w, numbers).max() < 1e-12


@pytest.mark.parametrize("name", [name for name in CONVEX if all_regularizers()[name].separable] + ["blockwise"])
def test_the_scalar_form_is_psi(name):
    """a |w| + b w^2 / 2 inside the bounds is psi, and the weights of the bias are free."""
    problem = problem_with(name)
    a, b, lower, upper = scalar_forms(problem, problem.regularizer.numbers, np.arange(7))
    w = np.clip(np.random.default_rng(0).standard_normal((1, 7)), lower, upper)
    value = (a * np.abs(w) + b * w**2 / 2).sum()
    np.testing.assert_allclose(value, problem.psi(w, problem.regularizer.numbers)[0], rtol=1e-14)
    z = 3 * np.random.default_rng(1).standard_normal((1, 7))
    expected = np.clip((z - np.clip(z, -a, a)) / (1 + b), lower, upper)
    np.testing.assert_allclose(problem.prox(z, np.ones(1), problem.regularizer.numbers), expected, atol=1e-15)
    assert (a[0, 6], b[0, 6], lower[0, 6], upper[0, 6]) == (0, 0, -np.inf, np.inf)


def rational_lasso(hessian: list[list[Fraction]], linear: list[Fraction], strength: Fraction) -> list[Fraction]:
    """Return the lasso solution in exact arithmetic: the pattern of signs whose stationary point is optimal."""
    size = len(linear)
    for signs in product((0, 1, -1), repeat=size):
        support = [i for i in range(size) if signs[i]]
        matrix = [[hessian[i][k] for k in support] + [-linear[i] - strength * signs[i]] for i in support]
        for r in range(len(support)):
            pivot = matrix[r][r]
            matrix[r] = [entry / pivot for entry in matrix[r]]
            for other in range(len(support)):
                if other != r:
                    factor = matrix[other][r]
                    matrix[other] = [x - factor * y for x, y in zip(matrix[other], matrix[r], strict=True)]
        w = [Fraction(0)] * size
        for r, i in enumerate(support):
            w[i] = matrix[r][-1]
        slopes = [linear[i] + sum(hessian[i][k] * w[k] for k in support) for i in range(size)]
        if all(w[i] * signs[i] > 0 for i in support) and all(abs(s) <= strength for s in slopes):
            return w
    raise AssertionError("no pattern of signs is optimal")


@pytest.mark.parametrize("exponent", [27, 20])
def test_supports_and_signs_are_those_of_exact_arithmetic(exponent):
    """Correlations are 1 - 2^-27, about 1 - 1e-8; all numbers are exact in binary."""
    gap = Fraction(1, 2**exponent)
    matrix = [[Fraction(1) if i == k else Fraction(0) for k in range(5)] for i in range(5)]
    for i, k, entry in [(0, 1, 1 - gap), (2, 3, gap - 1), (0, 4, Fraction(1, 2)), (1, 4, Fraction(1, 2))]:
        matrix[i][k] = matrix[k][i] = entry
    linear = [Fraction(-5, 8), Fraction(-5, 8) - gap / 4, Fraction(3, 8), Fraction(-3, 8), Fraction(1, 16)]
    strengths = [Fraction(n, 64) for n in (38, 20, 8, 2, 1)] + [Fraction(1, 2**30)]
    expected = np.array([[float(v) for v in rational_lasso(matrix, linear, one)] for one in strengths])
    problem = make_problem(L1(strength=0.1), features=5)
    numbers = stack_numbers([L1(strength=float(one)) for one in strengths])
    hessian = np.eye(6)
    hessian[:5, :5] = np.array(matrix, dtype=float)
    gradient = np.tile([*map(float, linear), 0.0], (len(strengths), 1))
    for chain in (1, len(strengths)):
        w = minimize_quadratic(problem, numbers, hessian[None], gradient, np.zeros_like(gradient), chain=chain)
        np.testing.assert_array_equal(np.sign(w[:, :5]), np.sign(expected))
        np.testing.assert_allclose(w[:, :5], expected, atol=1e-7 * np.abs(expected).max())


def test_dependent_columns_have_a_solution():
    """More weights than rows, and a column that occurs twice: the objective is the smallest, on any start."""
    problem = make_problem(L1(strength=0.1), features=12)
    random = np.random.default_rng(3)
    x = random.standard_normal((8, 13))
    x[:, 5], x[:, 12] = x[:, 2], 1
    y = random.standard_normal(8)
    hessian, linear = x.T @ x / 8, -(x.T @ y) / 8
    numbers = stack_numbers([L1(strength=one) for one in (0.2, 0.01, 1e-6)])
    at, gradient = np.zeros((3, 13)), np.tile(linear, (3, 1))
    solutions = [
        minimize_quadratic(problem, numbers, hessian[None], gradient, at, start=start)
        for start in (None, random.standard_normal((3, 13)), np.ones((3, 13)))
    ]
    values = [((w @ hessian) * w / 2 + w * linear).sum(axis=1) + problem.psi(w, numbers) for w in solutions]
    for w, value in zip(solutions, values, strict=True):
        assert residual(problem, numbers, hessian, gradient, at, w) < 1e-12
        np.testing.assert_allclose(value, values[0], rtol=1e-12)


def test_a_part_of_the_weights():
    """The weights outside of `columns` stay; the others minimize the model restricted to them."""
    problem = make_problem(ElasticNet(strength=0.1, l2_strength=0.3))
    hessian, gradient, at = model_of(problem)
    columns, numbers = np.array([0, 2, 3, 6]), np.repeat(problem.regularizer.numbers, 3)
    part = np.ix_(columns, columns)
    w = minimize_quadratic(problem, numbers, hessian[part][None], gradient[:, columns], at, columns)
    others = np.setdiff1d(np.arange(7), columns)
    np.testing.assert_array_equal(w[:, others], at[:, others])
    slopes = gradient + (w - at) @ hessian
    moved = problem.prox(w - slopes, np.ones(3), numbers)
    np.testing.assert_allclose(moved[:, columns], w[:, columns], atol=1e-13)


def test_only_separable_regularizers_support_a_part_of_the_weights():
    problem = problem_with("l1_ball")
    hessian, gradient, at = model_of(problem)
    with pytest.raises(UserError, match=r"^regularizer: got 'l1_ball', must be coordinate-separable"):
        minimize_quadratic(problem, problem.regularizer.numbers, hessian[None], gradient, at, np.array([0]))


@pytest.mark.parametrize("name", ["l1", "box", "group_lasso"])
def test_the_bits_of_a_job_do_not_depend_on_other_jobs(name):
    problem = problem_with(name)
    hessian, gradient, at = model_of(problem, jobs=4)
    numbers = np.repeat(problem.regularizer.numbers, 4)
    stack = minimize_quadratic(problem, numbers, hessian[None], gradient, at)
    for j in range(4):
        alone = minimize_quadratic(problem, numbers[j : j + 1], hessian[None], gradient[j : j + 1], at[j : j + 1])
        np.testing.assert_array_equal(alone[0], stack[j])


def test_an_unbounded_direction_ends():
    """A column of zeros without a penalty has no curvature and no slope: its weight stays."""
    problem = make_problem(Box(lower=-1e300, upper=1e300))
    hessian, gradient = np.zeros((1, 7, 7)), np.zeros((1, 7))
    w = minimize_quadratic(problem, problem.regularizer.numbers, hessian, gradient, np.ones((1, 7)))
    np.testing.assert_array_equal(w, 1)


@pytest.mark.ci
@pytest.mark.machine_code
@pytest.mark.parametrize("name", ["l1", "elastic_net", "box", "l1_ball", "group_lasso"])
def test_machine_code_agrees_and_a_wide_problem_is_optimal(name):
    problem = problem_with(name, features=60)
    hessian, gradient, at = model_of(problem, rows=40, noise=1e-4)
    numbers = np.repeat(problem.regularizer.numbers, 3)
    w = minimize_quadratic(problem, numbers, hessian[None], gradient, at)
    assert residual(problem, numbers, hessian, gradient, at, w) < 1e-11
