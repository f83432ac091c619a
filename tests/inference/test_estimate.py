"""Estimates, covariance matrices and tests, compared with statsmodels and lifelines."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fco_cli.errors import UserError
from fco_cli.inference.estimate import estimate

sm = pytest.importorskip("statsmodels.api")
MODELS = {
    "squared": lambda y, x: sm.OLS(y, x),
    "logistic": lambda y, x: sm.GLM(y, x, family=sm.families.Binomial()),
    "poisson": lambda y, x: sm.GLM(y, x, family=sm.families.Poisson()),
}


def peer(problem, **options):
    data, name = problem.data, problem.loss.name
    accuracy = {} if name == "squared" else {"tol": 1e-14, "maxiter": 100}
    return MODELS[name](data.y, sm.add_constant(data.x)).fit(**options, **accuracy)


def errors(matrix):
    return np.sqrt(np.diag(matrix))


@pytest.mark.parametrize("loss", MODELS)
def test_statsmodels(problem_of, loss):
    problem = problem_of(loss)
    ours, theirs = estimate(problem), peer(problem)
    np.testing.assert_allclose(ours.coefficients, theirs.params, rtol=1e-8)
    np.testing.assert_allclose(ours.covariance("model"), theirs.cov_params(), rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(errors(ours.covariance("hc0")), peer(problem, cov_type="HC0").bse, rtol=1e-8)
    groups = {"groups": problem.data.owners}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fewer clients than coefficients
        clustered = peer(problem, cov_type="cluster", cov_kwds=groups)
    np.testing.assert_allclose(errors(ours.covariance("cluster")), clustered.bse, rtol=1e-7)
    # statsmodels applies the factor of HC1 to linear models only
    factor = ours.rows / (ours.rows - len(ours.coefficients))
    np.testing.assert_allclose(ours.covariance("hc1"), factor * ours.covariance("hc0"), rtol=1e-12)
    if loss == "squared":
        np.testing.assert_allclose(errors(ours.covariance("hc1")), peer(problem, cov_type="HC1").bse, rtol=1e-8)


@pytest.mark.parametrize("loss", ["logistic", "poisson"])
def test_likelihood_ratios(problem_of, loss):
    problem = problem_of(loss)
    ours, data = estimate(problem), problem.data
    full = peer(problem)
    assert ours.test.statistic == pytest.approx(full.null_deviance - full.deviance, rel=1e-8)
    assert ours.test.p == pytest.approx(stats.chi2.sf(full.null_deviance - full.deviance, 3), rel=1e-7)
    without = MODELS[loss](data.y, sm.add_constant(data.x[:, [0, 2]])).fit(tol=1e-14, maxiter=100)
    assert ours.term_tests["x1"].statistic == pytest.approx(without.deviance - full.deviance, rel=1e-7)


def test_f_tests_of_a_squared_loss(problem_of):
    problem = problem_of("squared")
    ours, theirs = estimate(problem), peer(problem)
    assert ours.test.statistic == pytest.approx(theirs.fvalue, rel=1e-9)
    assert ours.test.p == pytest.approx(theirs.f_pvalue, rel=1e-8)
    assert ours.dispersion == pytest.approx(theirs.scale, rel=1e-10)
    assert ours.degrees("model") == theirs.df_resid
    assert ours.term_tests["x1"].p == pytest.approx(theirs.pvalues[2], rel=1e-8)


def test_row_weights(problem_of):
    problem = problem_of("logistic", weights=True)
    ours, data = estimate(problem), problem.data
    weights = data.row_weights / data.row_weights.mean()
    model = sm.GLM(data.y, sm.add_constant(data.x), family=sm.families.Binomial(), var_weights=weights)
    theirs = model.fit(tol=1e-14, maxiter=100)
    np.testing.assert_allclose(ours.coefficients, theirs.params, rtol=1e-8)
    np.testing.assert_allclose(errors(ours.covariance("model")), theirs.bse, rtol=1e-8)


def test_multinomial(problem_of):
    problem = problem_of("softmax", rows=150)
    ours, data = estimate(problem), problem.data
    theirs = sm.MNLogit(data.y, sm.add_constant(data.x)).fit(method="newton", disp=False, tol=1e-14, maxiter=100)
    np.testing.assert_allclose(ours.coefficients, theirs.params.T.ravel(), rtol=1e-8)
    np.testing.assert_allclose(errors(ours.covariance("model")), theirs.bse.T.ravel(), rtol=1e-8)
    assert ours.test.statistic == pytest.approx(theirs.llr, rel=1e-8)
    assert ours.design.names[:2] == ["1: (Intercept)", "1: x0"]
    assert ours.term_tests["x2"].numerator == 2


def test_intercepts_of_clients(problem_of):
    """A private intercept of every client is the model with an indicator of every client."""
    problem = problem_of("logistic", rows=140, site_bias=True)
    ours, data = estimate(problem), problem.data
    model = sm.GLM(data.y, np.hstack([data.x, np.eye(4)[data.owners]]), family=sm.families.Binomial())
    for kind, other in (("model", "nonrobust"), ("hc0", "HC0")):
        theirs = model.fit(tol=1e-14, maxiter=100, cov_type=other)
        np.testing.assert_allclose(ours.coefficients, theirs.params[:3], rtol=1e-8)
        np.testing.assert_allclose(errors(ours.covariance(kind)), theirs.bse[:3], rtol=1e-8)


def test_stratified_cox(problem_of):
    """Breslow's method with ties (statsmodels), and robust errors without ties (lifelines)."""
    CoxPHFitter = pytest.importorskip("lifelines", reason="pip install lifelines, which needs pandas 2").CoxPHFitter
    from pandas import DataFrame

    problem = problem_of("cox", rows=160)
    ours, data = estimate(problem), problem.data
    times, events = np.abs(data.y), data.y > 0
    frame = DataFrame(data.x, columns=["a", "b", "c"]).assign(t=times, e=events, m=data.owners)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = CoxPHFitter().fit(frame, "t", "e", strata=["m"], robust=True, fit_options={"precision": 1e-13})
    np.testing.assert_allclose(ours.coefficients, theirs.params_, rtol=1e-7)
    np.testing.assert_allclose(errors(ours.covariance("hc0")), theirs.standard_errors_, rtol=1e-7)
    assert -ours.deviance / 2 == pytest.approx(theirs.log_likelihood_, rel=1e-9)
    tied = np.ceil(4 * times) / 4
    problem = replace(problem, training=replace(data, y=np.where(events, tied, -tied)))
    ours = estimate(problem)
    theirs = sm.PHReg(tied, data.x, events, ties="breslow", strata=data.owners).fit()
    np.testing.assert_allclose(ours.coefficients, theirs.params, rtol=1e-6)  # the limit of their optimizer
    np.testing.assert_allclose(errors(ours.covariance("model")), theirs.bse, rtol=1e-6)


def test_collinear_columns_are_named(problem_of):
    problem = problem_of("logistic")
    x = problem.data.x.copy()
    x[:, 2] = x[:, 0] - 2 * x[:, 1] + 1
    with pytest.raises(UserError, match=r"x2 is collinear with \(Intercept\), x0, x1; .*glm.drop=\[x2\]"):
        estimate(replace(problem, training=replace(problem.training, x=x)))
    ours = estimate(replace(problem, training=replace(problem.training, x=x)), drop=["x2"])
    assert ours.design.names == ["(Intercept)", "x0", "x1"]


def test_separation_is_named(problem_of):
    problem = problem_of("logistic")
    x = problem.data.x.copy()
    x[:, 1] = np.where(problem.data.y > 0, 1, np.arange(90) % 2)  # x1 = 0 only without the event
    with pytest.raises(UserError, match=r"no maximum \(separation\).* along x1;"):
        estimate(replace(problem, training=replace(problem.training, x=x)))


def test_too_few_rows(problem_of):
    problem = problem_of("logistic", rows=24)
    with pytest.raises(UserError, match="4 rows cannot determine 4 coefficients"):
        estimate(replace(problem, training=problem.training.client(0)))


def test_a_constant_within_clients_has_no_hazard_ratio(problem_of):
    problem = problem_of("cox")
    x = problem.data.x.copy()
    x[:, 1] = problem.data.owners
    with pytest.raises(UserError, match="x1 does not vary within any client"):
        estimate(replace(problem, training=replace(problem.training, x=x)))


def test_unsupported_problems(problem_of):
    from fco_cli.problem.regularizers import all_regularizers

    with pytest.raises(UserError, match="must be one of squared"):
        estimate(problem_of("huber"))
    with pytest.raises(UserError, match="must be none, or l1"):
        estimate(problem_of("logistic", psi=all_regularizers()["l2_squared"](strength=1.0)))
    with pytest.raises(UserError, match=r"hparams.weighting: got 'uniform'"):
        estimate(replace(problem_of("logistic"), weighting="uniform"))
