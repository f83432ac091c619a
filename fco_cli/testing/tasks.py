"""Checks of tasks: data, labels, metrics and a short run; see `check_task`."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import fields
from typing import Any, cast

import numpy as np

from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.problem.data import ClientData, SparseRows
from fco_cli.problem.layout import Array
from fco_cli.problem.problem import Problem, TaskData
from fco_cli.simulation.engine import Simulation
from fco_cli.simulation.hparams import Hparams
from fco_cli.simulation.jobs import Job, Setup
from fco_cli.simulation.smoothness import automatic_rate
from fco_cli.tasks import Task
from fco_cli.testing.problems import kernels_as_python, no_regularizer, run_checks

SEED = 3
MAX_PYTHON_NUMBERS = 10**5  # rows times columns up to which a run with kernels as Python takes seconds


def check_task(task: Task) -> None:
    """Check a task: reproducible data, valid labels, metrics, and a short run.

    Parameters
    ----------
    task
        The task with its settings; small ones make the checks fast. Larger data are run with compiled kernels.

    Raises
    ------
    AssertionError
        With the name of the first check that fails.

    Examples
    --------
    >>> from my_tasks import Ramp  # doctest: +SKIP
    >>> check_task(Ramp(clients=4))  # doctest: +SKIP
    """
    x = task.data(SEED, "float64").training.x
    with kernels_as_python(x.shape[0] * x.shape[1] <= MAX_PYTHON_NUMBERS):
        run_checks(type(task).__name__, TASK_CHECKS, task)


def check_fields(task: Task) -> None:
    """The fields are plain settings, and the task can be sent to another process."""
    for field in fields(task):
        if field.name != "model":
            json.dumps(getattr(task, field.name))
    assert pickle.loads(pickle.dumps(task)) == task, "the task differs after pickling"
    json.dumps(task.identity())


def check_data_are_reproducible(task: Task) -> None:
    """Equal settings and seeds give equal data in both precisions."""
    for dtype in ("float64", "float32"):
        one, other = task.data(SEED, dtype), task.data(SEED, dtype)
        for a, b in zip(_parts(one), _parts(other), strict=True):
            np.testing.assert_array_equal(_numbers(a), _numbers(b), "the data differ between two calls")
            np.testing.assert_array_equal(a.y, b.y)
        assert one.training.x.dtype == dtype, f"x has dtype {one.training.x.dtype}, requested {dtype}"


def _parts(data: TaskData) -> list[ClientData]:
    return [part for part in (data.training, data.held_out, data.test) if part is not None]


def _numbers(part: ClientData) -> Array:
    return part.x.values if isinstance(part.x, SparseRows) else part.x


def check_data_are_valid(task: Task) -> None:
    """Rows, labels, clients and model fit together."""
    data = task.data(SEED, "float64")
    for part in _parts(data):
        assert np.isfinite(_numbers(part)).all(), "x is not finite"
        assert data.loss.accepts_labels(part.y).all(), f"labels must be {data.loss.describe_labels()}"
        assert part.offsets[0] == 0
        assert part.offsets[-1] == len(part.y) == part.x.shape[0], "offsets do not cover the rows"
        assert part.x.shape[1] == data.model.widths[0], "the model has another number of features than x"
    assert (data.training.sizes > 0).all(), "a training client has no rows"
    if task.clients_available is not None:
        assert task.clients_available == data.training.clients, "clients_available differs from the data"
    if data.truth is not None:
        assert data.truth.shape == (data.model.layout.size,), "truth is not a model [P]"
    assert task.bytes_needed("float64") <= 4 * _numbers(data.training).nbytes + 2**20, "bytes_needed is no lower bound"


def check_metrics(task: Task) -> None:
    """Metrics of a stack are those of its models, one number for each."""
    problem = _problem(task)
    w = 0.1 * np.random.default_rng(0).standard_normal((3, problem.layout.size))
    together = task.metrics(problem, w)
    for name, values in together.items():
        assert np.shape(values) == (3,), f"the metric {name} has the shape {np.shape(values)}, must be (3,)"
        for j in range(3):
            np.testing.assert_array_equal(task.metrics(problem, w[[j]])[name][0], values[j], name)
    if problem.held_out is not None:
        for name, values in task.held_out_metrics(problem, problem.held_out, w).items():
            assert np.shape(values) == (3,), f"the metric {name} has the shape {np.shape(values)}, must be (3,)"


def _problem(task: Task) -> Problem:
    return task.data(SEED, "float64").to_problem(no_regularizer())


def check_run(task: Task) -> None:
    """A short run of FedAvg evaluates the task's metrics and does not increase the objective."""
    problem, fedavg = _problem(task), cast(Any, all_algorithms()["fedavg"])
    algorithm = fedavg()
    rows = int(problem.data.sizes.max())
    hparams = Hparams(1.0, 1.0, 3, "all", batch_size=rows, local_epochs=1)
    rate = 0.1 if not problem.model.convex else automatic_rate(problem, SEED, rows)
    varying = Varying.from_rates(algorithm, problem.regularizer, np.array([0.1 * rate]), np.ones(1))
    job = Job()
    simulation = Simulation(Setup(task, problem, hparams, SEED, algorithm), [job], varying)
    while simulation.advance():
        pass
    assert job.diverged is None, "the run diverges"
    objective = job.history["objective"]
    assert objective[-1] <= objective[0] * (1 + 1e-9), f"the objective increases from {objective[0]} to {objective[-1]}"
    assert task.main_metric in job.history, f"main_metric {task.main_metric!r} is not a metric of the run"


TASK_CHECKS: list[Callable[[Task], None]] = [
    check_fields,
    check_data_are_reproducible,
    check_data_are_valid,
    check_metrics,
    check_run,
]
