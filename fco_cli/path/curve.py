"""The curve of a cross-validation, and what it chooses: the best, and the simplest that is nearly as good."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.errors import UserError
from fco_cli.problem.layout import Array


@dataclass(frozen=True)
class Curve:
    """Over the values of a path, the null model's end first."""

    mean: Array  # [J], of the folds' losses
    error: Array  # [J], its standard error

    @classmethod
    def of(cls, losses: Array, weights: Array) -> Curve:
        """From the folds' losses [F, J] and what they count, [F]: their rows or clients that were held out."""
        share = (weights / weights.sum())[:, None]
        with np.errstate(over="ignore", invalid="ignore"):  # a model whose loss has overflowed is not chosen
            mean = (share * losses).sum(axis=0)
            spread = (share * (losses - mean) ** 2).sum(axis=0)
        return cls(mean, np.sqrt(spread / (len(losses) - 1)))

    @property
    def best(self) -> int:
        """`min`: the smallest mean; of equal ones the simplest model."""
        if not np.isfinite(self.mean).any():
            raise UserError("path: no model has a finite loss on the rows that were held out")
        return int(np.nanargmin(np.where(np.isfinite(self.mean), self.mean, np.nan)))

    @property
    def simplest(self) -> int:
        """`1se`: the simplest model whose mean is within a standard error of the best (Breiman et al., 1984)."""
        return int(np.argmax(self.mean <= self.mean[self.best] + self.error[self.best]))

    @property
    def chosen(self) -> dict[str, int]:
        return {"min": self.best, "1se": self.simplest}
