"""Tests of PG-EXTRA, NIDS and gossip dual averaging against dense listings in NumPy, and of their identities."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest

from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.algorithms.topology import complete, metropolis, ring
from fco_cli.algorithms.transforms import all_transforms
from fco_cli.errors import UserError
from fco_cli.problem.data import ClientData
from fco_cli.problem.layout import stack_numbers
from fco_cli.problem.mirror_maps import Entropy
from fco_cli.problem.problem import Problem

METHODS = ("pg_extra", "nids", "gossip_dual_averaging")
EXACT = ("pg_extra", "nids")
SIZES = (7, 4, 9, 5, 6)
STRENGTH, RATE = 0.3, 0.04


@pytest.fixture
def problem(make_problem, regularizer):
    return make_problem(regularizer("l1", strength=STRENGTH), sizes=SIZES, features=3, weighting="examples")


def run(algorithm, rounds, start=None):
    """Return the clients' models [rounds, J, M, P] and the last state."""
    if start is None:
        start = np.zeros((len(algorithm.varying), algorithm.problem.layout.size))
    state, models = algorithm.initial_state(start), []
    for _ in range(rounds):
        state = algorithm.round(state).state
        models.append(state["x"].copy())
    return np.array(models), state


def residual_of(problem, w):
    return problem.kkt_residual(w, problem.risk(w).gradient, problem.regularizer.numbers)[0]


@pytest.fixture
def gradients(client_gradient):
    """Return M p_m grad F_m(x_m) for the rows x_m of a matrix."""

    def compute(problem, x):
        scales = problem.weights * len(x)
        return np.array([scales[m] * client_gradient(problem, m, own) for m, own in enumerate(x)])

    return compute


def lazy_ring(clients):
    return (np.eye(clients) + metropolis(ring(clients), clients)) / 2


def test_pg_extra_against_a_listing(problem, make_algorithm, gradients, l1_prox):
    w, prox, x, expected = lazy_ring(5), l1_prox(STRENGTH), np.zeros((5, 4)), []
    z = w @ x - RATE * gradients(problem, x)
    last, x = x, np.array([prox(one, RATE) for one in z])
    expected.append(x)
    for _ in range(9):
        z = w @ x + z - (np.eye(5) + w) / 2 @ last - RATE * (gradients(problem, x) - gradients(problem, last))
        last, x = x, np.array([prox(one, RATE) for one in z])
        expected.append(x)
    models = run(make_algorithm("pg_extra", problem, RATE), 10)[0][:, 0]
    np.testing.assert_allclose(models, expected, rtol=1e-11, atol=1e-13)


def test_nids_against_a_listing(problem, make_algorithm, gradients, l1_prox):
    w, prox, x, expected = lazy_ring(5), l1_prox(STRENGTH), np.zeros((5, 4)), []
    z = w @ (x - RATE * gradients(problem, x))
    last, x = x, np.array([prox(one, RATE) for one in z])
    expected.append(x)
    for _ in range(9):
        z = z - x + w @ (2 * x - last - RATE * gradients(problem, x) + RATE * gradients(problem, last))
        last, x = x, np.array([prox(one, RATE) for one in z])
        expected.append(x)
    models = run(make_algorithm("nids", problem, RATE), 10)[0][:, 0]
    np.testing.assert_allclose(models, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_dual_averaging_against_a_listing(decay, problem, make_algorithm, gradients, l1_prox):
    w, prox, x, total, expected = lazy_ring(5), l1_prox(STRENGTH), np.zeros((5, 4)), np.zeros((5, 4)), []
    for n in range(1, 11):
        total = w @ (total + gradients(problem, x))
        rate = RATE / n**decay
        x = np.array([prox(-rate * one, n * rate) for one in total])
        expected.append(x)
    models = run(make_algorithm("gossip_dual_averaging", problem, RATE, decay=decay), 10)[0][:, 0]
    np.testing.assert_allclose(models, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("topology", ["ring", "star", "grid", "complete", "random"])
@pytest.mark.parametrize("name", EXACT)
def test_exact_on_every_graph(name, topology, loss, make_problem, regularizer, make_algorithm, solution, l1_prox):
    strength = {"squared": STRENGTH, "logistic": 0.05}[loss]
    problem = make_problem(regularizer("l1", strength=strength), loss, sizes=SIZES, features=2)
    _, largest = solution(problem, l1_prox(strength))
    algorithm = make_algorithm(name, problem, 1 / largest, topology=topology, degree=3)
    models, state = run(algorithm, 500)
    assert residual_of(problem, algorithm.output(state)) < 1e-9
    assert algorithm.state_metrics(state)["consensus_error"][0] < 1e-9
    assert algorithm.state_metrics({"x": models[3]})["consensus_error"][0] > 1e-4


@pytest.mark.parametrize("name", EXACT)
def test_the_optimum_is_a_fixed_point(name, problem, make_algorithm, optimum_of, gradients):
    """With the z_m to which the method converges, whose mean is w* - eta grad F(w*)."""
    algorithm = make_algorithm(name, problem, RATE, topology="complete")
    _, state = run(algorithm, 900)
    optimum = optimum_of(problem)
    np.testing.assert_allclose(state["x"][0], np.tile(optimum, (5, 1)), atol=1e-10)
    mean = gradients(problem, np.tile(optimum, (5, 1))).mean(axis=0)
    np.testing.assert_allclose(state["z"][0].mean(axis=0), optimum - RATE * mean, atol=1e-10)
    again = algorithm.round(state).state
    np.testing.assert_allclose(again["x"], state["x"], rtol=0, atol=1e-12)


def test_the_error_of_dual_averaging_decreases_with_the_rounds(problem, make_algorithm, optimum_of):
    algorithm, optimum = make_algorithm("gossip_dual_averaging", problem, 0.1), optimum_of(problem)
    models, _ = run(algorithm, 800)
    errors = [np.abs(models[n - 1, 0].mean(axis=0) - optimum).max() for n in (50, 800)]
    disagreements = [algorithm.state_metrics({"x": models[n - 1]})["consensus_error"][0] for n in (50, 800)]
    assert 1e-4 < errors[1] < errors[0] / 2.5
    assert disagreements[1] == pytest.approx(disagreements[0] / 4, rel=0.2)  # as n^(-1/2)


def test_with_constant_steps_dual_averaging_is_biased(problem, make_algorithm, optimum_of):
    """In proportion to client_lr."""
    optimum, errors = optimum_of(problem), []
    for rate in (RATE, RATE / 2):
        algorithm = make_algorithm("gossip_dual_averaging", problem, rate, decay=0.0)
        errors.append(np.abs(algorithm.output(run(algorithm, 600)[1])[0] - optimum).max())
    assert errors[0] > 1e-3
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.3)


# Reductions.


def proximal_gradient(problem, make_algorithm, rounds):
    central = make_algorithm("centralized", problem, RATE)
    state, models = central.initial_state(np.zeros((1, problem.layout.size))), []
    for _ in range(rounds):
        state = central.round(state).state
        models.append(state["w"][0])
    return np.array(models)


@pytest.mark.parametrize("name", EXACT)
def test_identical_clients_take_proximal_gradient_steps(name, make_problem, regularizer, make_algorithm):
    one = make_problem(regularizer("l1", strength=STRENGTH), sizes=(8,), features=3)
    data = ClientData(np.tile(one.data.x, (4, 1)), np.tile(one.data.y, 4), np.arange(5) * 8)
    four = Problem(data, one.model, one.loss, regularizer=one.regularizer)
    models = run(make_algorithm(name, four, RATE), 8)[0][:, 0]
    expected = proximal_gradient(four, make_algorithm, 8)
    np.testing.assert_allclose(models, np.repeat(expected[:, None], 4, axis=1), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", EXACT)
def test_a_single_client_takes_proximal_gradient_steps(name, make_problem, regularizer, make_algorithm):
    problem = make_problem(regularizer("l1", strength=STRENGTH), sizes=(8,), features=3)
    models = run(make_algorithm(name, problem, RATE), 8)[0][:, 0, 0]
    np.testing.assert_allclose(models, proximal_gradient(problem, make_algorithm, 8), rtol=1e-11, atol=1e-13)


def test_nids_on_the_complete_graph_is_proximal_gradient(problem, make_algorithm):
    """With uniform mixing."""
    models = run(make_algorithm("nids", problem, RATE, topology="complete", lazy=False), 8)[0][:, 0]
    expected = proximal_gradient(problem, make_algorithm, 8)
    np.testing.assert_allclose(models, np.repeat(expected[:, None], 5, axis=1), rtol=1e-11, atol=1e-13)


def test_dual_averaging_on_the_complete_graph_is_feddualavg(problem, make_algorithm, full_cohort, drive):
    """With uniform mixing, constant steps and one full local step of feddualavg."""
    models = run(make_algorithm("gossip_dual_averaging", problem, RATE, topology="complete", lazy=False, decay=0.0), 8)[
        0
    ][:, :, 0]
    expected = drive(make_algorithm("feddualavg", problem, RATE), [full_cohort(problem)] * 8)[0]
    np.testing.assert_allclose(models, expected, rtol=1e-11, atol=1e-13)


def test_dual_averaging_supports_mirror_maps(make_problem, regularizer, make_algorithm):
    problem = replace(make_problem(regularizer("simplex"), sizes=SIZES, features=4), mirror=Entropy())
    algorithm = make_algorithm("gossip_dual_averaging", problem, 0.1)
    models, state = run(algorithm, 50, problem.initial_models(problem.regularizer.numbers))
    np.testing.assert_allclose(models[-1, 0, :, :4].sum(axis=1), 0.5, rtol=1e-12)
    assert residual_of(problem, algorithm.output(state)) < residual_of(problem, algorithm.output({"x": models[0]}))


# Bits, costs and invalid input.


@pytest.mark.parametrize("name", METHODS)
def test_a_job_gives_the_same_bits_alone_resumed_and_in_a_stack(name, problem):
    kind, psi = all_algorithms()[name], problem.regularizer
    rates = np.array([0.05, 0.02, 0.03])
    strengths = [replace(psi, strength=strength) for strength in (0.3, 0.1, 0.5)]

    def bound(jobs):
        algorithm = kind(topology="random")
        numbers = stack_numbers(strengths[j] for j in jobs)
        return algorithm.bind(
            problem, Varying(rates[jobs], rates[jobs], numbers, stack_numbers([algorithm] * len(jobs)))
        )

    models, _ = run(bound([0, 1, 2]), 6)
    for j in range(3):
        np.testing.assert_array_equal(models[:, j], run(bound([j]), 6)[0][:, 0])
    _, state = run(bound([0, 1, 2]), 4)
    state, again = copy.deepcopy(state), bound([0, 1, 2])
    for _ in range(2):
        state = again.round(state).state
    np.testing.assert_array_equal(state["x"], models[-1])


@pytest.mark.machine_code
@pytest.mark.ci
def test_machine_code_agrees_with_python(problem, make_algorithm):
    algorithm = make_algorithm("nids", problem, [0.05, 0.02])
    models, _ = run(algorithm, 6)
    gradient = algorithm._gradients(models[-1])
    for m in range(5):
        own = replace(problem, training=problem.data.client(m))
        expected = problem.weights[m] * 5 * own.risk(models[-1][:, m]).gradient
        np.testing.assert_allclose(gradient[:, m], expected, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(
        algorithm._mix(models[-1]), np.einsum("mn,jnp->jmp", algorithm._mixing, models[-1]), rtol=1e-12, atol=1e-14
    )


@pytest.mark.parametrize("name", METHODS)
def test_every_edge_carries_a_vector_both_ways(name, problem, make_algorithm):
    for topology, edges in (("ring", 5), ("star", 4), ("complete", 10)):
        costs = make_algorithm(name, problem, topology=topology).costs(None)
        assert (costs.vectors_up, costs.vectors_down) == (2 * edges, 0)
        assert (costs.bytes_up, costs.bytes_down) == (2 * edges * 4 * 8, 0)
        assert (costs.prox_calls, costs.gradients, costs.queries) == (5, sum(SIZES), 5)


@pytest.mark.parametrize("name", METHODS)
def test_an_edge_file_gives_the_graph(name, problem, make_algorithm, tmp_path):
    path = tmp_path / "edges.csv"
    path.write_text("".join(f"{a},{b}\n" for a, b in ring(5)))
    algorithm = make_algorithm(name, problem, RATE, topology="file", edges=str(path))
    np.testing.assert_array_equal(run(algorithm, 4)[0], run(make_algorithm(name, problem, RATE), 4)[0])
    before = algorithm.contents()
    path.write_text("".join(f"{a},{b}\n" for a, b in complete(5)))
    assert algorithm.contents() != before
    assert make_algorithm(name, problem).contents() == {}


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"topology": "tree"},
            r"^algo\.topology: got 'tree', must be one of ring, star, grid, complete, random, file$",
        ),
        ({"topology": "file"}, r"^algo\.edges: got '', must be a file with topology=file, otherwise empty$"),
        ({"edges": "a.csv"}, r"^algo\.edges: got 'a\.csv', must be a file with topology=file, otherwise empty$"),
        ({"topology": "random", "degree": 1}, r"^algo\.degree: got 1, must be a whole number >= 2$"),
        ({"graph_seed": -1}, r"^algo\.graph_seed: got -1, must be a whole number >= 0$"),
        ({"lazy": False, "topology": "ring"}, r"^algo\.lazy: got False, must be true for this graph: [^\n]*$"),
    ],
)
def test_invalid_options_are_errors_of_one_line(options, line, make_problem, make_algorithm):
    with pytest.raises(UserError, match=line):
        make_algorithm("nids", make_problem(sizes=(3, 3, 3, 3)), **options)


@pytest.mark.parametrize("name", EXACT)
def test_mirror_maps_and_transforms_are_rejected(name, problem, make_algorithm):
    with pytest.raises(UserError, match=f"^mirror: got 'entropy', must be euclidean: {name} supports no other"):
        make_algorithm(name, replace(problem, mirror=Entropy()))
    with pytest.raises(UserError, match=rf"^transform: got 'topk', must be none: {name} has no server; [^\n]*$"):
        make_algorithm(name, problem, transform=all_transforms()["topk"]())
    with pytest.raises(UserError, match=r"^algo\.decay: got 1\.0, must be at least 0, below 1$"):
        make_algorithm("gossip_dual_averaging", problem, decay=1.0)
