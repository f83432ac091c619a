"""Base class of tasks, which define data, model, loss and metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from fco_cli.errors import require
from fco_cli.problem.data import ClientData, FoldAssignment, HeldOut
from fco_cli.problem.layout import Array
from fco_cli.problem.models.choices import AutoModel, ModelChoice
from fco_cli.problem.models.external import ExternalModel
from fco_cli.problem.models.linear import Linear, Model
from fco_cli.problem.problem import Problem, TaskData

STARTS = ("zeros", "glorot")


def require_own_layout(task: Task, own: Model, chosen: Model) -> None:
    """Raise UserError unless the chosen model has the weights of the task's own model."""
    allowed = f"auto: the metrics of {task.name} need its own model"
    require(chosen.layout == own.layout, "model", task.model.name, allowed)


@dataclass(kw_only=True)
class Task(ABC):
    """Base class of tasks; the fields are the keys of the `task` configuration group."""

    name: str
    strength: float  # default of `regularizer.strength`
    radius: float  # default of `regularizer.radius`
    start: str | None = None  # w_0: zeros or glorot; null: zeros for a linear model, glorot for a network
    model: ModelChoice = field(default_factory=AutoModel, metadata={"omegaconf_ignore": True})

    main_metric: ClassVar[str] = "objective"

    def __post_init__(self) -> None:
        allowed = "null, zeros or glorot"
        require(self.start is None or self.start in STARTS, "task.start", self.start, allowed)

    @property
    def clients_available(self) -> int | None:
        """Number of training clients, or None if it is unknown before the data are read."""
        return None

    @property
    def preparation_noise(self) -> float | None:
        """Noise multiplier of statistics of rows that prepare the data; None if none are released with noise."""
        return None

    def missing_data(self) -> str | None:
        """Return a description of data that are not on this machine yet, or None."""
        return None

    def identity(self) -> dict[str, Any]:
        """Return the configuration that determines the data, with digests of files in place of their paths.

        `strength` and `radius` are excluded: they are defaults of the regularizer. `model` is a separate part.
        """
        config = {key: value for key, value in asdict(self).items() if key not in ("strength", "radius", "model")}
        return config | self.contents()

    def contents(self) -> dict[str, str]:
        """Return the digests of the files in the configuration, by key."""
        return {}

    def bytes_needed(self, dtype: str) -> int:
        """Return a lower bound on the memory of the data in bytes, or 0 if it is unknown."""
        return 0

    def data(self, seed: int, dtype: str) -> TaskData:
        """Return data, model and loss, with the configured model and its initial weights."""
        return self.with_chosen_model(self.build(seed, dtype), seed)

    def with_chosen_model(self, data: TaskData, seed: int) -> TaskData:
        """Return the data with the configured model and initial weights in place of the task's own model."""
        model = self.model.build_on(data, seed)
        self.check_model(data.model, model)
        if isinstance(model, Linear):
            return replace(data, model=replace(model, seed=seed) if self.start == "glorot" else model)
        if isinstance(model, ExternalModel):
            require(self.start is None, "task.start", self.start, f"null: model={self.model.name} initializes itself")
        allowed = "null or glorot: hidden layers cannot be trained from zeros"
        require(self.start != "zeros", "task.start", self.start, allowed)
        return replace(data, model=model)

    def check_model(self, own: Model, chosen: Model) -> None:  # noqa: B027 - most tasks support every model
        """Raise UserError if the task's metrics or files need its own model."""

    @abstractmethod
    def build(self, seed: int, dtype: str) -> TaskData:
        """Build data, model and loss; the result is determined by configuration and seed."""

    def cross_validated(self) -> Self:
        """Return this task for cross-validation, without separate validation rows."""
        return self

    def split_folds(self, data: TaskData, seed: int, dtype: str, held_out: Iterable[HeldOut]) -> Iterator[TaskData]:
        """Yield, for every cross-validation fold, `data` with the rows of the fold held out.

        Statistics of the rows, such as means for standardization, are computed anew from the remaining rows.
        """
        return (data.with_held_out(fold.rows(data.training)) for fold in held_out)

    def with_folds(
        self, seed: int, dtype: str, folds: int, by: str
    ) -> tuple[TaskData, FoldAssignment, Iterable[TaskData]]:
        """Return the data of all rows, the assignment of the training rows to folds, and the data of every fold."""
        data = self.data(seed, dtype)
        deal = FoldAssignment.of(data.training, folds, by, data.loss.classification, seed)
        return data, deal, self.split_folds(data, seed, dtype, deal)

    def metrics(self, problem: Problem, w: Array) -> dict[str, Array]:
        """Return task-specific metrics of models [J, P]."""
        return {}

    def held_out_metrics(self, problem: Problem, data: ClientData, w: Array) -> dict[str, Array]:
        """Return additional metrics of models [J, P] on held-out rows."""
        return {}

    def export(self, problem: Problem, model: Array, folder: Path) -> None:  # noqa: B027 - most tasks have nothing to add
        """Write task-specific files of the final model [P] to a record."""
