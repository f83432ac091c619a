"""The numbers of one evaluation: those every run carries (docs/method.md, "Metrics") and those of the task."""

from __future__ import annotations

import numpy as np

from fco_cli.problem.layout import Array
from fco_cli.problem.numbers import Numbers
from fco_cli.problem.problem import Problem
from fco_cli.tasks.base import Task

Metrics = dict[str, Array]  # name -> [J]


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
    training, psi = problem.risk(w), problem.psi(w, numbers)
    metrics = {
        "objective": training.value + psi,
        "train_loss": training.value,
        "kkt_residual": problem.kkt_residual(w, training.gradient, numbers),
    }
    if problem.regularizer.constraint:
        metrics["constraint_violation"] = problem.constraint_violation(w, numbers)
    if training.accuracy is not None:
        metrics["train_accuracy"] = training.accuracy
    if problem.validation is not None:
        held_out = problem.validation(w, gradient=False)
        metrics["validation_loss"] = held_out.value
        metrics["validation_objective"] = held_out.value + psi
        if held_out.accuracy is not None:
            metrics["validation_accuracy"] = held_out.accuracy
    return metrics | task.metrics(problem, w)
