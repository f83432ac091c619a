"""Your own clients' data: a linear model with any loss and any regularizer, exported with the features' names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fco_cli.errors import UserError, require
from fco_cli.federated_data.export import LinearModel
from fco_cli.federated_data.format import FederatedData, check_labels
from fco_cli.federated_data.moments import Moments, aggregated_moments
from fco_cli.federated_data.readers import fingerprint, read
from fco_cli.problem.data import ClientData
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import all_losses
from fco_cli.problem.models import Linear
from fco_cli.problem.problem import Problem, TaskData
from fco_cli.problem.streams import VALIDATION, generator
from fco_cli.tasks.base import Task
from fco_cli.tasks.metrics import area_under_curve, density

HOLDOUTS = ("auto", "split", "clients", "rows", "none")


@dataclass(kw_only=True)
class Custom(Task):
    """`path` is a file in the neutral format, or anything that `fco-data convert` reads without options."""

    path: str
    loss: str
    standardise: bool  # features to mean 0 and deviation 1, by moments that the clients send
    holdout: str  # what validates: the file's split, whole clients, rows of every client, nothing; auto: split or rows
    holdout_fraction: float

    main_metric = "objective"

    def __post_init__(self) -> None:
        require(self.loss in all_losses(), "task.loss", self.loss, "one of " + ", ".join(all_losses()))
        require(self.holdout in HOLDOUTS, "task.holdout", self.holdout, "one of " + ", ".join(HOLDOUTS))
        require(0 < self.holdout_fraction < 1, "task.holdout_fraction", self.holdout_fraction, "above 0, below 1")

    def contents(self) -> dict[str, str]:
        return {"path": fingerprint(Path(self.path))}

    def build(self, seed: int, dtype: str) -> TaskData:
        data = read(Path(self.path))
        loss = all_losses()[self.loss]()
        outputs = check_labels(data, loss)
        held_out = self._held_out(data, seed)
        training = data.take(~held_out).as_clients(dtype)
        moments = Moments.identity(data.x.shape[1])
        if self.standardise:
            moments = aggregated_moments(training)
            training = _standardised(training, moments, dtype)
        model = Linear(data.x.shape[1], outputs)
        test = None
        if held_out.any():
            test = data.take(held_out).as_clients(dtype)
            test = _standardised(test, moments, dtype) if self.standardise else test
        description = LinearModel(
            self.loss, data.feature_names, None if data.classes is None else data.classes.tolist(), moments
        )
        return TaskData(training, model, loss, test, description=description)

    def _held_out(self, data: FederatedData, seed: int) -> Array:
        """A mask over the rows; every client that trains keeps at least one row."""
        random = generator(seed, VALIDATION)
        holdout = self.holdout
        if holdout == "auto":
            holdout = "rows" if data.split is None else "split"
        _, member, sizes = np.unique(data.client, return_inverse=True, return_counts=True)
        if holdout == "split":
            require(data.split is not None, "task.holdout", "split", f"another: {data.source} has no split")
            held_out = np.asarray(data.split != "train")
            if held_out.all():
                raise UserError(f"{data.source}: its split leaves no rows to train on")
            return held_out
        if holdout == "clients":
            count = min(max(1, round(self.holdout_fraction * len(sizes))), len(sizes) - 1)
            return np.isin(member, random.choice(len(sizes), count, replace=False))
        held_out = np.zeros(len(member), dtype=bool)
        if holdout == "rows":
            for m, size in enumerate(sizes.tolist()):
                rows = np.flatnonzero(member == m)
                count = min(max(1, round(self.holdout_fraction * size)), size - 1)
                held_out[random.choice(rows, count, replace=False)] = True
        return held_out

    def metrics(self, problem: Problem, w: Array) -> dict[str, Array]:
        support = w[:, problem.layout.regularised] != 0
        metrics = {"density": density(support), "nonzeros": support.sum(axis=1)}
        if problem.held_out is not None and self.loss != "softmax":
            metrics |= self._held_out_metrics(problem.held_out, w)
        return metrics

    def _held_out_metrics(self, data: ClientData, w: Array) -> dict[str, Array]:
        scores = w[:, :-1].astype(float) @ data.x.T.astype(float) + w[:, -1:]  # [J, N]
        if self.loss == "logistic":
            return {"validation_auc": np.array([area_under_curve(row, data.y > 0.5) for row in scores])}
        squared = ((scores - data.y) ** 2).mean(axis=1)
        return {"validation_rmse": np.sqrt(squared), "validation_r2": 1 - squared / max(data.y.var(), 1e-300)}

    def export(self, problem: Problem, model: Array, folder: Path) -> None:
        """model.csv, linear_model.npz and linear_model.json; the local baseline has no single model to export."""
        if model.ndim == 1:
            weights = problem.layout.view(model[None], "weights").reshape(problem.model.widths[-1], -1)
            problem.description.write(folder, weights.astype(float), model[problem.layout.slices["bias"]].astype(float))


def _standardised(data: ClientData, moments: Moments, dtype: str) -> ClientData:
    return ClientData(((data.x - moments.mean) / moments.scale).astype(dtype), data.y, data.offsets)
