"""Evaluation of models: the metrics of every run (docs/method.md, "Metrics") and those of the task.

`History` holds the metrics of a run at its evaluated rounds. Snapshots of the model (`record_path=true`) are for the
animations of the report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from fco_cli.problem.data import ClientData
from fco_cli.problem.layout import Array, Numbers
from fco_cli.problem.problem import Problem
from fco_cli.problem.risk import own_losses
from fco_cli.tasks.base import Task

Metrics = dict[str, Array]  # name -> [J]
OwnMetrics = dict[str, tuple[Array, Array]]  # name -> the clients that have the metric [n], and its values [n, J]
CHUNK_BYTES = 64 * 2**20  # of personal models evaluated at once
MAX_SNAPSHOT_BYTES = 2**20  # bytes of all snapshots of a run
MAX_SNAPSHOTS = 40  # largest number of snapshots

Snapshots = dict[int, Array]  # round -> model [P]


def evaluate(task: Task, problem: Problem, models: Array, numbers: Numbers) -> Metrics:
    """Return the metrics of models [J, P]; for [J, M, P] (the local baseline) the median and quartiles over M."""
    if models.ndim == 2:
        return _evaluate(task, problem, models, numbers)
    # One job at a time: the gradients of all models could be larger than the data.
    jobs = [_evaluate(task, problem, w, np.repeat(numbers[[j]], len(w))) for j, w in enumerate(models)]
    metrics: Metrics = {}
    for name in jobs[0]:
        low, median, high = np.quantile([values[name] for values in jobs], [0.25, 0.5, 0.75], axis=1)
        metrics |= {name: median, f"{name}_q25": low, f"{name}_q75": high}
    return metrics


def _evaluate(task: Task, problem: Problem, w: Array, numbers: Numbers) -> Metrics:
    training = problem.risk(w)
    held_out = None if problem.validation is None else problem.validation(w, gradient=False)
    psi, residual = problem.psi(w, numbers), problem.kkt_residual(w, training.gradient, numbers)
    metrics = {"objective": training.value + psi, "train_loss": training.value, "kkt_residual": residual}
    if problem.regularizer.constraint:
        metrics["constraint_violation"] = problem.constraint_violation(w, numbers)
    if training.accuracy is not None:
        metrics["train_accuracy"] = training.accuracy
    if held_out is not None and problem.held_out is not None:
        metrics["validation_loss"] = held_out.value
        metrics["validation_objective"] = held_out.value + psi
        if held_out.accuracy is not None:
            metrics["validation_accuracy"] = held_out.accuracy
        own = task.held_out_metrics(problem, problem.held_out, w)
        metrics |= {f"validation_{name}": values for name, values in own.items()}
    return metrics | task.metrics(problem, w)


def evaluate_test(task: Task, problem: Problem, model: Array) -> dict[str, float]:
    """Return the metrics of a final model [P] on the test rows; the median for the local baseline's models [M, P]."""
    if problem.test is None:
        return {}
    w = model.reshape(-1, problem.layout.size)
    risk = problem.risk_on(problem.test)(w, gradient=False)
    metrics = {"loss": risk.value} | ({} if risk.accuracy is None else {"accuracy": risk.accuracy})
    metrics |= task.held_out_metrics(problem, problem.test, w)
    return {f"test_{name}": float(np.median(values)) for name, values in metrics.items()}


def evaluate_own(problem: Problem, jobs: int, models_of: Callable[[Array], Array]) -> OwnMetrics:
    """Return the metrics of personal models on their clients' own rows; models_of(clients [n]) returns [n, J, P]."""
    everyone = np.arange(problem.data.clients)
    metrics = _evaluate_own("own_train", problem, problem.data, everyone, everyone, jobs, models_of)
    if problem.held_out is not None and problem.held_out.trained_as is not None:
        trained = np.flatnonzero(problem.held_out.trained_as >= 0)
        if len(trained):
            owners = problem.held_out.trained_as[trained]
            metrics |= _evaluate_own("own_validation", problem, problem.held_out, trained, owners, jobs, models_of)
    return metrics


def _evaluate_own(
    prefix: str,
    problem: Problem,
    data: ClientData,
    clients: Array,
    owners: Array,
    jobs: int,
    models_of: Callable[[Array], Array],
) -> OwnMetrics:
    """Evaluate the models of `owners` on the rows of the clients `clients` of `data`, in chunks."""
    step = max(1, CHUNK_BYTES // (jobs * problem.layout.size * problem.dtype.itemsize))
    chunks = [slice(low, low + step) for low in range(0, len(clients), step)]
    losses = [own_losses(data, problem.model, problem.loss, models_of(owners[part]), clients[part]) for part in chunks]
    metrics = {f"{prefix}_loss": (owners, np.concatenate([loss for loss, _ in losses]))}
    accuracies = [accuracy for _, accuracy in losses if accuracy is not None]
    if accuracies:
        metrics[f"{prefix}_accuracy"] = (owners, np.concatenate(accuracies))
    return metrics


def summarize_own(own: OwnMetrics) -> Metrics:
    """Return the median, the quartiles and the worst decile over the clients.

    NaN if the value of some client is not finite, since its model has diverged.
    """
    metrics: Metrics = {}
    for name, (_, values) in own.items():
        values = np.where(np.isfinite(values), values, np.nan)
        worst = 0.1 if name.endswith("accuracy") else 0.9
        low, median, high, decile = np.quantile(values, [0.25, 0.5, 0.75, worst], axis=0)
        metrics |= {name: median, f"{name}_q25": low, f"{name}_q75": high, f"{name}_worst_decile": decile}
    return metrics


@dataclass(eq=False)  # Mapping.__eq__ compares the columns
class History(Mapping[str, list[float]]):
    """Mapping from the name of a metric to its column, stored by rows so that an evaluation is a single append."""

    names: tuple[str, ...] = ()
    rows: list[tuple[float, ...]] = field(default_factory=list)

    @classmethod
    def of(cls, columns: Mapping[str, Iterable[float]]) -> History:
        """Return the history with the given columns; raise ValueError if their lengths differ."""
        return cls(tuple(columns), list(zip(*columns.values(), strict=True)))

    def __getitem__(self, name: str) -> list[float]:
        if name not in self.names:
            raise KeyError(name)
        index = self.names.index(name)
        return [row[index] for row in self.rows]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def as_snapshot(model: Array) -> Array:
    """Return the model in half precision, which is enough for a plot."""
    with np.errstate(over="ignore"):
        return model.astype(np.float16)


def snapshot_rounds(rounds: int, every: int, size: int) -> frozenset[int]:
    """Return the evaluated rounds to keep: the first, the last, and more in the early than in the late part.

    Models change most in the first rounds, so the kth of n snapshots is at the fraction (k / n)^2 of the run.
    """
    evaluated = np.unique([*range(0, rounds, every), rounds])
    count = min(MAX_SNAPSHOTS, MAX_SNAPSHOT_BYTES // (size * np.dtype(np.float16).itemsize), len(evaluated))
    if count < 2:
        return frozenset()
    targets = rounds * np.linspace(0, 1, count) ** 2
    nearest = np.abs(evaluated[:, None] - targets).argmin(axis=0)
    # If several targets have the same nearest round, use the following rounds instead.
    for i in range(1, count):
        nearest[i] = max(nearest[i], nearest[i - 1] + 1)
    return frozenset(evaluated[nearest].tolist())
