"""What a task is: it builds a problem from a seed and owns the metrics of its models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from fco_cli.problem.layout import Array
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers import Regularizer


@dataclass(kw_only=True)
class Task(ABC):
    """The `task` group: its fields are the task's configuration."""

    name: str
    strength: float  # the penalty strength that suits the data: what `regularizer.strength` defaults to
    radius: float  # likewise for a constraint's `regularizer.radius`

    main_metric: ClassVar[str] = "objective"

    @property
    def clients_available(self) -> int | None:
        """How many training clients there are, where that is known before the data are read."""
        return None

    def missing_data(self) -> str | None:
        """What is not on this machine yet and would have to be downloaded; None: the task can start at once."""
        return None

    def identity(self) -> dict[str, Any]:
        """What the result depends on: the configuration, with the content of files in the place of their paths."""
        return asdict(self)

    @abstractmethod
    def build(self, seed: int, dtype: str, regularizer: Regularizer, weighting: str) -> Problem:
        """The problem, from the seed alone."""

    def metrics(self, problem: Problem, w: Array) -> dict[str, Array]:
        """The task's own metrics of models [J, P]."""
        return {}

    def export(self, problem: Problem, model: Array, folder: Path) -> None:  # noqa: B027 - most tasks have nothing to add
        """Write what else this task leaves in a record, from the final model [P]."""
