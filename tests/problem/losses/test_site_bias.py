"""Site biases: equivalent to one indicator column per client that is not regularized."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from fco_cli.problem.data import ClientData
from fco_cli.problem.descent import row_kernels
from fco_cli.problem.losses import all_losses
from fco_cli.problem.losses.site_bias import bias_finder
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers.penalties import L1


def with_site_bias(problem: Problem) -> Problem:
    return replace(problem, model=replace(problem.model, site_bias=True))


@pytest.mark.parametrize("loss", ["squared", "logistic", "huber", "poisson"])
def test_the_bias_minimizes_the_loss(make_problem, loss):
    problem = make_problem(loss=loss)
    w = 0.3 * np.random.default_rng(0).standard_normal((2, 7))
    biased, data = with_site_bias(problem), problem.data
    biases, value = biased.site_biases(w), all_losses()[loss]().bound_kernel("value").as_python
    for j in range(2):
        total = 0.0
        for m in range(data.clients):
            rows = data.client(m)
            scores = rows.x @ w[j, :6] + w[j, 6]

            def mean(b, scores=scores, y=rows.y):
                return np.mean([value(np.array([s + b]), label) for s, label in zip(scores, y, strict=True)])

            best = minimize_scalar(mean, bounds=(-20, 20), method="bounded", options={"xatol": 1e-10})
            assert biases[m, j] == pytest.approx(best.x, abs=1e-5)
            total += best.fun / data.clients
        assert biased.risk(w).value[j] == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_the_solution_equals_that_with_a_column_per_client(make_problem, make_algorithm, loss):
    problem = make_problem(L1(strength=0.05), loss, sizes=(9, 6, 12), features=4)
    data = problem.data
    columns = np.repeat(np.eye(3), data.sizes, axis=0)
    rows = ClientData(np.hstack([data.x, columns]), data.y, data.offsets)
    psi = L1(strength=0.05, factors={"x4": 0, "x5": 0, "x6": 0})
    wide = Problem(rows, Linear(7), problem.loss, regularizer=psi)

    def solve(problem: Problem) -> np.ndarray:
        solver = make_algorithm("optimum", problem)
        start = problem.initial_models(problem.regularizer.numbers)
        return solver.round(solver.initial_state(start)).state["w"]

    biased = with_site_bias(problem)
    w, w_wide = solve(biased), solve(wide)
    np.testing.assert_allclose(w[0, :4], w_wide[0, :4], atol=1e-7)
    np.testing.assert_allclose(biased.site_biases(w)[:, 0], w_wide[0, 4:7] + w_wide[0, 7], atol=1e-6)
    assert abs(w[0, 4]) < 1e-10  # the common bias stays 0


def test_held_out_rows_use_the_bias_of_training(make_problem):
    problem = make_problem(loss="logistic")
    held_out = ClientData(problem.data.x[:11], problem.data.y[:11], np.array([0, 5, 11]))
    held_out = replace(held_out, trained_as=np.array([2, -1]))
    biased = replace(with_site_bias(problem), held_out=held_out)
    w = np.random.default_rng(0).standard_normal((1, 7))
    biases = biased.site_biases(w)[:, 0]
    scores = held_out.x @ w[0, :6] + w[0, 6] + np.repeat([biases[2], biases.mean()], [5, 6])
    np.testing.assert_allclose(biased.scores_on(held_out, w)[0, 0], scores, rtol=1e-12)
    losses = np.log1p(np.exp(scores)) - held_out.y * scores
    result = biased.validation(w, gradient=False)
    assert result.value[0] == pytest.approx((losses[:5].mean() + losses[5:].mean()) / 2)
    assert result.accuracy[0] == pytest.approx(np.mean((scores > 0) == (held_out.y > 0.5)))


def test_a_client_with_equal_labels_has_a_saturated_bias(make_problem):
    problem = with_site_bias(make_problem(loss="logistic"))
    problem.data.y[problem.data.offsets[0] : problem.data.offsets[1]] = 1
    risk = problem.risk(np.zeros((1, 7)))
    assert np.isfinite(risk.value).all()
    assert problem.site_biases(np.zeros((1, 7)))[0, 0] >= 40


def squared_slope(s, y):
    return 2 * (s - y)


def huber_slope(s, y):
    return 2 * np.clip(s - y, -1, 1)


def logistic_slope(s, y):
    return np.where(y > 0.5, -1 / (1 + np.exp(s)), 1 / (1 + np.exp(-s)))


def poisson_slope(s, y):
    return np.exp(s) - y


# By loss: its slope, and the magnitude of the terms that cancel in it, which determines the rounding error.
SLOPES = {
    "squared": (squared_slope, lambda s, y: abs(s) + abs(y)),
    "huber": (huber_slope, lambda s, y: abs(s) + abs(y)),
    "logistic": (logistic_slope, lambda s, y: np.ones_like(s)),
    "poisson": (poisson_slope, lambda s, y: np.exp(s) + y),
}
RANDOM = np.random.default_rng(5)
NORMAL = RANDOM.standard_normal(9)
NUMBERS = {
    "around 130": (NORMAL, 130 + 5 * RANDOM.standard_normal(9)),
    "of 1e6": (NORMAL, 1e6 * RANDOM.standard_normal(9)),
    "of 1e-6": (1e-6 * NORMAL, 1e-6 * RANDOM.standard_normal(9)),
    "of 1e-150": (np.zeros(9), 1e-150 * (3 + NORMAL)),
    "an outlier": (NORMAL, np.append(NORMAL[:8] + 3, 1e9)),
    "far scores": (1e5 * NORMAL, NORMAL),
    "all equal": (np.zeros(9), np.full(9, -0.1)),
    "equal residuals": (NORMAL, NORMAL - 250.1),
}
CLASSES = {
    "mixed": (NORMAL, np.arange(9) % 2),
    "one in nine": (NORMAL, np.arange(9) == 4),
    "far scores": (NORMAL - 500, np.arange(9) % 2),
    "separated by 400": (np.where(np.arange(9) % 3 == 0, 400.0, 0.0), np.arange(9) % 3 == 0),
    "separated by -400": (np.where(np.arange(9) % 3 == 0, -400.0, 0.0), np.arange(9) % 3 == 0),
}
COUNTS = {
    "small": (NORMAL, np.arange(9) % 4),
    "of 1e6": (NORMAL, 100_000 * np.arange(9)),
    "far scores": (NORMAL - 300, np.arange(9)),
    "spread scores": (400 * NORMAL, np.arange(9)),
    "one in nine": (NORMAL, np.arange(9) == 4),
}
LABELS = {"squared": NUMBERS, "huber": NUMBERS, "logistic": CLASSES, "poisson": COUNTS}


def problem_with_scores(loss, scores, y, dtype, weights=None):
    """Return a problem with one client whose rows have these scores at w = (1, 0)."""
    data = ClientData(
        scores.astype(dtype)[:, None], y.astype(dtype), np.array([0, len(y)]),
        None if weights is None else weights.astype(dtype),
    )  # fmt: skip
    return Problem(data, Linear(1, 1, site_bias=True), all_losses()[loss](), regularizer=L1(strength=0.0))


def derivative(loss, problem, bias):
    """Return the derivative by the bias in extended precision, and its rounding error in double precision."""
    s, y = (column.astype(np.longdouble) for column in (problem.data.x[:, 0], problem.data.y))
    weights = np.ones_like(s) if problem.data.row_weights is None else problem.data.targets[:, 1].astype(s.dtype)
    slope, size = SLOPES[loss]
    s = s + np.longdouble(bias)
    with np.errstate(over="ignore"):
        return (weights * slope(s, y)).sum(), 1e-15 * (weights * size(s, y)).sum()


def test_every_loss_with_an_optimal_score_is_listed():
    assert SLOPES.keys() == LABELS.keys() == {name for name, kind in all_losses().items() if kind.optimal_score}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("loss", "case"), [(loss, case) for loss in LABELS for case in LABELS[loss]])
def test_the_derivative_changes_its_sign_at_the_bias(loss, case, dtype, weighted):
    weights = np.arange(1, 10) % 4 / 2 if weighted else None  # two weights are 0
    problem = problem_with_scores(loss, *LABELS[loss][case], dtype, weights)
    bias = problem.site_biases(np.array([[1.0, 0.0]]))[0, 0]
    distance = 2 * np.finfo(dtype).eps * abs(np.longdouble(bias))
    below, error_below = derivative(loss, problem, bias - distance)
    above, error_above = derivative(loss, problem, bias + distance)
    assert below <= error_below
    assert above >= -error_above


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("loss", "label", "sign"), [("logistic", 0, -1), ("logistic", 1, 1), ("poisson", 0, -1)])
def test_without_a_minimizer_every_score_is_at_least_40(loss, label, sign, dtype):
    scores = 30 * NORMAL
    problem = problem_with_scores(loss, scores, np.full(9, label), dtype)
    bias = problem.site_biases(np.array([[1.0, 0.0]]))[0, 0]
    assert min(sign * (problem.data.x[:, 0] + bias)) == pytest.approx(40, rel=1e-6)
    assert 0 < -sign * derivative(loss, problem, bias)[0] < 1e-16


def test_rows_without_weight_do_not_keep_a_bias_finite():
    weights = np.where(np.arange(9) == 4, 0.0, 1.0)
    problem = problem_with_scores("logistic", np.zeros(9), np.arange(9) == 4, "float64", weights)
    assert problem.site_biases(np.array([[1.0, 0.0]]))[0, 0] == -40


@pytest.mark.parametrize("loss", sorted(LABELS))
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_diverged_scores_give_nan(loss, broken):
    problem = problem_with_scores(loss, np.append(NORMAL, broken), np.arange(10) % 2, "float64")
    assert np.isnan(problem.site_biases(np.array([[1.0, 0.0]]))[0, 0])
    assert not np.isfinite(problem.risk(np.array([[1.0, 0.0]])).value[0])


@pytest.mark.machine_code
@pytest.mark.ci
@pytest.mark.parametrize("loss", sorted(LABELS))
def test_machine_code_agrees_with_python(loss):
    for scores, y in LABELS[loss].values():
        problem = problem_with_scores(loss, scores, y, "float64")
        finder = bias_finder(row_kernels(problem.data, problem.loss), problem.loss)
        arguments = problem.data.x[:, 0].copy(), problem.data.targets, np.arange(9)
        with np.errstate(over="ignore"):
            assert finder(*arguments) == pytest.approx(finder.uncompiled(*arguments), rel=1e-13)
