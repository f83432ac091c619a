"""Tests of FedNL against a listing in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.algorithms.transforms import all_transforms
from fco_cli.errors import UserError
from fco_cli.problem.mirror_maps import Entropy

SIZES = (7, 4, 9)
STRENGTH = {"squared": 0.3, "logistic": 0.05}


@pytest.fixture
def suited(make_problem, regularizer):
    return lambda loss="squared", features=4: make_problem(
        regularizer("l1", strength=STRENGTH[loss]), loss, sizes=SIZES, features=features, weighting="examples"
    )


def hessian_of(problem, m, w):
    own = problem.data.client(m)
    a = np.column_stack([own.x, np.ones(len(own.y))])
    weights = np.full(len(a), 2.0)
    if problem.loss.name == "logistic":
        mean = 1 / (1 + np.exp(-a @ w))
        weights = mean * (1 - mean)
    return (a.T * weights) @ a / len(a)


def keep_largest(matrix, share):
    """Return the symmetric matrix with the given share of its upper triangle, the largest magnitudes."""
    rows, columns = np.triu_indices(len(matrix))
    entries = matrix[rows, columns]
    kept = np.argsort(-np.abs(entries), kind="stable")[: max(1, int(share * len(entries) + 0.5))]
    sparse = np.zeros_like(matrix)
    sparse[rows[kept], columns[kept]] = sparse[columns[kept], rows[kept]] = entries[kept]
    return sparse


def minimize(gradient, matrix, w, prox):
    """Return argmin_u g'(u - w) + (u - w)'A(u - w) / 2 + psi(u) by proximal gradient steps."""
    rate, u = 1 / np.linalg.norm(matrix, 2), w
    for _ in range(20_000):
        new = prox(u - rate * (gradient + matrix @ (u - w)), rate)
        if np.abs(new - u).max() < 1e-16:
            return new
        u = new
    return u


@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("share", [0.2, 1.0])
def test_against_a_listing(share, loss, suited, full_cohort, make_algorithm, drive, l1_prox, client_gradient):
    problem = suited(loss)
    cohorts, prox, p = [full_cohort(problem)] * 8, l1_prox(STRENGTH[loss]), problem.weights
    w, hessians, expected = np.zeros(5), np.zeros((3, 5, 5)), []
    for _ in cohorts:
        differences = np.array([hessian_of(problem, m, w) for m in range(3)]) - hessians
        gradient = sum(p[m] * client_gradient(problem, m, w) for m in range(3))
        distance = p @ np.linalg.norm(differences, axis=(1, 2))
        matrix = np.einsum("m,mij->ij", p, hessians) + distance * np.eye(5)
        w = minimize(gradient, matrix, w, prox)
        hessians = hessians + np.array([keep_largest(one, share) for one in differences])
        expected.append(w)
    models, state, memory = drive(make_algorithm("fednl", problem, share=share), cohorts)
    np.testing.assert_allclose(np.array(models)[:, 0], expected, rtol=1e-8, atol=1e-10)
    upper = hessians[:, *np.triu_indices(5)]
    np.testing.assert_allclose(memory.read(np.arange(3))[:, :, 0].reshape(3, -1)[:, :15], upper, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(state["hessian"][0].ravel()[:15], p @ upper, rtol=1e-8, atol=1e-10)


def test_with_whole_hessians_and_the_squared_loss_the_second_round_ends_at_the_optimum(
    suited, full_cohort, make_algorithm, drive, optimum_of
):
    problem = suited()
    models = drive(make_algorithm("fednl", problem, share=1.0), [full_cohort(problem)] * 2)[0]
    np.testing.assert_allclose(models[1][0], optimum_of(problem), atol=1e-9)


def test_compression_starts_slowly_and_saves_bytes(suited, full_cohort, make_algorithm, drive, optimum_of):
    problem = suited(features=9)
    cohort, optimum = full_cohort(problem), optimum_of(problem)
    errors, sent = [], []
    for share in (1.0, 0.1):
        algorithm = make_algorithm("fednl", problem, share=share)
        errors.append(np.abs(drive(algorithm, [cohort] * 4)[0][-1][0] - optimum).max())
        sent.append(np.max(algorithm.costs(cohort).bytes_up))
    assert errors[0] < 1e-8 < errors[1]
    # 10 weights and one norm, and 55 entries, or 6 with indices of 6 bits, from each of 3 clients
    assert sent == [3 * 8 * (11 + 55), 3 * (8 * (11 + 6) + 5)]


def test_a_lost_message_leaves_the_hessians_consistent(suited, full_cohort, make_algorithm, drive):
    problem = suited()
    algorithm, cohort = make_algorithm("fednl", problem), full_cohort(problem)
    _, state, memory = drive(algorithm, [cohort] * 3)
    made = algorithm.round(state, cohort, memory.read(cohort.clients))
    messages = made.messages.copy()
    messages[1] = np.nan
    made = algorithm.finish_round(state, cohort, messages, made.memory)
    memory.write(cohort.clients, made.memory, made.arrived)
    assert made.dropped.tolist() == [1]
    mean = np.tensordot(problem.weights, memory.read(np.arange(3))[:, :, 0], 1)
    np.testing.assert_allclose(made.state["hessian"][0], mean, rtol=1e-11, atol=1e-12)


def test_invalid_settings_are_rejected(suited, make_algorithm, make_problem, regularizer):
    problem = suited()
    for share in (0.0, 1.5):
        with pytest.raises(UserError, match=rf"^algo\.share: got {share}, must be above 0, at most 1: [^\n]*$"):
            make_algorithm("fednl", problem, share=share)
    algorithm = make_algorithm("fednl", problem, transform=all_transforms()["topk"]())
    with pytest.raises(UserError, match=r"^transform: got 'topk', must be none: fednl compresses[^\n]*$"):
        algorithm.check_transform("uniform")
    with pytest.raises(UserError, match=r"^mirror: got 'entropy', must be euclidean: fednl supports no other"):
        algorithm.check_pair(regularizer("l1", strength=0.1), Entropy())
    with pytest.raises(UserError, match=r"^regularizer: got 'l0', must be convex: fednl solves[^\n]*$"):
        algorithm.check_pair(regularizer("l0", strength=0.1), problem.mirror)
    with pytest.raises(
        UserError, match=r"^algo: got 'fednl', must be quasi_newton or fista for 1,101 weights; [^\n]*$"
    ):
        make_algorithm("fednl", make_problem(sizes=(3, 3), features=1100))
    line = r"^hparams.clients_per_round: got 2, must be all 3 clients: fednl requires full participation$"
    with pytest.raises(UserError, match=line):
        algorithm.check_participation(2, 3)
