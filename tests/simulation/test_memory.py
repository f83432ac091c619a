"""Tests of client memory in the process and in files, and of its recovery from checkpoints."""

from __future__ import annotations

import copy
import subprocess
import sys

import numpy as np
import pytest

from fco_cli.algorithms import all_algorithms
from fco_cli.algorithms.transforms.clip_noise import ClipNoise
from fco_cli.algorithms.transforms.compression import Quantize, TopK
from fco_cli.simulation import memory as memory_module
from fco_cli.simulation.engine import Job
from fco_cli.simulation.memory import FILE, DamagedMemory, FileMemory, ProcessMemory, bytes_of_job, client_memory
from fco_cli.simulation.record import Record

CLIENTS, REMEMBERED, SIZE = 6, 2, 3


@pytest.fixture(params=["process", "files"])
def make_memory(request, tmp_path):
    def make(jobs: int):
        initial = np.arange(REMEMBERED * jobs * SIZE, dtype=float).reshape(REMEMBERED, jobs, SIZE)
        if request.param == "process":
            return ProcessMemory(initial)
        folders = [tmp_path / f"job{j}" for j in range(jobs)]
        for folder in folders:
            folder.mkdir(exist_ok=True)
        return FileMemory(initial, CLIENTS, folders)

    return make


def rows_for(jobs, clients, start):
    return np.random.default_rng(start).standard_normal((clients, REMEMBERED, jobs, SIZE))


def test_rows_read_back_and_others_stay_initial(make_memory):
    memory, rows = make_memory(2), rows_for(2, 3, 0)
    memory.write(np.array([4, 0, 2]), rows, np.ones((3, 2), bool))
    np.testing.assert_array_equal(memory.read(np.array([2, 5, 4])), [rows[2], memory.initial, rows[0]])
    memory.write(np.array([4]), rows[1:2], np.ones((1, 2), bool))
    np.testing.assert_array_equal(memory.read(np.array([4]))[0], rows[1])


def test_a_job_whose_message_did_not_arrive_keeps_its_row(make_memory):
    memory, rows = make_memory(2), rows_for(2, 1, 0)
    memory.write(np.array([3]), rows, np.array([[True, False]]))
    np.testing.assert_array_equal(memory.read(np.array([3]))[0, :, 0], rows[0, :, 0])
    np.testing.assert_array_equal(memory.read(np.array([3]))[0, :, 1], memory.initial[:, 1])


def test_jobs_leave(make_memory):
    memory, rows = make_memory(3), rows_for(3, 1, 0)
    memory.write(np.array([3]), rows, np.ones((1, 3), bool))
    memory.keep(np.array([True, False, True]))
    np.testing.assert_array_equal(memory.read(np.array([3, 1])), [rows[0][:, [0, 2]], memory.initial])
    assert memory.initial.shape == (REMEMBERED, 2, SIZE)


def test_a_checkpoint_restores_its_rows_after_later_writes(make_memory):
    """After a crash, rows of later rounds are on disk, but the checkpoint refers to its own rows only."""
    memory, first, later = make_memory(1), rows_for(1, 3, 0), rows_for(1, 3, 1)
    everyone = np.ones((3, 1), bool)
    memory.write(np.array([0, 1, 2]), first, everyone)
    saved = copy.deepcopy(memory.save(0))
    memory.confirm_saved(0)
    for _ in range(3):  # several times: the other slot is overwritten, the saved one never
        memory.write(np.array([1, 2, 3]), later, everyone)
    again = make_memory(1)
    again.load(0, saved)
    np.testing.assert_array_equal(again.read(np.arange(3)), first)
    np.testing.assert_array_equal(again.read(np.array([3]))[0], again.initial)


def test_an_unsaved_snapshot_does_not_invalidate_the_previous_checkpoint(make_memory):
    """If the process dies between `save` and `saved`, the previous checkpoint must still be valid."""
    memory, rows = make_memory(1), [rows_for(1, 1, seed) for seed in range(3)]
    one = np.ones((1, 1), bool)
    memory.write(np.array([2]), rows[0], one)
    saved = copy.deepcopy(memory.save(0))
    memory.confirm_saved(0)
    memory.write(np.array([2]), rows[1], one)
    memory.save(0)
    memory.write(np.array([2]), rows[2], one)
    again = make_memory(1)
    again.load(0, saved)
    np.testing.assert_array_equal(again.read(np.array([2])), rows[0])


def test_memory_that_does_not_match_is_refused(tmp_path):
    initial = np.zeros((1, 1, SIZE))
    memory = FileMemory(initial, CLIENTS, [tmp_path])
    memory.write(np.array([2]), np.ones((1, 1, 1, SIZE)), np.ones((1, 1), bool))
    saved = memory.save(0)
    with pytest.raises(DamagedMemory, match="no valid index of the client memory"):
        FileMemory(initial, CLIENTS + 1, [tmp_path]).load(0, saved)
    (tmp_path / FILE).write_bytes(b"half")
    with pytest.raises(DamagedMemory, match="too short"):
        FileMemory(initial, CLIENTS, [tmp_path]).load(0, saved)
    with pytest.raises(DamagedMemory):
        ProcessMemory(initial).load(0, saved)


@pytest.mark.parametrize(
    "kind", [(1, 2, SIZE, float), (3, 2, SIZE, float), (REMEMBERED, 2, SIZE + 1, float), (REMEMBERED, 2, SIZE, "f4")]
)
def test_memory_of_another_method_is_refused(make_memory, kind):
    """Rows with fewer, more, longer or less precise arrays are refused."""
    memory, (remembered, jobs, size, dtype) = make_memory(2), kind
    other = np.zeros((remembered, jobs, size), dtype)
    other = (
        FileMemory(other, CLIENTS, [p.parent for p in memory.paths])
        if hasattr(memory, "paths")
        else (ProcessMemory(other))
    )
    other.write(np.array([4, 1]), np.ones((2, *other.initial.shape), dtype), np.ones((2, 2), bool))
    with pytest.raises(DamagedMemory, match="client memory has another shape or precision"):
        memory.load(1, other.save(1))


def test_large_memories_go_to_files(tmp_path):
    wide = np.zeros((1, 1, 2**20))
    assert bytes_of_job(1, 1, 2**20, 8) == 2**23
    assert isinstance(client_memory(wide, 1, [tmp_path]), ProcessMemory)
    assert bytes_of_job(2, 1, 2**20, 8) == 0
    assert isinstance(client_memory(wide, 2, [tmp_path]), FileMemory)
    assert isinstance(client_memory(wide, 2, None), ProcessMemory)  # a dry run has no folders


# Simulations of a method with client memory.


@pytest.fixture
def in_files(monkeypatch):
    monkeypatch.setattr(memory_module, "LARGE", 1)


RATES = [0.001, 0.01, 1e60, 0.005]  # the third diverges and leaves


def folders_in(path):
    folders = [path / f"{j}" for j in range(len(RATES))]
    for folder in folders:
        folder.mkdir()
    return folders


def test_files_and_process_give_the_same_bits(make_setup, simulate, tmp_path, in_files, monkeypatch):
    setup = make_setup("lasso", "scaffold", psi="none", rounds=12)
    filed = simulate(setup, RATES, folders=folders_in(tmp_path))
    monkeypatch.setattr(memory_module, "LARGE", 2**40)
    kept = simulate(setup, RATES)
    assert [job.diverged is None for job in kept] == [True, True, False, True]
    for one, other in zip(filed, kept, strict=True):
        np.testing.assert_array_equal(one.model, other.model)
        np.testing.assert_equal(dict(one.history), dict(other.history))  # NaN equals NaN


REMEMBERING = [name for name, kind in all_algorithms().items() if kind.remembered]


THROUGH = [
    ("feddualavg", {}, False, TopK(share=0.2)),  # a residual in a method without memory, and in one with it
    ("scaffold_prox", {}, True, TopK(share=0.2)),
    ("zhj", {}, False, Quantize(bits=4)),
    ("fedmid", {}, False, ClipNoise(clip_norm=0.1)),
]


@pytest.mark.parametrize(
    ("name", "options", "large", "transform"),
    [
        *((name, {}, large, None) for name in REMEMBERING for large in (False, True)),
        ("scaffnew", {"coin": True}, False, None),
        *THROUGH,
    ],
)
def test_resuming_is_exact(make_setup, simulate, psi_for, tmp_path, monkeypatch, name, options, large, transform):
    if large:
        monkeypatch.setattr(memory_module, "LARGE", 1)
    sampled = 6 if all_algorithms()[name].full_participation else 3
    setup = make_setup("lasso", name, psi_for(name).name, options, transform, rounds=8, clients_per_round=sampled)
    folders = folders_in(tmp_path) if large else None
    whole = simulate(setup, RATES)
    simulate_to(setup, simulate, 5, folders, tmp_path)
    halves = [Record(tmp_path / f"record{j}").checkpoint("code") for j in (0, 1, 3)]
    assert [job.round for job in halves] == [5, 5, 5]
    folders = [folders[j] for j in (0, 1, 3)] if large else None
    simulate(setup, [RATES[j] for j in (0, 1, 3)], halves, folders=folders)
    for job, j in zip(halves, (0, 1, 3), strict=True):
        np.testing.assert_array_equal(job.model, whole[j].model)
        assert job.history == whole[j].history


def simulate_to(setup, simulate, rounds, folders, path):
    """Run some rounds, write a checkpoint of every running job, and run some more rounds, which are lost."""
    from fco_cli.algorithms import Varying
    from fco_cli.simulation.engine import Simulation

    rates = np.array(RATES)
    varying = Varying.from_rates(setup.algorithm, setup.problem.regularizer, rates, np.full(len(rates), 0.7))
    jobs = [Job() for _ in rates]
    simulation = Simulation(setup, jobs, varying, folders)
    for _ in range(rounds):
        simulation.advance()
    simulation.snapshot()
    for j, job in enumerate(jobs):
        if not job.ended:
            record = Record(path / f"record{j}")
            record.create()
            record.save_checkpoint(job, "code")
    simulation.confirm_saved()
    for _ in range(4):
        simulation.advance()


@pytest.mark.slow
@pytest.mark.machine_code
@pytest.mark.parametrize("name", ["zhj", "feddr"])
def test_large_client_memory_needs_little_process_memory(name):
    """3,400 clients of 210,000 weights need 5.7 GB per remembered array, but less than 1.5 GB of resident memory after
    all clients have participated."""
    command = [sys.executable, "-c", PROGRAM, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=True)
    resident, visited = map(int, done.stdout.split())
    assert visited == 3400
    assert resident < 1_500_000


PROGRAM = """
import resource, sys, tempfile
from pathlib import Path
import numpy as np
from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.problem.data import ClientData
from fco_cli.problem.losses import Softmax
from fco_cli.problem.models.network import Network
from fco_cli.problem.problem import TaskData
from fco_cli.problem.regularizers import all_regularizers
from fco_cli.simulation import engine
from fco_cli.simulation.hparams import Hparams

clients, rows = 3400, 2
random = np.random.default_rng(0)
x, y = random.random((clients, rows, 784)), random.integers(0, 62, (clients, rows)).astype(float)
problem = TaskData(ClientData.of_equal_clients(x, y), Network(784, (200, 200), 62, 0), Softmax()).to_problem(
    all_regularizers()["l1"](strength=1e-4)
)
engine.evaluate = lambda task, problem, models, psi: {"objective": np.zeros(len(models))}
algorithm = all_algorithms()[sys.argv[1]]()
hparams = Hparams(0.01, 1.0, 34, 100, 2, 1, eval_every=34)
class Everyone(engine.Sampler):
    def cohort(self, r):
        from dataclasses import replace
        return replace(super().cohort(r), clients=np.arange(100 * r, 100 * r + 100))
engine.Sampler = Everyone
with tempfile.TemporaryDirectory() as folder:
    varying = Varying.from_rates(algorithm, problem.regularizer, np.array([0.01]), np.ones(1))
    setup = engine.Setup(None, problem, hparams, 0, algorithm)
    simulation = engine.Simulation(setup, [engine.Job()], varying, [Path(folder)])
    while simulation.advance():
        pass
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, (simulation.clients.memory.slots >= 0).sum())
"""
