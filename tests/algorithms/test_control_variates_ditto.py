"""Tests of Ditto: the shared model is that of zhj, and the personal models solve their problems."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fco_cli.algorithms.control_variates import Ditto
from fco_cli.errors import UserError
from fco_cli.problem.mirror_maps import Entropy, PNorm
from fco_cli.simulation.memory import ProcessMemory

SIZES = (7, 4, 9)
STRENGTH = 0.3  # of psi


@pytest.fixture
def problem(make_problem, regularizer):
    return make_problem(regularizer("l1", strength=STRENGTH), sizes=SIZES, features=3)


def personal(memory, j=0):
    """Return v_m of every client: [M, P]."""
    return memory.read(np.arange(len(SIZES)))[:, 1, j]


@pytest.mark.parametrize("sampled", [2, 3])
def test_the_shared_model_is_that_of_zhj(sampled, problem, make_algorithm, make_hparams, cohorts_of, drive):
    """Models and control variates are bitwise equal, and the state has the same arrays."""
    cohorts = cohorts_of(problem, make_hparams(clients_per_round=sampled, local_epochs=2), 6)
    models, state, memory = drive(make_algorithm("ditto", problem, 0.03, 0.8, strength=0.7), cohorts)
    shared, zhj_state, variates = drive(make_algorithm("zhj", problem, 0.03, 0.8), cohorts)
    np.testing.assert_array_equal(models, shared)
    assert state.keys() == zhj_state.keys()
    np.testing.assert_array_equal(memory.read(np.arange(3))[:, 0], variates.read(np.arange(3))[:, 0])


def test_against_the_listing(problem, make_algorithm, make_hparams, cohorts_of, drive, l1_prox, client_gradient):
    """Batches, sampled clients, personal_rate below 1; a step is
    argmin_u eta psi(u) + eta strength |u - w|^2 / 2 + |u - (v - eta g)|^2 / 2."""
    cohorts = cohorts_of(problem, make_hparams(clients_per_round=2, local_epochs=2), 5)
    strength, eta, prox = 0.7, 0.5 * 0.03, l1_prox(STRENGTH)
    models, _, memory = drive(make_algorithm("ditto", problem, 0.03, strength=strength, personal_rate=0.5), cohorts)
    received, own = [np.zeros(4), *(model[0] for model in models[:-1])], np.zeros((3, 4))
    for w, cohort in zip(received, cohorts, strict=True):
        for i, m in enumerate(cohort.clients):
            for b in range(cohort.first[i], cohort.first[i + 1]):
                rows = cohort.order[cohort.edges[b] : cohort.edges[b + 1]]
                moved = own[m] - eta * client_gradient(problem, m, own[m], rows)
                own[m] = prox((moved + eta * strength * w) / (1 + eta * strength), eta / (1 + eta * strength))
    np.testing.assert_allclose(personal(memory), own, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("psi", ["l1", "l2_ball"])
def test_strength_0_is_the_local_baseline(psi, make_problem, regularizer, make_algorithm, full_cohort, drive):
    """With full gradients, bit for bit."""
    problem = make_problem(regularizer(psi, strength=STRENGTH, radius=0.2), sizes=SIZES)
    cohorts = [full_cohort(problem)] * 6
    _, _, memory = drive(make_algorithm("ditto", problem, 0.04, strength=0.0), cohorts)
    local = make_algorithm("local", problem, 0.04)
    alone = drive(local, cohorts)[1]["w"][0]
    np.testing.assert_array_equal(personal(memory), alone)
    assert np.abs(alone[0] - alone[1]).max() > 1e-3  # clients differ


def test_a_large_strength_makes_all_models_equal_the_shared_one(
    problem, make_algorithm, make_hparams, cohorts_of, drive
):
    """For any strength; the gradient step of the paper would diverge."""
    cohorts = cohorts_of(problem, make_hparams(clients_per_round=3), 4)
    for strength, near in ((1e6, 1e-5), (1e15, 1e-13)):
        models, _, memory = drive(make_algorithm("ditto", problem, 0.03, strength=strength), cohorts)
        received = np.repeat(models[-2], 3, axis=0)  # at the start of the last round
        np.testing.assert_allclose(personal(memory), received, rtol=0, atol=near)


def gradients_of(problem, memory, w, strength, client_gradient, to_dual=lambda w: w):
    """Return the gradient of F_m + strength D_h(., w) at every v_m."""
    return [
        client_gradient(problem, m, v) + strength * (to_dual(v) - to_dual(w)) for m, v in enumerate(personal(memory))
    ]


@pytest.mark.parametrize("strength", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_every_personal_problem_is_solved(
    loss, strength, make_problem, regularizer, make_algorithm, whole_batches, drive, solution, l1_prox, client_gradient
):
    """With full gradients v_m minimizes F_m + psi + strength |v - w|^2 / 2, and w is the optimum of the shared problem.

    Clients are sampled and take 3, 2 and 3 steps.
    """
    weight = (0.3, 0.05)[loss == "logistic"]
    problem = make_problem(regularizer("l1", strength=weight), loss=loss, sizes=SIZES, features=2)
    prox = l1_prox(weight)
    optimum, largest = solution(problem, prox)
    cohorts = whole_batches(problem, 2, 120)
    models, _, memory = drive(make_algorithm("ditto", problem, 1 / largest, strength=strength), cohorts)
    np.testing.assert_allclose(models[-1][0], optimum, rtol=0, atol=1e-9)
    slopes = gradients_of(problem, memory, optimum, strength, client_gradient)
    for v, slope in zip(personal(memory), slopes, strict=True):
        np.testing.assert_allclose(prox(v - slope, 1.0), v, rtol=0, atol=1e-8)
        assert np.abs(v - optimum).max() > 1e-4  # it differs from the shared model


def test_the_limit_is_a_fixed_point(problem, make_algorithm, whole_batches, drive, solution, l1_prox):
    _, largest = solution(problem, l1_prox(STRENGTH))
    algorithm = make_algorithm("ditto", problem, 1 / largest)
    _, state, memory = drive(algorithm, whole_batches(problem, 3, 150))
    expected = memory.read(np.arange(3))
    models, _, memory = drive(algorithm, whole_batches(problem, 2, 3), state, memory)
    np.testing.assert_allclose(models[-1], algorithm.output(state), rtol=0, atol=1e-12)
    np.testing.assert_allclose(memory.read(np.arange(3)), expected, rtol=0, atol=1e-11)


# Mirror maps: all that zhj supports.


def test_entropy_on_the_simplex(make_problem, regularizer, make_algorithm, whole_batches, drive, client_gradient):
    """The gradients of F_m + strength D_h(., w) are equal for all nonzero weights.

    The shared model has two nonzero weights. The third is 0 for all clients, because D_h is infinite otherwise.
    """
    euclidean = make_problem(regularizer("simplex", total=1.0), sizes=SIZES, features=3)
    problem, strength = replace(euclidean, mirror=Entropy()), 0.8
    algorithm = make_algorithm("ditto", problem, 0.3, strength=strength)
    start = problem.initial_models(problem.regularizer.numbers)
    state, memory = algorithm.initial_state(start), ProcessMemory(algorithm.initial_client_arrays(start))
    models, _, memory = drive(algorithm, whole_batches(problem, 3, 250), state, memory)

    def to_dual(w):
        return np.append(np.log(w[:-1]), w[-1])  # the bias is not part of the simplex

    own, slopes = (
        personal(memory),
        np.array(gradients_of(problem, memory, models[-1][0], strength, client_gradient, to_dual)),
    )
    np.testing.assert_allclose(own[:, :-1].sum(axis=1), 1, rtol=1e-12)
    assert own[:, :2].min() > 0.1 > 1e-12 > own[:, 2].max()
    np.testing.assert_allclose(slopes[:, 0], slopes[:, 1], rtol=0, atol=1e-9)
    np.testing.assert_allclose(slopes[:, 3], 0, rtol=0, atol=1e-9)


def test_the_p_norm_map_with_strength_0_gives_the_local_solutions(
    problem, make_algorithm, whole_batches, drive, l1_prox, client_gradient
):
    """With strength 0 the limit does not depend on the mirror map."""
    algorithm = make_algorithm("ditto", replace(problem, mirror=PNorm(power=1.7)), 0.05, strength=0.0)
    _, _, memory = drive(algorithm, whole_batches(problem, 3, 400))
    for m, v in enumerate(personal(memory)):
        np.testing.assert_allclose(l1_prox(STRENGTH)(v - client_gradient(problem, m, v), 1.0), v, rtol=0, atol=1e-7)


# Costs, options.


def test_costs(problem, make_algorithm, make_hparams, cohorts_of):
    """Additional to zhj: one gradient per row and one prox per step."""
    (cohort,) = cohorts_of(problem, make_hparams(clients_per_round=3), 1)
    ours, theirs = (make_algorithm(name, problem).costs(cohort) for name in ("ditto", "zhj"))
    assert (ours.vectors_up, ours.vectors_down, ours.bytes_up) == (3, 6, theirs.bytes_up)
    assert ours.prox_calls - theirs.prox_calls == cohort.steps.sum() == 8
    assert ours.gradients == 2 * theirs.gradients == 2 * 20


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [("strength", -0.1, "a number >= 0"), ("strength", np.inf, "a number >= 0"), ("strength", np.nan, "a number >= 0"),
     ("personal_rate", 0.0, "a number > 0"), ("personal_rate", np.nan, "a number > 0")],
)  # fmt: skip
def test_invalid_options_are_rejected(option, value, allowed):
    with pytest.raises(UserError, match=rf"^algo\.{option}: got {value}, must be {allowed}$"):
        Ditto(**{option: value})
