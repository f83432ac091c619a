"""The `path` group of `experiment=path`: how the strength of a penalty, or the radius of a ball, is chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fco_cli.errors import require
from fco_cli.problem.folds import WAYS

LARGEST = 10_000  # models


@dataclass
class PathSettings:
    """docs/path.md."""

    strengths: int = 100  # how many, equally spaced in their logarithm
    ratio: float = 0.01  # of the smallest to the largest
    largest: float | None = None  # null: where the null model is left; for a ball: where it no longer binds
    folds: int = 10  # of the cross-validation
    by: str = "rows"  # what a fold holds out: rows of every client, clients, each_client (one at a time)
    tolerance: float = 1e-4  # on the relative KKT residual along the path; chosen models have hparams.tolerance
    subsamples: int = 0  # for stability selection: so many complementary pairs of halves
    threshold: float = 0.75  # of the selection frequency, from which on a feature is called stable
    errors: float = 1.0  # that may be expected among the stable features: how far down the path they are looked for

    def __post_init__(self) -> None:
        for key, least in (("strengths", 2), ("folds", 2), ("subsamples", 0)):
            allowed = f"a whole number from {least} to {LARGEST}"
            require(least <= getattr(self, key) <= LARGEST, f"path.{key}", getattr(self, key), allowed)
        for key in ("ratio", "tolerance"):
            require(0 < getattr(self, key) < 1, f"path.{key}", getattr(self, key), "above 0, below 1")
        require(0.5 < self.threshold <= 1, "path.threshold", self.threshold, "above 0.5, at most 1")
        require(0 < self.errors < math.inf, "path.errors", self.errors, "a number > 0")
        require(self.by in WAYS, "path.by", self.by, "one of " + ", ".join(WAYS))
        sound = self.largest is None or 0 < self.largest < math.inf
        require(sound, "path.largest", self.largest, "null or a number > 0")
