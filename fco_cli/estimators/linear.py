"""Linear models of clients' rows: `fit(X, y, groups=client)`.

The solution is that of the pooled problem min F(w) + psi(w), F the mean of the clients' losses, or of all rows' with
`weighting="examples"`. `algo` may be any federated method; `fista`, the default, needs no learning rate. Without groups
all rows are one client's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fco_cli.errors import UserError
from fco_cli.estimators.base import Classification, Regression
from fco_cli.problem.regularizers import Regularizer, all_regularizers
from fco_cli.problem.regularizers.nuclear import Nuclear
from fco_cli.problem.regularizers.penalties import L1, ElasticNet


def named_regularizer(name: str, options: dict[str, Any] | None) -> Regularizer:
    """The regularizer of that name, with its numbers."""
    known = all_regularizers()
    if name not in known:
        raise UserError(f"regularizer: got {name!r}, must be one of {', '.join(known)}")
    try:
        return known[name](**(options or {}))
    except TypeError as problem:
        raise UserError(f"regularizer_options: {problem}") from problem


@dataclass(eq=False, repr=False)
class FederatedRegressor(Regression):
    """Any loss (squared, huber, poisson) and any regularizer by its name, such as "l1_ball" with {"radius": 2}."""

    loss: str = "squared"
    regularizer: str = "none"
    regularizer_options: dict[str, Any] | None = None

    def _regularizer(self) -> Regularizer:
        return named_regularizer(self.regularizer, self._plain.regularizer_options)


@dataclass(eq=False, repr=False)
class FederatedLasso(Regression):
    """min mean (x'w + b - y)^2 + strength |w|_1. In scikit-learn's Lasso alpha is half of the strength."""

    strength: float = 0.1

    def _regularizer(self) -> Regularizer:
        return L1(strength=self._plain.strength)


@dataclass(eq=False, repr=False)
class FederatedElasticNet(Regression):
    """min mean (x'w + b - y)^2 + strength |w|_1 + l2_strength / 2 |w|^2."""

    strength: float = 0.1
    l2_strength: float = 0.1

    def _regularizer(self) -> Regularizer:
        return ElasticNet(strength=self._plain.strength, l2_strength=self._plain.l2_strength)


@dataclass(eq=False, repr=False)
class FederatedLowRankRegression(Regression):
    """min mean (<X, W> + b - y)^2 + strength (sum of W's singular values); a row of X is a matrix of `shape`, flat."""

    strength: float = 0.1
    shape: tuple[int, int] | None = None

    def _regularizer(self) -> Regularizer:
        return Nuclear(strength=self._plain.strength)

    def _shape(self, features: int) -> tuple[int, int]:
        shape = (1, features) if self.shape is None else tuple(self.shape)
        if len(shape) != 2 or shape[0] * shape[1] != features:
            raise UserError(f"shape: got {self.shape}, must be two numbers whose product is {features}, the features")
        return int(shape[0]), int(shape[1])


@dataclass(eq=False, repr=False)
class FederatedClassifier(Classification):
    """Logistic or softmax regression with any regularizer by its name."""

    regularizer: str = "none"
    regularizer_options: dict[str, Any] | None = None

    def _regularizer(self) -> Regularizer:
        return named_regularizer(self.regularizer, self._plain.regularizer_options)


@dataclass(eq=False, repr=False)
class FederatedLogisticRegression(Classification):
    """min mean log-loss + strength |w|_1. In scikit-learn's LogisticRegression C is 1 / (strength * rows)."""

    strength: float = 0.01

    def _regularizer(self) -> Regularizer:
        return L1(strength=self._plain.strength)
