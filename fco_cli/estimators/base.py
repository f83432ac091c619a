"""What all estimators share: rows become clients' rows, and a run solves their problem.

The solution is that of the pooled problem min F(w) + psi(w), F the mean of the clients' losses, or of all rows' with
`weighting="examples"`; no method needs a learning rate unless you choose one that does. Without groups all rows are one
client's.
"""

from __future__ import annotations

import warnings
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
from fco_cli.errors import UserError, as_python_errors
from fco_cli.estimators.rows import InMemory, task_of
from fco_cli.federation.settings import InThisProcess
from fco_cli.path.solve import Solved, solve
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Logistic, Loss, Softmax, all_losses
from fco_cli.problem.mirror_maps import Euclidean
from fco_cli.problem.regularizers import Regularizer
from fco_cli.simulation.hparams import ALL, AUTO, Hparams

LOCAL_EPOCHS = 5  # of methods that take local steps, with all rows of a client in a batch


def _as_python(value: Any) -> Any:
    """Return NumPy scalars and arrays without axes as Python numbers, also those in a mapping."""
    if isinstance(value, dict):
        return {key: _as_python(one) for key, one in value.items()}
    if isinstance(value, np.generic | np.ndarray) and value.ndim == 0:
        return float(value) if value.dtype.kind == "f" else value.item()  # item() of a longdouble is a longdouble
    return value


@dataclass(eq=False, repr=False)
class FederatedLinear(BaseEstimator):
    """What all of them share; subclasses say which loss and which psi. scikit-learn reads the fields as parameters."""

    _: KW_ONLY
    algo: str = "fista"
    weighting: str = "uniform"
    client_lr: float | str = AUTO
    tol: float = 1e-8
    max_rounds: int = 20_000
    random_state: int | None = None

    @property
    def _plain(self) -> Any:
        """Parameters as attributes, with Python numbers in place of NumPy scalars."""
        return SimpleNamespace(**_as_python(self.get_params(deep=False)))

    def _regularizer(self) -> Regularizer:
        raise NotImplementedError

    def _shape(self, features: int) -> tuple[int, int] | None:
        """How the regularizer sees the weights, unless as a vector."""
        return None

    def _run(self, task: InMemory) -> Run:
        """All that a fit depends on, as a run has it."""
        known, given = all_algorithms(), self._plain
        if self.algo not in known or not known[self.algo].federated:
            allowed = ", ".join(name for name, kind in known.items() if kind.federated)
            raise UserError(f"algo: got {self.algo!r}, must be one of {allowed}")
        rows = int(task.made.training.sizes.max())
        hparams = Hparams(
            client_lr=given.client_lr, server_lr=1.0, rounds=AUTO, clients_per_round=ALL, batch_size=rows,
            local_epochs=LOCAL_EPOCHS, weighting=self.weighting, tolerance=given.tol, most_rounds=given.max_rounds,
        )  # fmt: skip
        seed = int(check_random_state(self.random_state).randint(2**31)) if self.random_state is not None else 0
        psi, mirror = task.units.regularizer(self._regularizer()), Euclidean()
        algo = known[self.algo]()  # type: ignore[call-arg]
        algo.check_pair(psi, mirror)
        return Run(
            task=task, algo=algo, regularizer=psi, mirror=mirror, transform=NoTransform(), hparams=hparams,
            federation=InThisProcess(), seed=seed, output_dir=Path(), force=False, record_clients=False,
            record_path=False, threads=None, experiment=None, path=None, resolved={},
        )  # fmt: skip

    def _task(self, x: Any, y: Array, groups: Any, sample_weight: Any, loss: Loss, outputs: int) -> InMemory:
        if groups is None:
            groups = np.zeros(len(y), dtype=int)
        groups = column_or_1d(groups)
        check_consistent_length(x, y, groups)
        if any(name is None or name != name for name in groups.tolist()):
            raise UserError("groups: every row needs a client; some have None or NaN")
        if groups.dtype == object:  # numbers and texts cannot be sorted together
            groups = groups.astype(str)
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, x, ensure_non_negative=True)
        if weights is not None and not weights.any():
            raise UserError("sample_weight: must be above 0 for some row")
        if weights is not None and loss.classification and len(np.unique(y[weights > 0])) < 2:
            raise UserError("sample_weight: must be above 0 for rows of at least two classes")
        names = getattr(self, "feature_names_in_", None)
        features = None if names is None else tuple(str(name) for name in names)
        shape, psi = self._shape(x.shape[1]), self._regularizer()
        return task_of(x, y, groups, weights, loss, outputs, shape, features, psi, self.weighting)

    def _solve(self, task: InMemory) -> Solved:
        """Until it has converged, or says that it has not."""
        run = self._run(task)
        return self._checked(task, solve(run, task.made, [run.regularizer], self.tol))

    def _checked(self, task: InMemory, solved: Solved) -> Solved:
        """Return the solution in the units of the data; warn if it has not converged."""
        if not solved.converged[0]:
            residual = solved.residuals[0]
            why = f"KKT residual {residual:.1e}, above tol; raise max_rounds or tol"
            if residual <= self.tol:
                why = "the objective may be far from its minimum; scale features and labels, or raise max_rounds"
            warnings.warn(
                f"not converged after {solved.rounds[0]} rounds: {why}", ConvergenceWarning, stacklevel=4
            )  # fmt: skip
        return replace(solved, models=task.units.original(solved.models))

    def _scores(self, x: Any) -> Array:
        check_is_fitted(self)
        x = validate_data(self, x, reset=False, accept_sparse="csr", dtype=np.float64)
        return np.asarray(x @ np.atleast_2d(self.coef_).T) + np.atleast_1d(self.intercept_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class Regression(RegressorMixin, FederatedLinear):
    """Learns numbers. Attributes: `coef_`, `intercept_`, `n_rounds_`, and `kkt_`, the KKT residual relative to the
    strength: 0 at the pooled solution."""

    loss = "squared"

    def _loss(self) -> Loss:
        known = [name for name, kind in all_losses().items() if kind.hit is Loss.hit and kind.together is None]
        if self.loss not in known:
            raise UserError(f"loss: got {self.loss!r}, must be one of {', '.join(known)}")
        return all_losses()[self.loss]()

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> Self:
        """Learn from rows X [N, d], each of the client that `groups` [N] says."""
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, y_numeric=True)
        with as_python_errors():
            loss = self._loss()
            if not loss.takes(y).all():
                raise UserError(f"y: the {loss.name} loss needs {loss.allowed()}")
            solved = self._solve(self._task(X, y, groups, sample_weight, loss, 1))
        self.coef_, self.intercept_ = solved.models[0, :-1].copy(), float(solved.models[0, -1])
        self.n_rounds_, self.kkt_ = int(solved.rounds[0]), float(solved.residuals[0])
        return self

    def predict(self, X: Any) -> Array:
        scores = self._scores(X)[:, 0]
        return np.exp(scores) if self.loss == "poisson" else scores


class Classification(ClassifierMixin, FederatedLinear):
    """Learns classes: two by the logistic loss, more by a softmax. Attributes as a regression's, and `classes_`."""

    def _encoded(self, X: Any, y: Any) -> tuple[Any, Array, Loss, int]:
        """Checked rows, labels 0, 1, ..., the loss that they need and how many scores that has."""
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y: has one class, {self.classes_[0]!r}; there must be at least two")
        two = len(self.classes_) == 2
        return X, codes.astype(float), Logistic() if two else Softmax(), 1 if two else len(self.classes_)

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> Self:
        """Learn from rows X [N, d], each of the client that `groups` [N] says."""
        X, codes, loss, outputs = self._encoded(X, y)
        with as_python_errors():
            solved = self._solve(self._task(X, codes, groups, sample_weight, loss, outputs))
        size = outputs * X.shape[1]
        self.coef_ = solved.models[0, :size].reshape(outputs, -1)
        self.intercept_ = solved.models[0, size:].copy()
        self.n_rounds_, self.kkt_ = int(solved.rounds[0]), float(solved.residuals[0])
        return self

    def decision_function(self, X: Any) -> Array:
        scores = self._scores(X)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: Any) -> Array:
        from scipy.special import expit, softmax

        scores = self._scores(X)
        if len(self.classes_) > 2:
            return softmax(scores, axis=1)
        positive = expit(scores[:, 0])
        return np.column_stack([1 - positive, positive])

    def predict(self, X: Any) -> Array:
        scores = self._scores(X)
        places = (scores[:, 0] > 0).astype(int) if len(self.classes_) == 2 else scores.argmax(axis=1)
        return self.classes_[places]
