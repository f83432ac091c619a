"""The `path` group of `experiment=path`: selection of the strength of a penalty or the radius of a ball."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fco_cli.errors import require
from fco_cli.problem.folds import WAYS

LARGEST = 10_000  # models


@dataclass
class PathSettings:
    """Settings of a regularization path (docs/path.md)."""

    strengths: int = 100  # number of strengths, equally spaced on a logarithmic scale
    ratio: float = 0.01  # of the smallest to the largest strength
    largest: float | None = None  # null: the smallest strength with a null model; for a ball the largest active radius
    folds: int = 10  # of the cross-validation
    by: str = "rows"  # unit that a fold holds out: rows of every client, clients, each_client (one at a time)
    tolerance: float = 1e-4  # on the relative KKT residual along the path; chosen models have hparams.tolerance
    subsamples: int = 0  # number of complementary pairs of halves in stability selection
    threshold: float = 0.75  # selection frequency at or above which a feature is stable
    errors: float = 1.0  # bound on the expected number of false selections, which limits the part of the path used

    def __post_init__(self) -> None:
        for key, least in (("strengths", 2), ("folds", 2), ("subsamples", 0)):
            allowed = f"a whole number from {least} to {LARGEST}"
            require(least <= getattr(self, key) <= LARGEST, f"path.{key}", getattr(self, key), allowed)
        for key in ("ratio", "tolerance"):
            require(0 < getattr(self, key) < 1, f"path.{key}", getattr(self, key), "above 0, below 1")
        require(0.5 < self.threshold <= 1, "path.threshold", self.threshold, "above 0.5, at most 1")
        require(0 < self.errors < math.inf, "path.errors", self.errors, "a number > 0")
        require(self.by in WAYS, "path.by", self.by, "one of " + ", ".join(WAYS))
        is_valid = self.largest is None or 0 < self.largest < math.inf
        require(is_valid, "path.largest", self.largest, "null or a number > 0")
