"""Performance of a fitted model on the rows of its fit, over all rows and by client.

performance.csv   metrics of all clients and of every client; a Cox model has other files
predictions.csv   logistic loss only: histograms of the predictions of every client

Rows at sites are not predicted: sites answer sums over held-out rows (experiment=path), not over the rows of a fit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fco_cli.files import write_atomically
from fco_cli.inference.estimate import Estimates
from fco_cli.path.performance import client_metrics
from fco_cli.path.predictions import by_client, prediction_lines
from fco_cli.path.record import csv_of_lines
from fco_cli.problem.data import RemoteRows
from fco_cli.problem.losses import Logistic
from fco_cli.problem.problem import Problem

ON_FIT = "on the rows of the fit"


@dataclass(frozen=True)
class Performance:
    """Metrics and histograms of predictions, as lines of tables."""

    metrics: list[dict[str, Any]] = field(default_factory=list)
    predictions: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, problem: Problem, estimates: Estimates) -> Performance:
        """Return the performance; empty for debiased estimates, Cox models and rows at sites."""
        data = problem.data
        if estimates.is_debiased or problem.loss.client_loss is not None or isinstance(data, RemoteRows):
            return cls()
        model = estimates.design.start.copy()
        model[estimates.design.columns] = estimates.weights
        scores = problem.scores_on(data, model[None])[0].astype(float)
        y, owners = data.y.astype(float), np.repeat(np.arange(data.clients), data.sizes)
        names = problem.clients or [f"client {m}" for m in range(data.clients)]
        metrics = client_metrics(problem.loss, scores, y, owners, names)
        histograms = by_client(scores[0], y > 0.5, owners, names) if isinstance(problem.loss, Logistic) else {}
        return cls(metrics, list(prediction_lines(histograms)))

    def write(self, folder: Path) -> None:
        """Write the tables that have lines."""
        for name, lines in (("performance", self.metrics), ("predictions", self.predictions)):
            if lines:
                write_atomically(folder / f"{name}.csv", csv_of_lines(lines))
