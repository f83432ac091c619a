"""SCAFFOLD: its identities, its fixed point, and what has gone wrong in other people's code."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from fco_cli.errors import UserError
from fco_cli.simulation.memory import ProcessMemory

SIZES = (7, 4, 9, 2, 12)  # K differs


@pytest.fixture
def problem(make_problem):
    return make_problem(sizes=SIZES, features=4)


def gradient(data, m, w, rows=None):
    own = data.client(m)
    x, y = (own.x, own.y) if rows is None else (own.x[rows], own.y[rows])
    slopes = 2 * (x @ w[:-1] + w[-1] - y) / len(y)
    return np.append(x.T @ slopes, slopes.sum())


def by_plain_loops(data, cohorts, eta_c, eta_s, weights):
    """Every client sums the gradients it uses; c moves by the changes of the c_m."""
    size = data.x.shape[1] + 1
    w, c, own = np.zeros(size), np.zeros(size), np.zeros((data.clients, size))
    shares, outputs = weights / weights.sum(), []
    for cohort in cohorts:
        changes, total, moves = 0.0, 0.0, np.zeros(size)
        for i, m in enumerate(cohort.clients):
            y, used = w.copy(), []
            for low, high in pairwise(cohort.edges[cohort.first[i] : cohort.first[i + 1] + 1]):
                used.append(gradient(data, m, y, cohort.order[low:high]))
                y = y - eta_c * (used[-1] - own[m] + c)
            changes = changes + weights[m] * (y - w) * cohort.mean_steps / len(used)
            total += weights[m]
            moves += shares[m] * (np.mean(used, axis=0) - own[m])
            own[m] = np.mean(used, axis=0)
        w, c = w + eta_s * changes / total, c + moves
        outputs.append(w.copy())
    return outputs, c, own


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize("sampled", [2, 5])
def test_against_plain_loops(make_problem, make_algorithm, make_hparams, cohorts_of, drive, weighting, sampled):
    """Two epochs, so that K is batches times epochs; the change of c_m is counted once, by p_m, not by 1/|S|."""
    problem = make_problem(sizes=SIZES, features=4, weighting=weighting)
    hparams = make_hparams(clients_per_round=sampled, batch_size=4, local_epochs=2, weighting=weighting)
    cohorts = cohorts_of(problem, hparams, 6)
    models, state, memory = drive(make_algorithm("scaffold", problem, 0.02, 0.7), cohorts)
    weights = problem.data.sizes.astype(float) if weighting == "examples" else np.ones(len(SIZES))
    expected, c, own = by_plain_loops(problem.data, cohorts, 0.02, 0.7, weights)
    np.testing.assert_allclose(np.array(models)[:, 0], expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(state["c"][0], c, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(memory.read(np.arange(5))[:, 0, 0], own, rtol=1e-9, atol=1e-11)


@pytest.mark.usefixtures("interpreted")
def test_c_is_the_mean_of_the_clients(problem, make_algorithm, make_hparams, cohorts_of, drive):
    """c = sum_m p_m c_m, whoever took part: nothing would restore it."""
    cohorts = cohorts_of(problem, make_hparams(clients_per_round=2), 20)
    _, state, memory = drive(make_algorithm("scaffold", problem, 0.02), cohorts)
    np.testing.assert_allclose(state["c"][0], memory.read(np.arange(5))[:, 0, 0].mean(axis=0), rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("interpreted")
def test_at_the_optimum_nothing_moves(problem, make_algorithm, make_hparams, cohorts_of, drive):
    """With c_m = grad F_m(w*), whatever the cohort and the K_m; full batches."""
    algorithm, data = make_algorithm("scaffold", problem, 0.05), problem.data
    rows = [np.hstack([data.client(m).x, np.ones((n, 1))]) / np.sqrt(n) for m, n in enumerate(SIZES)]
    labels = [data.client(m).y / np.sqrt(n) for m, n in enumerate(SIZES)]
    optimum = np.linalg.lstsq(np.vstack(rows), np.concatenate(labels), rcond=None)[0]
    own = np.array([gradient(data, m, optimum) for m in range(5)])
    assert np.abs(own).max() > 0.1  # clients disagree
    memory = ProcessMemory(np.zeros((1, 1, 5)))
    memory.rows = {m: own[m][None, None] for m in range(5)}
    state = {"w": optimum[None], "c": own.mean(axis=0)[None]}
    cohorts = cohorts_of(problem, make_hparams(clients_per_round=3, batch_size=100, local_epochs=3), 5)
    _, state, _ = drive(algorithm, cohorts, state, memory)
    np.testing.assert_allclose(state["w"][0], optimum, rtol=0, atol=1e-13)


@pytest.mark.parametrize("sampled", [2, 5])
def test_it_reaches_the_optimum_where_fedavg_drifts(problem, make_algorithm, make_hparams, cohorts_of, drive, sampled):
    """Full batches, unequal K_m (by epochs of unequal sizes), some clients or all."""
    cohorts = cohorts_of(problem, make_hparams(clients_per_round=sampled, batch_size=3, local_epochs=1), 1)
    data = problem.data
    whole = [replace_by_whole_batches(cohort, data.sizes) for cohort in
             cohorts_of(problem, make_hparams(clients_per_round=sampled, batch_size=3), 3000)]  # fmt: skip
    assert len(set(whole[0].steps.tolist())) > 1
    assert cohorts[0].clients.tolist() == whole[0].clients.tolist()

    def residual(name):
        models, _, _ = drive(make_algorithm(name, problem, 0.02), whole)
        return float(np.linalg.norm(problem.risk(models[-1]).gradient))

    assert residual("scaffold") < 1e-10
    assert residual("fedavg") > 1e-2


def replace_by_whole_batches(cohort, sizes):
    """The same clients with the same K_m, but every step sees all rows of its client."""
    order, edges = [], [0]
    for m, steps in zip(cohort.clients, cohort.steps, strict=True):
        for _ in range(steps):
            order.append(np.arange(sizes[m]))
            edges.append(edges[-1] + sizes[m])
    return replace(cohort, order=np.concatenate(order), edges=np.array(edges))


@pytest.mark.usefixtures("interpreted")
def test_identical_clients_need_no_correction(make_problem, make_algorithm, full_cohort, drive):
    """K = 1 with everybody: c is the gradient before, and SCAFFOLD is FedAvg."""
    problem = make_problem(sizes=(8,), features=4)
    cohorts = [full_cohort(problem)] * 5
    scaffold, fedavg = (drive(make_algorithm(name, problem), cohorts)[0] for name in ("scaffold", "fedavg"))
    np.testing.assert_allclose(scaffold, fedavg, rtol=1e-12, atol=1e-14)


@pytest.mark.usefixtures("interpreted")
def test_a_client_whose_message_is_not_finite_forgets_nothing(problem, make_algorithm, full_cohort, drive):
    algorithm, cohort = make_algorithm("scaffold", problem, 0.05), full_cohort(problem)
    _, state, memory = drive(algorithm, [cohort] * 3)
    before = memory.read(np.arange(5))
    ill = replace(problem, data=replace(problem.data, x=problem.data.x.copy()))
    ill.data.x[problem.data.offsets[1]] = np.nan
    made = make_algorithm("scaffold", ill, 0.05).round(state, cohort, before)
    memory.write(cohort.clients, made.memory, made.arrived)
    after = memory.read(np.arange(5))
    assert made.dropped.tolist() == [1]
    assert np.isfinite(made.state["c"]).all()
    np.testing.assert_array_equal(after[1], before[1])
    assert (after[0] != before[0]).all()


@pytest.mark.usefixtures("interpreted")
def test_it_refuses_psi_and_other_maps(make_problem, make_algorithm, regularizer):
    with pytest.raises(UserError, match=r"^regularizer: got 'l1', must be none: scaffold knows no psi$"):
        make_algorithm("scaffold", make_problem(regularizer("l1")))
