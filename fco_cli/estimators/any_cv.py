"""Linear models with any loss and any regularizer, whose strength or radius is selected by cross-validation."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from fco_cli.errors import UserError
from fco_cli.estimators.cross_validated import ClassificationCV, RegressionCV
from fco_cli.estimators.linear import named_regularizer
from fco_cli.path.solve import PATH_PARAMETERS
from fco_cli.problem.regularizers import Regularizer, all_regularizers


def regularizer_of_path(name: str, options: dict[str, Any] | None) -> Regularizer:
    """Return the regularizer with any value of the field that a path varies; raise UserError if it has none."""
    known = all_regularizers()
    names = [field.name for field in fields(known[name])] if name in known else []
    values = dict(options or {})
    if parameter := next((one for one in PATH_PARAMETERS if one in names), None):
        if parameter in values:
            raise UserError(f"regularizer_options: got {parameter}, which is selected by cross-validation; omit it")
        values[parameter] = 1.0
    if name == "group_lasso" and "groups" in values:
        values.setdefault("group_size", 1)  # unused
    return named_regularizer(name, values)


@dataclass(eq=False, repr=False)
class FederatedRegressorCV(RegressionCV):
    """`FederatedRegressor` with a cross-validated strength: Poisson, Huber and squared loss, any convex penalty.

    The selected model is refitted on all rows.

    Parameters
    ----------
    loss : {"squared", "huber", "poisson"}, default="squared"
        Loss of a row. The squared loss has no factor 1/2.
    regularizer : str, default="l1"
        Name of a convex regularizer with a strength or a radius (docs/regularizers.md lists all names).
    regularizer_options : dict, default=None
        Other parameters of the regularizer, such as {"groups": {"x0": "a", "x1": "a", "x2": "b"}} of "group_lasso".
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
        Selected strength, or radius of a ball.
    path_ : RegularizationPath
        Strengths (simplest model first), coefficients, cross-validated losses and their standard errors.
    n_rounds_ : int
        Number of rounds until convergence.
    kkt_ : float
        Relative KKT residual, 0 at the exact solution.

    Examples
    --------
    >>> import numpy as np
    >>> from fco_cli.estimators import FederatedRegressorCV
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(90, 4))
    >>> visits = rng.poisson(np.exp(0.5 + 0.8 * X[:, 0]))
    >>> hospital = np.repeat(["north", "south", "east"], 30)
    >>> model = FederatedRegressorCV("poisson", n_strengths=10, cv=3, choice="1se").fit(X, visits, groups=hospital)
    >>> int(abs(model.coef_).argmax())
    0
    """

    loss: str = "squared"
    regularizer: str = "l1"
    regularizer_options: dict[str, Any] | None = None

    def _regularizer(self) -> Regularizer:
        return regularizer_of_path(self.regularizer, self._python_params.regularizer_options)


@dataclass(eq=False, repr=False)
class FederatedClassifierCV(ClassificationCV):
    """`FederatedClassifier` with a cross-validated strength and any convex penalty.

    The selected model is refitted on all rows.

    Parameters
    ----------
    regularizer : str, default="l1"
        Name of a convex regularizer with a strength or a radius (docs/regularizers.md lists all names).
    regularizer_options : dict, default=None
        Other parameters of the regularizer, such as {"groups": {"x0": "a", "x1": "a", "x2": "b"}} of "group_lasso".
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
        Selected strength, or radius of a ball.
    path_ : RegularizationPath
        Strengths (simplest model first), coefficients, cross-validated losses and their standard errors.
    n_rounds_ : int
        Number of rounds until convergence.
    kkt_ : float
        Relative KKT residual, 0 at the exact solution.

    Examples
    --------
    >>> import numpy as np
    >>> from fco_cli.estimators import FederatedClassifierCV
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(90, 4))
    >>> y = np.where(X[:, 0] + 0.5 * rng.normal(size=90) > 0, "ill", "well")
    >>> hospital = np.repeat(["north", "south", "east"], 30)
    >>> model = FederatedClassifierCV("group_lasso", {"group_size": 2}, n_strengths=10, cv=3)
    >>> model.fit(X, y, groups=hospital).coef_.shape
    (1, 4)
    """

    regularizer: str = "l1"
    regularizer_options: dict[str, Any] | None = None

    def _regularizer(self) -> Regularizer:
        return regularizer_of_path(self.regularizer, self._python_params.regularizer_options)
