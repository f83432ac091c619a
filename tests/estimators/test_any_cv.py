"""Tests of cross-validated estimators with other losses, regularizers and mixing ratios; columns far from 0."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import ElasticNet, ElasticNetCV, Lasso, LogisticRegression, PoissonRegressor
from sklearn.model_selection import KFold

from fco_cli.estimators import (
    FederatedClassifier,
    FederatedClassifierCV,
    FederatedElasticNet,
    FederatedElasticNetCV,
    FederatedLasso,
    FederatedRegressor,
    FederatedRegressorCV,
)

FEW = {"n_strengths": 5, "cv": 3, "ratio": 0.05}


@pytest.fixture(scope="module")
def rows():
    random = np.random.default_rng(0)
    clients = random.choice(["b", "a", "c"], 120, p=[0.5, 0.3, 0.2])
    x = random.standard_normal((120, 6))
    return x, x @ [2.0, -1, 0, 0, 0.5, 0] + random.standard_normal(120), clients


@pytest.mark.parametrize("shift", [100.0, 2000.0])
@pytest.mark.filterwarnings("error")
def test_columns_far_from_zero_are_exact(rows, shift):
    """Coefficients agree with scikit-learn's on columns that are not shifted."""
    x, y, clients = rows
    far = x + shift * np.arange(1, 7)
    lasso = FederatedLasso(0.2, tol=1e-12).fit(far, y, groups=clients)
    np.testing.assert_allclose(lasso.coef_, Lasso(0.1, tol=1e-16, max_iter=10**5).fit(x, y).coef_, atol=1e-8)
    labels = y + 0.5 * x[:, 5] > 0.3
    ridge = FederatedClassifier("l2_squared", {"strength": 0.05}, tol=1e-12).fit(far, labels, groups=clients)
    right = LogisticRegression(C=1 / (0.05 * 120), tol=1e-14, max_iter=10**4, solver="newton-cholesky").fit(x, labels)
    np.testing.assert_allclose(ridge.coef_, right.coef_, atol=1e-8)
    counts = np.random.default_rng(1).poisson(np.exp(0.5 * x[:, 0]))
    poisson = FederatedRegressor("poisson", "l2_squared", {"strength": 0.1}, tol=1e-12)
    right = PoissonRegressor(alpha=0.1, tol=1e-14, max_iter=10**4, solver="newton-cholesky").fit(x, counts)
    np.testing.assert_allclose(poisson.fit(far, counts, groups=clients).coef_, right.coef_, atol=1e-8)
    group = FederatedRegressor("huber", "group_lasso", {"strength": 0.1, "group_size": 2}, tol=1e-10)
    one, other = (group.fit(features, y, groups=clients).coef_.copy() for features in (far, x))
    np.testing.assert_allclose(one, other, atol=1e-7)


def test_a_mixing_ratio_equals_that_of_scikit_learn(rows):
    """The folds, the losses of all strengths and ratios and the selected model are those of ElasticNetCV."""
    x, y, clients = rows
    folds = list(KFold(4).split(x))
    mine = FederatedElasticNetCV(l1_ratio=[0.2, 0.6, 1.0], n_strengths=8, ratio=0.01, cv=folds, tol=1e-10)
    mine.fit(x, y, groups=clients)
    theirs = ElasticNetCV(l1_ratio=[0.2, 0.6, 1.0], alphas=8, eps=0.01, cv=folds, tol=1e-14, max_iter=10**6).fit(x, y)
    assert mine.l1_ratio_ == theirs.l1_ratio_
    assert mine.strength_ == pytest.approx(2 * theirs.alpha_, rel=1e-5)  # the largest strength has a margin of 1e-6
    place = [0.2, 0.6, 1.0].index(theirs.l1_ratio_)
    np.testing.assert_allclose(mine.path_.mean, theirs.mse_path_[place].mean(axis=1), rtol=1e-5)
    again = ElasticNet(mine.strength_ / 2, l1_ratio=mine.l1_ratio_, tol=1e-16, max_iter=10**6).fit(x, y)
    np.testing.assert_allclose(mine.coef_, again.coef_, atol=1e-8)
    strength, ratio = mine.strength_, mine.l1_ratio_
    fixed = FederatedElasticNet(strength * ratio, strength * (1 - ratio), tol=1e-10).fit(x, y)
    np.testing.assert_allclose(mine.coef_, fixed.coef_, atol=1e-8)


def test_units_do_not_change_a_mixed_penalty(rows):
    """The penalty acts on coefficients in the units given, on labels of any size."""
    x, y, clients = rows
    scaled = x * [1e-2, 1, 1e2, 1, 1, 1] + 5
    mine = FederatedElasticNetCV(l1_ratio=0.5, **FEW, tol=1e-10).fit(scaled, 1000 * y, groups=clients)
    right = ElasticNet(mine.strength_ / 2, l1_ratio=0.5, tol=1e-16, max_iter=10**6).fit(scaled, 1000 * y)
    np.testing.assert_allclose(mine.coef_, right.coef_, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("loss", ["poisson", "huber", "squared"])
def test_any_loss_has_a_selected_strength(rows, loss):
    x, y, clients = rows
    labels = np.random.default_rng(1).poisson(np.exp(0.5 * x[:, 0])) if loss == "poisson" else y
    mine = FederatedRegressorCV(loss, **FEW).fit(x, labels, groups=clients)
    again = FederatedRegressor(loss, "l1", {"strength": mine.strength_}).fit(x, labels, groups=clients)
    np.testing.assert_allclose(mine.coef_, again.coef_, atol=1e-6)
    assert mine.strength_ in mine.path_.strengths


def test_groups_are_selected_together(rows):
    x, y, clients = rows
    groups = {"groups": {f"x{k}": "ab"[k // 3] for k in range(6)}}
    mine = FederatedRegressorCV("squared", "group_lasso", groups, **FEW).fit(x, y, groups=clients)
    assert (mine.path_.coefs.reshape(5, 2, 3) != 0).all(axis=2).sum() == (mine.path_.coefs != 0).sum() / 3
    classes = FederatedClassifierCV("group_lasso", {"group_size": 2}, **FEW).fit(x, y > 0, groups=clients)
    again = FederatedClassifier("group_lasso", {"group_size": 2, "strength": classes.strength_}, tol=1e-9)
    np.testing.assert_allclose(classes.coef_, again.fit(x, y > 0, groups=clients).coef_, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FederatedElasticNetCV(l1_ratio=0), "l1_ratio: got 0, must be a number above 0"),
        (lambda: FederatedElasticNetCV(l1_ratio=[0.5, 2]), "l1_ratio: got"),
        (lambda: FederatedElasticNetCV(l1_ratio="half"), "l1_ratio: got 'half'"),
        (lambda: FederatedRegressorCV(regularizer="nosuch"), "regularizer: got 'nosuch'"),
        (lambda: FederatedRegressorCV(regularizer="none"), "regularizer: got 'none', must be one with a strength"),
        (lambda: FederatedRegressorCV("squared", "l1", {"strength": 1.0}), "got strength, which is selected by"),
        (lambda: FederatedRegressorCV("cox"), "loss: got 'cox'"),
    ],
)
def test_invalid_parameters_are_one_line(rows, make, words):
    x, y, clients = rows
    with pytest.raises(ValueError, match=words) as caught:
        make().fit(x, y, groups=clients)
    assert "\n" not in str(caught.value)


def test_small_fits_use_one_thread(rows, monkeypatch):
    """Rounds of small fits are too short to parallelize."""
    import numba

    from fco_cli.estimators import base

    threads, before, original = [], numba.get_num_threads(), base.solve

    def solve(*arguments, **options):
        threads.append(numba.get_num_threads())
        return original(*arguments, **options)

    monkeypatch.setattr(base, "solve", solve)
    FederatedLasso(0.1).fit(*rows[:2])
    assert threads == [1]
    assert numba.get_num_threads() == before
