"""Base class of tasks, which define data, model, loss and metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from fco_cli.errors import require
from fco_cli.problem.data import ClientData
from fco_cli.problem.folds import HeldOut
from fco_cli.problem.layout import Array
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.problem import Problem, TaskData

STARTS = ("zeros", "glorot")


@dataclass(kw_only=True)
class Task(ABC):
    """Base class of tasks; the fields are the keys of the `task` configuration group."""

    name: str
    strength: float  # default of `regularizer.strength`
    radius: float  # default of `regularizer.radius`
    start: str | None = None  # w_0: zeros or glorot; null: zeros for a linear model, glorot for a network

    main_metric: ClassVar[str] = "objective"

    def __post_init__(self) -> None:
        allowed = "null, zeros or glorot"
        require(self.start is None or self.start in STARTS, "task.start", self.start, allowed)

    @property
    def clients_available(self) -> int | None:
        """Number of training clients, or None if it is unknown before the data are read."""
        return None

    def missing_data(self) -> str | None:
        """Return a description of data that are not on this machine yet, or None."""
        return None

    def identity(self) -> dict[str, Any]:
        """Return the configuration that determines the data, with digests of files in place of their paths.

        `strength` and `radius` are excluded: they are defaults of the regularizer.
        """
        config = {key: value for key, value in asdict(self).items() if key not in ("strength", "radius")}
        return config | self.contents()

    def contents(self) -> dict[str, str]:
        """Return the digests of the files in the configuration, by key."""
        return {}

    def bytes_needed(self, dtype: str) -> int:
        """Return a lower bound on the memory of the data in bytes, or 0 if it is unknown."""
        return 0

    def data(self, seed: int, dtype: str) -> TaskData:
        """Return data, model and loss, with the configured initial weights."""
        data = self.build(seed, dtype)
        if self.start != "glorot" or not isinstance(data.model, Linear):
            return data
        return replace(data, model=replace(data.model, seed=seed))

    @abstractmethod
    def build(self, seed: int, dtype: str) -> TaskData:
        """Build data, model and loss; the result is determined by configuration and seed."""

    def cross_validated(self) -> Self:
        """Return this task for cross-validation, without separate validation rows."""
        return self

    def divided(self, data: TaskData, seed: int, dtype: str, held_out: Iterable[HeldOut]) -> Iterator[TaskData]:
        """Yield, for every cross-validation fold, `data` with the rows of the fold held out.

        Statistics of the rows, such as means for standardization, are computed anew from the remaining rows.
        """
        return (data.divided(fold.rows(data.training)) for fold in held_out)

    def metrics(self, problem: Problem, w: Array) -> dict[str, Array]:
        """Return task-specific metrics of models [J, P]."""
        return {}

    def held_out_metrics(self, problem: Problem, data: ClientData, w: Array) -> dict[str, Array]:
        """Return additional metrics of models [J, P] on held-out rows."""
        return {}

    def export(self, problem: Problem, model: Array, folder: Path) -> None:  # noqa: B027 - most tasks have nothing to add
        """Write task-specific files of the final model [P] to a record."""
