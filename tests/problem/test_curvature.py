"""Tests of Hessians: derivatives of the gradient, sums over clients, and equal bits for a job alone and in a stack."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fco_cli.errors import UserError
from fco_cli.problem.curvature import pack, packed_index, packed_size, quadratic_of, unpack
from fco_cli.problem.data import SparseRows
from fco_cli.problem.losses import Huber, Loss, all_losses
from fco_cli.problem.models.linear import Linear, SparseLinear
from fco_cli.testing.problems import make_problem

LOSSES = ("squared", "huber", "poisson", "logistic", "softmax", "cox")
SIZES = (7, 4, 9)


def labels_of(loss, count):
    random = np.random.default_rng(3)
    times = np.round(random.exponential(size=count), 1) + 0.1  # with ties
    return {
        "squared": random.standard_normal(count),
        "huber": 2 * random.standard_normal(count),
        "poisson": random.poisson(2, count).astype(float),
        "logistic": random.integers(2, size=count).astype(float),
        "softmax": np.append(2.0, random.integers(3, size=count - 1)),
        "cox": times * np.where(random.random(count) < 0.7, 1, -1),
    }[loss]


def problem_of(loss, sizes=SIZES, features=4):
    kind = Huber(delta=1.5) if loss == "huber" else all_losses()[loss]()
    return make_problem(loss=kind, sizes=sizes, features=features, labels=labels_of(loss, sum(sizes)))


def with_weights(problem):
    weights = np.random.default_rng(4).uniform(0.5, 2.0, len(problem.data.y))
    return replace(problem, training=replace(problem.data, row_weights=weights))


def with_sparse_rows(problem):
    x = np.where(np.abs(problem.data.x) > 0.6, problem.data.x, 0.0)
    rows, columns = np.nonzero(x)
    starts = np.searchsorted(rows, np.arange(len(x) + 1)).astype(np.int64)
    sparse = replace(problem.data, x=SparseRows(x[rows, columns], columns, starts, x.shape[1]))
    model = SparseLinear(x.shape[1], problem.model.outputs)
    return replace(problem, training=sparse, model=model), replace(problem, training=replace(problem.data, x=x))


def with_site_bias(problem):
    return replace(problem, model=Linear(problem.model.features, site_bias=True))


def models_of(problem, jobs=3):
    w = 0.4 * np.random.default_rng(5).standard_normal((jobs, problem.layout.size))
    if problem.model.site_bias:
        w[:, -1] = 0
    return w


def differences(problem, w, step=1e-5):
    """Return the Hessian [P, P] at w [P] by central differences of the gradient."""
    moves = step * np.eye(len(w))
    return (problem.risk(w + moves).gradient - problem.risk(w - moves).gradient) / (2 * step)


VARIANTS = [
    *((loss, lambda problem: problem) for loss in LOSSES),
    *((loss, with_weights) for loss in LOSSES if loss != "cox"),
    *((loss, lambda problem: with_sparse_rows(problem)[0]) for loss in LOSSES),
    *((loss, with_site_bias) for loss in ("squared", "poisson", "huber")),
]


@pytest.mark.parametrize(("loss", "variant"), VARIANTS)
def test_the_hessian_is_the_derivative_of_the_gradient(loss, variant):
    problem = variant(problem_of(loss))
    w = models_of(problem)
    at, risk = problem.curvature(w), problem.risk(w)
    np.testing.assert_allclose(at.value, risk.value, rtol=1e-13)
    np.testing.assert_allclose(at.gradient, risk.gradient, rtol=1e-11, atol=1e-14)
    for model, hessian in zip(w, at.hessian, strict=True):
        expected = differences(problem, model)
        if problem.model.site_bias:  # the model's own bias is not used
            expected[-1] = expected[:, -1] = 0
        np.testing.assert_allclose(hessian, expected, rtol=1e-5, atol=2e-8)


@pytest.mark.parametrize("loss", LOSSES)
def test_hessians_are_symmetric_and_positive_semidefinite(loss):
    problem = problem_of(loss)
    at = problem.curvature(20 * models_of(problem))  # also where the loss saturates
    for hessian in at.hessian:
        np.testing.assert_array_equal(hessian, hessian.T)
        values = np.linalg.eigvalsh(hessian)
        assert values[0] >= -1e-13 * max(values[-1], 1.0)


def second_derivatives(problem, scores):
    """Return the second derivatives [N, C, C] of the rows' losses by their scores [N, C], by textbook formulas."""
    name, s = problem.loss.name, scores[:, 0]
    if name == "softmax":
        p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        return np.array([np.diag(row) - np.outer(row, row) for row in p])
    p = 1 / (1 + np.exp(-s))
    within = np.abs(s - problem.data.y) <= 1.5
    one = {"squared": 2 + 0 * s, "huber": 2.0 * within, "poisson": np.exp(s), "logistic": p * (1 - p)}[name]
    return one[:, None, None]


@pytest.mark.parametrize("machine", [False, pytest.param(True, marks=[pytest.mark.ci, pytest.mark.machine_code])])
@pytest.mark.parametrize("loss", [loss for loss in LOSSES if loss != "cox"])
def test_the_hessian_is_the_weighted_sum_of_outer_products(loss, machine):
    problem = with_weights(problem_of(loss))
    data, (w,) = problem.data, models_of(problem, 1)
    features, outputs = problem.model.features, problem.model.outputs
    scores = data.x @ w[:-outputs].reshape(outputs, features).T + w[-outputs:]
    a = np.column_stack([data.x, np.ones(len(data.y))])
    shares = np.repeat(problem.weights / data.sizes, data.sizes) * data.relative_weights
    blocks = np.einsum("n,ncd,nf,ng->cfdg", shares, second_derivatives(problem, scores), a, a)
    order = np.arange(outputs * (features + 1)).reshape(outputs, -1)
    order = np.append(order[:, :-1].ravel(), order[:, -1])  # the biases are last
    expected = blocks.reshape(len(order), -1)[np.ix_(order, order)]
    np.testing.assert_allclose(problem.curvature(w[None]).hessian[0], expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("machine", [False, pytest.param(True, marks=[pytest.mark.ci, pytest.mark.machine_code])])
def test_the_cox_hessian_is_the_sum_of_the_covariances_in_risk_sets(machine):
    problem = problem_of("cox")
    (w,), expected = models_of(problem, 1), np.zeros((5, 5))
    for m, weight in enumerate(problem.weights):
        own = problem.data.client(m)
        for event in np.flatnonzero(own.y > 0):
            x = np.column_stack([own.x, np.ones(len(own.y))])[np.abs(own.y) >= own.y[event]]
            expected += weight / len(own.y) * np.cov(x.T, aweights=np.exp(x @ w), bias=True)
    hessian = problem.curvature(w[None]).hessian[0]
    np.testing.assert_allclose(hessian, expected, rtol=1e-11, atol=1e-15)
    assert not hessian[-1].any()


@pytest.mark.parametrize("loss", LOSSES)
def test_chosen_columns_are_a_part_of_the_whole(loss):
    problem = problem_of(loss)
    w, size = models_of(problem), problem.layout.size
    whole = problem.curvature(w)
    for columns in ([0], [1, 3], [2, size - 1], list(range(size)), [size - 2, size - 1]):
        part = problem.curvature(w, np.array(columns))
        np.testing.assert_allclose(part.hessian, whole.hessian[:, columns][:, :, columns], rtol=1e-13, atol=1e-16)
        np.testing.assert_array_equal(part.gradient, whole.gradient)


@pytest.mark.ci
@pytest.mark.machine_code
@pytest.mark.parametrize("loss", ["logistic", "cox", "softmax"])
def test_a_job_has_equal_bits_alone_and_in_a_stack_and_clients_are_added_in_order(loss):
    problem = problem_of(loss, sizes=(70, 4, 65), features=13)
    w = models_of(problem, 70)
    stack = problem.curvature(w)
    for j in (0, 33, 69):
        for alone, together in zip(problem.curvature(w[j : j + 1]), stack, strict=True):
            np.testing.assert_array_equal(alone[0], together[j])
    data = problem.data
    sites = [
        quadratic_of(data.client(m), problem.weights[m : m + 1], problem.model, problem.loss, w)
        for m in range(data.clients)
    ]
    for parts, together in zip(zip(*sites, strict=True), (*stack[:2], pack(stack.hessian)), strict=True):
        np.testing.assert_array_equal(sum(parts[1:], parts[0]), together)


@pytest.mark.parametrize("loss", ["logistic", "poisson", "softmax", "squared", "cox", "huber"])
def test_a_model_that_is_not_finite_gives_a_hessian_that_is_not(loss):
    problem = problem_of(loss)
    w = models_of(problem)
    w[1, 0] = np.nan
    at = problem.curvature(w)
    assert not np.isfinite(at.value[1])
    assert not np.isfinite(at.hessian[1]).all()
    assert np.isfinite(at.hessian[[0, 2]]).all()


def test_packed_matrices():
    matrices = np.random.default_rng(0).standard_normal((2, 5, 5))
    matrices += matrices.swapaxes(1, 2)
    packed = pack(matrices)
    assert packed.shape == (2, packed_size(5))
    np.testing.assert_array_equal(unpack(packed), matrices)
    a, b = np.triu_indices(5)
    np.testing.assert_array_equal(packed_index(b, a, 5), np.arange(15))


def test_single_precision_rows_give_the_hessian_in_double_precision():
    problem = problem_of("logistic")
    single = replace(problem, training=replace(problem.data, x=problem.data.x.astype(np.float32)))
    w = models_of(problem)
    at = single.curvature(w)
    assert at.hessian.dtype == at.gradient.dtype == np.float64
    np.testing.assert_allclose(at.hessian, problem.curvature(w).hessian, rtol=1e-4, atol=1e-6)


def test_a_loss_without_curvature_and_too_many_weights_are_refused():
    class Bare(Loss):
        name = "bare"
        value, slope = all_losses()["squared"].value, all_losses()["squared"].slope

    problem = replace(problem_of("squared"), loss=Bare())
    with pytest.raises(UserError, match=r"^task: this loss 'bare' has no Hessian"):
        problem.curvature(models_of(problem))
    wide = make_problem(features=4)
    with pytest.raises(UserError, match=r"^Hessians of 5 weights for 1,000,000,000,000 models would take"):
        quadratic_of(wide.data, wide.weights, wide.model, wide.loss, np.broadcast_to(np.zeros(5), (10**12, 5)))
