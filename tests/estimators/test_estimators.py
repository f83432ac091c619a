"""Tests of the estimators: scikit-learn's checks, solutions and pipelines, and errors."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn import config_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet, Lasso, LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, LeaveOneGroupOut
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from fco_cli import estimators
from fco_cli.estimators import (
    FederatedClassifier,
    FederatedElasticNet,
    FederatedLasso,
    FederatedLassoCV,
    FederatedLogisticRegression,
    FederatedLogisticRegressionCV,
    FederatedLowRankRegression,
    FederatedRegressor,
)

DEFAULTS = [getattr(estimators, name)() for name in estimators.__all__ if "Cox" not in name]  # its labels are pairs


@pytest.mark.ci
@pytest.mark.machine_code
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # separable classes, features far from 0
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(DEFAULTS)
def test_check_estimator_passes_with_defaults(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def hospitals():
    """Return rows of unequal groups in random order."""
    random = np.random.default_rng(0)
    groups = random.choice(["b", "a", "c"], 120, p=[0.5, 0.3, 0.2])
    x = random.standard_normal((120, 6)) + (groups == "a")[:, None]
    return x, x @ [2.0, -1, 0, 0, 0.5, 0] + 0.1 * random.standard_normal(120), groups


def sizes(groups: np.ndarray) -> np.ndarray:
    """Return the size of the group of every row."""
    _, member, counts = np.unique(groups, return_inverse=True, return_counts=True)
    return counts[member]


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_lasso_equals_the_pooled_lasso(hospitals, weighting, sparse):
    x, y, groups = hospitals
    mine = FederatedLasso(0.2, weighting=weighting).fit(csr_matrix(x) if sparse else x, y, groups=groups)
    weights = np.ones(len(y)) if weighting == "examples" else 1 / sizes(groups)
    pooled = Lasso(alpha=0.1, tol=1e-14, max_iter=100_000).fit(x, y, sample_weight=weights)
    np.testing.assert_allclose(mine.coef_, pooled.coef_, atol=1e-7)
    assert mine.intercept_ == pytest.approx(pooled.intercept_, abs=1e-7)
    np.testing.assert_array_equal(mine.coef_ == 0, pooled.coef_ == 0)
    assert mine.kkt_ <= 1e-8
    assert mine.n_rounds_ == 1  # of second moments
    np.testing.assert_allclose(mine.predict(x), pooled.predict(x), atol=1e-6)


@pytest.mark.parametrize("algo", ["zhj", "feddr"])
def test_every_exact_method_gives_the_same_solution(hospitals, algo):
    x, y, groups = hospitals
    one, other = (FederatedLasso(0.2, algo=name, tol=1e-7).fit(x, y, groups=groups) for name in ("fista", algo))
    np.testing.assert_allclose(one.coef_, other.coef_, atol=1e-5)


def test_a_logistic_regression_equals_the_pooled_one(hospitals):
    x, y, groups = hospitals
    words = np.where(y > 0, "ill", "well")
    mine = FederatedLogisticRegression(0.05, weighting="examples").fit(x, words, groups=groups)
    pooled = LogisticRegression(C=1 / (0.05 * len(y)), l1_ratio=1, solver="saga", tol=1e-12, max_iter=100_000)
    pooled.fit(x, words)
    assert mine.classes_.tolist() == ["ill", "well"]
    np.testing.assert_allclose(mine.coef_, pooled.coef_, atol=1e-5)
    np.testing.assert_allclose(mine.predict_proba(x).sum(axis=1), 1)
    assert mine.score(x, words) > 0.9


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_rows_may_have_weights(hospitals, weighting):
    """A row of weight 2 counts as two rows, one of weight 0 as none."""
    x, y, groups = hospitals
    weights = np.tile([2.0, 0.0, 1.0], 40)
    again = np.repeat(np.arange(120), weights.astype(int))
    one, other = FederatedLasso(0.2, weighting=weighting), FederatedLasso(0.2, weighting=weighting)
    one.fit(x, y, groups=groups, sample_weight=weights)
    other.fit(x[again], y[again], groups=groups[again])
    np.testing.assert_allclose(one.coef_, other.coef_, atol=1e-7)


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize("strength", [0.1, 0.01])
def test_more_than_two_classes(hospitals, weighting, strength):
    """A shift of all biases changes nothing, and rounding errors along it do not become steps."""
    x, y, groups = hospitals
    three = np.digitize(y, [-1, 1])
    mine = FederatedClassifier("l1", {"strength": strength}, weighting=weighting).fit(x, three, groups=groups)
    assert abs(mine.intercept_).max() < 10
    assert mine.coef_.shape == (3, 6)
    assert mine.score(x, three) > 0.8
    assert mine.decision_function(x).shape == (120, 3)
    assert mine.intercept_.sum() == pytest.approx(0, abs=1e-12)  # a common constant changes no probability


def test_low_rank(hospitals):
    random = np.random.default_rng(1)
    x = random.standard_normal((200, 12))
    y = x @ np.outer([1, 2, 0], [1, 0, 1, 1]).ravel()
    mine = FederatedLowRankRegression(0.1, shape=(3, 4)).fit(x, y, groups=np.arange(200) % 4)
    assert np.linalg.matrix_rank(mine.coef_.reshape(3, 4), tol=1e-6) == 1
    with pytest.raises(ValueError, match="shape: got"):
        FederatedLowRankRegression(shape=(5, 4)).fit(x, y)


def test_a_regularizer_is_selected_by_name(hospitals):
    x, y, groups = hospitals
    mine = FederatedRegressor("squared", "l1_ball", {"radius": 1.0}).fit(x, y, groups=groups)
    assert abs(mine.coef_).sum() <= 1 + 1e-9
    net = FederatedElasticNet(0.1, 0.1).fit(x, y, groups=groups)
    assert np.count_nonzero(net.coef_) >= 3


def test_folds_may_be_given(hospitals):
    """scikit-learn's folds of whole groups equal by="each_client", in any order of rows."""
    x, y, groups = hospitals
    ours = FederatedLassoCV(n_strengths=6, by="each_client").fit(x, y, groups=groups)
    theirs = FederatedLassoCV(n_strengths=6, cv=list(LeaveOneGroupOut().split(x, y, groups))).fit(x, y, groups=groups)
    np.testing.assert_array_equal(theirs.path_.mean, ours.path_.mean)
    np.testing.assert_array_equal(theirs.coef_, ours.coef_)


@pytest.mark.parametrize("by", ["rows", "each_client"])
def test_cross_validation_selects_the_strength(hospitals, by):
    x, y, groups = hospitals
    mine = FederatedLassoCV(n_strengths=12, cv=3, by=by).fit(x, y, groups=groups)
    assert mine.path_.strengths.shape == mine.path_.mean.shape == (12,)
    assert (np.diff(mine.path_.strengths) < 0).all()
    assert not mine.path_.coefs[0].any()  # the null model
    assert mine.strength_ in mine.path_.strengths
    again = FederatedLasso(mine.strength_).fit(x, y, groups=groups)
    np.testing.assert_allclose(mine.coef_, again.coef_, atol=1e-7)
    simple = FederatedLassoCV(n_strengths=12, cv=3, by=by, choice="1se").fit(x, y, groups=groups)
    assert simple.strength_ >= mine.strength_


def test_pipelines_and_searches(hospitals):
    x, y, groups = hospitals
    with config_context(enable_metadata_routing=True):
        learner = FederatedLasso().set_fit_request(groups=True)
        search = GridSearchCV(make_pipeline(StandardScaler(), learner), {"federatedlasso__strength": [10, 0.01]},
                              cv=GroupKFold(3))  # fmt: skip
        search.fit(x, y, groups=groups)
    assert search.best_params_ == {"federatedlasso__strength": 0.01}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda x, y: FederatedLasso(-1).fit(x, y), "regularizer.strength: got -1"),
        (lambda x, y: FederatedLasso(algo="nosuch").fit(x, y), "algo: got 'nosuch'"),
        (lambda x, y: FederatedRegressor(regularizer="nosuch").fit(x, y), "regularizer: got 'nosuch'"),
        (lambda x, y: FederatedRegressor(loss="nosuch").fit(x, y), "loss: got 'nosuch'"),
        (lambda x, y: FederatedRegressor(regularizer="l1").fit(x, y), "regularizer_options: "),
        (lambda x, y: FederatedRegressor("poisson").fit(x, y), "y: the poisson loss needs"),
        (lambda x, y: FederatedLasso().fit(x, y, groups=[1, 2]), "inconsistent numbers of samples"),
        (lambda x, y: FederatedLasso().fit(x, y, sample_weight=np.zeros(len(y))), "[Ss]ample.weight"),
        (lambda x, y: FederatedLogisticRegression().fit(x, np.ones(len(y))), "one class"),
        (lambda x, y: FederatedLogisticRegression().fit(x, y > 0, sample_weight=y > 0), "at least two classes"),
        (lambda x, y: FederatedLogisticRegressionCV(cv=1).fit(x, y > 0), "^cv: got 1, must be"),
        (lambda x, y: FederatedLassoCV(cv=200).fit(x, y), "cv: got 200 folds, must be at most n_samples=120"),
        (lambda x, y: FederatedLassoCV(cv=[([0], [1])]).fit(x, y), "cv: must be a whole number, or pairs"),
        (lambda x, y: FederatedLassoCV(cv="five").fit(x, y), "cv: must be a whole number, or pairs"),
        (lambda x, y: FederatedLassoCV(n_strengths=1).fit(x, y), "n_strengths: got 1"),
        (lambda x, y: FederatedLasso().fit(x, y, sample_weight=-np.ones(len(y))), "[Nn]egative"),
        (lambda x, y: FederatedLasso().fit(x, np.where(y > 0, y, np.nan)), "NaN"),
        (lambda x, y: FederatedLassoCV(choice="best").fit(x, y), "choice: got 'best'"),
    ],
)
def test_invalid_input_raises_value_error_with_one_line(hospitals, make, words):
    x, y, _ = hospitals
    with pytest.raises(ValueError, match=words) as told:
        make(x, y)
    assert "\n" not in str(told.value)


def test_a_run_that_has_not_converged_warns(hospitals):
    x, y, groups = hospitals
    with pytest.warns(ConvergenceWarning, match="not converged after 3 rounds"):
        FederatedLasso(0.01, algo="fista", max_rounds=3).fit(x, y, groups=groups)
    with pytest.warns(ConvergenceWarning, match="not converged after 3 rounds"):
        FederatedLassoCV(n_strengths=2, cv=2, algo="fista", max_rounds=3).fit(x, y, groups=groups)


@pytest.mark.parametrize("number", [np.float32, np.float16, np.longdouble, np.int64, np.array])
def test_numpy_numbers_equal_python_numbers(hospitals, number):
    x, y, groups = hospitals
    few = {"tol": np.float32(1e-4), "max_rounds": np.int64(500), "random_state": np.int64(1)}
    options = {"strength": number(1), "factors": {"x0": number(0)}}
    elastic = {"strength": number(1), "l2_strength": number(1)}
    chosen = {"n_strengths": np.int32(4), "cv": np.int8(2), "ratio": np.float32(0.5)}
    plain_options = {"strength": 1.0, "factors": {"x0": 0.0}}
    for kind, given, plain in (
        (FederatedLasso, {"strength": number(1)}, {"strength": 1.0}),
        (FederatedElasticNet, elastic, {"strength": 1.0, "l2_strength": 1.0}),
        (FederatedRegressor, {"regularizer_options": options}, {"regularizer_options": plain_options}),
        (FederatedLassoCV, chosen, {"n_strengths": 4, "cv": 2, "ratio": 0.5}),
    ):
        named = {"regularizer": "l1"} if kind is FederatedRegressor else {}
        expected = kind(tol=float(np.float32(1e-4)), max_rounds=500, random_state=1, **named, **plain)
        actual = kind(**few, **named, **given)
        np.testing.assert_array_equal(actual.fit(x, y, groups).coef_, expected.fit(x, y, groups).coef_)


# Units of features and labels.

UNITS = {
    "concentrations": lambda x: x * 1e-9,
    "tiny": lambda x: x * 1e-200,
    "huge": lambda x: x * 1e9,
    "mixed": lambda x: x * [1e-9, 1, 1e6, 1e-3, 1e3, 1],
    "a timestamp": lambda x: np.column_stack([x[:, 0] * 1e3 + 1.6e9, x[:, 1:]]),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("units", list(UNITS))
def test_units_of_features_do_not_matter(hospitals, units):
    """Without a penalty, predictions do not depend on the units, and coefficients are in the units given."""
    x, y, groups = hospitals
    scaled = UNITS[units](x)
    mine = FederatedRegressor(weighting="examples").fit(scaled, y + 5, groups=groups)
    right = LinearRegression().fit(x, y + 5)
    np.testing.assert_allclose(mine.predict(scaled), right.predict(x), atol=1e-5)
    if units != "a timestamp":
        factors = UNITS[units](np.ones((1, 6)))[0]
        np.testing.assert_allclose(mine.coef_ * factors, right.coef_, atol=1e-6)
    labels = (y > 0.7 * x[:, 3]) ^ (x[:, 2] > 1)  # not separable
    one, other = (FederatedClassifier("none", tol=1e-6).fit(features, labels, groups) for features in (scaled, x))
    np.testing.assert_allclose(one.decision_function(scaled), other.decision_function(x), atol=1e-3)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("sparse", [False, True])
def test_a_penalty_is_on_coefficients_in_the_units_given(hospitals, sparse):
    """Standardization is internal: the objective is that of scikit-learn on the same X."""
    x, y, groups = hospitals
    x = x * [1e-2, 1, 1e2, 1, 1, 1] + (0 if sparse else np.array([0, 0, 1e3, 0, 0, 0]))
    given = csr_matrix(x) if sparse else x
    mine = FederatedLasso(0.02, weighting="examples", tol=1e-10).fit(given, y, groups=groups)
    pooled = Lasso(alpha=0.01, tol=1e-14, max_iter=10**6).fit(x, y)
    np.testing.assert_allclose(mine.coef_, pooled.coef_, atol=1e-7)
    np.testing.assert_array_equal(mine.coef_ == 0, pooled.coef_ == 0)
    net = FederatedElasticNet(0.02, 0.06, weighting="examples", tol=1e-10).fit(given, y, groups=groups)
    pooled = ElasticNet(alpha=0.04, l1_ratio=0.25, tol=1e-14, max_iter=10**6).fit(x, y)
    np.testing.assert_allclose(net.coef_, pooled.coef_, atol=1e-7)
    ridge = FederatedRegressor("squared", "l2_squared", {"strength": 0.2}, weighting="examples", tol=1e-10)
    ridge.fit(given, y, groups=groups)
    both = np.column_stack([x, np.ones(len(y))])
    penalty = np.diag([0.1] * 6 + [0])
    right = np.linalg.solve(both.T @ both / len(y) + penalty, both.T @ y / len(y))
    np.testing.assert_allclose([*ridge.coef_, ridge.intercept_], right, atol=1e-6)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("unit", [1e-300, 1e-9, 1e9, 1e300])
def test_units_of_labels_do_not_matter(hospitals, unit):
    """A strength has the unit of the labels, the loss its square."""
    x, y, groups = hospitals
    for strength in (0.0, 0.2):
        plain = FederatedLasso(strength).fit(x, y + 5, groups=groups)
        scaled = FederatedLasso(strength * unit).fit(x, (y + 5) * unit, groups=groups)
        np.testing.assert_allclose(scaled.coef_ / unit, plain.coef_, atol=1e-7)
        assert scaled.intercept_ / unit == pytest.approx(plain.intercept_, abs=1e-7)
    paths = [FederatedLassoCV(n_strengths=4, cv=2).fit(x, y * one, groups=groups).path_ for one in (1, 2.0**-20)]
    np.testing.assert_allclose(paths[1].strengths, paths[0].strengths * 2.0**-20)
    np.testing.assert_allclose(paths[1].mean, paths[0].mean * 2.0**-40)


def test_a_constant_feature_has_no_weight(hospitals):
    x, y, groups = hospitals
    x = np.column_stack([x, np.full(len(y), 1e9 / 3)])
    mine = FederatedRegressor().fit(x, y, groups=groups)
    assert mine.coef_[-1] == 0
    assert abs(mine.intercept_) < 1


@pytest.mark.parametrize("psi", ["l1_ball", "l2_ball"])
def test_unscaled_features_in_a_ball_are_reported_as_not_converged(hospitals, psi):
    """A radius depends on the units of all features, which are therefore not scaled."""
    x, y, groups = hospitals
    x = np.column_stack([x, 1.6e9 + 1e6 * np.random.default_rng(1).standard_normal(len(y))])
    with pytest.warns(ConvergenceWarning, match="not converged after 50 rounds"):
        FederatedRegressor("squared", psi, {"radius": 5.0}, algo="fista", max_rounds=50).fit(x, y + 5, groups=groups)
