"""The `tracking` group, and the interface of its senders.

A tracker reads finished records and is not part of a run: it changes neither the result nor the run id, and the record
contains everything that is sent.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fco_cli.errors import UserError, install_extra, require
from fco_cli.problem.registry import Registry


@dataclass(frozen=True)
class Sweep:
    """Set of runs that appear together."""

    name: str
    sweep_id: str | None  # digest of the run ids; None for a single run

    @classmethod
    def of(cls, names: Collection[str], run_ids: Collection[str]) -> Sweep:
        """Return the sweep of runs of the experiments or tasks `names`; the same runs are the same sweep."""
        name, content = "+".join(sorted(names))[:80], "\n".join(sorted(run_ids)).encode()
        return cls(name, hashlib.sha256(content).hexdigest()[:12] if len(run_ids) > 1 else None)


@dataclass(frozen=True)
class TrackedRun:
    """Content of a finished record."""

    folder: Path
    run_id: str
    algo: str
    settings: Mapping[str, Any]  # the configuration under dotted keys
    final: Mapping[str, float | None]
    curves: Mapping[str, np.ndarray]  # metrics at the evaluated rounds, and `round`
    status: str
    finished_at: float  # seconds since 1970

    @property
    def name(self) -> str:
        return f"{self.algo}-{self.run_id}"

    @property
    def experiment(self) -> str:
        """Name of the run's experiment, or of its task if it belongs to none."""
        return self.settings.get("experiment.name") or self.settings["task.name"]

    def points(self, most: int) -> list[tuple[int, dict[str, float]]]:
        """Return the finite metrics of at most `most` rounds, evenly spaced, with the first and the last."""
        rounds = self.curves["round"]
        places = np.unique(np.linspace(0, len(rounds) - 1, min(most, len(rounds))).astype(int))
        names = [name for name in self.curves if name != "round"]
        return [
            (int(rounds[i]), {name: v for name in names if np.isfinite(v := float(self.curves[name][i]))})
            for i in places
        ]


class Sender(ABC):
    """Connection to a tracker, for one sweep or run; any exception ends it."""

    @abstractmethod
    def sent(self) -> Collection[str]:
        """Return the ids of the runs whose upload is complete."""

    @abstractmethod
    def send(self, run: TrackedRun) -> None:
        """Send a run; an interrupted call must not count as sent."""

    def send_figures(self, figures: Iterable[tuple[str, bytes]]) -> None:  # noqa: B027 - not every tracker shows figures
        """Send figures of the sweep, PNG files by name."""

    def close(self) -> None:  # noqa: B027
        """Complete what was sent."""


@dataclass(kw_only=True)
class Tracking:
    """Base class of the group; the dataclass fields are its keys."""

    name: str
    points: int = 50  # largest number of rounds whose metrics are sent; metrics.csv has all
    package: ClassVar[str | None] = None  # package that the tracker needs
    destination: ClassVar[str] = ""  # as messages name it

    def __post_init__(self) -> None:
        require(self.points >= 2, "tracking.points", self.points, "a whole number >= 2")

    @property
    def is_active(self) -> bool:
        return True

    def check(self) -> None:
        """Raise UserError if the tracker's package is not installed."""
        if self.package is not None and find_spec(self.package) is None:
            raise UserError(
                f"tracking: {self.name} needs {self.package}, which is not installed; {install_extra(self.name)}"
            )

    @abstractmethod
    def open(self, sweep: Sweep) -> Sender:
        """Connect to the tracker."""


@dataclass(kw_only=True)
class NoTracking(Tracking):
    """Records are not sent anywhere."""

    name: str = "none"

    @property
    def is_active(self) -> bool:
        return False

    def open(self, sweep: Sweep) -> Sender:
        raise NotImplementedError("tracking=none sends nothing")


all_trackings: Registry[Tracking] = Registry("tracking", Tracking, __package__)
