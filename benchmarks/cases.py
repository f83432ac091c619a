"""Cases to measure: the paper's problems, each by the plain loop and by the engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numba
import numpy as np
from hydra import compose, initialize_config_module

from benchmarks import plain
from benchmarks.measure import Timing, engine_rounds, interleaved
from fco_cli.config import Run, register
from fco_cli.problem.data import ClientData
from fco_cli.problem.losses import Logistic
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.problem import Problem, TaskData
from fco_cli.problem.regularizers import all_regularizers
from fco_cli.simulation.problems import problem_of
from fco_cli.tasks.base import Task

RATE = 1e-5  # small: every job survives
JAX = ": JAX in the engine's place"  # ends the names of cases
REAL_DATA = Path(__file__).parents[2] / "shared" / "data"


@dataclass
class Case:
    """One line of the table."""

    name: str
    measure: Callable[[int], Timing]  # by the number of repeats
    target: str = ""  # what the ratio, or the milliseconds, should be


def composed(*overrides: str) -> Run:
    register()
    with initialize_config_module("fco_cli.conf", version_base="1.3"):
        return Run.of(compose("config", overrides=list(overrides)))


def rows_of(data: ClientData) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(client.x, client.y) for client in map(data.client, range(data.clients))]


def synthetic(task: str, dtype: str, jobs: int, repeats: int, peer: bool = False) -> Timing:
    """Lasso I and nuclear I, evaluated every round: objective, validation loss, the task's metrics."""
    run = composed(f"task={task}", f"hparams.dtype={dtype}")
    problem = problem_of(run)
    x, y, truth = problem.data.x, problem.data.y, problem.truth[:-1]
    prox = plain.soft_threshold(0.5) if task == "lasso" else plain.singular_threshold(0.5, (32, 32))

    def evaluate(w):
        losses = plain.squared_loss(w, x, y), plain.squared_loss(w, x, y)  # the second in place of the validation data
        kernel, distance = w[:-1], np.linalg.norm(w[:-1] - truth)
        if task == "nuclear":
            singular = np.linalg.svd(kernel.reshape(32, 32), compute_uv=False)
            return *losses, 0.5 * singular.sum(), (singular > 1e-2).sum(), distance
        found = np.abs(kernel) > 1e-2
        hits = (found & (truth != 0)).sum()
        scores = hits / max(found.sum(), 1), hits / (truth != 0).sum(), found.mean()
        return *losses, 0.5 * np.abs(kernel).sum(), scores, distance

    def baseline() -> int:
        clients, start = rows_of(problem.data), np.zeros(x.shape[1] + 1, x.dtype)
        plain.feddualavg(clients, start, plain.squared_gradient, prox, evaluate, RATE, 5, per_round=10, batch=10)
        return 5

    rounds = 100 if jobs == 1 else 50 if task == "lasso" else 5
    if peer:
        from benchmarks.jax_peer import rounds_of

        return interleaved(baseline, rounds_of(problem, task == "nuclear", jobs, rounds), repeats)
    return interleaved(baseline, engine_rounds(run.task, problem, jobs, rounds, clients=10, batch=10), repeats)


def relative_to_fedmid_osp(name: str, repeats: int) -> Timing:
    """Measure a method in place of the engine and FedMiD-OSP in place of the plain loop: 49 jobs of lasso I, per job.

    The CPU time of one thread is measured: they differ by tenths, less than other processes take from either.
    """
    run = composed("task=lasso")
    rounds = partial(engine_rounds, run.task, problem_of(run), 49, 10, clients=10, batch=10)
    numba.set_num_threads(1)
    timing = interleaved(rounds(name="fedmid_osp"), rounds(name=name), 3 * repeats, time.process_time)
    numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
    return timing


def two_threads_relative_to_one(dtype: str, repeats: int) -> Timing:
    """Measure the engine, and the engine with one thread in place of the plain loop: 49 jobs of lasso I, per job."""
    run = composed("task=lasso", f"hparams.dtype={dtype}")
    rounds = engine_rounds(run.task, problem_of(run), 49, 50, clients=10, batch=10)

    def alone() -> int:
        numba.set_num_threads(1)
        done = rounds()
        numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
        return done

    return interleaved(alone, rounds, repeats)


class Bare(Task):
    """Task without metrics, for random data."""

    def build(self, seed, dtype):
        raise NotImplementedError


BARE = Bare(name="random", strength=1e-3, radius=1.0)


def fmri_shape(jobs: int, repeats: int) -> Timing:
    """59 sessions of 18 scans with 39,912 voxels, logistic loss, l1, batches of one; 12 sessions validate."""
    random = np.random.default_rng(0)
    x = random.standard_normal((59, 18, 39_912), dtype=np.float32)
    y = random.integers(0, 2, (59, 18)).astype(np.float32)
    model, loss = Linear(x.shape[2]), Logistic()
    data, held_out = ClientData.of_equal_clients(x, y), ClientData.of_equal_clients(x[:12].copy(), y[:12])
    problem = TaskData(data, model, loss, held_out).to_problem(all_regularizers()["l1"](strength=1e-3))
    prox = plain.soft_threshold(1e-3)

    def evaluate(w):
        losses = [plain.logistic_loss(w, part.x, part.y) for part in (data, held_out)]
        return losses, 1e-3 * np.abs(w[:-1]).sum(), (np.abs(w) > 1e-4).mean()

    def baseline() -> int:
        start = np.zeros(x.shape[2] + 1, x.dtype)
        plain.feddualavg(rows_of(data), start, plain.logistic_gradient, prox, evaluate, RATE, 2, per_round=20, batch=1)
        return 2

    return interleaved(
        baseline, engine_rounds(BARE, problem, jobs, 2 if jobs > 1 else 20, clients=20, batch=1), repeats
    )


def femnist_engine(task: str, *overrides: str) -> tuple[Problem, Callable[[], int]]:
    """A round of Federated EMNIST: 10 writers, 10 epochs, batches of 10; not evaluated, the paper does so every 100."""
    classes = 10 if task == "femnist10_l1" else 62
    real = REAL_DATA / f"femnist{classes}_leaf_subset.npz"
    writers = real if real.exists() else _random_writers(classes)
    run = composed(f"task={task}", f"task.data_dir={writers}", "task.client_fraction=1", *overrides)
    problem = problem_of(run)
    mine = engine_rounds(run.task, problem, 1, 1, clients=10, batch=10, epochs=10, rate=0.01, evaluated=False)
    return problem, mine


def femnist(task: str, repeats: int) -> Timing:
    problem, mine = femnist_engine(task)
    balls = [problem.layout.slices[block.name] for block in problem.layout.blocks if block.regularized]

    def baseline() -> int:
        plain.feddualavg(
            rows_of(problem.data), problem.model.initial().astype(problem.dtype),
            plain.network_gradient(problem.model.widths.tolist()), plain.l1_balls(1000, balls), lambda w: None,
            0.01, 1, per_round=10, batch=10, epochs=10,
        )  # fmt: skip
        return 1

    return interleaved(baseline, mine, repeats)


def _random_writers(classes: int) -> Path:
    """Random images in the shape of the real ones, for machines that have none: 100 writers of 100 train, 10 test."""
    random, path = np.random.default_rng(0), Path("/tmp") / f"fco-benchmark-femnist{classes}.npz"
    split = np.tile(np.repeat(["train", "test"], [100, 10]), 100)
    x = random.random((11_000, 784), dtype=np.float32)
    np.savez(path, x=x, y=random.integers(0, classes, 11_000), client=np.repeat(np.arange(100), 110), split=split)
    return path


def all_cases() -> list[Case]:
    cases = []
    targets = {
        ("lasso", "float64", 1): "6 (9)", ("lasso", "float64", 49): "20 (60)", ("lasso", "float32", 49): "30 (75)",
        ("nuclear", "float64", 1): "3 (12)", ("nuclear", "float64", 49): "6 (15)",
    }  # fmt: skip
    for task in ("lasso", "nuclear"):
        for dtype in ("float64", "float32"):
            for jobs, what in ((1, "one run"), (49, "49-grid, per job")):
                cases.append(
                    Case(
                        f"{task} I, {what}, {dtype}",
                        lambda repeats, task=task, dtype=dtype, jobs=jobs: synthetic(task, dtype, jobs, repeats),
                        targets.get((task, dtype, jobs), ""),
                    )
                )
    for dtype in ("float64", "float32"):
        compare = partial(two_threads_relative_to_one, dtype)
        cases.append(Case(f"lasso I, 49-grid, per job, {dtype}: two threads, relative to one", compare, "(1.8)"))
    for name in ("zhj", "feddualavg_cv", "scaffold_prox"):
        compare = partial(relative_to_fedmid_osp, name)
        cases.append(Case(f"lasso I, 49-grid, per job, float64: {name}, relative to FedMiD-OSP", compare, "0.8"))
    if find_spec("jax"):
        for task in ("lasso", "nuclear"):
            for jobs, what in ((1, "one run"), (49, "49-grid, per job")):
                name = f"{task} I, {what}, float64{JAX}"
                peer = partial(synthetic, task, "float64", jobs, peer=True)
                cases.append(Case(name, lambda repeats, peer=peer: peer(repeats=repeats)))
    cases += [
        Case("fMRI shape, one run, float32", lambda repeats: fmri_shape(1, repeats), "4 (6)"),
        Case("fMRI shape, 28-grid, per job, float32", lambda repeats: fmri_shape(28, repeats), "(15)"),
        Case("femnist10_l1, a round, float32", lambda repeats: femnist("femnist10_l1", repeats), "60 ms"),
        Case("femnist62_mlp, a round, float32", lambda repeats: femnist("femnist62_mlp", repeats), "1200 ms"),
    ]
    return cases


def projection_share(task: str, radius: float) -> float:
    """Measure the share of the projection onto a ball in a round of Federated EMNIST."""
    (_, tight), (_, free) = (
        femnist_engine(task, option) for option in (f"regularizer.radius={radius}", "regularizer=none")
    )
    timing = interleaved(tight, free, 3)
    return max(0.0, 1 - timing.engine / timing.baseline)
