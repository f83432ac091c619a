"""What is measured: the paper's problems, each by the plain loop and by the engine."""

from __future__ import annotations

import numpy as np
from hydra import compose, initialize_config_module

from benchmarks import plain
from benchmarks.measure import Timing, engine_rounds, interleaved
from fco_cli.config import Run, register
from fco_cli.execute import problem_of
from fco_cli.problem.data import ClientData
from fco_cli.problem.losses import Loss
from fco_cli.problem.models import Linear
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers import all_regularizers
from fco_cli.problem.risk import risk_of
from fco_cli.tasks.base import Task

RATE = 1e-5  # small: every job survives


def composed(*overrides: str) -> Run:
    register()
    with initialize_config_module("fco_cli.conf", version_base="1.3"):
        return Run.of(compose("config", overrides=list(overrides)))


def synthetic(name: str, task: str, dtype: str, jobs: int, repeats: int, quick: bool) -> Timing:
    """Lasso I and nuclear I."""
    run = composed(f"task={task}", f"hparams.dtype={dtype}")
    problem = problem_of(run)
    x, y = (part.reshape(64, 128, *part.shape[1:]) for part in (problem.data.x, problem.data.y))
    truth = problem.truth[:-1]

    def support(w):
        found = np.abs(w) > 1e-2
        hits = (found & (truth != 0)).sum()
        return hits / max(found.sum(), 1), hits / (truth != 0).sum(), found.mean(), np.linalg.norm(w - truth)

    def spectrum(w):
        return (np.linalg.svd(w.reshape(32, 32), compute_uv=False) > 1e-2).sum(), np.linalg.norm(w - truth)

    prox, measure = (plain.soft_threshold, support) if task == "lasso" else (plain.singular_threshold, spectrum)
    rounds = 3 if quick else 10

    def baseline() -> int:
        plain.feddualavg(
            x, y, x, y, prox, plain.squared_slope, plain.squared_loss, measure, 0.5, RATE, rounds, clients=10, batch=10
        )
        return rounds

    mine = engine_rounds(run.task, problem, jobs, rounds if jobs > 1 else 10 * rounds, clients=10, batch=10)
    return interleaved(name, baseline, mine, repeats)


class Bare(Task):
    """A task with no metrics of its own, for random data."""

    def build(self, seed, dtype, regularizer, weighting):
        raise NotImplementedError


BARE = Bare(name="random", strength=1e-3, radius=1.0)


def fmri_shape(name: str, jobs: int, repeats: int, quick: bool) -> Timing:
    """59 sessions of 18 scans with 39,912 voxels, logistic loss, l1, batches of one; subject 6 as validation."""
    random = np.random.default_rng(0)
    x = random.standard_normal((59, 18, 39_912), dtype=np.float32)
    y = random.integers(0, 2, (59, 18)).astype(np.float32)
    x_val, y_val = x[:12].copy(), y[:12]
    model, loss = Linear(x.shape[2]), Loss.ALL["logistic"]
    data = ClientData.of_equal_clients(x, y)
    held_out = ClientData.of_equal_clients(x_val, y_val)
    validation = risk_of(held_out, held_out.weights("uniform"), model, loss)
    problem = Problem(data, model, loss, all_regularizers()["l1"](strength=1e-3), validation=validation)
    rounds = 1 if quick else 3

    def measure(w):
        return ((np.abs(w) > 1e-4).mean(),)

    def baseline() -> int:
        plain.feddualavg(
            x, y, x_val, y_val, plain.soft_threshold, plain.logistic_slope, plain.logistic_loss, measure,
            1e-3, RATE, rounds, clients=20, batch=1,
        )  # fmt: skip
        return rounds

    mine = engine_rounds(BARE, problem, jobs, rounds, clients=20, batch=1)
    return interleaved(name, baseline, mine, repeats)


def all_cases(repeats: int, quick: bool) -> list[Timing]:
    timings = []
    for task in ("lasso", "nuclear"):
        for dtype in ("float64", "float32"):
            for jobs in (1, 49):
                what = "one run" if jobs == 1 else "49-grid, per job"
                timings.append(synthetic(f"{task} I, {what}, {dtype}", task, dtype, jobs, repeats, quick))
    for jobs in (1, 28):
        what = "one run" if jobs == 1 else "28-grid, per job"
        timings.append(fmri_shape(f"fMRI shape, {what}, float32", jobs, repeats, quick))
    return timings
