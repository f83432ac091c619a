"""Linear models whose regularization strength is selected by cross-validation along a path."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from fco_cli.config.schemas import PathSettings
from fco_cli.errors import UserError
from fco_cli.estimators.base import Classification, FederatedLinear, Regression
from fco_cli.estimators.linear import FederatedLowRankRegression
from fco_cli.estimators.rows import InMemory
from fco_cli.path.between_clients import warning_of_between_clients
from fco_cli.path.select import select
from fco_cli.path.solve import Solutions
from fco_cli.problem.data import FoldAssignment, PredefinedFolds
from fco_cli.problem.layout import Array
from fco_cli.problem.regularizers import Regularizer
from fco_cli.problem.regularizers.nuclear import Nuclear
from fco_cli.problem.regularizers.penalties import L1

# Configuration keys in messages and the parameters they stand for.
PARAMETER_NAMES = [("path.folds", "cv"), ("path.strengths", "n_strengths"), ("path.ratio", "ratio"), ("path.by", "by")]


class RegularizationPath(NamedTuple):
    """Cross-validated path of models, largest strength first."""

    strengths: Array  # [J]
    coefs: Array  # [J, ...]
    mean: Array  # [J], cross-validated loss
    error: Array  # [J], standard error of the mean


@dataclass(eq=False, repr=False, kw_only=True)
class CrossValidated(FederatedLinear):
    """Mixin that selects the strength; see `FederatedLassoCV` for the parameters."""

    n_strengths: int = PathSettings.strengths
    ratio: float = PathSettings.ratio
    cv: int | Iterable[tuple[Array, Array]] = PathSettings.folds
    by: str = PathSettings.by
    choice: str = "min"

    def _solve(self, task: InMemory) -> Solutions:
        """Solve the paths, set `path_` and `strength_` and return the selected model."""
        if self.choice not in ("min", "1se"):
            raise UserError(f"choice: got {self.choice!r}, must be min or 1se")
        deal, folds = (None, int(self.cv)) if isinstance(self.cv, Integral) else self._folds_from_pairs(self.cv, task)
        if self.by == "rows" and folds > len(task.order):
            raise UserError(f"cv: got {folds} folds, must be at most n_samples={len(task.order)}")
        if self.by != "rows" and deal is None and task.task_data.training.clients == 1:
            raise UserError(f"groups: must be given for by={self.by!r}, with at least two clients")
        try:
            strengths, ratio = self._python_params.n_strengths, self._python_params.ratio
            settings = PathSettings(strengths=strengths, ratio=ratio, folds=folds, by=self.by, algo=self.algo)
            paths = [select(self._run(task, psi), settings, lambda: None, deal) for psi in self._candidates()]
        except UserError as problem:
            raise UserError(
                reduce(lambda text, names: text.replace(*names), PARAMETER_NAMES, str(problem))
            ) from problem
        place = int(np.argmin([path.curve.mean[path.curve.best] for path in paths]))
        selection = paths[place]
        if deal is None and selection.between is not None:
            text = warning_of_between_clients(selection.between.as_json(), 'by="clients"')
            warnings.warn(text, UserWarning, stacklevel=3)
        weights = task.units.to_data_units(selection.path.models)[:, : selection.problem.layout.slices["bias"].start]
        coefs = weights if selection.problem.model.widths[-1] == 1 else weights.reshape(
            len(weights), selection.problem.model.widths[-1], -1
        )  # fmt: skip
        unit, loss_unit = task.units.label_scale * self._use_candidate(place), task.units.label_scale**2
        self.path_ = RegularizationPath(
            unit * selection.values, coefs, loss_unit * selection.curve.mean, loss_unit * selection.curve.error
        )
        self.strength_ = float(self.path_.strengths[selection.chosen[self.choice]])
        return self._in_data_units(task, selection.refitted.take([selection.refit_index(self.choice)]))

    def _candidates(self) -> list[Regularizer]:
        """Return the regularizers whose paths are compared."""
        return [self._regularizer()]

    def _use_candidate(self, place: int) -> float:
        """Store the selected regularizer and return the factor from its strength to `strength_`."""
        return 1.0

    @staticmethod
    def _folds_from_pairs(pairs: Any, task: InMemory) -> tuple[FoldAssignment, int]:
        """Return the folds and their number from (train, test) pairs as scikit-learn's splitters yield them."""
        fold, counts = np.zeros(task.n_rows, dtype=np.int64), np.zeros(task.n_rows, dtype=np.int64)
        try:
            held_out = [np.asarray(test) for _, test in pairs]
            for number, test in enumerate(held_out):
                fold[test] = number
                counts[test] += 1
        except (TypeError, ValueError, IndexError):
            counts[:] = 0
        if (counts != 1).any():
            raise UserError("cv: must be a whole number, or pairs (train, test) with every row in exactly one test set")
        return PredefinedFolds.to(len(held_out), fold[task.order]), len(held_out)


class RegressionCV(CrossValidated, Regression):
    """Base class of the regressors with a selected strength."""


class ClassificationCV(CrossValidated, Classification):
    """Base class of the classifiers with a selected strength."""


class FederatedLassoCV(RegressionCV):
    """`FederatedLasso` with a cross-validated strength.

    The selected model is refitted on all rows.

    Parameters
    ----------
    n_strengths : int, default=100
        Number of strengths on the path, equally spaced on a logarithmic scale.
    ratio : float, default=0.01
        Smallest strength divided by the largest.
    cv : int or iterable of (train, test) pairs, default=10
        Number of folds, or folds as scikit-learn's splitters yield them. Every row must be in one test set.
    by : {"rows", "clients", "each_client"}, default="rows"
        Unit of cross-validation: rows of every client, whole clients, or one client per fold.
    choice : {"min", "1se"}, default="min"
        Rule that selects the strength: the smallest cross-validated loss, or the largest strength within one
        standard error of it.
    algo : str, default="auto"
        Name of a federated algorithm; "auto" is the cheapest exact method. No learning rate is needed.
    weighting : {"examples", "uniform"}, default="examples"
        Weights in the objective: equal for all rows, or equal for all clients.
    client_lr : float or str, default="auto"
        Learning rate of the clients. "auto" is 1/L, where L is the smoothness constant of the data.
    tol : float, default=1e-8
        Tolerance of the convergence test.
    max_rounds : int, default=20000
        Maximum number of rounds; a `ConvergenceWarning` is issued if they do not suffice.
    random_state : int, RandomState instance or None, default=None
        Seed of the run.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Coefficients, in the units of X and y.
    intercept_ : float
        Intercept.
    strength_ : float
        Selected strength.
    path_ : RegularizationPath
        Strengths (decreasing), coefficients, cross-validated losses and their standard errors.
    n_rounds_ : int
        Number of rounds until convergence.
    kkt_ : float
        Relative KKT residual, 0 at the exact solution.

    Examples
    --------
    >>> import numpy as np
    >>> from fco_cli.estimators import FederatedLassoCV
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(90, 4))
    >>> y = 2 * X[:, 0] + 0.1 * rng.normal(size=90)
    >>> hospital = np.repeat(["north", "south", "east"], 30)
    >>> model = FederatedLassoCV(n_strengths=10, cv=3, choice="1se").fit(X, y, groups=hospital)
    >>> model.coef_.round(3)
    array([1.989, 0.   , 0.   , 0.   ])
    >>> model.path_.strengths.shape
    (10,)
    """

    def _regularizer(self) -> Regularizer:
        return L1(strength=1.0)


@dataclass(eq=False, repr=False, kw_only=True)
class FederatedLowRankRegressionCV(RegressionCV):
    """`FederatedLowRankRegression` with a cross-validated strength.

    The selected model is refitted on all rows.

    Parameters
    ----------
    shape : tuple of (int, int), default=None
        Rows and columns of the matrix that a row of X holds, flattened in C order. Their product must be
        `n_features`. By default the matrix has one row.
    n_strengths : int, default=100
        Number of strengths on the path, equally spaced on a logarithmic scale.
    ratio : float, default=0.01
        Smallest strength divided by the largest.
    cv : int or iterable of (train, test) pairs, default=10
        Number of folds, or folds as scikit-learn's splitters yield them. Every row must be in one test set.
    by : {"rows", "clients", "each_client"}, default="rows"
        Unit of cross-validation: rows of every client, whole clients, or one client per fold.
    choice : {"min", "1se"}, default="min"
        Rule that selects the strength: the smallest cross-validated loss, or the largest strength within one
        standard error of it.
    algo : str, default="auto"
        Name of a federated algorithm; "auto" is the cheapest exact method. No learning rate is needed.
    weighting : {"examples", "uniform"}, default="examples"
        Weights in the objective: equal for all rows, or equal for all clients.
    client_lr : float or str, default="auto"
        Learning rate of the clients. "auto" is 1/L, where L is the smoothness constant of the data.
    tol : float, default=1e-8
        Tolerance of the convergence test.
    max_rounds : int, default=20000
        Maximum number of rounds; a `ConvergenceWarning` is issued if they do not suffice.
    random_state : int, RandomState instance or None, default=None
        Seed of the run.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Coefficients, in the units of X and y.
    intercept_ : float
        Intercept.
    strength_ : float
        Selected strength.
    path_ : RegularizationPath
        Strengths (decreasing), coefficients, cross-validated losses and their standard errors.
    n_rounds_ : int
        Number of rounds until convergence.
    kkt_ : float
        Relative KKT residual, 0 at the exact solution.

    Examples
    --------
    >>> import numpy as np
    >>> from fco_cli.estimators import FederatedLowRankRegressionCV
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(90, 4))
    >>> y = 2 * X[:, 0] + 0.1 * rng.normal(size=90)
    >>> hospital = np.repeat(["north", "south", "east"], 30)
    >>> model = FederatedLowRankRegressionCV(shape=(2, 2), n_strengths=10, cv=3).fit(X, y, groups=hospital)
    >>> model.coef_.shape
    (4,)
    """

    shape: tuple[int, int] | None = None
    _weights_shape = FederatedLowRankRegression._weights_shape

    def _regularizer(self) -> Regularizer:
        return Nuclear(strength=1.0)


class FederatedLogisticRegressionCV(ClassificationCV):
    """`FederatedLogisticRegression` with a cross-validated strength.

    The selected model is refitted on all rows.

    Parameters
    ----------
    n_strengths : int, default=100
        Number of strengths on the path, equally spaced on a logarithmic scale.
    ratio : float, default=0.01
        Smallest strength divided by the largest.
    cv : int or iterable of (train, test) pairs, default=10
        Number of folds, or folds as scikit-learn's splitters yield them. Every row must be in one test set.
    by : {"rows", "clients", "each_client"}, default="rows"
        Unit of cross-validation: rows of every client, whole clients, or one client per fold.
    choice : {"min", "1se"}, default="min"
        Rule that selects the strength: the smallest cross-validated loss, or the largest strength within one
        standard error of it.
    algo : str, default="auto"
        Name of a federated algorithm; "auto" is the cheapest exact method. No learning rate is needed.
    weighting : {"examples", "uniform"}, default="examples"
        Weights in the objective: equal for all rows, or equal for all clients.
    client_lr : float or str, default="auto"
        Learning rate of the clients. "auto" is 1/L, where L is the smoothness constant of the data.
    tol : float, default=1e-8
        Tolerance of the convergence test.
    max_rounds : int, default=20000
        Maximum number of rounds; a `ConvergenceWarning` is issued if they do not suffice.
    random_state : int, RandomState instance or None, default=None
        Seed of the run.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Coefficients, in the units of X; one row for two classes.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Intercepts.
    strength_ : float
        Selected strength.
    path_ : RegularizationPath
        Strengths (decreasing), coefficients, cross-validated losses and their standard errors.
    n_rounds_ : int
        Number of rounds until convergence.
    kkt_ : float
        Relative KKT residual, 0 at the exact solution.

    Examples
    --------
    >>> import numpy as np
    >>> from fco_cli.estimators import FederatedLogisticRegressionCV
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(90, 4))
    >>> y = np.where(X[:, 0] + 0.5 * rng.normal(size=90) > 0, "ill", "well")
    >>> hospital = np.repeat(["north", "south", "east"], 30)
    >>> model = FederatedLogisticRegressionCV(n_strengths=10, cv=3).fit(X, y, groups=hospital)
    >>> model.classes_
    array(['ill', 'well'], dtype='<U4')
    """

    def _regularizer(self) -> Regularizer:
        return L1(strength=1.0)
