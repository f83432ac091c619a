"""Your own clients' data: a linear model with any loss and any regularizer, exported with the features' names."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from fco_cli.errors import UserError, require
from fco_cli.federated_data.export import LinearModel
from fco_cli.federated_data.format import FederatedData, check_labels, shown
from fco_cli.federated_data.moments import Moments, aggregated_moments
from fco_cli.federated_data.readers import fingerprint, read
from fco_cli.memory_limit import require_memory
from fco_cli.problem.data import ClientData
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss, all_losses
from fco_cli.problem.models import Linear
from fco_cli.problem.problem import Problem, TaskData
from fco_cli.problem.risk import scores_of
from fco_cli.problem.streams import VALIDATION, generator
from fco_cli.tasks.base import Task
from fco_cli.tasks.metrics import density

HOLDOUTS = ("auto", "split", "clients", "rows", "none")


@dataclass(kw_only=True)
class Custom(Task):
    """`path` is a file in the neutral format, or anything that `fco-data convert` reads without options."""

    path: str
    loss: str
    huber_delta: float  # of the Huber loss; every number of a loss has its key, <loss>_<number>
    standardize: bool  # features to mean 0 and deviation 1, by moments that the clients send
    holdout: str  # what validates: the file's split, whole clients, rows of every client, nothing; auto: split or rows
    holdout_fraction: float

    main_metric = "objective"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.loss in all_losses(), "task.loss", self.loss, "one of " + ", ".join(all_losses()))
        self._loss()  # refuses a number out of range
        require(self.holdout in HOLDOUTS, "task.holdout", self.holdout, "one of " + ", ".join(HOLDOUTS))
        require(0 < self.holdout_fraction < 1, "task.holdout_fraction", self.holdout_fraction, "above 0, below 1")

    def identity(self) -> dict[str, Any]:
        """Without the numbers of losses that are not the chosen one."""
        other_losses = [kind for name, kind in all_losses().items() if name != self.loss]
        idle = {f"{kind.name}_{number.name}" for kind in other_losses for number in fields(kind)}
        return {key: value for key, value in super().identity().items() if key not in idle}

    def missing_data(self) -> str | None:
        return None if Path(self.path).exists() else f"task.path: there is no {self.path}"

    def contents(self) -> dict[str, str]:
        return {"path": fingerprint(Path(self.path))}

    def _loss(self) -> Loss:
        kind = all_losses()[self.loss]
        return kind(**{number.name: getattr(self, f"{self.loss}_{number.name}") for number in fields(kind)})

    def build(self, seed: int, dtype: str) -> TaskData:
        data = read(Path(self.path))
        loss = self._loss()
        outputs = check_labels(data, loss)
        held_out = self._held_out(data, seed)
        self._check_memory(data, dtype)
        training = data.take(~held_out).as_clients(dtype)
        moments = Moments.identity(data.x.shape[1])
        if self.standardize:
            moments = self._moments(data, training)
            training = _standardized(training, moments, dtype)
        model = Linear(data.x.shape[1], outputs)
        test = None
        if held_out.any():
            test = data.take(held_out).as_clients(dtype)
            test = _standardized(test, moments, dtype) if self.standardize else test
        description = LinearModel(
            self.loss, data.feature_names, None if data.classes is None else data.classes.tolist(), moments
        )
        return TaskData(
            training, model, loss, test, description=description, held_out_of=data.owners(~held_out, held_out)
        )

    def _check_memory(self, data: FederatedData, dtype: str) -> None:
        """Of the rows in the run's precision, and in double precision while they are standardized."""
        mapped = isinstance(data.x, np.memmap)
        if mapped and not self.standardize and self.holdout == "none":
            return  # left on disk
        per_value = np.dtype(dtype).itemsize + (0 if mapped else data.x.itemsize) + (8 if self.standardize else 0)
        require_memory(f"{data.source}: its rows in {dtype}", data.x.size * per_value)

    @staticmethod
    def _moments(data: FederatedData, training: ClientData) -> Moments:
        with np.errstate(over="ignore", invalid="ignore"):
            moments = aggregated_moments(training)
            finite = np.isfinite(moments.mean) & np.isfinite(moments.scale)
        if not finite.all():
            feature = data.feature_names[int(np.argmin(finite))]
            raise UserError(
                f"{data.source}: feature {shown(feature)!r}: its values are too large to be standardized; "
                "give it another unit, or task.standardize=false"
            )
        return moments

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
        if holdout == "rows":  # the first of every client's rows, in random order
            order = np.lexsort((random.random(len(member)), member))
            place = np.arange(len(member)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            counts = np.minimum(np.maximum(1, np.round(self.holdout_fraction * sizes)), sizes - 1)
            held_out[order] = place < np.repeat(counts, sizes)
        return held_out

    def metrics(self, problem: Problem, w: Array) -> dict[str, Array]:
        support = w[:, problem.layout.regularized] != 0
        metrics = {"density": density(support), "nonzeros": support.sum(axis=1)}
        if problem.held_out is not None and problem.model.widths[-1] == 1:
            scores, y = scores_of(problem.model, problem.held_out, w), problem.held_out.y.astype(float)
            jobs = [problem.loss.metrics(job[0].astype(float), y) for job in scores]
            metrics |= {f"validation_{name}": np.array([job[name] for job in jobs]) for name in jobs[0]}
        return metrics

    def export(self, problem: Problem, model: Array, folder: Path) -> None:
        """model.csv, linear_model.npz and linear_model.json; the local baseline has no single model to export."""
        if model.ndim == 1:
            weights = problem.layout.view(model[None], "weights").reshape(problem.model.widths[-1], -1)
            problem.description.write(folder, weights.astype(float), model[problem.layout.slices["bias"]].astype(float))


def _standardized(data: ClientData, moments: Moments, dtype: str) -> ClientData:
    x = data.x - moments.mean
    x /= moments.scale
    return ClientData(x.astype(dtype, copy=False), data.y, data.offsets)
