"""Tables: a linear model with any loss and any regularizer, exported with what prepares a new table for it."""

from __future__ import annotations

import copy
import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from fco_cli.data.export import LinearModel
from fco_cli.data.format import FederatedData, check_labels, listed
from fco_cli.data.preparation import Preparation, Recipe, prepared
from fco_cli.data.source import Columns
from fco_cli.data.sparse import is_sparse
from fco_cli.data.splits import Holdout, Parts, split
from fco_cli.errors import require
from fco_cli.memory_limit import require_memory
from fco_cli.problem.data import ClientData
from fco_cli.problem.folds import HeldOut
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss, all_losses
from fco_cli.problem.models.linear import Linear, SparseLinear
from fco_cli.problem.problem import Problem, TaskData
from fco_cli.tasks.base import Task
from fco_cli.tasks.metrics import density

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Tabular(Task):
    """What every task on a table has to be told; where its rows come from is its own."""

    loss: str  # auto: by the labels
    huber_delta: float  # of the Huber loss; every number of a loss has its key, <loss>_<number>
    standardize: bool  # features to mean 0 and deviation 1, by moments that the clients send
    fill: str  # of missing values: mean, median, refuse
    flag_missing: bool  # a column of 0 and 1 beside every one that misses values
    min_count: int  # categories of fewer rows in all become "other"
    holdout: str  # what validates: the file's split, whole clients, rows of every client, nothing; auto: split or rows
    holdout_fraction: float
    test: str  # what is looked at once, at the end: likewise; auto: split or nothing
    test_fraction: float
    class_weight: str | None  # balanced: every class counts alike
    site_intercept: bool  # a bias for every client, which it keeps, in the place of one for all

    main_metric = "objective"
    validates: ClassVar[str] = "rows"  # what task.holdout=auto is where the file's split has no such rows

    def __post_init__(self) -> None:
        super().__post_init__()
        known = ["auto", *all_losses()]
        require(self.loss in known, "task.loss", self.loss, "one of " + ", ".join(known))
        if self.loss != "auto":
            self.chosen_loss()  # refuses a number out of range
        _ = self.recipe, self.holdouts
        allowed = "null or balanced"
        require(self.class_weight in (None, "balanced"), "task.class_weight", self.class_weight, allowed)

    def identity(self) -> dict[str, Any]:
        """Without the numbers of losses that are not the chosen one."""
        other_losses = [kind for name, kind in all_losses().items() if name != self.loss]
        idle = {f"{kind.name}_{number.name}" for kind in other_losses for number in fields(kind)}
        return {key: value for key, value in super().identity().items() if key not in idle}

    def bound_classes(self) -> Iterable[type]:
        """Return the classes that the configuration names: the loss, or all losses where the labels decide."""
        losses = all_losses()
        return losses.values() if self.loss == "auto" else (losses[self.loss],)

    @property
    @abstractmethod
    def columns(self) -> Columns:
        """What the columns of the table mean."""

    @abstractmethod
    def read(self, seed: int) -> FederatedData:
        """The table."""

    @property
    def recipe(self) -> Recipe:
        return Recipe(self.fill, self.flag_missing, self.min_count, self.standardize)

    @property
    def holdouts(self) -> tuple[Holdout, Holdout]:
        return (
            Holdout("holdout", "val", self.holdout, self.holdout_fraction, otherwise=self.validates),
            Holdout("test", "test", self.test, self.test_fraction, otherwise="none"),
        )

    def chosen_loss(self) -> Loss:
        """The one that was asked for by name."""
        return self._loss_called(self.loss)

    def _loss_called(self, name: str) -> Loss:
        kind = all_losses()[name]
        return kind(**{number.name: getattr(self, f"{name}_{number.name}") for number in fields(kind)})

    def _loss_for(self, data: FederatedData) -> Loss:
        """The one that was asked for; auto: classes are classified, other numbers predicted."""
        name = self.loss
        if name == "auto":
            two = np.isin(data.y, (0, 1)).all() if data.classes is None else len(data.classes) == 2
            name = "logistic" if two else "squared" if data.classes is None else "softmax"
        return self._loss_called(name)

    def build(self, seed: int, dtype: str) -> TaskData:
        data = self.read(seed)
        made = self._built(data, split(data, *self.holdouts, seed), dtype)
        preparation = made.description.preparation
        if preparation is not None and (constant := preparation.constant):
            log.warning("%s: the same in all rows, so without a weight: %s", data.source, listed(constant))
        return made

    def cross_validated(self) -> Self:
        """With all rows but those that the file, or the configuration, holds out."""
        other = copy.copy(self)
        other.__dict__["validates"] = "none"
        return other

    def divided(self, data: TaskData, seed: int, dtype: str, held_out: Iterable[HeldOut]) -> Iterator[TaskData]:
        """Prepared anew from the rows that are left, as if the others had never been there."""
        table = self.read(seed)
        training = np.flatnonzero(split(table, *self.holdouts, seed).training)
        _, member = np.unique(table.client[training], return_inverse=True)
        training = training[np.argsort(member, kind="stable")]  # in the order of ClientData
        for apart in held_out:
            rows = apart.rows(data.training)
            masks = np.zeros((3, len(table.y)), dtype=bool)
            masks[0, training[~rows]], masks[1, training[rows]] = True, True
            yield self._built(table, Parts(*masks), dtype)

    def _built(self, data: FederatedData, parts: Parts, dtype: str) -> TaskData:
        loss = self._loss_for(data)
        outputs = check_labels(data, loss)
        data = self._weighted(data, parts.training, loss)
        preparation = self._prepared(data, parts.training)
        self._check_memory(data, preparation, dtype)
        training, validation, test = (_rows(data, rows, parts.training, preparation, dtype) for rows in parts)
        assert training is not None
        classes = None if data.classes is None else data.classes.tolist()
        clients = np.unique(data.client[parts.training]).tolist()
        one_bias = not self.site_intercept or loss.optimal_score is not None
        require(one_bias, "task.site_intercept", True, f"false for the {loss.name} loss, which has no one intercept")
        names = data.features if preparation is None else preparation.features
        features = None if names is None else tuple(names)
        kind = SparseLinear if preparation is None else Linear
        return TaskData(
            training, kind(training.x.shape[1], outputs, site_bias=self.site_intercept), loss, validation,
            description=LinearModel(loss.name, classes, preparation, clients, features),
            features=features,
            test=test,
            clients=clients,
        )  # fmt: skip

    def _prepared(self, data: FederatedData, training: Array) -> Preparation | None:
        """What the clients agree on; of sparse rows nothing, they stay as they are."""
        if is_sparse(data.x):
            dense = f"false: centered, the sparse rows of {data.source} would be dense"
            require(not self.standardize, "task.standardize", self.standardize, dense)
            return None
        return replace(prepared(data.take(training), self.recipe), table=self.columns)

    def _weighted(self, data: FederatedData, training: Array, loss: Loss) -> FederatedData:
        """With the rows' weights as given, times those of their classes, 1 on average of the rows that train."""
        weights = data.weights
        if self.class_weight == "balanced":
            require(loss.classification, "task.class_weight", "balanced", f"null for the {loss.name} loss")
            classes, member = np.unique(data.y, return_inverse=True)
            counts = np.bincount(member[training], minlength=len(classes))  # each client sends its own
            weights = (1.0 if weights is None else weights) * (1 / np.maximum(counts, 1))[member]
        if weights is None:
            return data
        mean = weights[training].mean()
        require(mean > 0, "weights", "0 for every row that trains", "above 0 for some")
        return replace(data, weights=weights / mean)

    def _check_memory(self, data: FederatedData, preparation: Preparation | None, dtype: str) -> None:
        """Of the rows in the run's precision, and in double precision while they are prepared."""
        if preparation is None:
            return  # what is stored has been read, and is copied as often as any other
        mapped, nothing = isinstance(data.x, np.memmap), (self.holdout, self.test) == ("none", "none")
        if mapped and not self.standardize and nothing:
            return  # left on disk
        per_value = np.dtype(dtype).itemsize + (0 if mapped else data.x.itemsize) + (8 if self.standardize else 0)
        require_memory(f"{data.source}: its rows in {dtype}", len(data.y) * len(preparation.features) * per_value)

    def metrics(self, problem: Problem, w: Array) -> dict[str, Array]:
        support = w[:, problem.layout.regularized] != 0
        return {"density": density(support), "nonzeros": support.sum(axis=1)}

    def held_out_metrics(self, problem: Problem, data: ClientData, w: Array) -> dict[str, Array]:
        if problem.model.widths[-1] != 1:
            return {}
        scores, y = problem.scores_on(data, w), data.y.astype(float)
        jobs = [problem.loss.metrics(job[0].astype(float), y, data.offsets) for job in scores]
        return {name: np.array([job[name] for job in jobs]) for name in jobs[0]}

    def export(self, problem: Problem, model: Array, folder: Path) -> None:
        """Files for people and other software; the local baseline has no single model to export."""
        if model.ndim == 1:
            weights = problem.layout.view(model[None], "weights").reshape(problem.model.widths[-1], -1)
            bias = model[problem.layout.slices["bias"]].astype(float)
            own = problem.site_biases(model[None])[:, 0] if problem.model.site_bias else None
            problem.description.write(folder, weights.astype(float), bias, own, problem.weights)


def _rows(
    data: FederatedData, rows: Array, training: Array, preparation: Preparation | None, dtype: str
) -> ClientData | None:
    """Some of the rows, prepared; nothing if there are none."""
    if not rows.any():
        return None
    part = data.take(rows)
    x = part.x if preparation is None else preparation.apply(part.raw)
    made = replace(part, x=x).model_clients(dtype)
    return made if rows is training else replace(made, trained_as=data.owners(training, rows))
