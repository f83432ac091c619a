"""Configuration group `model`: the model that a run fits to a task's features."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from fco_cli.code_digest import Definition
from fco_cli.errors import require
from fco_cli.problem.models.linear import Linear, Model, SparseLinear
from fco_cli.problem.models.network import Network
from fco_cli.problem.registry import Registry

if TYPE_CHECKING:
    from fco_cli.problem.problem import TaskData


@dataclass(kw_only=True)
class ModelChoice:
    """Base class of the group's options; the fields are the keys."""

    name: str
    convex: ClassVar[bool] = True  # a convex loss of the scores is convex in the parameters

    def build(self, own: Model, seed: int) -> Model:
        """Return the model for the features and outputs of the task's own model.

        Raise UserError if the model does not support the task's rows.
        """
        raise NotImplementedError

    def build_on(self, data: TaskData, seed: int) -> Model:
        """Return the model for a task's data, which has the task's own model."""
        return self.build(data.model, seed)

    def identity(self) -> dict[str, Any]:
        """Return the configuration that determines the model, without its code."""
        return asdict(self)

    def bound_classes(self) -> Iterable[type | Definition]:
        """Return the classes and definitions in the configuration, whose code is part of the identity."""
        return ()

    def files(self) -> dict[str, str]:
        """Return the SHA-256 digests of the files that were loaded for the model, by path."""
        return {}

    def versions(self) -> dict[str, str]:
        """Return the versions of the packages that only this model needs."""
        return {}

    def session_object(self) -> str:
        """Return the name of an object of this process that the model is made from; "" if there is none."""
        return ""


@dataclass(kw_only=True)
class AutoModel(ModelChoice):
    """The task's own model: linear, with a matrix of weights for low-rank tasks, or a network if task.hidden is set."""

    name: str = "auto"

    def build(self, own: Model, seed: int) -> Model:
        return own


def _linear(own: Model, weights_shape: tuple[int, ...] | None) -> Linear:
    kind = SparseLinear if isinstance(own, SparseLinear) else Linear
    return kind(int(own.widths[0]), int(own.widths[-1]), weights_shape, site_bias=own.site_bias)


@dataclass(kw_only=True)
class LinearChoice(ModelChoice):
    """Linear model."""

    name: str = "linear"

    def build(self, own: Model, seed: int) -> Model:
        return _linear(own, None)


@dataclass(kw_only=True)
class LowRank(ModelChoice):
    """Linear model of one output whose weights are a matrix, for regularizers of singular values."""

    name: str = "low_rank"
    rows: int | None = None  # null: as many as columns
    columns: int | None = None  # columns of the matrix; null: a square matrix

    def __post_init__(self) -> None:
        for key in ("rows", "columns"):
            count = getattr(self, key)
            require(count is None or count >= 1, f"model.{key}", count, "null or a whole number >= 1")

    def build(self, own: Model, seed: int) -> Model:
        features, outputs = int(own.widths[0]), int(own.widths[-1])
        require(outputs == 1, "model", self.name, f"linear: the weights of {outputs} classes are a matrix already")
        rows = self.rows or (features // self.columns if self.columns else math.isqrt(features))
        columns = self.columns or features // rows
        given = f"{rows} x {columns}"
        require(rows * columns == features, "model.rows", given, f"a shape with {features} entries, one per feature")
        return _linear(own, (rows, columns))


@dataclass(kw_only=True)
class Mlp(ModelChoice):
    """Fully connected ReLU network with hidden layers of the given widths."""

    name: str = "mlp"
    hidden: list[int] = field(default_factory=lambda: [32])
    convex: ClassVar[bool] = False

    def __post_init__(self) -> None:
        is_valid = len(self.hidden) >= 1 and all(width >= 1 for width in self.hidden)
        allowed = "a list of whole numbers >= 1; use model=linear for a model without hidden layers"
        require(is_valid, "model.hidden", self.hidden, allowed)

    def build(self, own: Model, seed: int) -> Model:
        require(not isinstance(own, SparseLinear), "model", self.name, "auto or linear: the task's rows are sparse")
        require(not own.site_bias, "model", self.name, "auto or linear with task.site_intercept=true")
        return Network(int(own.widths[0]), tuple(self.hidden), int(own.widths[-1]), seed)


all_models: Registry[ModelChoice] = Registry("model", ModelChoice, __package__)
