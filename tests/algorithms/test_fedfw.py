"""Tests of federated Frank-Wolfe: plain loops, the textbook method, feasibility, gap and convergence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fco_cli.errors import UserError
from fco_cli.problem.data import ClientData
from fco_cli.problem.mirror_maps import Entropy
from fco_cli.problem.problem import Problem
from fco_cli.simulation.memory import ProcessMemory

SIZES = (6, 3, 8, 2)
RATE, PENALTY, RADIUS = 0.05, 0.8, 0.5
SETS = ("l1_ball", "l2_ball", "linf_ball", "box", "simplex")
SIDES = {"lower": -0.4, "upper": 0.9}  # of the box


def gradient(data, m, w):
    own = data.client(m)
    slopes = 2 * (own.x @ w[:-1] + w[-1] - own.y) / len(own.y)
    return np.append(own.x.T @ slopes, slopes.sum())


def vertex(g):
    """Return the vertex of the l1 ball that minimizes <g, s>."""
    s = np.zeros_like(g)
    s[np.argmax(np.abs(g))] = -RADIUS * np.sign(g[np.argmax(np.abs(g))])
    return s


def by_plain_loops(problem, cohorts, start):
    """Return the models and all x_m by the paper's listing, with grad F_m / M and lambda_0 = penalty / M.

    A bias takes a gradient step that includes the penalty.
    """
    data, clients = problem.data, problem.data.clients
    x, w, n, models = np.tile(start, (clients, 1)), start, 2.0, []
    for cohort in cohorts:
        a, penalty = 2 / n, PENALTY / clients * np.sqrt(n)
        for m in cohort.clients:
            d = gradient(data, m, x[m]) / clients + penalty * (x[m] - w)
            weights = (1 - a) * x[m, :-1] + a * vertex(d[:-1])
            x[m] = np.append(weights, x[m, -1] - d[-1] / (1 / RATE / clients + penalty))
        w = x.mean(axis=0)
        n += len(cohort.clients) / clients
        models.append(w)
    return np.array(models), x


@pytest.mark.parametrize("sampled", [2, 4])
def test_against_plain_loops(sampled, make_problem, make_algorithm, make_hparams, cohorts_of, regularizer, drive):
    """Batches and epochs have no effect: a client takes one full gradient."""
    problem = make_problem(regularizer("l1_ball", radius=RADIUS), sizes=SIZES, features=3)
    cohorts = cohorts_of(problem, make_hparams(clients_per_round=sampled, batch_size=2, local_epochs=3), 6)
    algorithm, start = make_algorithm("fedfw", problem, RATE, penalty=PENALTY), np.array([0.1, -0.2, 0.0, 0.3])
    memory = initial_memory(algorithm, start)
    models, _, memory = drive(algorithm, cohorts, algorithm.initial_state(start[None]), memory)
    expected, x = by_plain_loops(problem, cohorts, start)
    np.testing.assert_allclose(np.array(models)[:, 0], expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(memory.read(np.arange(4))[:, 0, 0], x, rtol=1e-12, atol=1e-13)


def initial_memory(algorithm, start):
    return ProcessMemory(algorithm.initial_client_arrays(start[None]))


def mirrored(problem):
    """Return the problem with a negated copy of every row and label, so that the bias stays at its optimum 0."""
    data, x, y = problem.data, [], []
    for m in range(data.clients):
        own = data.client(m)
        x += [own.x, -own.x]
        y += [own.y, -own.y]
    both = ClientData(np.vstack(x), np.concatenate(y), 2 * data.offsets)
    return Problem(both, problem.model, problem.loss, regularizer=problem.regularizer, weighting=problem.weighting)


@pytest.mark.parametrize("name", SETS)
def test_one_client_is_textbook_frank_wolfe(name, make_problem, make_algorithm, regularizer, full_cohort, drive):
    """w <- w + 2 / (n + 1) (s - w), where s minimizes <grad F(w), s>; the penalty is 0, because x = w."""
    problem = mirrored(make_problem(regularizer(name, **SIDES), sizes=(9,), features=3))
    algorithm = make_algorithm("fedfw", problem, RATE, penalty=PENALTY)
    models = np.array(drive(algorithm, [full_cohort(problem)] * 6)[0])[:, 0]
    w, psi = np.zeros(4), problem.regularizer
    for n, model in enumerate(models, start=1):
        s, g = np.zeros(4), gradient(problem.data, 0, w)
        psi.lmo(g[:-1], psi.numbers[0], None, s[:-1])
        w = w + 2 / (n + 1) * (s - w)
        np.testing.assert_allclose(model, w, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", [*SETS, "nuclear_ball"])
def test_models_are_feasible(name, make_problem, make_algorithm, regularizer, drive, whole_batches):
    """Models of server and clients, with sampled clients."""
    shape = {"weights_shape": (2, 3)} if name == "nuclear_ball" else {}
    problem = make_problem(regularizer(name, **SIDES), sizes=SIZES, weighting="examples", **shape)
    algorithm, numbers = make_algorithm("fedfw", problem, RATE), problem.regularizer.numbers
    start = problem.initial_models(numbers)
    models, _, memory = drive(
        algorithm, whole_batches(problem, 2, 5), algorithm.initial_state(start), initial_memory(algorithm, start[0])
    )
    every = np.vstack([*models, *memory.read(np.arange(4))[:, 0]])
    assert problem.constraint_violation(every, np.repeat(numbers, len(every))).max() < 1e-12
    assert np.ptp(every, axis=0).max() > 0.1


def test_w_is_the_mean_of_all_clients(make_problem, make_algorithm, regularizer, drive, whole_batches):
    """Weighted, and including clients that have not participated or whose messages are not finite."""
    problem = make_problem(regularizer("l1_ball", radius=RADIUS), sizes=SIZES, features=3, weighting="examples")
    broken = replace(problem, training=replace(problem.data, x=problem.data.x.copy()))
    broken.data.x[problem.data.offsets[1]] = np.nan
    algorithm, start = make_algorithm("fedfw", broken, RATE), np.array([0.1, -0.2, 0.0, 0.3])
    state, memory = algorithm.initial_state(start[None]), initial_memory(algorithm, start)
    for cohort in whole_batches(problem, 2, 5):
        _, state, memory = drive(algorithm, [cohort], state, memory)
        x = memory.read(np.arange(4))[:, 0, 0]
        np.testing.assert_allclose(state["w"][0], problem.weights @ x, rtol=1e-12, atol=1e-13)
    np.testing.assert_array_equal(x[1], start)
    assert state["n"][0] < 2 + 5 / 2


@pytest.fixture
def heterogeneous(make_problem, regularizer):
    """Return a problem with heterogeneous clients and an active constraint."""
    return mirrored(make_problem(regularizer("l1_ball", radius=RADIUS), sizes=(3, 2, 4), features=3, seed=6))


def test_the_gap_bounds_the_suboptimality(heterogeneous, make_algorithm, optimum_of, drive, full_cohort):
    """<grad F(w), w - lmo(grad F(w))> >= Phi(w) - Phi* for all iterates w."""
    best = heterogeneous.risk(optimum_of(heterogeneous)[None]).value[0]
    for model in drive(make_algorithm("fedfw", heterogeneous, RATE), [full_cohort(heterogeneous)] * 20)[0]:
        at = heterogeneous.risk(model)
        g = at.gradient[0, :-1]
        assert g @ (model[0, :-1] - vertex(g)) >= at.value[0] - best - 1e-12


def test_it_converges_unless_clients_restart_at_w(heterogeneous, make_algorithm, optimum_of, full_cohort, drive):
    """With x_m = w in every round, as in the authors' code, the penalty is always 0."""
    algorithm, cohort, rounds = (
        make_algorithm("fedfw", heterogeneous, RATE, penalty=3.0),
        full_cohort(heterogeneous),
        450,
    )
    optimum, size = optimum_of(heterogeneous), heterogeneous.layout.size
    found = drive(algorithm, [cohort] * rounds)[0]
    state = algorithm.initial_state(np.zeros((1, size)))
    for _ in range(rounds):
        state = algorithm.round(state, cohort, np.tile(state["w"], (3, 1, 1, 1))).state
    kept, early, restarted = (np.linalg.norm(w[0] - optimum) for w in (found[-1], found[rounds // 9], state["w"]))
    assert kept < early / 1.5  # as n^(-1/2)
    assert restarted > 5 * kept


def test_the_bias_converges(make_problem, make_algorithm, regularizer, optimum_of, full_cohort, drive):
    """Gradient steps of the bias shrink as the penalty grows; labels are far from 0."""
    problem = make_problem(regularizer("l2_ball", radius=0.3), sizes=(3, 2, 4), features=2)
    problem = replace(problem, training=replace(problem.data, y=problem.data.y + 5))
    models = drive(make_algorithm("fedfw", problem, 0.3), [full_cohort(problem)] * 150)[0]
    assert abs(models[-1][0, -1] - optimum_of(problem)[-1]) < 0.1


def test_client_models_are_read_from_memory_and_no_prox_is_called(heterogeneous, make_algorithm, whole_batches):
    algorithm, (cohort,), w = (
        make_algorithm("fedfw", heterogeneous),
        whole_batches(heterogeneous, 2, 1),
        np.zeros((1, 4)),
    )
    made = algorithm.round(
        state := algorithm.initial_state(w), cohort, np.stack([algorithm.initial_client_arrays(w)] * 2)
    )
    np.testing.assert_array_equal(algorithm.client_models(state, made, cohort)[:2], made.memory[:, 0])
    assert algorithm.costs(cohort).prox_calls == 0


def test_a_round_takes_one_gradient_per_row(heterogeneous, make_algorithm, make_hparams, cohorts_of):
    """For any number of epochs."""
    (cohort,) = cohorts_of(heterogeneous, make_hparams(clients_per_round=2, local_epochs=3), 1)
    assert (
        make_algorithm("fedfw", heterogeneous).costs(cohort).gradients == heterogeneous.data.sizes[cohort.clients].sum()
    )


@pytest.mark.parametrize("psi", ["l1", "non_negative", "l0_ball", "none"])
def test_other_regularizers_are_rejected(psi, make_problem, make_algorithm, regularizer):
    line = f"^regularizer: got '{psi}', must be l1_ball, .*: fedfw needs a linear minimization oracle$"
    with pytest.raises(UserError, match=line):
        make_algorithm("fedfw", make_problem(regularizer(psi, nonzeros=2)))


def test_bad_input(heterogeneous, make_algorithm):
    with pytest.raises(UserError, match=r"^algo\.penalty: got 0\.0, must be a number > 0$"):
        make_algorithm("fedfw", heterogeneous, penalty=0.0)
    with pytest.raises(
        UserError, match=r"^mirror: got 'entropy', must be euclidean: fedfw supports no other mirror map$"
    ):
        make_algorithm("fedfw", replace(heterogeneous, mirror=Entropy()))
