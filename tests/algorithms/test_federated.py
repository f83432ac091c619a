"""Tests of the paper's six federated algorithms against plain loops, each other and results computed by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fco_cli.algorithms import Cohort
from fco_cli.algorithms.arrays import Vector
from fco_cli.algorithms.rounds import MessageWeights, aggregate, aggregate_sum, fixed_point_sum
from fco_cli.errors import UserError
from fco_cli.kernels.compiled import kernel
from fco_cli.problem.data import ClientData
from fco_cli.problem.losses import Squared
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.problem import Problem

SIX = ["fedavg", "fedavg_subgrad", "fedmid", "fedmid_osp", "feddualavg", "feddualavg_osp"]  # of the paper
ROUNDS = 4


def outputs(algorithm, cohorts, start=None):
    """Return the models of job 0 after every round."""
    size = algorithm.problem.layout.size
    first = np.zeros(size) if start is None else start
    state = algorithm.initial_state(np.repeat(first[None], len(algorithm.varying), axis=0))
    models = []
    for cohort in cohorts:
        state = algorithm.round(state, cohort).state
        models.append(algorithm.output(state)[0].copy())
    return models


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize("name", SIX)
def test_against_plain_loops(
    name, weighting, normalize, make_problem, make_algorithm, make_hparams, cohorts_of, regularizer, reference, l1_prox
):
    """Unequal clients (so K differs), partial batches, two epochs, both weightings."""
    problem = make_problem(regularizer("l1", strength=0.3), weighting=weighting, sizes=(7, 4, 9, 1, 12))
    hparams = make_hparams(
        clients_per_round=3, batch_size=4, local_epochs=2, weighting=weighting, normalize_steps=normalize
    )
    cohorts = cohorts_of(problem, hparams)
    models = outputs(make_algorithm(name, problem, 0.05, 0.7), cohorts)
    expected = reference(name, problem.data, cohorts, 0.05, 0.7, l1_prox(0.3), 0.3)
    for model, right in zip(models, expected, strict=True):
        np.testing.assert_allclose(model, right, rtol=1e-12, atol=1e-13)


def test_subgradient_before_or_after_the_gradient_step(make_problem, make_algorithm, regularizer):
    """The bias, the last entry, has no subgradient of psi."""
    problem = make_problem(regularizer("l1", strength=0.3))
    batches = np.arange(7), np.array([0, 4, 7])
    w = random_start(problem.layout.size)
    for after in (False, True):
        algorithm = make_algorithm("fedavg_subgrad", problem, 0.1, subgradient_after=after)
        sent, _ = algorithm.client_update({"w": w[None]}, {}, problem.data.client(0), *batches)
        expected, slope = w.copy(), np.append(np.full(len(w) - 1, 0.3), 0)
        for rows in (slice(0, 4), slice(4, 7)):
            x, y = np.column_stack([problem.data.x[rows], np.ones(rows.stop - rows.start)]), problem.data.y[rows]
            moved = expected - 0.1 * 2 * x.T @ (x @ expected - y) / len(y)
            expected = moved - 0.1 * slope * np.sign(moved if after else expected)
        np.testing.assert_allclose(sent[0, 0], expected - w, rtol=1e-12)


def test_messages_of_client_update_do_not_share_memory(make_problem, make_algorithm, regularizer):
    """Rounds of a simulation reuse one buffer; a site may still be sending a message when the next is computed."""
    problem = make_problem(regularizer("l1", strength=0.3))
    algorithm, batches = make_algorithm("fedavg", problem, 0.1), (np.arange(7), np.array([0, 4, 7]))
    first, second = (
        algorithm.client_update({"w": np.full((1, problem.layout.size), start)}, {}, problem.data.client(0), *batches)[
            0
        ]
        for start in (0.0, 1.0)
    )
    assert not np.array_equal(first, second)


def random_start(size):
    """Return small weights, so that some change sign in a step of size 0.1."""
    return np.random.default_rng(1).normal(scale=0.05, size=size)


class HalfSquared(Squared):
    """Loss (score - y)^2 / 2."""

    @staticmethod
    @kernel
    def slope(scores, y):
        scores[0] = scores[0] - y


@pytest.mark.parametrize("name", SIX)
def test_half_the_loss_is_half_the_rate_and_twice_lambda(
    make_problem, make_algorithm, make_hparams, cohorts_of, regularizer, name
):
    """Bit for bit; therefore a factor 1/2 in the loss is not an option (docs/paper.md)."""
    plain = make_problem(regularizer("l1", strength=0.6))
    half = replace(plain, loss=HalfSquared(), regularizer=regularizer("l1", strength=0.3))
    cohorts, start = cohorts_of(plain, make_hparams()), random_start(plain.layout.size)
    models = outputs(make_algorithm(name, half, 0.1, 0.7), cohorts, start)
    for model, right in zip(models, outputs(make_algorithm(name, plain, 0.05, 0.7), cohorts, start), strict=True):
        np.testing.assert_array_equal(model, right)


# With K = 1, full batches and full participation the methods are centralized methods.


@pytest.mark.parametrize("eta_s", [1.0, 0.6])
def test_fedmid_osp_with_one_full_step_is_proximal_gradient(
    make_problem, make_algorithm, regularizer, full_cohort, eta_s
):
    """Clients ignore psi, so the server takes a step along the pooled gradient of size eta_s eta_c."""
    problem = make_problem(regularizer("l1", strength=0.3))
    cohorts = [full_cohort(problem)] * ROUNDS
    models = outputs(make_algorithm("fedmid_osp", problem, 0.05, eta_s), cohorts)
    centralized = outputs(make_algorithm("centralized", problem, 0.05 * eta_s), cohorts)
    for model, right in zip(models, centralized, strict=True):
        np.testing.assert_allclose(model, right, rtol=1e-11, atol=1e-13)


def test_fedmid_with_one_full_step_is_proximal_gradient(make_problem, make_algorithm, regularizer, full_cohort):
    """For identical clients and a constraint, where the server's projection has no effect.

    With a penalty fedmid applies the prox twice in such a round.
    """
    problem = identical_clients(make_problem(regularizer("l2_ball", radius=0.2)))
    cohorts = [full_cohort(problem)] * ROUNDS
    models = outputs(make_algorithm("fedmid", problem, 0.05), cohorts)
    centralized = outputs(make_algorithm("centralized", problem, 0.05), cohorts)
    for model, right in zip(models, centralized, strict=True):
        np.testing.assert_allclose(model, right, rtol=1e-11, atol=1e-13)


def test_feddualavg_with_one_full_step_is_dual_averaging(
    make_problem, make_algorithm, regularizer, full_cohort, l1_prox
):
    problem = make_problem(regularizer("l1", strength=0.3))
    models = outputs(make_algorithm("feddualavg", problem, 0.05), [full_cohort(problem)] * ROUNDS)
    z, prox = np.zeros(problem.layout.size), l1_prox(0.3)
    for r, model in enumerate(models):
        w = prox(z, 0.05 * r)
        z = z - 0.05 * problem.risk(w[None]).gradient[0]
        np.testing.assert_allclose(model, prox(z, 0.05 * (r + 1)), rtol=1e-11, atol=1e-13)


def identical_clients(problem, copies=3):
    """Return a problem in which every client holds all rows."""
    data = problem.data
    n = len(data.y)
    same = ClientData(np.tile(data.x, (copies, 1)), np.tile(data.y, copies), np.arange(copies + 1) * n)
    return Problem(same, problem.model, problem.loss, regularizer=problem.regularizer)


@pytest.mark.parametrize("name", SIX)
def test_identical_clients_behave_as_one(make_problem, make_algorithm, regularizer, full_cohort, name):
    one = make_problem(regularizer("l1", strength=0.3), sizes=(8,))
    three = identical_clients(one)
    alone = outputs(make_algorithm(name, one, 0.05, 0.7), [full_cohort(one)] * ROUNDS)
    together = outputs(make_algorithm(name, three, 0.05, 0.7), [full_cohort(three)] * ROUNDS)
    for model, right in zip(together, alone, strict=True):
        np.testing.assert_allclose(model, right, rtol=1e-12, atol=1e-14)


# Without psi the algorithms are identical.


@pytest.mark.parametrize("name", [name for name in SIX if name != "fedavg"])
def test_without_psi_all_are_fedavg(make_problem, make_algorithm, make_hparams, cohorts_of, regularizer, name):
    """With eta_s = 1 and strength 0, which uses the same kernels as other strengths."""
    problem = make_problem(regularizer("l1", strength=0.0))
    cohorts = cohorts_of(problem, make_hparams())
    fedavg = outputs(make_algorithm("fedavg", problem), cohorts)
    for model, right in zip(outputs(make_algorithm(name, problem), cohorts), fedavg, strict=True):
        np.testing.assert_allclose(model, right, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("parent", ["fedmid", "feddualavg"])
def test_without_psi_osp_variants_are_their_base_methods(
    make_problem, make_algorithm, make_hparams, cohorts_of, regularizer, parent
):
    """For any eta_s; with psi they differ."""
    cohorts = None
    for strength, same in ((0.0, True), (0.3, False)):
        problem = make_problem(regularizer("l1", strength=strength))
        cohorts = cohorts or cohorts_of(problem, make_hparams())
        models = [outputs(make_algorithm(name, problem, 0.05, 0.4), cohorts)[-1] for name in (parent, f"{parent}_osp")]
        assert np.allclose(*models, rtol=1e-12, atol=1e-14) == same


@pytest.mark.parametrize("ball", ["l1_ball", "l2_ball"])
def test_fedmid_on_a_constraint_is_projected_sgd_with_averaging(
    make_problem, make_algorithm, make_hparams, cohorts_of, regularizer, ball
):
    radius, eta_c = 0.4, 0.05
    problem = make_problem(regularizer(ball, radius=radius))
    data, cohorts = problem.data, cohorts_of(problem, make_hparams(normalize_steps=False))

    def project(w):
        """Return the projection; the threshold for the l1 ball is found by bisection."""
        kernel = w[:-1]
        if np.linalg.norm(kernel, 1 if ball == "l1_ball" else 2) <= radius:
            return w
        if ball == "l2_ball":
            return np.append(radius * kernel / np.linalg.norm(kernel), w[-1])
        low, high = 0.0, np.abs(kernel).max()
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if np.maximum(np.abs(kernel) - middle, 0).sum() > radius else (low, middle)
        return np.append(np.sign(kernel) * np.maximum(np.abs(kernel) - low, 0), w[-1])

    w, is_active = np.zeros(problem.layout.size), False
    for cohort, model in zip(cohorts, outputs(make_algorithm("fedmid", problem, eta_c), cohorts), strict=True):
        finals = []
        for i in range(len(cohort.clients)):
            v = w.copy()
            for k in range(cohort.first[i], cohort.first[i + 1]):
                rows = data.offsets[cohort.clients[i]] + cohort.order[cohort.edges[k] : cohort.edges[k + 1]]
                error = data.x[rows] @ v[:-1] + v[-1] - data.y[rows]
                v = project(v - eta_c * 2 / len(rows) * np.append(data.x[rows].T @ error, error.sum()))
            finals.append(v)
            is_active |= np.isclose(np.linalg.norm(v[:-1], 1 if ball == "l1_ball" else 2), radius)
        w = project(np.mean(finals, axis=0))
        np.testing.assert_allclose(model, w, rtol=1e-10, atol=1e-12)
    assert is_active


# Two rounds by hand. Two clients with a row each: x = (1, 0), y = 4 and x = (0, 1), y = -4; lambda = 1.


def two_rows(regularizer):
    """Return a problem with two clients of one row each.

    The server's bias stays 0, because the clients' gradients with respect to the bias are opposite.
    """
    data = ClientData(np.eye(2), np.array([4.0, -4.0]), np.array([0, 1, 2]))
    return Problem(data, Linear(2), Squared(), regularizer=regularizer("l1", strength=1.0))


BOTH = Cohort(np.arange(2), np.zeros(4, int), np.arange(5), np.array([0, 2, 4]), np.ones(2), 2.0, 2.0)  # K = 2 each


def test_two_rounds_of_fedmid_by_hand(make_algorithm, regularizer):
    """eta_c = 1/8, eta_s = 1, K = 2; S is soft-thresholding by eta_c lambda = 1/8 in a local step.

    The gradient of (w_1 + b - 4)^2 is 2 (w_1 + b - 4) in w_1 and b; client 2 mirrors client 1 with the opposite sign.

    Round 1, client 1 from w = (0, 0), b = 0:
      k=0: slope 2 (0 + 0 - 4) = -8;           w_1 = S(0 + 8/8) = S(1) = 7/8,             b = 1
      k=1: slope 2 (7/8 + 1 - 4) = -17/4;      w_1 = S(7/8 + 17/32) = S(45/32) = 41/32,   b = 1 + 17/32 = 49/32
    client 2: w_2 = -41/32, b = -49/32.
    Mean: w = (41/64, -41/64), b = 0. Server prox with eta_s eta_c K lambda = 1/4: w = (25/64, -25/64).

    Round 2, client 1 from w_1 = 25/64, w_2 = -25/64, b = 0; w_2 feels no gradient (x_2 = 0), only the prox:
      k=0: slope 2 (25/64 - 4) = -231/32;      w_1 = S(25/64 + 231/256) = S(331/256) = 299/256,   b = 231/256
           w_2 = S(-25/64) = -17/64
      k=1: slope 2 (299/256 + 231/256 - 4) = 2 (530 - 1024)/256 = -247/64
           w_1 = S(299/256 + 247/512) = S(845/512) = 781/512,   b = 231/256 + 247/512 = 709/512
           w_2 = S(-17/64) = -9/64
    client 2 mirrors it: w_1 = 9/64, w_2 = -781/512, b = -709/512.
    Mean: w_1 = (781/512 + 72/512)/2 = 853/1024, b = 0. Server prox with 1/4: w_1 = 853/1024 - 256/1024 = 597/1024.
    """
    models = outputs(make_algorithm("fedmid", two_rows(regularizer), 1 / 8), [BOTH, BOTH])
    np.testing.assert_allclose(models[0], [25 / 64, -25 / 64, 0], atol=1e-15)
    np.testing.assert_allclose(models[1], [597 / 1024, -597 / 1024, 0], atol=1e-15)


def test_two_rounds_of_feddualavg_by_hand(make_algorithm, regularizer):
    """eta_c = 1/8, eta_s = 1, K = 2; S_t is soft-thresholding by t lambda, applied to the query point only.

    Round 1 (eta_s eta_c r K = 0), client 1 from z = (0, 0), b = 0:
      k=0, t = 0:   w_1 = 0;                 slope 2 (0 + 0 - 4) = -8;              z_1 = 1,                b = 1
      k=1, t = 1/8: w_1 = S(1) = 7/8;        slope 2 (7/8 + 1 - 4) = -17/4;         z_1 = 1 + 17/32 = 49/32, b = 49/32
    client 2: z_2 = -49/32, b = -49/32.
    Mean: z = (49/64, -49/64), b = 0. Output with t = 2/8: w_1 = 49/64 - 16/64 = 33/64.

    Round 2 (eta_s eta_c r K = 1/4), client 1 from z_1 = 49/64, b = 0; z_2 does not move:
      k=0, t = 1/4: w_1 = 33/64;             slope 2 (33/64 - 4) = -223/32;         z_1 = 49/64 + 223/256 = 419/256
                                                                                    b = 223/256
      k=1, t = 3/8: w_1 = 419/256 - 96/256 = 323/256
                    slope 2 (323/256 + 223/256 - 4) = 2 (546 - 1024)/256 = -239/64; z_1 = 419/256 + 239/512 = 1077/512
    client 2 mirrors it. Mean: z_1 = (1077/512 + 392/512)/2 = 1469/1024. Output with t = 1/2: 957/1024.
    """
    models = outputs(make_algorithm("feddualavg", two_rows(regularizer), 1 / 8), [BOTH, BOTH])
    np.testing.assert_allclose(models[0], [33 / 64, -33 / 64, 0], atol=1e-15)
    np.testing.assert_allclose(models[1], [957 / 1024, -957 / 1024, 0], atol=1e-15)


# Messages that are not finite.


@pytest.mark.parametrize("name", ["fedmid", "feddualavg"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_message_that_is_not_finite_is_ignored(make_problem, make_algorithm, regularizer, full_cohort, name, bad):
    """Also in the mean number of steps."""
    problem = make_problem(regularizer("l1", strength=0.3))
    data = problem.data
    x = data.x.copy()
    x[data.offsets[1]] = bad  # a row of client 1
    broken = Problem(ClientData(x, data.y, data.offsets), problem.model, problem.loss, regularizer=problem.regularizer)
    rows = np.concatenate([np.arange(7), np.arange(9)])
    others = Cohort(np.array([0, 2]), rows, np.array([0, 7, 16]), np.array([0, 1, 2]), np.ones(2), 3.0, 1.0)
    with_client = outputs(make_algorithm(name, broken), [full_cohort(broken)] * 2)
    without_client = outputs(make_algorithm(name, problem), [others] * 2)
    for model, right in zip(with_client, without_client, strict=True):
        np.testing.assert_allclose(model, right, rtol=1e-13, atol=1e-15)


SENT = (Vector("w"), Vector("c"))


def three_messages(dtype, size, mean_steps):
    """Return messages of clients with weights 1, 2 and 5 of 10; in job 1 the last is not finite, in job 2 none is."""
    messages = np.ones((3, 2, 3, size), dtype) * np.array([2.0, 5.0, 8.0], dtype)[:, None, None, None]
    messages[2, 1, 1, -1] = np.inf
    messages[:, 0, 2, 0] = np.nan, np.inf, -np.inf
    steps = np.array([1, 2, 3])
    each = np.repeat(steps[:, None], 3, axis=1).astype(float)
    mean_of_all = None if mean_steps is None else np.full(3, mean_steps)
    factors = np.ones(3) if mean_steps is None else mean_steps / steps
    return messages, MessageWeights(np.array([1.0, 2.0, 5.0]), 10.0, each, mean_of_all), factors


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("size", [1, 2, 5, 64])
@pytest.mark.parametrize("mean_steps", [None, 6.0])
def test_aggregates(dtype, size, mean_steps):
    messages, weights, factors = three_messages(dtype, size, mean_steps)
    both, arrived = aggregate(messages, SENT, weights)
    for name in ("w", "c"):
        np.testing.assert_allclose(both.mean[name][0], (2 * factors[0] + 10 * factors[1] + 40 * factors[2]) / 8, 1e-6)
        np.testing.assert_allclose(both.mean[name][1], (2 * factors[0] + 10 * factors[1]) / 3, rtol=1e-6)
        np.testing.assert_allclose(both.sum(name)[1], (2 * factors[0] + 10 * factors[1]) / 10, rtol=1e-6)
        assert np.isnan(both.mean[name][2]).all()
    np.testing.assert_allclose(both.steps[:2], [20 / 8, 5 / 3] if mean_steps is None else 6.0)
    np.testing.assert_allclose(both.share, [0.8, 0.3, 0])
    assert both.dropped.tolist() == [0, 1, 3]
    assert arrived.tolist() == [[True, True, False], [True, True, False], [True, False, False]]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("mean_steps", [None, 6.0])
@pytest.mark.parametrize("absent", [None, [False, True, False]])
def test_aggregates_in_fixed_point(dtype, mean_steps, absent):
    """A job with a number out of range has no messages: which client sent it would disclose something about it."""
    messages, weights, factors = three_messages(dtype, 5, mean_steps)
    mask = None if absent is None else np.array(absent)
    total, arrived = fixed_point_sum(messages, weights.factors, 40, mask)
    both = aggregate_sum(total, 40, SENT, weights, arrived, messages.dtype)
    present = [0, 1, 2] if absent is None else [0, 2]
    terms, shares = np.array([2.0, 10.0, 40.0]) * factors, np.array([1.0, 2.0, 5.0])
    for name in ("w", "c"):
        np.testing.assert_allclose(both.mean[name][0], terms[present].sum() / shares[present].sum(), rtol=1e-6)
        assert np.isnan(both.mean[name][1:]).all()
    np.testing.assert_allclose(both.share, [shares[present].sum() / 10, 0, 0])
    assert arrived.tolist() == [[i in present, False, False] for i in range(3)]


def test_prox_calls_are_counted(make_problem, make_algorithm, make_hparams, cohorts_of, regularizer):
    problem = make_problem(regularizer("l1"))
    (cohort,) = cohorts_of(problem, make_hparams(clients_per_round=3, batch_size=4), 1)
    steps = 2 + 1 + 3  # 7, 4 and 9 rows in batches of 4
    expected = {
        "fedavg": 0, "fedavg_subgrad": 0, "fedmid": steps + 1, "fedmid_osp": 1,
        "feddualavg": steps + 1, "feddualavg_osp": 1, "centralized": 1, "local": 3,
    }  # fmt: skip
    assert {name: make_algorithm(name, problem).costs(cohort).prox_calls for name in expected} == expected


def test_fedavg_subgrad_rejects_constraints(make_problem, make_algorithm, regularizer):
    with pytest.raises(UserError, match=r"fedavg_subgrad.*l1_ball"):
        make_algorithm("fedavg_subgrad", make_problem(regularizer("l1_ball")))
