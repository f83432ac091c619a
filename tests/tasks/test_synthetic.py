"""Generators of lasso and nuclear: shapes, moments, heterogeneity, seeds and metrics."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fco_cli.errors import UserError
from fco_cli.tasks.synthetic import Lasso, Nuclear

LASSO = Lasso(name="lasso", strength=0.5, radius=5, clients=30, samples=40, dimension=20, ones=5)
NUCLEAR = Nuclear(name="nuclear", strength=0.5, radius=2, clients=8, samples=30, dimension=4, rank=2)


@pytest.fixture
def build(regularizer):
    def make(task, seed=0, dtype="float64"):
        psi = regularizer("l1" if isinstance(task, Lasso) else "nuclear")
        return task.build(seed, dtype).to_problem(psi)

    return make


def means(problem):
    return np.array([problem.data.client(m).x.mean(axis=0) for m in range(problem.data.clients)])


def test_shapes(build):
    lasso, nuclear = build(LASSO), build(NUCLEAR)
    assert lasso.data.x.shape == (1200, 20)
    assert set(lasso.data.sizes) == {40}
    assert lasso.layout.blocks[0].shape == (20,)
    assert nuclear.data.x.shape == (240, 16)
    assert nuclear.layout.blocks[0].shape == (4, 4)


def test_truth(build):
    np.testing.assert_array_equal(build(LASSO).truth[:-1], [1] * 5 + [0] * 15)
    np.testing.assert_array_equal(build(NUCLEAR).truth[:-1].reshape(4, 4), np.diag([1, 1, 0, 0]))


def test_labels_are_the_true_model_plus_unit_noise(build):
    """1200 residuals: their mean within 5/sqrt(1200) of 0, their variance within 5 sqrt(2/1200) of 1."""
    problem = build(LASSO)
    noise = problem.data.y - problem.data.x @ problem.truth[:-1] - problem.truth[-1]
    assert abs(noise.mean()) < 5 / np.sqrt(1200)
    assert abs(noise.var() - 1) < 5 * np.sqrt(2 / 1200)


def test_features_are_a_client_mean_plus_unit_noise(build):
    """Within a client variance 1; the 600 client means have variance 1 + 1/40."""
    problem = build(LASSO)
    within = np.mean([problem.data.client(m).x.var(axis=0, ddof=1).mean() for m in range(30)])
    assert abs(within - 1) < 5 * np.sqrt(2 / (30 * 39 * 20))
    assert abs(means(problem).var() - 1 - 1 / 40) < 5 * np.sqrt(2 / 600) * 1.1


@pytest.mark.parametrize("heterogeneity", [0.0, 0.3, 2.0])
def test_heterogeneity_scales_the_means_and_nothing_else(build, heterogeneity):
    plain, knob = build(LASSO), build(replace(LASSO, heterogeneity=heterogeneity))
    none = build(replace(LASSO, heterogeneity=0.0))
    mu = means(plain) - means(none)  # the noise is the same
    np.testing.assert_allclose(means(knob) - means(none), heterogeneity * mu, atol=1e-12)
    np.testing.assert_array_equal(knob.truth, plain.truth)


def test_validation_is_new_data_of_the_same_clients(build):
    """At the truth F is the noise variance; the mean squares of the features are those of the same clients."""
    problem = build(LASSO)
    at_truth = problem.validation(problem.truth[None]).value[0]
    assert abs(at_truth - 1) < 5 * np.sqrt(2 / 1200)
    assert at_truth != problem.risk(problem.truth[None]).value[0]
    # F is quadratic: F(e_i) - 2 F(e_i / 2) + F(0) is half the mean of x_i^2.
    directions = np.eye(21)[:20]
    zero = problem.validation(np.zeros((1, 21))).value
    curvature = 2 * (problem.validation(directions).value - 2 * problem.validation(directions / 2).value + zero)
    trained = (problem.data.x**2).mean(axis=0)
    other = (build(LASSO, seed=1).data.x ** 2).mean(axis=0)
    assert np.abs(curvature - trained).mean() < np.abs(curvature - other).mean() / 2


def test_a_function_of_the_seed(build):
    first, again, other = build(LASSO), build(LASSO), build(LASSO, seed=1)
    np.testing.assert_array_equal(first.data.x, again.data.x)
    np.testing.assert_array_equal(first.data.y, again.data.y)
    assert not np.array_equal(first.data.x, other.data.x)
    assert first.truth[-1] != other.truth[-1]


def test_more_clients_do_not_change_the_first(build):
    """Every client has its own stream."""
    few, many = build(replace(LASSO, clients=3)), build(LASSO)
    np.testing.assert_array_equal(few.data.x, many.data.x[: 3 * 40])


def test_single_precision_is_the_same_data_rounded(build):
    single, double = build(LASSO, dtype="float32"), build(LASSO)
    assert single.data.x.dtype == single.data.y.dtype == np.float32
    np.testing.assert_array_equal(single.data.x, double.data.x.astype(np.float32))


def test_metrics_at_the_truth_and_at_zero(build):
    lasso, nuclear = build(LASSO), build(NUCLEAR)
    w = np.array([lasso.truth, np.zeros(21), lasso.truth + 0.005])  # the last: below the threshold of 0.01
    metrics = LASSO.metrics(lasso, w)
    np.testing.assert_array_equal(metrics["f1"], [1, 0, 1])
    np.testing.assert_array_equal(metrics["density"], [0.25, 0, 0.25])
    np.testing.assert_allclose(metrics["recovery_error"], [0, np.sqrt(5), 0.005 * np.sqrt(20)])
    w = np.array([nuclear.truth, np.zeros(17)])
    np.testing.assert_array_equal(NUCLEAR.metrics(nuclear, w)["rank"], [2, 0])
    np.testing.assert_allclose(NUCLEAR.metrics(nuclear, w)["recovery_error"], [0, np.sqrt(2)])


@pytest.mark.parametrize(
    ("task", "changes"),
    [
        (LASSO, {"ones": 21}), (LASSO, {"ones": -1}), (LASSO, {"dimension": 0}), (LASSO, {"clients": 0}),
        (LASSO, {"samples": 0}), (LASSO, {"heterogeneity": -0.1}), (LASSO, {"heterogeneity": np.nan}),
        (NUCLEAR, {"rank": 5}), (NUCLEAR, {"dimension": 0}),
    ],
)  # fmt: skip
def test_bad_values_are_refused_by_name(task, changes):
    (key,) = changes
    with pytest.raises(UserError, match=rf"^task\.{key}: got "):
        replace(task, **changes)


@pytest.mark.parametrize(("task", "key"), [(LASSO, "ones"), (NUCLEAR, "rank")])
def test_main_metric_is_one_of_the_metrics(build, task, key):
    problem = build(task)
    assert task.main_metric in task.metrics(problem, np.zeros((1, problem.layout.size)))
    assert task.clients_available == problem.data.clients


def test_a_glorot_start_is_uniform_within_its_limit_and_only_in_the_weights(regularizer):
    task = replace(LASSO, dimension=600, start="glorot")
    start = task.data(0, "float64").model.initial()
    limit = np.sqrt(6 / 601)
    assert np.abs(start[:-1]).max() <= limit
    assert abs(start[:-1].var() / (limit**2 / 3) - 1) < 5 * np.sqrt(
        0.8 / 600
    )  # a uniform number's square has variance 4/45
    assert start[-1] == 0
    assert (start != task.data(1, "float64").model.initial()).any()
    assert not task.build(0, "float64").model.initial().any()
    matrix = replace(NUCLEAR, start="glorot").data(0, "float64")
    assert matrix.to_problem(regularizer("nuclear")).layout.blocks[0].shape == (4, 4)


@pytest.mark.parametrize("start", [None, "zeros"])
def test_a_linear_model_starts_at_zero_otherwise(start):
    assert not replace(LASSO, start=start).data(0, "float64").model.initial().any()


def test_another_start_is_refused():
    with pytest.raises(UserError, match=r"task.start: got 'ones', must be null, zeros or glorot"):
        replace(LASSO, start="ones")
