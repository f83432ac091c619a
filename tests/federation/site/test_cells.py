"""Rows that determine the curvature of ordinary models: the rule about steep models refuses none of them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from fco_cli.data.published import PUBLICATIONS
from fco_cli.federation.policy import preset
from fco_cli.federation.site.cells import effective_rows
from fco_cli.problem.losses import all_losses


@pytest.fixture(scope="module")
def heart(real_data):
    """Return the standardized columns, labels and hospitals of the heart table; missing values are 0."""
    data = PUBLICATIONS["heart"].read(str(real_data("heart_disease")), 0)
    x = np.asarray(data.x, float)
    x = np.nan_to_num((x - np.nanmean(x, axis=0)) / np.nanstd(x, axis=0))
    return np.column_stack([x, np.ones(len(x))]), np.asarray(data.y, float), np.asarray(data.client)


def value_and_gradient(loss: str, x, y, w, strength: float):
    score = x @ w
    if loss == "logistic":
        value, slope = np.logaddexp(0, score) - y * score, 1 / (1 + np.exp(-score)) - y
    else:
        value, slope = np.exp(score) - y * score, np.exp(score) - y
    penalty = np.append(w[:-1], 0)
    return value.mean() + strength / 2 * penalty @ penalty, x.T @ slope / len(y) + strength * penalty


@pytest.mark.parametrize("strength", [1.0, 0.1, 0.01, 1e-4, 0.0])
@pytest.mark.parametrize("loss", ["logistic", "poisson"])
def test_models_of_a_real_table_are_not_steep(heart, loss, strength):
    """All iterates from 0 to the optimum, on all rows of every hospital and on every fifth of them."""
    x, y, client = heart
    models = [np.zeros(x.shape[1])]
    minimize(
        lambda w: value_and_gradient(loss, x, y, w, strength), models[0], jac=True, method="L-BFGS-B",
        callback=lambda w: models.append(w.copy()),
    )  # fmt: skip
    assert len(models) > 3
    least = preset("strict").min_rows
    for name in np.unique(client):
        rows = np.flatnonzero(client == name)
        for part in (rows, *(rows[k::5] for k in range(5))):
            scores = (np.array(models) @ x[part].T)[:, None]
            assert (effective_rows(all_losses()[loss](), scores) >= min(least, len(part) / 2)).all(), name
