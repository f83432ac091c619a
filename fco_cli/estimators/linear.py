"""Linear models with a given regularization strength (see `fco_cli.estimators.cross_validated` for a selected one)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fco_cli.errors import UserError
from fco_cli.estimators.base import Classification, Regression
from fco_cli.problem.regularizers import Regularizer, all_regularizers
from fco_cli.problem.regularizers.nuclear import Nuclear
from fco_cli.problem.regularizers.penalties import L1, ElasticNet

DEFAULT_OPTIONS: dict[str, dict[str, Any]] = {"l2_squared": {"strength": 0.001}}


def named_regularizer(name: str, options: dict[str, Any] | None) -> Regularizer:
    """Return the regularizer with the given name and options; raise UserError for unknown ones."""
    known = all_regularizers()
    if name not in known:
        raise UserError(f"regularizer: got {name!r}, must be one of {', '.join(known)}")
    try:
        return known[name](**(DEFAULT_OPTIONS.get(name, {}) if options is None else options))
    except TypeError as problem:
        raise UserError(f"regularizer_options: {problem}") from problem


@dataclass(eq=False, repr=False)
class FederatedRegressor(Regression):
    """Linear regression with any loss and any regularizer.

    The objective is the mean loss of the clients plus psi(w). The intercept is not regularized.

    Parameters
    ----------
    loss : {"squared", "huber", "poisson"}, default="squared"
        Loss of a row. The squared loss has no factor 1/2.
    regularizer : str, default="none"
        Name of the regularizer, such as "l1_ball" (docs/regularizers.md lists all names).
    regularizer_options : dict, default=None
        Parameters of the regularizer, such as {"radius": 2}.
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
    n_rounds_ : int
        Number of rounds until convergence.
    kkt_ : float
        Relative KKT residual, 0 at the exact solution.

    Examples
    --------
    >>> import numpy as np
    >>> from fco_cli.estimators import FederatedRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(90, 4))
    >>> y = 2 * X[:, 0] + 0.1 * rng.normal(size=90)
    >>> hospital = np.repeat(["north", "south", "east"], 30)
    >>> model = FederatedRegressor("squared", "l1_ball", {"radius": 1.5}).fit(X, y, groups=hospital)
    >>> model.coef_.round(3)
    array([1.5, 0. , 0. , 0. ])
    """

    loss: str = "squared"
    regularizer: str = "none"
    regularizer_options: dict[str, Any] | None = None

    def _regularizer(self) -> Regularizer:
        return named_regularizer(self.regularizer, self._python_params.regularizer_options)


@dataclass(eq=False, repr=False)
class FederatedLasso(Regression):
    """Linear regression with an l1 penalty.

    The objective is ``mean (x'w + b - y)^2 + strength * |w|_1``. scikit-learn's `Lasso(alpha)` has the same solution as
    `FederatedLasso(2 * alpha)`.

    Parameters
    ----------
    strength : float, default=0.1
        Factor of the penalty, at least 0.
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
    n_rounds_ : int
        Number of rounds until convergence.
    kkt_ : float
        Relative KKT residual, 0 at the exact solution.

    Examples
    --------
    >>> import numpy as np
    >>> from fco_cli.estimators import FederatedLasso
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(90, 4))
    >>> y = 2 * X[:, 0] + 0.1 * rng.normal(size=90)
    >>> hospital = np.repeat(["north", "south", "east"], 30)
    >>> model = FederatedLasso(strength=0.1).fit(X, y, groups=hospital)
    >>> model.coef_.round(3)
    array([1.965, 0.   , 0.   , 0.   ])
    """

    strength: float = 0.1

    def _regularizer(self) -> Regularizer:
        return L1(strength=self._python_params.strength)


@dataclass(eq=False, repr=False)
class FederatedElasticNet(Regression):
    """Linear regression with an l1 and a squared l2 penalty.

    The objective is ``mean (x'w + b - y)^2 + strength * |w|_1 + l2_strength / 2 * |w|_2^2``.

    Parameters
    ----------
    strength : float, default=0.1
        Factor of the l1 penalty, at least 0.
    l2_strength : float, default=0.1
        Factor of the squared l2 penalty, at least 0.
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
    n_rounds_ : int
        Number of rounds until convergence.
    kkt_ : float
        Relative KKT residual, 0 at the exact solution.

    Examples
    --------
    >>> import numpy as np
    >>> from fco_cli.estimators import FederatedElasticNet
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(90, 4))
    >>> y = 2 * X[:, 0] + 0.1 * rng.normal(size=90)
    >>> hospital = np.repeat(["north", "south", "east"], 30)
    >>> model = FederatedElasticNet(strength=0.1, l2_strength=0.1).fit(X, y, groups=hospital)
    >>> model.coef_.round(3)
    array([1.859, 0.   , 0.   , 0.   ])
    """

    strength: float = 0.1
    l2_strength: float = 0.1

    def _regularizer(self) -> Regularizer:
        return ElasticNet(strength=self._python_params.strength, l2_strength=self._python_params.l2_strength)


@dataclass(eq=False, repr=False)
class FederatedLowRankRegression(Regression):
    """Linear regression on matrices with a nuclear-norm penalty.

    The objective is mean (<X, W> + b - y)^2 + strength * (sum of the singular values of W).

    Parameters
    ----------
    strength : float, default=0.1
        Factor of the penalty, at least 0.
    shape : tuple of (int, int), default=None
        Rows and columns of the matrix that a row of X holds, flattened in C order. Their product must be
        `n_features`. By default the matrix has one row.
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
    n_rounds_ : int
        Number of rounds until convergence.
    kkt_ : float
        Relative KKT residual, 0 at the exact solution.

    Examples
    --------
    >>> import numpy as np
    >>> from fco_cli.estimators import FederatedLowRankRegression
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(90, 4))
    >>> y = 2 * X[:, 0] + 0.1 * rng.normal(size=90)
    >>> hospital = np.repeat(["north", "south", "east"], 30)
    >>> model = FederatedLowRankRegression(strength=0.1, shape=(2, 2)).fit(X, y, groups=hospital)
    >>> int(np.linalg.matrix_rank(model.coef_.reshape(2, 2), tol=1e-6))
    1
    """

    strength: float = 0.1
    shape: tuple[int, int] | None = None

    def _regularizer(self) -> Regularizer:
        return Nuclear(strength=self._python_params.strength)

    def _weights_shape(self, features: int) -> tuple[int, int]:
        shape = (1, features) if self.shape is None else tuple(self.shape)
        if len(shape) != 2 or shape[0] * shape[1] != features:
            raise UserError(
                f"shape: got {self.shape}, must be two numbers with product {features}, the number of features"
            )
        return int(shape[0]), int(shape[1])


@dataclass(eq=False, repr=False)
class FederatedClassifier(Classification):
    """Logistic or softmax regression with any regularizer.

    The objective is the mean log-loss of the clients plus psi(w). The intercepts are not regularized.

    Parameters
    ----------
    regularizer : str, default="l2_squared"
        Name of the regularizer, such as "l1_ball" (docs/regularizers.md lists all names). With "none", separable
        classes have no solution.
    regularizer_options : dict, default=None
        Parameters of the regularizer, such as {"radius": 2}; for "l2_squared" by default {"strength": 0.001}.
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
    n_rounds_ : int
        Number of rounds until convergence.
    kkt_ : float
        Relative KKT residual, 0 at the exact solution.

    Examples
    --------
    >>> import numpy as np
    >>> from fco_cli.estimators import FederatedClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(90, 4))
    >>> y = np.where(X[:, 0] + 0.5 * rng.normal(size=90) > 0, "ill", "well")
    >>> hospital = np.repeat(["north", "south", "east"], 30)
    >>> model = FederatedClassifier("l2_ball", {"radius": 1.0}).fit(X, y, groups=hospital)
    >>> model.coef_.round(3)
    array([[-0.986,  0.056, -0.109,  0.11 ]])
    """

    regularizer: str = "l2_squared"
    regularizer_options: dict[str, Any] | None = None

    def _regularizer(self) -> Regularizer:
        return named_regularizer(self.regularizer, self._python_params.regularizer_options)


@dataclass(eq=False, repr=False)
class FederatedLogisticRegression(Classification):
    """Logistic or softmax regression with an l1 penalty.

    The objective is ``mean log-loss + strength * |w|_1``. scikit-learn's `LogisticRegression` has the same solution
    with `C = 1 / (strength * n_samples)` and an l1 penalty.

    Parameters
    ----------
    strength : float, default=0.01
        Factor of the penalty, at least 0.
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
    n_rounds_ : int
        Number of rounds until convergence.
    kkt_ : float
        Relative KKT residual, 0 at the exact solution.

    Examples
    --------
    >>> import numpy as np
    >>> from fco_cli.estimators import FederatedLogisticRegression
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(90, 4))
    >>> y = np.where(X[:, 0] + 0.5 * rng.normal(size=90) > 0, "ill", "well")
    >>> hospital = np.repeat(["north", "south", "east"], 30)
    >>> model = FederatedLogisticRegression(strength=0.05).fit(X, y, groups=hospital)
    >>> model.predict(X[:3])
    array(['ill', 'well', 'well'], dtype='<U4')
    """

    strength: float = 0.01

    def _regularizer(self) -> Regularizer:
        return L1(strength=self._python_params.strength)
