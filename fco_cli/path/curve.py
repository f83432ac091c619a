"""Cross-validation curves and the two selection rules, `min` and `1se`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.errors import UserError
from fco_cli.problem.layout import Array


@dataclass(frozen=True)
class Curve:
    """Cross-validated loss of every value of a path, simplest model first."""

    mean: Array  # [J], weighted mean of the folds' losses
    error: Array  # [J], standard error of the mean

    @classmethod
    def of(cls, losses: Array, weights: Array) -> Curve:
        """Return the curve of the folds' losses [F, J] with weights [F] (held-out rows or clients)."""
        share = (weights / weights.sum())[:, None]
        with np.errstate(over="ignore", invalid="ignore"):  # models with an overflowed loss are not selected
            mean = (share * losses).sum(axis=0)
            spread = (share * (losses - mean) ** 2).sum(axis=0)
        return cls(mean, np.sqrt(spread / (len(losses) - 1)))

    @property
    def best(self) -> int:
        """Index of the smallest mean (`min`); ties go to the simplest model."""
        if not np.isfinite(self.mean).any():
            raise UserError("path: no model has a finite loss on the held-out rows; rescale the data")
        return int(np.nanargmin(np.where(np.isfinite(self.mean), self.mean, np.nan)))

    @property
    def simplest(self) -> int:
        """Index of the simplest model within one standard error of the best (`1se`; Breiman et al., 1984)."""
        return int(np.argmax(self.mean <= self.mean[self.best] + self.error[self.best]))

    @property
    def chosen(self) -> dict[str, int]:
        """Index of the selected model by rule."""
        return {"min": self.best, "1se": self.simplest}
