"""The numbers of one evaluation: those every run carries (docs/method.md, "Metrics") and those of the task."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fco_cli.problem.data import ClientData
from fco_cli.problem.layout import Array
from fco_cli.problem.numbers import Numbers
from fco_cli.problem.problem import Problem
from fco_cli.problem.risk import own_losses
from fco_cli.tasks.base import Task

Metrics = dict[str, Array]  # name -> [J]
OwnMetrics = dict[str, tuple[Array, Array]]  # name -> the clients that have it [n], and its values [n, J]
AT_A_TIME = 64 * 2**20  # bytes of personal models


def evaluate(task: Task, problem: Problem, models: Array, numbers: Numbers) -> Metrics:
    """Metrics of models [J, P]; for [J, M, P] (the local baseline) the median and quartiles over M."""
    if models.ndim == 2:
        return _evaluate(task, problem, models, numbers)
    # A job at a time: the gradients of all models at once could be larger than the data.
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
    """The final model [P] on the rows kept for the end; of the local baseline's [M, P] the median."""
    if problem.test is None:
        return {}
    w = model.reshape(-1, problem.layout.size)
    found = problem.risk_on(problem.test)(w, gradient=False)
    metrics = {"loss": found.value} | ({} if found.accuracy is None else {"accuracy": found.accuracy})
    metrics |= task.held_out_metrics(problem, problem.test, w)
    return {f"test_{name}": float(np.median(values)) for name, values in metrics.items()}


# Personal models: every client's own, on its own rows.


def evaluate_own(problem: Problem, jobs: int, models_of: Callable[[Array], Array]) -> OwnMetrics:
    """How the clients' models do on the rows that are theirs; models_of(clients [n]) are [n, J, P]."""
    everyone = np.arange(problem.data.clients)
    metrics = _evaluate_own("own_train", problem, problem.data, everyone, everyone, jobs, models_of)
    if problem.held_out is not None and problem.held_out.trained_as is not None:
        known = np.flatnonzero(problem.held_out.trained_as >= 0)
        if len(known):
            owners = problem.held_out.trained_as[known]
            metrics |= _evaluate_own("own_validation", problem, problem.held_out, known, owners, jobs, models_of)
    return metrics


def _evaluate_own(
    prefix: str,
    problem: Problem,
    data: ClientData,
    places: Array,
    owners: Array,
    jobs: int,
    models_of: Callable[[Array], Array],
) -> OwnMetrics:
    """On the rows of the clients `places` of `data`, with the models of `owners`; some at a time."""
    step = max(1, AT_A_TIME // (jobs * problem.layout.size * problem.dtype.itemsize))
    parts = [slice(low, low + step) for low in range(0, len(places), step)]
    found = [own_losses(data, problem.model, problem.loss, models_of(owners[part]), places[part]) for part in parts]
    metrics = {f"{prefix}_loss": (owners, np.concatenate([losses for losses, _ in found]))}
    accuracies = [accuracy for _, accuracy in found if accuracy is not None]
    if accuracies:
        metrics[f"{prefix}_accuracy"] = (owners, np.concatenate(accuracies))
    return metrics


def summarized(own: OwnMetrics) -> Metrics:
    """The median over the clients, the quartiles, and the worst decile: what a tenth of them does not reach.

    NaN where a client's number is none: its model has diverged.
    """
    metrics: Metrics = {}
    for name, (_, values) in own.items():
        values = np.where(np.isfinite(values), values, np.nan)
        worst = 0.1 if name.endswith("accuracy") else 0.9
        low, median, high, decile = np.quantile(values, [0.25, 0.5, 0.75, worst], axis=0)
        metrics |= {name: median, f"{name}_q25": low, f"{name}_q75": high, f"{name}_worst_decile": decile}
    return metrics
