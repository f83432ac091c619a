"""Cox regression: survival times that may be censored, stratified by client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_array, check_consistent_length, column_or_1d, validate_data

from fco_cli.errors import UserError, as_python_errors
from fco_cli.estimators.base import FederatedLinear
from fco_cli.estimators.cross_validated import CrossValidated
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import all_losses
from fco_cli.problem.regularizers import Regularizer
from fco_cli.problem.regularizers.penalties import L1, ElasticNet

FORMS = "must be an array with a time and an event (0 or 1) per row, or a structured array (event, time)"


def signed_times(y: Any) -> Array:
    """Return times [N], negative where censored, from columns (time, event) or a structured array (event, time)."""
    names = getattr(getattr(y, "dtype", None), "names", None)
    if names is not None:
        if len(names) != 2 or y.ndim != 1:
            raise UserError(f"y: {FORMS}")
        first, second = (np.asarray(y[name], dtype=float) for name in names)
        event, time = (first, second) if y[names[0]].dtype.kind == "b" else (second, first)
    else:
        columns = check_array(y, dtype=float, ensure_2d=False, input_name="y")
        if columns.ndim != 2 or columns.shape[1] != 2:
            raise UserError(f"y: got the shape {columns.shape}, {FORMS}")
        time, event = columns.T
    if not (np.isin(event, (0, 1)).all() and np.isfinite(time).all() and (time > 0).all()):
        raise UserError("y: times must be above 0 and finite, and events 0 (censored) or 1")
    if not event.any():
        raise UserError("y: no event; must have at least one")
    return np.where(event == 1, time, -time)


class CoxRegression(FederatedLinear):
    """Base class of the Cox estimators; subclasses define the regularizer."""

    stratified = True

    def _check_without_groups(self) -> None:
        """Raise UserError if the model is stratified by clients that are not given."""
        if self.stratified:
            raise UserError(
                "groups: must be given, since every client has its own baseline hazard; in a search or "
                "cross-validation by metadata routing (set_fit_request(groups=True)); stratified=False has one "
                "baseline hazard"
            )

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Training rows.
        y : array-like of shape (n_samples, 2), or structured array of shape (n_samples,)
            Time and event (1, or 0 for censored rows) of every row; or fields (event, time), as scikit-survival's
            `Surv` returns them.
        groups : array-like of shape (n_samples,), default=None
            Client of every row; each has its own baseline hazard.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of every row within its client; rows of weight 0 are dropped.

        Returns
        -------
        self : object
            Fitted estimator.
        """
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64)
        with as_python_errors():
            times = signed_times(y)
            check_consistent_length(X, times)
            if not self.stratified:
                groups = np.zeros(len(times), dtype=int)
            solutions = self._solve(self._task(X, times, groups, sample_weight, all_losses()["cox"](), 1))
        self.coef_ = solutions.models[0, :-1].copy()
        self.n_rounds_, self.kkt_ = int(solutions.rounds[0]), float(solutions.residuals[0])
        return self

    def predict(self, X: Any) -> Array:
        """Compute the risk scores of rows, ``X @ coef_``: the larger, the earlier the event.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Rows to predict.

        Returns
        -------
        risk : ndarray of shape (n_samples,)
            Log hazard ratios relative to a row of zeros.
        """
        return self._decision_scores(X)[:, 0]

    def score(self, X: Any, y: Any, groups: Any = None) -> float:
        """Compute the concordance of risk scores and times (Harrell's C).

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Rows.
        y : array-like of shape (n_samples, 2), or structured array of shape (n_samples,)
            Times and events, as in `fit`.
        groups : array-like of shape (n_samples,), default=None
            Client of every row. If given, only rows of the same client are compared.

        Returns
        -------
        concordance : float
            Share of the comparable pairs in which the row with the earlier event has the larger score; ties count 1/2.
        """
        scores = self.predict(X)
        with as_python_errors():
            times = signed_times(y)
        check_consistent_length(scores, times)
        owners = (
            np.zeros(len(times), int) if groups is None else np.unique(column_or_1d(groups), return_inverse=True)[1]
        )
        order = np.argsort(owners, kind="stable")
        offsets = np.append(0, np.cumsum(np.bincount(owners))).astype(np.int64)
        return all_losses()["cox"]().metrics(scores[order], times[order], offsets)["concordance"]


@dataclass(eq=False, repr=False)
class FederatedCox(CoxRegression):
    """Cox regression with an elastic-net penalty, stratified by client.

    The objective is ``-(log partial likelihood) / n_samples + strength * |w|_1 + l2_strength / 2 * |w|_2^2``. Each
    client has its own baseline hazard, so that only rows of the same client are compared (R: `strata(client)`). Ties
    are treated by Breslow's method. Only sums over the rows of a client leave it.

    Parameters
    ----------
    strength : float, default=0.01
        Factor of the l1 penalty, at least 0.
    l2_strength : float, default=0
        Factor of the squared l2 penalty, at least 0.
    stratified : bool, default=True
        False: one baseline hazard for all rows, which then must be in one place.
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
        Log hazard ratios per unit of X.
    n_rounds_ : int
        Number of rounds until convergence.
    kkt_ : float
        Relative KKT residual, 0 at the exact solution.

    Examples
    --------
    >>> import numpy as np
    >>> from fco_cli.estimators import FederatedCox
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(90, 4))
    >>> times, censored = rng.exponential(np.exp(-X[:, 0])), rng.exponential(2, size=90)
    >>> y = np.column_stack([np.minimum(times, censored), times <= censored])
    >>> hospital = np.repeat(["north", "south", "east"], 30)
    >>> model = FederatedCox(strength=0.05).fit(X, y, groups=hospital)
    >>> int(abs(model.coef_).argmax())
    0
    >>> bool(model.score(X, y, groups=hospital) > 0.7)
    True
    """

    strength: float = 0.01
    l2_strength: float = 0.0
    stratified: bool = True

    def _regularizer(self) -> Regularizer:
        params = self._python_params
        return ElasticNet(strength=params.strength, l2_strength=params.l2_strength)


@dataclass(eq=False, repr=False)
class FederatedCoxCV(CrossValidated, CoxRegression):
    """`FederatedCox` with an l1 penalty of cross-validated strength.

    The selected model is refitted on all rows.

    Parameters
    ----------
    stratified : bool, default=True
        False: one baseline hazard for all rows, which then must be in one place.
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
        Log hazard ratios per unit of X.
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
    >>> from fco_cli.estimators import FederatedCoxCV
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(90, 4))
    >>> times, censored = rng.exponential(np.exp(-X[:, 0])), rng.exponential(2, size=90)
    >>> y = np.column_stack([np.minimum(times, censored), times <= censored])
    >>> hospital = np.repeat(["north", "south", "east"], 30)
    >>> model = FederatedCoxCV(n_strengths=8, cv=3).fit(X, y, groups=hospital)
    >>> bool(model.coef_[0] > 0.5)
    True
    """

    stratified: bool = True

    def _regularizer(self) -> Regularizer:
        return L1(strength=1.0)
