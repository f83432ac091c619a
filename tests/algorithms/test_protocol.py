"""Tests of the protocol that every algorithm follows."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.algorithms.rounds import Scalar, slot_count
from fco_cli.algorithms.transforms import all_transforms
from fco_cli.errors import UserError
from fco_cli.problem.mirror_maps import Entropy, PNorm
from fco_cli.problem.numbers import stack_numbers
from fco_cli.problem.problem import TaskData
from fco_cli.simulation.clients import Sampler
from fco_cli.simulation.memory import ProcessMemory

_specification = importlib.util.spec_from_file_location("site_of_a_client", Path(__file__).with_name("site.py"))
site = importlib.util.module_from_spec(_specification)
_specification.loader.exec_module(site)

FEDERATED = [name for name, kind in all_algorithms().items() if kind.federated]
SIZES = (7, 4, 9)


@pytest.fixture
def suited(make_problem, psi_for):
    """Return a problem with a regularizer that the algorithm supports."""
    return lambda name: make_problem(psi_for(name), sizes=SIZES)


@pytest.mark.parametrize("name", FEDERATED)
def test_declarations_match_the_arrays_of_a_round(name, suited, make_algorithm, make_hparams, cohorts_of):
    problem = suited(name)
    algorithm = make_algorithm(name, problem, [0.01, 0.02])
    w = np.zeros((2, problem.layout.size))
    state, memory = algorithm.initial_state(w), algorithm.initial_client_arrays(w)
    assert memory.shape == (len(algorithm.remembered), *w.shape)
    (cohort,) = cohorts_of(problem, make_hparams(clients_per_round=3), 1)
    made = algorithm.round(state, cohort, np.repeat(memory[None], 3, axis=0))
    assert made.state.keys() == state.keys()
    assert all(state[array.name].shape == array.shape(*w.shape) for array in algorithm.broadcast)
    slots = slot_count(algorithm.sent, problem.layout.size)
    assert made.messages.shape == (3, slots, *w.shape)
    assert made.memory.shape == (3, *memory.shape)
    assert made.arrived.all()
    assert np.isfinite(algorithm.output(made.state)).all()
    costs = algorithm.costs(cohort)
    down = sum(not isinstance(array, Scalar) for array in algorithm.broadcast)
    assert (costs.vectors_up, costs.vectors_down) == (3 * slots, 3 * down)
    assert costs.bytes_up == costs.vectors_up * problem.layout.size * 8


@pytest.mark.parametrize("name", FEDERATED)
def test_a_round_modifies_neither_state_nor_memory(name, suited, make_algorithm, make_hparams, cohorts_of):
    problem = suited(name)
    algorithm = make_algorithm(name, problem)
    state = algorithm.initial_state(np.ones((1, problem.layout.size)))
    memory = np.ones((3, len(algorithm.remembered), 1, problem.layout.size))
    before = {key: values.copy() for key, values in state.items()}
    (cohort,) = cohorts_of(problem, make_hparams(clients_per_round=3), 1)
    algorithm.round(state, cohort, memory)
    for key, values in before.items():
        np.testing.assert_array_equal(state[key], values)
    assert (memory == 1).all()


# Clients in separate processes, each with only its own rows.


@pytest.fixture
def sites(tmp_path):
    """Start one process per client, with a file of its rows."""
    processes = []

    def start(problem, **settings) -> list[subprocess.Popen]:
        for m in range(problem.data.clients):
            own, path = problem.data.client(m), tmp_path / f"{m}.npz"
            np.savez(path, x=own.x, y=own.y, number=np.array([m]), **settings)
            command = [sys.executable, str(Path(__file__).with_name("site.py")), str(path)]
            processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        return processes

    yield start
    for process in processes:
        process.stdin.close()
        assert process.wait(timeout=60) == 0
        process.stdout.close()


@pytest.mark.parametrize(
    ("name", "transform"),
    [
        ("scaffold", "quantize"),
        *(pytest.param(*pair, marks=pytest.mark.slow) for pair in (("feddualavg", "none"), ("fedmid", "topk"))),
    ],
)
def test_clients_in_separate_processes_give_the_same_bits(
    name, transform, suited, make_algorithm, make_hparams, cohorts_of, drive, sites
):
    problem = suited(name)
    hparams, rounds = make_hparams(clients_per_round=2), 5
    server = make_algorithm(name, problem, 0.05, 0.7, all_transforms()[transform]())
    expected = drive(server, cohorts_of(problem, hparams, rounds))[0]

    strength = getattr(problem.regularizer, "strength", 0.0)
    settings = {"rates": np.array([0.05, 0.7]), "batch_size": hparams.batch_size, "transform": transform}
    clients = sites(problem, name=name, strength=strength, **settings)
    sampler = Sampler(np.array(SIZES), hparams, 0)  # the server has only the sizes of the clients
    state = server.initial_state(np.zeros((1, problem.layout.size)))
    for r in range(rounds):
        cohort = sampler.cohort(r)
        state = server.start_round(state, cohort)
        for m in cohort.clients:
            wanted = {array.name: state[array.name] for array in server.broadcast}
            site.send(clients[m].stdin, {"round": np.array(r), **wanted})
        answers = [site.receive(clients[m].stdout) for m in cohort.clients]
        messages = np.array([answer["message"] for answer in answers])
        state = server.server_step(state, server.aggregates(messages, cohort)[0])
        np.testing.assert_array_equal(server.output(state), expected[r])


# Options.
@pytest.mark.parametrize("name", FEDERATED)
def test_jobs_of_a_stack_are_independent(name, suited, make_hparams, cohorts_of, drive):
    """Jobs with different rates, strengths and options give the same models and memories as when run alone."""
    problem, kind = suited(name), all_algorithms()[name]
    given, psi = kind(), [problem.regularizer] * 3
    several = [
        kind(**{option: factor * getattr(given, option) + shift for option in kind.varying_options()})
        for factor, shift in ((1, 0), (0.5, 0.01), (0.9, 0.02))
    ]
    assert len({one.numbers.tobytes() for one in several}) == (3 if kind.varying_options() else 1)
    if hasattr(psi[0], "strength"):
        psi = [replace(psi[0], strength=strength) for strength in (0.3, 0.1, 0.5)]
    rates, server = np.array([0.05, 0.02, 0.03]), np.array([0.7, 1.0, 0.4])

    def run(jobs):
        own, numbers = stack_numbers(several[j] for j in jobs), stack_numbers(psi[j] for j in jobs)
        algorithm = several[0].bind(problem, Varying(rates[jobs], server[jobs], numbers, own))
        cohorts = cohorts_of(problem, make_hparams(clients_per_round=3), 4, algorithm.local_step_rule)
        models, _, memory = drive(algorithm, cohorts)
        return np.array(models), memory.read(np.arange(3))

    together, remembered = run([0, 1, 2])
    assert np.ptp(together[-1], axis=0).max() > 1e-6
    for j in range(3):
        alone, own = run([j])
        np.testing.assert_array_equal(together[:, j], alone[:, 0])
        np.testing.assert_array_equal(remembered[:, :, j], own[:, :, 0])


def test_momentum_by_hand(make_problem, make_hparams, cohorts_of, make_algorithm, drive):
    """v_r is the sum of momentum^(r - s) Delta_s: after two rounds w_2 - w_1 = eta_s (momentum Delta_1 + Delta_2)."""
    problem = make_problem(sizes=SIZES)
    cohorts = cohorts_of(problem, make_hparams(), 2)
    algorithm = make_algorithm("fedavgm", problem, 0.05, 0.7, momentum=0.5)
    models, state, _ = drive(algorithm, cohorts)
    first = models[0] / 0.7
    plain = make_algorithm("fedavg", problem, 0.05, 1.0)
    second = plain.round({"w": models[0]}, cohorts[1]).state["w"] - models[0]
    np.testing.assert_allclose(models[1] - models[0], 0.7 * (0.5 * first + second), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(state["v"], 0.5 * first + second, rtol=1e-12, atol=1e-14)


# Mirror maps.

EUCLIDEAN = (
    "scaffold", "scaffnew", "feddr", "fedadmm", "fedsplit", "fast_fedda", "c_fedda", "mc_fedda", "fedadam", "fedyogi",
    "fedadagrad", "fedfw", "fista", "moments",
)  # fmt: skip
PLAIN = ("fedavg", "fedavg_subgrad", "fedavgm")  # their steps use neither the prox of psi nor the mirror map


@pytest.mark.parametrize("mirror", [Entropy(), PNorm(power=1.5)], ids=lambda mirror: mirror.name)
@pytest.mark.parametrize("name", [name for name in FEDERATED if name not in PLAIN])
def test_a_mirror_map_is_supported_or_rejected(name, mirror, suited, make_algorithm, make_hparams, cohorts_of, drive):
    """Euclidean methods raise an error; models of the others stay in the domain of the mirror map."""
    plain = suited(name)
    if name in EUCLIDEAN:
        with pytest.raises(UserError, match=rf"^mirror: got '{mirror.name}', must be euclidean: [^\n]*$"):
            all_algorithms()[name]().check_pair(plain.regularizer, mirror)
        return
    problem = TaskData(plain.data, plain.model, plain.loss).to_problem(plain.regularizer, mirror)
    algorithm = make_algorithm(name, problem, 0.01, 0.9)
    start = problem.initial_models(problem.regularizer.numbers)
    memory = ProcessMemory(algorithm.initial_client_arrays(start))
    cohorts = cohorts_of(problem, make_hparams(clients_per_round=2), 4)
    models = np.array(drive(algorithm, cohorts, algorithm.initial_state(start), memory)[0])
    assert np.isfinite(models).all()
    assert np.abs(models[-1] - start).max() > 1e-3
    if mirror.name == "entropy":
        assert models[..., :-1].min() > 0


@pytest.mark.parametrize("name", all_algorithms())
def test_options_are_numbers_with_defaults(name):
    """All options have defaults, and their types are supported by configs and sweeps."""
    kind = all_algorithms()[name]
    algorithm = kind()
    assert algorithm.name == name
    for field in fields(kind):
        assert isinstance(getattr(algorithm, field.name), str | bool | int | float)
    assert algorithm.numbers.shape == (1,)
    assert set(kind.varying_options()) <= {field.name for field in fields(kind)}
