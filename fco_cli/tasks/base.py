"""What a task is: it makes data, a model and a loss from a seed, and owns the metrics of its models."""

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
    """The `task` group: its fields are the task's configuration."""

    name: str
    strength: float  # the penalty strength that suits the data: what `regularizer.strength` defaults to
    radius: float  # likewise for a constraint's `regularizer.radius`
    start: str | None = None  # w_0: zeros or glorot; null: zeros for a linear model, glorot for a network

    main_metric: ClassVar[str] = "objective"

    def __post_init__(self) -> None:
        allowed = "null, zeros or glorot"
        require(self.start is None or self.start in STARTS, "task.start", self.start, allowed)

    @property
    def clients_available(self) -> int | None:
        """How many training clients there are, where that is known before the data are read."""
        return None

    def missing_data(self) -> str | None:
        """What is not on this machine yet and would have to be downloaded; None: the task can start at once."""
        return None

    def identity(self) -> dict[str, Any]:
        """What the data depend on: the configuration, with the content of files in the place of their paths.

        `strength` and `radius` are defaults of the regularizer and no part of it.
        """
        own = {key: value for key, value in asdict(self).items() if key not in ("strength", "radius")}
        return own | self.contents()

    def contents(self) -> dict[str, str]:
        """Digests of the files that the configuration names, by their keys."""
        return {}

    def bytes_needed(self, dtype: str) -> int:
        """At least so much memory the data take, where the configuration tells."""
        return 0

    def data(self, seed: int, dtype: str) -> TaskData:
        """What it builds, with the start that was asked for."""
        made = self.build(seed, dtype)
        if self.start != "glorot" or not isinstance(made.model, Linear):
            return made
        return replace(made, model=replace(made.model, seed=seed))

    @abstractmethod
    def build(self, seed: int, dtype: str) -> TaskData:
        """The data, the model and the loss, from the seed alone."""

    def cross_validated(self) -> Self:
        """This task for a cross-validation, which needs no rows that only validate."""
        return self

    def divided(self, data: TaskData, seed: int, dtype: str, held_out: Iterable[HeldOut]) -> Iterator[TaskData]:
        """For cross-validation: `data`, with some of its training rows held out, then others.

        What a task learns from rows, such as how to standardize them, it learns anew from those that are left.
        """
        return (data.divided(apart.rows(data.training)) for apart in held_out)

    def metrics(self, problem: Problem, w: Array) -> dict[str, Array]:
        """The task's own metrics of models [J, P]."""
        return {}

    def held_out_metrics(self, problem: Problem, data: ClientData, w: Array) -> dict[str, Array]:
        """What else to know of models [J, P] on rows that they have not learnt from."""
        return {}

    def export(self, problem: Problem, model: Array, folder: Path) -> None:  # noqa: B027 - most tasks have nothing to add
        """Write what else this task leaves in a record, from the final model [P]."""
