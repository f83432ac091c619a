"""Tests of clients in searches and cross-validations of scikit-learn, which drop `groups` without metadata routing."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn import config_context
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score

from fco_cli.estimators import FederatedCox, FederatedLasso, FederatedLassoCV

ROUTED = {"enable_metadata_routing": True}


@pytest.fixture
def rows():
    random = np.random.default_rng(0)
    groups = np.repeat(["a", "b", "c", "d"], [40, 10, 20, 10])
    x = random.standard_normal((80, 3))
    return x, x[:, 0] + (groups == "a") * x[:, 1] + 0.1 * random.standard_normal(80), groups


def test_dropped_clients_are_reported_if_the_result_depends_on_them(rows):
    x, y, groups = rows
    search = GridSearchCV(FederatedLasso(weighting="uniform"), {"strength": [0.1]}, cv=GroupKFold(2))
    words = "groups: not given.*weighting='uniform' has no effect.*metadata routing"
    with pytest.warns(UserWarning, match=words) as seen:
        search.fit(x, y, groups=groups)
    assert all("\n" not in str(one.message) for one in seen)
    with pytest.warns(UserWarning, match="algo='zhj' is not federated"):
        FederatedLasso(algo="zhj", tol=1e-3).fit(x, y)


def test_routed_clients_are_used(rows):
    x, y, groups = rows
    with config_context(**ROUTED), warnings.catch_warnings():
        warnings.simplefilter("error")
        learner = FederatedLasso(weighting="uniform").set_fit_request(groups=True)
        search = GridSearchCV(learner, {"strength": [0.1]}, cv=GroupKFold(2)).fit(x, y, groups=groups)
    expected = FederatedLasso(0.1, weighting="uniform").fit(x, y, groups=groups)
    np.testing.assert_array_equal(search.best_estimator_.coef_, expected.coef_)


def test_by_default_the_clients_do_not_change_the_solution(rows):
    """Every row has the same weight, so that dropped clients change nothing and need no warning."""
    x, y, groups = rows
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alone = FederatedLasso(0.1).fit(x, y)
        cross_val_score(FederatedLasso(0.1), x, y, groups=groups, cv=GroupKFold(2))
    np.testing.assert_allclose(alone.coef_, FederatedLasso(0.1).fit(x, y, groups=groups).coef_, atol=1e-12)


def test_clients_that_are_needed_are_required(rows):
    x, y, groups = rows
    with pytest.raises(ValueError, match="groups: must be given for by='clients', with at least two clients"):
        FederatedLassoCV(by="clients").fit(x, y)
    times = np.column_stack([np.exp(y), np.ones(80)])
    with pytest.raises(ValueError, match="groups: must be given, since every client has its own baseline hazard"):
        FederatedCox().fit(x, times)
    search = GridSearchCV(FederatedCox(), {"strength": [0.1]}, cv=GroupKFold(2))
    with pytest.raises(ValueError, match="groups: must be given"):  # all of its fits fail
        search.fit(x, times, groups=groups)


def test_labels_that_vary_between_clients_are_reported():
    random = np.random.default_rng(1)
    groups = np.repeat(np.arange(12), 10)
    x = random.standard_normal((12, 4))[groups] + 0.05 * random.standard_normal((120, 4))
    y = 5 * random.standard_normal(12)[groups] + random.standard_normal(120)
    with pytest.warns(UserWarning, match=r'between clients: .* by rows, .* by clients .*; use by="clients"'):
        FederatedLassoCV(n_strengths=5, cv=3).fit(x, y, groups=groups)
