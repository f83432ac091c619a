"""Tests of the protocol that every algorithm follows."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fco_cli.algorithms import all_algorithms
from fco_cli.algorithms.transforms import all_transforms
from fco_cli.errors import UserError
from fco_cli.problem.mirror_maps import Entropy, PNorm
from fco_cli.simulation.clients import Sampler

_specification = importlib.util.spec_from_file_location("site_of_a_client", Path(__file__).with_name("site.py"))
site = importlib.util.module_from_spec(_specification)
_specification.loader.exec_module(site)

FEDERATED = [name for name, kind in all_algorithms().items() if kind.federated]
SIZES = (7, 4, 9)


@pytest.fixture
def suited(make_problem, psi_for):
    """Return a problem with a regularizer that the algorithm supports."""
    return lambda name: make_problem(psi_for(name), sizes=SIZES)


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
    "fedadagrad", "fedfw", "fista", "moments", "prox_newton", "quasi_newton", "scaffnew_sampled", "sppm_as", "s_dane",
    "fedred", "fednl",
)  # fmt: skip


@pytest.mark.parametrize("mirror", [Entropy(), PNorm(power=1.5)], ids=lambda mirror: mirror.name)
@pytest.mark.parametrize("name", EUCLIDEAN)
def test_euclidean_methods_refuse_other_mirror_maps(name, mirror, suited):
    with pytest.raises(UserError, match=rf"^mirror: got '{mirror.name}', must be euclidean: [^\n]*$"):
        all_algorithms()[name]().check_pair(suited(name).regularizer, mirror)
