"""Tests of FedNMap and FedCEF against listings in NumPy, and of their identities with SCAFFOLD and `zhj`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fco_cli.algorithms.transforms import all_transforms
from fco_cli.errors import UserError
from fco_cli.problem.mirror_maps import Entropy
from fco_cli.simulation.memory import ProcessMemory

SIZES = (7, 4, 9)
STRENGTH, ETA_C, ETA_S = 0.3, 0.04, 0.7


@pytest.fixture
def problem(make_problem, regularizer):
    return make_problem(regularizer("l1", strength=STRENGTH), sizes=SIZES, features=3, weighting="examples")


@pytest.fixture
def draw(make_hparams, cohorts_of):
    def cohorts(problem, rounds, sampled=3):
        return cohorts_of(problem, make_hparams(clients_per_round=sampled, weighting=problem.weighting), rounds)

    return cohorts


def batches(cohort, i):
    """Yield the rows of every batch of the cohort's client i."""
    for b in range(cohort.first[i], cohort.first[i + 1]):
        yield cohort.order[cohort.edges[b] : cohort.edges[b + 1]]


# FedNMap


@pytest.mark.parametrize("sampled", [2, 3])
def test_fednmap_against_a_listing(sampled, problem, draw, make_algorithm, drive, l1_prox, client_gradient):
    """State z, normal maps g(q) + (z - q) / t at q = prox_{t psi}(z), variates n_m; unequal K_m, minibatches."""
    cohorts, p, prox = draw(problem, 8, sampled), problem.weights, l1_prox(STRENGTH)
    t = 1.5 * ETA_S * ETA_C * cohorts[0].mean_steps
    z, n, variates, expected = np.zeros(4), np.zeros(4), np.zeros((3, 4)), []
    for cohort in cohorts:
        changes, new = [], variates.copy()
        for i, m in enumerate(cohort.clients):
            y, normals = z.copy(), []
            for rows in batches(cohort, i):
                q = prox(y, t)
                normals.append(client_gradient(problem, m, q, rows) + (y - q) / t)
                y = y - ETA_C * (normals[-1] - variates[m] + n)
            new[m] = np.mean(normals, axis=0)
            changes.append((y - z) * cohort.mean_steps / len(normals))
        z = z + ETA_S * np.average(changes, axis=0, weights=p[cohort.clients])
        n, variates = n + p @ (new - variates), new
        expected.append(prox(z, t))
    algorithm = make_algorithm("fednmap", problem, ETA_C, ETA_S, rounds_per_prox=1.5)
    models, state, memory = drive(algorithm, cohorts)
    np.testing.assert_allclose(np.array(models)[:, 0], expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(memory.read(np.arange(3))[:, 0, 0], variates, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(state["c"][0], n, rtol=1e-10, atol=1e-12)


def test_without_psi_fednmap_is_scaffold(make_problem, regularizer, draw, make_algorithm, drive):
    problem = make_problem(regularizer("none"), sizes=SIZES, features=3)
    cohorts = draw(problem, 6, sampled=2)
    models = [drive(make_algorithm(name, problem, ETA_C, ETA_S), cohorts)[0] for name in ("fednmap", "scaffold")]
    np.testing.assert_allclose(*models, rtol=1e-12, atol=1e-13)


def test_fednmap_with_one_step_is_proximal_gradient(problem, full_cohort, make_algorithm, drive):
    """With eta_s = 1 and t = eta_c: z becomes q - eta_c grad F(q)."""
    cohorts = [full_cohort(problem)] * 5
    models = drive(make_algorithm("fednmap", problem, ETA_C), cohorts)[0]
    central = drive(make_algorithm("centralized", problem, ETA_C), cohorts)[0]
    np.testing.assert_allclose(models, central, rtol=1e-11, atol=1e-13)


def test_the_optimum_is_a_fixed_point_of_fednmap(
    problem, make_algorithm, optimum_of, whole_batches, drive, client_gradient
):
    """With z = w* - t grad F(w*) and n_m = grad F_m(w*) - grad F(w*), for any cohort and K_m."""
    optimum, cohorts = optimum_of(problem), whole_batches(problem, 2, 5)
    gradients = np.array([client_gradient(problem, m, optimum) for m in range(3)])
    mean = problem.weights @ gradients
    assert np.abs(mean).max() > 0.1
    t = ETA_C * cohorts[0].mean_steps
    memory = ProcessMemory(np.zeros((1, 1, 4)))
    memory.rows = {m: own[None, None] for m, own in enumerate(gradients - mean)}
    state = {"z": (optimum - t * mean)[None], "c": np.zeros((1, 4)), "t": np.full(1, t)}
    models = drive(make_algorithm("fednmap", problem, ETA_C), cohorts, state, memory)[0]
    np.testing.assert_allclose(models, np.tile(optimum, (5, 1, 1)), rtol=0, atol=1e-11)


def test_fednmap_rejects_invalid_options(problem, make_algorithm):
    for value in (0.0, np.inf):
        with pytest.raises(UserError, match=rf"^algo\.rounds_per_prox: got {value}, must be a number > 0$"):
            make_algorithm("fednmap", problem, rounds_per_prox=value)


# FedCEF


@pytest.mark.parametrize("transform", ["none", "topk", "quantize"])
def test_fedcef_has_the_rounds_of_zhj(transform, problem, draw, make_algorithm, drive):
    """Including the control variates, with half the vectors down."""
    cohorts, encode = draw(problem, 10), all_transforms()[transform]
    fedcef, zhj = (make_algorithm(name, problem, ETA_C, ETA_S, encode()) for name in ("fedcef", "zhj"))
    (models, _, memory), (expected, _, other) = drive(fedcef, cohorts), drive(zhj, cohorts)
    np.testing.assert_allclose(models, expected, rtol=1e-10, atol=1e-12)
    variates, others = (kept.read(np.arange(3))[:, 0] for kept in (memory, other))
    np.testing.assert_allclose(variates, others, rtol=1e-9, atol=1e-11)
    costs, reference = fedcef.costs(cohorts[0]), zhj.costs(cohorts[0])
    assert np.all(costs.bytes_up == reference.bytes_up)
    assert 2 * costs.bytes_down == reference.bytes_down


def test_fedcef_has_the_rounds_of_zhj_with_other_mirror_maps(make_problem, regularizer, draw, make_algorithm, drive):
    problem = replace(make_problem(regularizer("simplex"), sizes=SIZES, features=3), mirror=Entropy())
    cohorts = draw(problem, 6)
    fedcef, zhj = (make_algorithm(name, problem, 0.02) for name in ("fedcef", "zhj"))
    start = problem.initial_models(problem.regularizer.numbers)

    def models(algorithm):
        memory = ProcessMemory(algorithm.initial_client_arrays(start))
        return drive(algorithm, cohorts, algorithm.initial_state(start), memory)[0]

    np.testing.assert_allclose(models(fedcef), models(zhj), rtol=1e-10, atol=1e-12)


def test_fedcef_against_the_published_form(problem, whole_batches, make_algorithm, drive, client_gradient, l1_prox):
    """The server sends the point before its prox; clients compute their corrections from successive broadcasts."""
    cohorts, p, prox = whole_batches(problem, 3, 8), problem.weights, l1_prox(STRENGTH)
    steps = cohorts[0].mean_steps
    scale = ETA_S * ETA_C * steps
    before, w, corrections, expected = np.zeros(4), np.zeros(4), np.zeros((3, 4)), []
    for cohort in cohorts:
        changes, means = np.zeros((3, 4)), np.zeros((3, 4))
        for i, m in enumerate(cohort.clients):
            z, gradients = w.copy(), []
            for k, rows in enumerate(batches(cohort, i)):
                gradients.append(client_gradient(problem, m, prox(z, ETA_C * k) if k else w, rows))
                z = z - ETA_C * (gradients[-1] + corrections[m])
            means[m] = np.mean(gradients, axis=0)
            changes[m] = (z - w) * steps / len(gradients)
        before = w + ETA_S * p @ changes
        corrections = (w - before) / scale - means
        w = prox(before, scale)
        expected.append(w)
    models = drive(make_algorithm("fedcef", problem, ETA_C, ETA_S), cohorts)[0]
    np.testing.assert_allclose(np.array(models)[:, 0], expected, rtol=1e-11, atol=1e-12)


def test_fedcef_recovers_from_a_lost_message(problem, whole_batches, make_algorithm, drive, kkt):
    """A client whose message is lost computes c from an older model once; the variates remain consistent."""
    algorithm, cohorts = make_algorithm("fedcef", problem, ETA_C), whole_batches(problem, 3, 400)
    _, state, memory = drive(algorithm, cohorts[:3])
    kept = memory.read(cohorts[3].clients)
    state = algorithm.start_round(state, cohorts[3])
    made = algorithm.round(state, cohorts[3], kept)
    messages = made.messages.copy()
    messages[0] = np.nan
    made = algorithm.finish_round(state, cohorts[3], messages, made.memory)
    memory.write(cohorts[3].clients, made.memory, made.arrived)
    assert made.dropped.tolist() == [1]
    models, state, memory = drive(algorithm, cohorts[4:], made.state, memory)
    assert kkt(problem, models[-1]) < 1e-10
    variates = memory.read(np.arange(3))[:, 0, 0]
    np.testing.assert_allclose(state["c"][0], problem.weights @ variates, rtol=1e-10, atol=1e-11)


def test_fedcef_requires_full_participation(problem, make_algorithm):
    line = r"^hparams.clients_per_round: got 2, must be all 3 clients: fedcef requires full participation$"
    with pytest.raises(UserError, match=line):
        make_algorithm("fedcef", problem).check_participation(2, 3)


def test_client_models_of_fedcef_are_those_of_zhj(problem, whole_batches, make_algorithm, drive):
    (first, last), ends = whole_batches(problem, 3, 2), []
    for name in ("fedcef", "zhj"):
        algorithm = make_algorithm(name, problem, ETA_C)
        _, state, memory = drive(algorithm, [first])
        ends.append(algorithm.client_models(state, algorithm.round(state, last, memory.read(last.clients)), last))
    np.testing.assert_allclose(*ends, rtol=1e-11, atol=1e-12)


def test_client_models_of_fednmap(problem, whole_batches, make_algorithm, drive, client_gradient, l1_prox):
    """In the first round, a client's model is to_primal(z_m, t), after steps without correction."""
    algorithm, (cohort,) = make_algorithm("fednmap", problem, ETA_C), whole_batches(problem, 3, 1)
    state = algorithm.start_round(algorithm.initial_state(np.zeros((1, 4))), cohort)
    made = algorithm.round(state, cohort, np.zeros((3, 1, 1, 4)))
    models, prox, t = algorithm.client_models(state, made, cohort), l1_prox(STRENGTH), ETA_C * cohort.mean_steps
    for i, m in enumerate(cohort.clients):
        z = np.zeros(4)
        for _ in range(cohort.steps[i]):
            z = z - ETA_C * (client_gradient(problem, m, prox(z, t)) + (z - prox(z, t)) / t)
        np.testing.assert_allclose(models[i, 0], prox(z, t), rtol=1e-11, atol=1e-12)
