"""
A scikit-learn estimator
========================

``groups`` are the clients. The solution is that of the pooled rows, and no rows are pooled.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import Lasso

from fco_cli.estimators import FederatedLasso

random = np.random.default_rng(0)
X, hospital = random.standard_normal((400, 30)), random.integers(0, 5, 400)
y = X[:, :5] @ np.ones(5) + random.standard_normal(400)
federated = FederatedLasso(0.2).fit(X, y, groups=hospital)
pooled = Lasso(0.1, tol=1e-10).fit(X, y)  # scikit-learn's loss has a factor 1/2
plt.axline((0, 0), slope=1, color="0.8")
plt.plot(pooled.coef_, federated.coef_, "o")
plt.xlabel("weights on the pooled rows")
plt.ylabel("federated weights")
plt.title(f"largest difference {np.abs(pooled.coef_ - federated.coef_).max():.0e}")
