"""scikit-learn estimators for federated data, `fit(X, y, groups=client)` (docs/python.md)."""

from fco_cli.estimators.any_cv import FederatedClassifierCV, FederatedRegressorCV
from fco_cli.estimators.cross_validated import (
    FederatedLassoCV,
    FederatedLogisticRegressionCV,
    FederatedLowRankRegressionCV,
)
from fco_cli.estimators.elastic_net_cv import FederatedElasticNetCV
from fco_cli.estimators.linear import (
    FederatedClassifier,
    FederatedElasticNet,
    FederatedLasso,
    FederatedLogisticRegression,
    FederatedLowRankRegression,
    FederatedRegressor,
)
from fco_cli.estimators.survival import FederatedCox, FederatedCoxCV

__all__ = [
    "FederatedClassifier",
    "FederatedClassifierCV",
    "FederatedCox",
    "FederatedCoxCV",
    "FederatedElasticNet",
    "FederatedElasticNetCV",
    "FederatedLasso",
    "FederatedLassoCV",
    "FederatedLogisticRegression",
    "FederatedLogisticRegressionCV",
    "FederatedLowRankRegression",
    "FederatedLowRankRegressionCV",
    "FederatedRegressor",
    "FederatedRegressorCV",
]
