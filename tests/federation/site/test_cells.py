"""Rows that determine the curvature of ordinary models: the rule about steep models refuses none of them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from fco_cli.data.published import PUBLICATIONS
from fco_cli.federation.policy import preset
from fco_cli.federation.site.cells import are_steep, cells_of, curvature_weights
from fco_cli.problem.data import SparseRows
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
            weights = curvature_weights(all_losses()[loss](), scores)
            assert not are_steep(weights, cells_of(x[part], least), least).any(), name


def test_cells_of_dense_and_sparse_rows():
    """Columns with one value in 10 rows or more, and others in as many, divide the rows."""
    x = np.zeros((40, 5))
    x[:15, 0] = np.arange(1, 16)
    x[:, 1] = np.arange(40)
    x[:5, 2] = 1
    x[10:, 3] = 7.5
    expected = {tuple(range(15)), tuple(range(15, 40)), tuple(range(10)), tuple(range(10, 40))}
    cells = cells_of(x, 10)
    assert {tuple(np.flatnonzero(one)) for one in cells} == expected
    rows, columns = np.nonzero(x)
    starts = np.append(0, np.cumsum((x != 0).sum(axis=1)))
    sparse = SparseRows(x[rows, columns], columns, starts, x.shape[1])
    np.testing.assert_array_equal(cells_of(sparse, 10), cells)
    assert cells_of(x[:, 1:2], 10).shape == (0, 40)


def test_models_that_saturate_rows_are_steep():
    """A model can be flat for some rows, so that many rows have curvature, and steep for all others."""
    scores = np.concatenate([np.linspace(-0.5, 0.5, 30), np.linspace(-1e3, 1e3, 30)])
    weights = curvature_weights(all_losses()["logistic"](), scores[None, None])
    assert are_steep(weights, np.zeros((0, 60)), 10).all()
    weights = curvature_weights(all_losses()["logistic"](), scores[None, None] / 100)
    assert not are_steep(weights, np.zeros((0, 60)), 10).any()
