"""Tests of methods with control variates: identities, fixed points and exactness.

Docstrings name errors of public implementations that a test would detect.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from fco_cli.algorithms import all_algorithms
from fco_cli.errors import UserError
from fco_cli.problem.data import ClientData
from fco_cli.problem.mirror_maps import Entropy, PNorm
from fco_cli.problem.problem import Problem
from fco_cli.simulation.memory import ProcessMemory

SIZES = (7, 4, 9, 2, 12)  # K differs
WITH_PSI = ["scaffold_prox", "zhj", "feddualavg_cv", "scaffold_osp"]
EXACT = ["scaffold_prox", "zhj", "feddualavg_cv"]
FAMILY = ["scaffold", *WITH_PSI]
STRENGTH = 0.3


@pytest.fixture
def make(make_problem, regularizer):
    """Return a problem that a method of the family supports."""

    def suited(name="zhj", sizes=SIZES, features=4, **options):
        psi = regularizer("none") if name == "scaffold" else regularizer("l1", strength=STRENGTH)
        return make_problem(psi, sizes=sizes, features=features, **options)

    return suited


def by_plain_loops(name, problem, cohorts, eta_c, eta_s, prox, gradient):
    """Return the models, c and all c_m by plain loops; c changes by the weighted changes of the c_m."""
    size, weights = problem.layout.size, problem.weights
    s, t, c, own, outputs = np.zeros(size), 0.0, np.zeros(size), np.zeros((problem.data.clients, size)), []
    for cohort in cohorts:
        change, total, moves = np.zeros(size), 0.0, np.zeros(size)
        for i, m in enumerate(cohort.clients):
            v, used = s.copy(), []
            for low, high in pairwise(cohort.edges[cohort.first[i] : cohort.first[i + 1] + 1]):
                query = prox(v, t + eta_c * len(used)) if name in ("zhj", "feddualavg_cv") else v
                used.append(gradient(problem, m, query, cohort.order[low:high]))
                v = v - eta_c * (used[-1] - own[m] + c)
                v = prox(v, eta_c) if name == "scaffold_prox" else v
            change += weights[m] * (v - s) * (1 if name == "scaffold_prox" else cohort.mean_steps / len(used))
            total += weights[m]
            moves += weights[m] * (np.mean(used, axis=0) - own[m])
            own[m] = np.mean(used, axis=0)
        s, c, elapsed = s + eta_s * change / total, c + moves, eta_s * eta_c * cohort.mean_steps
        if name in ("zhj", "scaffold_osp"):
            s = prox(s, elapsed)
        t += elapsed if name == "feddualavg_cv" else 0
        outputs.append(prox(s, t) if name == "feddualavg_cv" else s.copy())
    return outputs, c, own


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize("sampled", [2, 5])
@pytest.mark.parametrize("name", FAMILY)
def test_against_plain_loops(
    name, sampled, weighting, make, make_algorithm, make_hparams, cohorts_of, drive, l1_prox, client_gradient
):
    """Detects: K without the factor epochs, one K for clients with unequal K_m, the change of c divided by |S| instead
    of M, c_m overwritten before its change is computed, a wrong sign of the correction."""
    problem = make(name, weighting=weighting)
    hparams = make_hparams(clients_per_round=sampled, batch_size=4, local_epochs=2, weighting=weighting)
    cohorts = cohorts_of(problem, hparams, 5)
    models, state, memory = drive(make_algorithm(name, problem, 0.02, 0.7), cohorts)
    prox = l1_prox(0.0 if name == "scaffold" else STRENGTH)
    expected, c, own = by_plain_loops(name, problem, cohorts, 0.02, 0.7, prox, client_gradient)
    np.testing.assert_allclose(np.array(models)[:, 0], expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(state["c"][0], c, rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(memory.read(np.arange(5))[:, 0, 0], own, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", FAMILY)
def test_c_is_the_mean_of_the_clients(name, make, make_algorithm, make_hparams, cohorts_of, drive):
    """c = sum_m p_m c_m after any cohorts. All start at 0, since later rounds would not correct another start."""
    problem = make(name, weighting="examples")
    algorithm = make_algorithm(name, problem, 0.02)
    w = np.ones((1, problem.layout.size))
    assert not algorithm.initial_state(w)["c"].any()
    assert not algorithm.initial_client_arrays(w).any()
    cohorts = cohorts_of(problem, make_hparams(clients_per_round=2, weighting="examples"), 15)
    _, state, memory = drive(algorithm, cohorts)
    np.testing.assert_allclose(
        state["c"][0], problem.weights @ memory.read(np.arange(5))[:, 0, 0], rtol=1e-10, atol=1e-12
    )


def fixed_point(name, problem, optimum, gradients, t=0.3):
    """Return the state and the memory of a method at the optimum."""
    position = {"w": optimum[None]} if name == "scaffold_prox" else {"z": optimum[None], "t": np.zeros(1)}
    pooled = problem.weights @ gradients
    if name == "feddualavg_cv":  # z contains the sum of all gradients
        position = {"z": (optimum - t * pooled)[None], "t": np.full(1, t)}
    memory = ProcessMemory(np.zeros((1, 1, problem.layout.size)))
    memory.rows = {m: own[None, None] for m, own in enumerate(gradients)}
    return position | {"c": pooled[None]}, memory


@pytest.mark.parametrize("name", FAMILY)
def test_the_optimum_is_a_fixed_point(
    name, make, make_algorithm, make_hparams, cohorts_of, drive, full_gradients, solution, client_gradient, l1_prox
):
    """With c_m = grad F_m(w*), for any cohort and K_m; not for scaffold_osp, whose local steps ignore psi."""
    problem = make(name)
    optimum, largest = solution(problem, l1_prox(0.0 if name == "scaffold" else STRENGTH))
    gradients = np.array([client_gradient(problem, m, optimum) for m in range(5)])
    assert np.abs(gradients).max() > 0.1  # clients disagree
    cohorts = full_gradients(cohorts_of(problem, make_hparams(clients_per_round=3), 4), SIZES)
    assert len(set(cohorts[0].steps.tolist())) > 1
    models, state, _ = drive(
        make_algorithm(name, problem, 0.5 / largest, 0.8), cohorts, *fixed_point(name, problem, optimum, gradients)
    )
    assert np.allclose(models, optimum, rtol=0, atol=1e-13) == (name != "scaffold_osp")
    if name != "scaffold_osp":
        np.testing.assert_allclose(state["c"][0], problem.weights @ gradients, rtol=0, atol=1e-12)


def test_the_bias_of_scaffold_osp_is_proportional_to_client_lr(
    make, make_algorithm, make_hparams, cohorts_of, drive, full_gradients, solution, l1_prox
):
    """With eta_s eta_c fixed; the limit for small eta_c is proximal gradient."""
    problem = make(sizes=(7, 4, 9), features=2)
    optimum, largest = solution(problem, l1_prox(STRENGTH))
    cohorts = full_gradients(cohorts_of(problem, make_hparams(clients_per_round=3), 50), (7, 4, 9))
    errors = []
    for factor in (10, 100, 1000):
        models, _, _ = drive(make_algorithm("scaffold_osp", problem, 0.4 / largest / factor, factor), cohorts)
        errors.append(np.abs(models[-1] - optimum).max())
    assert errors[0] > 1e-3
    np.testing.assert_allclose(errors[1:] / np.array(errors[:-1]), 0.1, rtol=0.2)


# Cases in which methods are identical.


def same_for_all(problem, cohorts, names, make_algorithm, drive, eta_s=1.0):
    first, *others = (np.array(drive(make_algorithm(name, problem, 0.03, eta_s), cohorts)[0]) for name in names)
    for other in others:
        np.testing.assert_allclose(other, first, rtol=1e-12, atol=1e-13)
    return first


@pytest.mark.parametrize(("sampled", "eta_s"), [(3, 1.0), (3, 0.7), (2, 1.0)])
def test_without_psi_all_are_scaffold(
    sampled, eta_s, make_problem, make_algorithm, make_hparams, cohorts_of, drive, client_gradient
):
    """Batches, two epochs. With full participation, equal K_m and eta_s = 1 scaffnew is SCAFFOLD, too."""
    problem = make_problem(sizes=(6, 6, 6))
    cohorts = cohorts_of(problem, make_hparams(clients_per_round=sampled, local_epochs=2), 6)
    names = [*FAMILY, *(["scaffnew"] if sampled == 3 and eta_s == 1 else [])]
    found = same_for_all(problem, cohorts, names, make_algorithm, drive, eta_s)
    plain = drive(make_algorithm("fedavg", problem, 0.03, eta_s), cohorts)[0]
    np.testing.assert_allclose(found[0], plain[0], rtol=1e-12)
    assert np.abs(found[1] - plain[1]).max() > 1e-4  # the correction has an effect


@pytest.mark.parametrize("eta_s", [1.0, 0.6])
@pytest.mark.parametrize("name", ["zhj", "scaffold_osp"])
def test_with_one_step_they_are_proximal_gradient(name, eta_s, make, make_algorithm, full_cohort, drive):
    problem = make()
    cohorts = [full_cohort(problem)] * 5
    models = drive(make_algorithm(name, problem, 0.05, eta_s), cohorts)[0]
    central = drive(make_algorithm("centralized", problem, 0.05 * eta_s), cohorts)[0]
    np.testing.assert_allclose(models, central, rtol=1e-12, atol=1e-13)


def test_feddualavg_cv_with_one_step_is_feddualavg(make, make_algorithm, make_hparams, cohorts_of, full_cohort, drive):
    problem = make()
    cohorts = [full_cohort(problem)] * 5
    pair = [drive(make_algorithm(name, problem, 0.05, 0.6), cohorts)[0] for name in ("feddualavg", "feddualavg_cv")]
    np.testing.assert_allclose(*pair, rtol=1e-12, atol=1e-13)
    first = cohorts_of(problem, make_hparams(), 1)  # several steps, while c = 0
    pair = [drive(make_algorithm(name, problem, 0.05, 0.6), first)[0] for name in ("feddualavg", "feddualavg_cv")]
    np.testing.assert_array_equal(*pair)


def test_identical_clients_need_no_correction(make, make_algorithm, make_hparams, cohorts_of, drive, regularizer):
    """A round of scaffold_prox is K steps of the centralized method; feddualavg_cv is feddualavg."""
    one = make(sizes=(6,))
    data = ClientData(np.tile(one.data.x, (3, 1)), np.tile(one.data.y, 3), np.arange(4) * 6)
    problem = Problem(data, one.model, one.loss, regularizer=one.regularizer)
    cohorts = cohorts_of(problem, make_hparams(clients_per_round=3, batch_size=6, local_epochs=3), 4)
    models = drive(make_algorithm("scaffold_prox", problem, 0.05), cohorts)[0]
    central = drive(make_algorithm("centralized", problem, 0.05), [None] * 12)[0]
    np.testing.assert_allclose(models, central[2::3], rtol=1e-12, atol=1e-13)
    pair = [drive(make_algorithm(name, problem, 0.05, 0.6), cohorts)[0] for name in ("feddualavg", "feddualavg_cv")]
    np.testing.assert_allclose(*pair, rtol=1e-11, atol=1e-12)


def test_zhj_is_the_published_method(
    make, make_algorithm, make_hparams, cohorts_of, drive, full_gradients, l1_prox, client_gradient
):
    """Full participation, equal K: the server broadcasts xbar, the point before its prox, and clients compute c_m."""
    problem, eta_c, eta_s, steps = make(sizes=(6, 6, 6)), 0.03, 1.4, 3
    cohorts = full_gradients(cohorts_of(problem, make_hparams(clients_per_round=3, batch_size=2), 6), (6, 6, 6))
    prox, step = l1_prox(STRENGTH), eta_s * eta_c * steps
    xbar, corrections, expected = np.zeros(5), np.zeros((3, 5)), []
    for _ in cohorts:
        w, ends, means = prox(xbar, step), [], []
        for m in range(3):
            z, used = w.copy(), []
            for k in range(steps):
                used.append(client_gradient(problem, m, prox(z, k * eta_c)))
                z = z - eta_c * (used[-1] + corrections[m])
            ends.append(z)
            means.append(np.mean(used, axis=0))
        xbar = w + eta_s * (np.mean(ends, axis=0) - w)
        corrections = (w - xbar) / step - np.array(means)
        expected.append(prox(xbar, step))
    models = drive(make_algorithm("zhj", problem, eta_c, eta_s), cohorts)[0]
    np.testing.assert_allclose(np.array(models)[:, 0], expected, rtol=1e-12, atol=1e-13)


# Mirror maps.


@pytest.mark.parametrize("name", EXACT)
def test_entropy_on_the_simplex_is_exact(
    name, make_problem, regularizer, make_algorithm, make_hparams, cohorts_of, drive, full_gradients
):
    sizes = (7, 4, 9)
    euclidean = make_problem(regularizer("simplex", total=1.0), sizes=sizes, features=3)
    problem = replace(euclidean, mirror=Entropy())
    cohorts = full_gradients(cohorts_of(problem, make_hparams(clients_per_round=3), 60), sizes)
    numbers = problem.regularizer.numbers

    def residual(name):
        algorithm = make_algorithm(name, problem, 0.5)
        models, _, _ = drive(algorithm, cohorts, algorithm.initial_state(problem.initial_models(numbers)))
        return problem.kkt_residual(models[-1], problem.risk(models[-1]).gradient, numbers)[0]

    assert residual(name) < 1e-10
    if name == "zhj":
        assert residual("fedmid_osp") > 1e-3


def test_a_weight_of_0_is_supported_by_the_entropy_map(
    make_problem, regularizer, make_algorithm, make_hparams, cohorts_of, drive
):
    """zhj restarts from the logarithm of its model, in which a weight may have underflowed to 0."""
    problem = replace(make_problem(regularizer("simplex", total=1.0), sizes=(7, 4, 9), features=3), mirror=Entropy())
    algorithm = make_algorithm("zhj", problem, 0.05)
    state = algorithm.initial_state(np.array([[0.6, 0.4, 0.0, 0.1]]))
    models, _, _ = drive(algorithm, cohorts_of(problem, make_hparams(), 3), state)
    assert np.isfinite(models).all()
    assert models[-1][0, 2] < 1e-300


@pytest.mark.parametrize("name", EXACT)
def test_p_norm_map_has_the_same_solution(
    name, make_problem, regularizer, make_algorithm, make_hparams, cohorts_of, drive, full_gradients, solution, l1_prox
):
    problem = make_problem(regularizer("l1", strength=0.1), sizes=(7, 4, 9), features=2)
    optimum, largest = solution(problem, l1_prox(0.1))
    cohorts = full_gradients(cohorts_of(problem, make_hparams(clients_per_round=3), 50), (7, 4, 9))
    models, _, _ = drive(make_algorithm(name, replace(problem, mirror=PNorm(power=1.7)), 1 / largest), cohorts)
    np.testing.assert_allclose(models[-1][0], optimum, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", ["scaffold_prox", "zhj"])
def test_models_are_feasible(name, make_problem, regularizer, make_algorithm, make_hparams, cohorts_of, drive):
    """Models of clients and server stay in the set, also with unequal K_m; factors K / K_m would leave it."""
    problem = make_problem(regularizer("l2_ball", radius=0.05), sizes=SIZES, features=4)
    algorithm = make_algorithm(name, problem, 0.05)
    cohorts = cohorts_of(problem, make_hparams(clients_per_round=1, local_epochs=3), 8)  # K_m = 3, 6, 9 or 12
    models, state, memory = drive(algorithm, cohorts)
    made = algorithm.round(state, cohorts[0], memory.read(cohorts[0].clients))
    models = np.array([*models, *algorithm.client_models(state, made, cohorts[0])[:-1]])
    norms = np.linalg.norm(models[:, 0, :-1], axis=1)
    assert (norms <= 0.05 * (1 + 1e-12)).all()
    assert norms.max() == pytest.approx(0.05)


# Messages, costs and invalid input.


def test_scaffold_prox_sends_the_change_of_c_m(make, make_algorithm, make_hparams, cohorts_of, drive, client_gradient):
    """Detects: c_m itself, or 0 because c_m was overwritten before."""
    problem = make()
    algorithm, cohorts = make_algorithm("scaffold_prox", problem, 0.02), cohorts_of(problem, make_hparams(), 8)
    _, state, memory = drive(algorithm, cohorts[:-1])
    before = memory.read(cohorts[-1].clients)
    made = algorithm.round(state, cohorts[-1], before)
    np.testing.assert_allclose(made.messages[:, 1], (made.memory - before)[:, 0], rtol=1e-12, atol=1e-14)
    assert np.abs(made.messages[:, 1]).min(axis=(1, 2)).max() > 1e-3
    assert np.abs(before).max() > 1e-3


@pytest.mark.parametrize("name", FAMILY)
def test_the_model_of_a_single_client_is_the_server_model(name, make, make_algorithm, make_hparams, cohorts_of):
    problem = make(name, sizes=(9,))
    algorithm = make_algorithm(name, problem, 0.05)
    state, (cohort,) = (
        algorithm.initial_state(np.zeros((1, 5))),
        cohorts_of(problem, make_hparams(clients_per_round=1), 1),
    )
    made = algorithm.round(state, cohort, np.zeros((1, 1, 1, 5)))
    models = algorithm.client_models(state, made, cohort)
    np.testing.assert_allclose(models[0], algorithm.output(made.state), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", FAMILY)
def test_a_single_client_has_no_correction(name, make, make_algorithm, make_hparams, cohorts_of, drive):
    """c - c_m stays 0."""
    problem = make(name, sizes=(9,))
    cohorts = cohorts_of(problem, make_hparams(clients_per_round=1), 6)
    _, state, memory = drive(make_algorithm(name, problem, 0.05), cohorts)
    own = memory.read(np.array([0]))[0, 0]
    np.testing.assert_allclose(state["c"], own, rtol=0, atol=1e-13)
    assert np.abs(own).max() > 0.1


def test_costs(make, make_algorithm, make_hparams, cohorts_of):
    (cohort,) = cohorts_of(make(), make_hparams(clients_per_round=5), 1)
    assert sorted(cohort.steps) == [1, 2, 3, 3, 4]
    found = {name: make_algorithm(name, make(name)).costs(cohort) for name in FAMILY}
    assert {name: (cost.vectors_down / 5, cost.vectors_up / 5, cost.prox_calls) for name, cost in found.items()} == {
        "scaffold": (2, 1, 0), "scaffold_prox": (2, 2, 13), "zhj": (2, 1, 13 - 5 + 1), "feddualavg_cv": (2, 1, 13 + 1),
        "scaffold_osp": (2, 1, 1),
    }  # fmt: skip


@pytest.mark.parametrize("name", FAMILY)
def test_a_message_that_is_not_finite_is_ignored(name, make, make_algorithm, full_cohort, drive):
    """The client's memory is unchanged, and c changes only by the other messages."""
    problem = make(name)
    algorithm, cohort = make_algorithm(name, problem, 0.05), full_cohort(problem)
    _, state, memory = drive(algorithm, [cohort] * 3)
    before = memory.read(np.arange(5))
    broken = replace(problem, training=replace(problem.data, x=problem.data.x.copy()))
    broken.data.x[problem.data.offsets[1]] = np.nan
    made = make_algorithm(name, broken, 0.05).round(state, cohort, before)
    memory.write(cohort.clients, made.memory, made.arrived)
    after = memory.read(np.arange(5))
    assert made.dropped.tolist() == [1]
    np.testing.assert_array_equal(after[1], before[1])
    assert (after[0] != before[0]).all()
    np.testing.assert_allclose(made.state["c"][0], after[:, 0, 0].mean(axis=0), rtol=1e-11, atol=1e-12)


def test_scaffold_rejects_psi_and_other_maps(make_problem, make_algorithm, regularizer):
    with pytest.raises(
        UserError, match=r"^regularizer: got 'l1', must be none: scaffold has no prox \(zhj and scaffold_prox do\)$"
    ):
        make_algorithm("scaffold", make_problem(regularizer("l1")))
    with pytest.raises(
        UserError, match=r"^mirror: got 'entropy', must be euclidean: scaffold supports no other mirror map$"
    ):
        make_algorithm("scaffold", replace(make_problem(), mirror=Entropy()))


@pytest.mark.parametrize("name", FAMILY)
def test_the_id_does_not_depend_on_unused_hyperparameters(name):
    assert "normalize_steps" not in all_algorithms()[name].uses
    assert {"client_lr", "server_lr"} <= all_algorithms()[name].uses
