"""Base classes of the estimators: conversion of rows to clients, fitting by a run, prediction.

The solution minimizes the pooled objective F(w) + psi(w), where F is the mean over all rows, or that of the clients'
losses with `weighting="uniform"`. Without groups, all rows belong to one client.
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from fco_cli.algorithms import all_algorithms
from fco_cli.algorithms.transforms import NoTransform
from fco_cli.config import Run
from fco_cli.config.search import Search
from fco_cli.errors import UserError, as_python_errors
from fco_cli.estimators.rows import InMemory, make_task
from fco_cli.federation.settings import NoFederation
from fco_cli.path.method import AUTO as AUTO_METHOD
from fco_cli.path.method import DEFAULT, SECOND_ORDER, solve
from fco_cli.path.select import limited_threads
from fco_cli.path.solve import Solutions
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Logistic, Loss, Softmax, all_losses
from fco_cli.problem.mirror_maps import Euclidean
from fco_cli.problem.regularizers import Regularizer
from fco_cli.simulation.hparams import ALL, AUTO, Hparams
from fco_cli.simulation.systems import Network

SMALL = 2**22  # numbers in X; smaller fits use one thread, since their rounds are too short to parallelize
LOCAL_EPOCHS = 5  # for methods with local steps; a batch holds all rows of a client


def _as_python(value: Any) -> Any:
    """Return NumPy scalars and zero-dimensional arrays as Python numbers, also inside a dictionary."""
    if isinstance(value, dict):
        return {key: _as_python(item) for key, item in value.items()}
    if isinstance(value, np.generic | np.ndarray) and value.ndim == 0:
        return float(value) if value.dtype.kind == "f" else value.item()  # item() of a longdouble is a longdouble
    return value


@dataclass(eq=False, repr=False)
class FederatedLinear(BaseEstimator):
    """Base class of the linear models; subclasses define the loss and the regularizer.

    The fields are the parameters of the scikit-learn estimator.
    """

    _: KW_ONLY
    algo: str = AUTO
    weighting: str = "examples"
    client_lr: float | str = AUTO
    tol: float = 1e-8
    max_rounds: int = 20_000
    random_state: int | None = None

    @property
    def _python_params(self) -> Any:
        """Parameters as attributes, with NumPy scalars converted to Python numbers."""
        return SimpleNamespace(**_as_python(self.get_params(deep=False)))

    def _regularizer(self) -> Regularizer:
        """Return the regularizer that the parameters define."""
        raise NotImplementedError

    def _weights_shape(self, features: int) -> tuple[int, int] | None:
        """Return the matrix shape of the weights, or None for a vector."""
        return None

    def _run(self, task: InMemory, psi: Regularizer | None = None) -> Run:
        """Return the run that fits the task, with another regularizer than that of the parameters if `psi` is given."""
        known, params = all_algorithms(), self._python_params
        name = DEFAULT if self.algo == AUTO else self.algo
        if name not in known or not known[name].federated:
            allowed = ", ".join(key for key, kind in known.items() if kind.federated)
            raise UserError(f"algo: got {self.algo!r}, must be one of {AUTO}, {allowed}")
        rows = int(task.task_data.training.sizes.max())
        hparams = Hparams(
            client_lr=params.client_lr, server_lr=1.0, rounds=AUTO, clients_per_round=ALL, batch_size=rows,
            local_epochs=LOCAL_EPOCHS, weighting=self.weighting, tolerance=params.tol, most_rounds=params.max_rounds,
        )  # fmt: skip
        seed = int(check_random_state(self.random_state).randint(2**31)) if self.random_state is not None else 0
        psi, mirror = task.units.regularizer(psi or self._regularizer()), Euclidean()
        algo = known[name]()  # type: ignore[call-arg]
        algo.check_pair(psi, mirror)
        return Run(
            task=task, algo=algo, regularizer=psi, mirror=mirror, transform=NoTransform(), hparams=hparams,
            federation=NoFederation(), network=Network(), seed=seed, output_dir=Path(), force=False,
            record_clients=False, record_path=False, threads=None, experiment=None, search=Search(),
            resolved={},
        )  # fmt: skip

    def _task(self, x: Any, y: Array, groups: Any, sample_weight: Any, loss: Loss, outputs: int) -> InMemory:
        """Return the task of validated rows; raise UserError for invalid groups or weights."""
        if groups is None:
            self._check_without_groups()
            groups = np.zeros(len(y), dtype=int)
        groups = column_or_1d(groups)
        check_consistent_length(x, y, groups)
        if any(name is None or name != name for name in groups.tolist()):
            raise UserError("groups: must not contain None or NaN; give every row a client")
        if groups.dtype == object:  # numbers and strings cannot be sorted together
            groups = groups.astype(str)
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, x, ensure_non_negative=True)
        if weights is not None and not weights.any():
            raise UserError("sample_weight: must be above 0 for at least one row")
        if weights is not None and loss.classification and len(np.unique(y[weights > 0])) < 2:
            raise UserError("sample_weight: must be above 0 for rows of at least two classes")
        names = getattr(self, "feature_names_in_", None)
        features = None if names is None else tuple(str(name) for name in names)
        shape, psi = self._weights_shape(x.shape[1]), self._regularizer()
        return make_task(x, y, groups, weights, loss, outputs, shape, features, psi, self.weighting)

    def _check_without_groups(self) -> None:
        """Warn if the result depends on the clients, which are not given."""
        if self.weighting == "uniform":
            reason = "weighting='uniform' has no effect"
        elif self.algo in all_algorithms() and self.algo not in (AUTO_METHOD, DEFAULT, *SECOND_ORDER):
            reason = f"algo={self.algo!r} is not federated"
        else:
            return
        warnings.warn(
            f"groups: not given, so that all rows belong to one client and {reason}; pass groups=..., in a search or "
            "cross-validation by metadata routing (set_fit_request(groups=True))",
            UserWarning,
            stacklevel=4,
        )

    def _solve(self, task: InMemory) -> Solutions:
        """Solve the task and return the solution in the units of the data."""
        run, data = self._run(task), task.task_data
        size = data.training.x.shape[1] * len(data.training.y)
        with limited_threads(1) if size < SMALL else nullcontext():
            solutions = solve(run, data, [run.regularizer], self.tol, algo=self.algo)
        return self._in_data_units(task, solutions)

    def _in_data_units(self, task: InMemory, solutions: Solutions) -> Solutions:
        """Return the solution in the units of the data; warn if it has not converged."""
        if not solutions.converged[0]:
            residual = solutions.residuals[0]
            remedy = f"the KKT residual is {residual:.1e}, above tol; increase max_rounds or tol"
            if residual <= self.tol:
                remedy = "the objective may be far from its minimum; scale features and labels, or increase max_rounds"
            warnings.warn(
                f"not converged after {solutions.rounds[0]} rounds: {remedy}", ConvergenceWarning, stacklevel=4
            )  # fmt: skip
        return replace(solutions, models=task.units.to_data_units(solutions.models))

    def _decision_scores(self, x: Any) -> Array:
        """Return the linear scores of the rows [N, outputs]."""
        check_is_fitted(self)
        x = validate_data(self, x, reset=False, accept_sparse="csr", dtype=np.float64)
        return np.asarray(x @ np.atleast_2d(self.coef_).T) + np.atleast_1d(getattr(self, "intercept_", 0.0))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class Regression(RegressorMixin, FederatedLinear):
    """Base class of the regressors."""

    loss = "squared"

    def _loss(self) -> Loss:
        """Return the loss named by `loss`."""
        known = [
            name
            for name, kind in all_losses().items()
            if kind.is_correct is Loss.is_correct and kind.client_loss is None
        ]
        if self.loss not in known:
            raise UserError(f"loss: got {self.loss!r}, must be one of {', '.join(known)}")
        return all_losses()[self.loss]()

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Training rows.
        y : array-like of shape (n_samples,)
            Labels.
        groups : array-like of shape (n_samples,), default=None
            Client of every row. By default all rows belong to one client.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of every row within its client; rows of weight 0 are dropped.

        Returns
        -------
        self : object
            Fitted estimator.
        """
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, y_numeric=True)
        with as_python_errors():
            loss = self._loss()
            if not loss.accepts_labels(y).all():
                raise UserError(f"y: the {loss.name} loss needs {loss.describe_labels()}")
            solutions = self._solve(self._task(X, y, groups, sample_weight, loss, 1))
        self.coef_, self.intercept_ = solutions.models[0, :-1].copy(), float(solutions.models[0, -1])
        self.n_rounds_, self.kkt_ = int(solutions.rounds[0]), float(solutions.residuals[0])
        return self

    def predict(self, X: Any) -> Array:
        """Predict the labels of rows.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Rows to predict.

        Returns
        -------
        y : ndarray of shape (n_samples,)
            Predictions; expected counts for the Poisson loss.
        """
        return self._loss().predict(self._decision_scores(X))[:, 0]


class Classification(ClassifierMixin, FederatedLinear):
    """Base class of the classifiers: logistic loss for two classes, softmax for more."""

    def _encode_labels(self, X: Any, y: Any) -> tuple[Any, Array, Loss, int]:
        """Return the validated rows, labels 0, 1, ..., the loss and its number of outputs."""
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y: got one class, {self.classes_[0]!r}, must have at least two")
        is_binary = len(self.classes_) == 2
        return X, codes.astype(float), Logistic() if is_binary else Softmax(), 1 if is_binary else len(self.classes_)

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Training rows.
        y : array-like of shape (n_samples,)
            Class labels, at least two different ones.
        groups : array-like of shape (n_samples,), default=None
            Client of every row. By default all rows belong to one client.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of every row within its client; rows of weight 0 are dropped.

        Returns
        -------
        self : object
            Fitted estimator.
        """
        X, codes, loss, outputs = self._encode_labels(X, y)
        with as_python_errors():
            solutions = self._solve(self._task(X, codes, groups, sample_weight, loss, outputs))
        size = outputs * X.shape[1]
        self.coef_ = solutions.models[0, :size].reshape(outputs, -1)
        intercepts = solutions.models[0, size:]
        # a constant added to the scores of all classes changes no probability: the intercepts sum to 0
        self.intercept_ = intercepts - (intercepts.mean() if outputs > 1 else 0.0)
        self.n_rounds_, self.kkt_ = int(solutions.rounds[0]), float(solutions.residuals[0])
        return self

    def decision_function(self, X: Any) -> Array:
        """Compute the linear scores of rows.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Rows to predict.

        Returns
        -------
        scores : ndarray of shape (n_samples,) or (n_samples, n_classes)
            Log-odds of `classes_[1]` for two classes, else a score per class.
        """
        scores = self._decision_scores(X)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: Any) -> Array:
        """Compute the class probabilities of rows.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Rows to predict.

        Returns
        -------
        probabilities : ndarray of shape (n_samples, n_classes)
            Probabilities, in the order of `classes_`.
        """
        from scipy.special import expit, softmax

        scores = self._decision_scores(X)
        if len(self.classes_) > 2:
            return softmax(scores, axis=1)
        positive = expit(scores[:, 0])
        return np.column_stack([1 - positive, positive])

    def predict(self, X: Any) -> Array:
        """Predict the classes of rows.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Rows to predict.

        Returns
        -------
        y : ndarray of shape (n_samples,)
            Predicted classes.
        """
        scores = self._decision_scores(X)
        codes = (scores[:, 0] > 0).astype(int) if len(self.classes_) == 2 else scores.argmax(axis=1)
        return self.classes_[codes]
