"""scikit-learn estimators for federated data, `fit(X, y, groups=client)` (docs/python.md)."""

from fco_cli.estimators.cross_validated import (
    FederatedElasticNetCV,
    FederatedLassoCV,
    FederatedLogisticRegressionCV,
    FederatedLowRankRegressionCV,
)
from fco_cli.estimators.linear import (
    FederatedClassifier,
    FederatedElasticNet,
    FederatedLasso,
    FederatedLogisticRegression,
    FederatedLowRankRegression,
    FederatedRegressor,
)

__all__ = [
    "FederatedClassifier",
    "FederatedElasticNet",
    "FederatedElasticNetCV",
    "FederatedLasso",
    "FederatedLassoCV",
    "FederatedLogisticRegression",
    "FederatedLogisticRegressionCV",
    "FederatedLowRankRegression",
    "FederatedLowRankRegressionCV",
    "FederatedRegressor",
]
