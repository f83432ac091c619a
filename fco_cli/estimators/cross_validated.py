"""Estimators that choose their strength: the path of models, cross-validated by rows, clients or each client.

`cv` says how many folds, or gives them: pairs (train, test) as scikit-learn's splitters make them.
`path_` has the strengths, the models' weights, the cross-validation's mean and its standard error; `strength_` is the
chosen one, `min` or `1se` as `choice` says. The chosen model is refitted on all rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from fco_cli.config.path_settings import PathSettings
from fco_cli.errors import UserError
from fco_cli.estimators.base import Classification, FederatedLinear, Regression
from fco_cli.estimators.linear import FederatedLowRankRegression
from fco_cli.estimators.rows import InMemory
from fco_cli.path.select import select
from fco_cli.path.solve import Solved
from fco_cli.problem.folds import Deal, Given
from fco_cli.problem.layout import Array
from fco_cli.problem.regularizers import Regularizer
from fco_cli.problem.regularizers.nuclear import Nuclear
from fco_cli.problem.regularizers.penalties import L1, ElasticNet

# What a command calls otherwise, in its messages.
IN_PYTHON = [("path.folds", "cv"), ("path.strengths", "n_strengths"), ("path.ratio", "ratio"), ("path.by", "by")]


class Path(NamedTuple):
    """A path and its cross-validation, the largest strength first."""

    strengths: Array  # [J]
    coefs: Array  # [J, ...]
    mean: Array  # [J], the loss on rows that the models have not seen
    error: Array  # [J], its standard error


@dataclass(eq=False, repr=False, kw_only=True)
class CrossValidated(FederatedLinear):
    """Fits the path in the place of one strength."""

    n_strengths: int = 100
    ratio: float = 0.01
    cv: int | Iterable[tuple[Array, Array]] = 10
    by: str = "rows"
    choice: str = "min"

    def _solve(self, task: InMemory) -> Solved:
        if self.choice not in ("min", "1se"):
            raise UserError(f"choice: got {self.choice!r}, must be min or 1se")
        deal, folds = (None, int(self.cv)) if isinstance(self.cv, Integral) else self._given(self.cv, task)
        if self.by == "rows" and folds > len(task.order):
            raise UserError(f"cv: got {folds} folds, must be at most n_samples={len(task.order)}")
        try:
            strengths, ratio = self._plain.n_strengths, self._plain.ratio
            settings = PathSettings(strengths=strengths, ratio=ratio, folds=folds, by=self.by)
            found = select(self._run(task), settings, lambda: None, deal)
        except UserError as problem:
            raise UserError(reduce(lambda text, names: text.replace(*names), IN_PYTHON, str(problem))) from problem
        weights = task.units.original(found.path.models)[:, : found.problem.layout.slices["bias"].start]
        coefs = weights if found.problem.model.widths[-1] == 1 else weights.reshape(
            len(weights), found.problem.model.widths[-1], -1
        )  # fmt: skip
        unit, loss_unit = task.units.label_scale, task.units.label_scale**2
        self.path_ = Path(unit * found.values, coefs, loss_unit * found.curve.mean, loss_unit * found.curve.error)
        self.strength_ = float(self.path_.strengths[found.chosen[self.choice]])
        return self._checked(task, found.refitted.take([found.refitted_place(self.choice)]))

    @staticmethod
    def _given(pairs: Any, task: InMemory) -> tuple[Deal, int]:
        """Folds as scikit-learn's splitters make them: pairs of the rows of X that train and that are held out."""
        fold, times = np.zeros(task.given, dtype=np.int64), np.zeros(task.given, dtype=np.int64)
        try:
            held_out = [np.asarray(test) for _, test in pairs]
            for number, test in enumerate(held_out):
                fold[test] = number
                times[test] += 1
        except (TypeError, ValueError, IndexError):
            times[:] = 0
        if (times != 1).any():
            raise UserError("cv: must be a whole number, or pairs (train, test) that hold every row out once")
        return Given.to(len(held_out), fold[task.order]), len(held_out)


class RegressionCV(CrossValidated, Regression):
    """A regression that chooses its strength."""


class ClassificationCV(CrossValidated, Classification):
    """A classification that chooses its strength."""


class FederatedLassoCV(RegressionCV):
    """`FederatedLasso` at its best strength."""

    def _regularizer(self) -> Regularizer:
        return L1(strength=1.0)


@dataclass(eq=False, repr=False, kw_only=True)
class FederatedElasticNetCV(RegressionCV):
    """`FederatedElasticNet` at its best strength; `l2_strength` stays as given."""

    l2_strength: float = 0.1

    def _regularizer(self) -> Regularizer:
        return ElasticNet(strength=1.0, l2_strength=self._plain.l2_strength)


@dataclass(eq=False, repr=False, kw_only=True)
class FederatedLowRankRegressionCV(RegressionCV):
    """`FederatedLowRankRegression` at its best strength."""

    shape: tuple[int, int] | None = None
    _shape = FederatedLowRankRegression._shape

    def _regularizer(self) -> Regularizer:
        return Nuclear(strength=1.0)


class FederatedLogisticRegressionCV(ClassificationCV):
    """`FederatedLogisticRegression` at its best strength."""

    def _regularizer(self) -> Regularizer:
        return L1(strength=1.0)
