"""Elastic net whose strength and mixing ratio are selected by cross-validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fco_cli.errors import UserError
from fco_cli.estimators.cross_validated import RegressionCV
from fco_cli.estimators.rows import MixedElasticNet
from fco_cli.problem.regularizers import Regularizer


@dataclass(eq=False, repr=False, kw_only=True)
class FederatedElasticNetCV(RegressionCV):
    """`FederatedElasticNet` with a cross-validated strength and mixing ratio.

    The penalty is ``strength * (l1_ratio |w|_1 + (1 - l1_ratio) / 2 |w|_2^2)``, as in scikit-learn's `ElasticNetCV`,
    whose `alpha` is half the strength. The selected model is refitted on all rows; it is that of
    `FederatedElasticNet(strength_ * l1_ratio_, strength_ * (1 - l1_ratio_))`.

    Parameters
    ----------
    l1_ratio : float or list of float, default=0.5
        Mixing ratio above 0 and at most 1 (the lasso), or several from which cross-validation selects one.
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
    l1_ratio_ : float
        Selected mixing ratio.
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
    >>> from fco_cli.estimators import FederatedElasticNetCV
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(90, 4))
    >>> y = 2 * X[:, 0] + 0.1 * rng.normal(size=90)
    >>> hospital = np.repeat(["north", "south", "east"], 30)
    >>> model = FederatedElasticNetCV(l1_ratio=[0.5, 1.0], n_strengths=10, cv=3).fit(X, y, groups=hospital)
    >>> model.l1_ratio_
    1.0
    """

    l1_ratio: float | Sequence[float] = 0.5

    def _ratios(self) -> list[float]:
        """Return the mixing ratios; raise UserError for invalid ones."""
        try:
            ratios = np.atleast_1d(np.asarray(self.l1_ratio, dtype=float))
        except (TypeError, ValueError):
            ratios = np.zeros(0)
        if ratios.ndim != 1 or not len(ratios) or not ((ratios > 0) & (ratios <= 1)).all():
            raise UserError(
                f"l1_ratio: got {self.l1_ratio!r}, must be a number above 0 and at most 1, or a list of them"
            )
        return ratios.tolist()

    def _regularizer(self) -> Regularizer:
        return self._candidates()[0]

    def _candidates(self) -> list[Regularizer]:
        return [MixedElasticNet(strength=1.0, l2_ratio=(1 - ratio) / ratio) for ratio in self._ratios()]

    def _use_candidate(self, place: int) -> float:
        self.l1_ratio_ = self._ratios()[place]
        return 1 / self.l1_ratio_
