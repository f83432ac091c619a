"""Tests of the Cox estimators, against statsmodels and definitions."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from fco_cli.estimators import FederatedCox, FederatedCoxCV


@pytest.fixture(scope="module")
def patients():
    """Return rows of three unequal clients with censoring and ties."""
    random = np.random.default_rng(0)
    clients = random.choice(["b", "a", "c"], 150, p=[0.5, 0.3, 0.2])
    x = random.standard_normal((150, 4)) * [1, 5, 0.1, 1] + [100, 2000, 0, 0]
    rate = np.exp(0.8 * (x[:, 0] - 100) - 0.1 * (x[:, 1] - 2000)) * np.where(clients == "a", 3, 1)
    times, censored = random.exponential(1 / rate), random.exponential(2, 150)
    observed = np.ceil(np.minimum(times, censored) * 20) / 20
    return x, np.column_stack([observed, times <= censored]), clients


def test_an_unpenalized_model_equals_a_stratified_one_of_statsmodels(patients):
    """Columns are shifted by 100 and 2,000, which a model in the units of the data must not notice."""
    from statsmodels.duration.hazard_regression import PHReg

    x, y, clients = patients
    mine = FederatedCox(0.0, tol=1e-12).fit(x, y, groups=clients)
    theirs = PHReg(y[:, 0], x - x.mean(axis=0), y[:, 1], strata=clients, ties="breslow").fit(tol=1e-13, maxiter=200)
    np.testing.assert_allclose(mine.coef_, theirs.params, rtol=1e-8, atol=1e-9)
    one = FederatedCox(0.0, stratified=False, tol=1e-12).fit(x, y)
    theirs = PHReg(y[:, 0], x - x.mean(axis=0), y[:, 1], ties="breslow").fit(tol=1e-13, maxiter=200)
    np.testing.assert_allclose(one.coef_, theirs.params, rtol=1e-8, atol=1e-9)


def negative_log_likelihood(w, x, y, clients):
    """Return the definition of -(log partial likelihood) / n, with Breslow's ties."""
    total = 0.0
    for name in np.unique(clients):
        own = clients == name
        scores, times, events = x[own] @ w, y[own, 0], y[own, 1] == 1
        for i in np.flatnonzero(events):
            total += np.log(np.exp(scores[times >= times[i]] - scores[i]).sum())
    return total / len(y)


def test_a_penalized_model_minimizes_its_objective(patients):
    x, y, clients = patients
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    model = FederatedCox(0.05, 0.1, tol=1e-10).fit(x, y, groups=clients)

    def objective(w):
        return negative_log_likelihood(w, x, y, clients) + 0.05 * abs(w).sum() + 0.05 * (w**2).sum()

    best = objective(model.coef_)
    assert 0 < np.count_nonzero(model.coef_) < 4
    for step in np.concatenate([np.eye(4), -np.eye(4)]) * 1e-4:
        assert objective(model.coef_ + step) > best


def test_structured_and_sparse_input(patients):
    x, y, clients = patients
    structured = np.array([(bool(event), time) for time, event in y], dtype=[("event", "?"), ("time", "f8")])
    model = FederatedCox().fit(x, y, groups=clients)
    np.testing.assert_array_equal(FederatedCox().fit(x, structured, groups=clients).coef_, model.coef_)
    small = x - [100, 2000, 0, 0]
    one, other = (FederatedCox().fit(rows, y, groups=clients) for rows in (small, csr_matrix(small)))
    np.testing.assert_allclose(one.coef_, other.coef_, atol=1e-7)


def test_the_score_is_the_concordance(patients):
    x, y, clients = patients
    model = FederatedCox().fit(x, y, groups=clients)
    risk = model.predict(x)
    np.testing.assert_allclose(risk, x @ model.coef_)
    for groups in (None, clients):
        pairs = concordant = 0.0
        for i in np.flatnonzero(y[:, 1]):
            for k in range(len(y)):
                later = y[k, 0] > y[i, 0] or (y[k, 0] == y[i, 0] and y[k, 1] == 0)
                if later and (groups is None or groups[i] == groups[k]):
                    pairs += 1
                    concordant += (risk[i] > risk[k]) + 0.5 * (risk[i] == risk[k])
        assert model.score(x, y, groups=groups) == pytest.approx(concordant / pairs)


def test_the_strength_is_selected(patients):
    x, y, clients = patients
    model = FederatedCoxCV(n_strengths=6, cv=3).fit(x, y, groups=clients)
    assert not model.path_.coefs[0].any()
    again = FederatedCox(model.strength_).fit(x, y, groups=clients)
    np.testing.assert_allclose(model.coef_, again.coef_, atol=1e-7)
    assert model.score(x, y, groups=clients) > 0.6


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (np.ones(150), "y: got the shape \\(150,\\), must be an array with a time and an event"),
        (np.zeros((150, 2)), "y: times must be above 0"),
        (np.column_stack([np.ones(150), np.zeros(150)]), "y: no event"),
        (np.column_stack([np.ones(150), np.full(150, 2)]), "events 0 \\(censored\\) or 1"),
        (np.zeros(150, dtype=[("a", "?"), ("b", "f8"), ("c", "f8")]), "structured array \\(event, time\\)"),
        (np.ones((149, 2)), "inconsistent numbers of samples"),
    ],
)
def test_invalid_labels_are_one_line(patients, y, words):
    x, _, clients = patients
    with pytest.raises(ValueError, match=words) as caught:
        FederatedCox().fit(x, y, groups=clients)
    assert "\n" not in str(caught.value)


GLMNET = r"""
suppressMessages({library(survival); library(glmnet)})
d <- na.omit(lung[, c("inst", "time", "status", "age", "sex", "ph.ecog", "wt.loss")])
d$time <- d$time + seq_len(nrow(d)) / 1000  # without ties, whose saturated likelihood glmnet subtracts
x <- as.matrix(d[, 4:7])
x <- scale(x, scale = apply(x, 2, sd) * sqrt((nrow(x) - 1) / nrow(x)))
group <- cut(d$inst, c(0, 3, 11, 99), labels = FALSE)
fold <- (seq_len(nrow(d)) * 7) %% 5 + 1
show <- function(...) cat(format(c(...), digits = 17), "\n")
show(x); show(d$time); show(d$status == 2); show(group); show(fold)
y <- stratifySurv(Surv(d$time, d$status == 2), group)
cv <- cv.glmnet(x, y, family = "cox", foldid = fold, standardize = FALSE, lambda = c(STRENGTHS), grouped = TRUE,
                thresh = 1e-14)
show(cv$cvm); show(cv$cvsd); show(cv$lambda.min, cv$lambda.1se)
"""


@pytest.mark.ci
def test_grouped_cross_validation_of_glmnet():
    """Means and standard errors of cv.glmnet(grouped=TRUE), per event, on lung in three strata."""
    if shutil.which("Rscript") is None:
        pytest.skip("Rscript is not installed")
    strengths = 0.23002691 * np.geomspace(1, 0.1, 5)

    def of_r(strengths: np.ndarray) -> list[np.ndarray]:
        program = GLMNET.replace("STRENGTHS", ", ".join(map(repr, strengths.tolist())))
        done = subprocess.run(["Rscript", "-e", program], capture_output=True, text=True, check=False)
        if "there is no package called" in done.stderr:
            pytest.skip("R's glmnet or survival is not installed")
        values = [line.replace("TRUE", "1").replace("FALSE", "0").split() for line in done.stdout.splitlines()]
        return [np.array(line, float) for line in values]

    x, times, events, group, fold, *_ = of_r(strengths)
    folds = [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(1, 6)]
    model = FederatedCoxCV(n_strengths=5, ratio=0.1, cv=folds, tol=1e-12)
    model.fit(x.reshape(4, -1).T, np.column_stack([times, events]), groups=group)
    mean, error, chosen = of_r(model.path_.strengths)[5:]
    np.testing.assert_allclose(2 * model.path_.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(2 * model.path_.error, error, rtol=1e-5)
    assert model.strength_ == pytest.approx(chosen[0])
    one = model.set_params(choice="1se").fit(x.reshape(4, -1).T, np.column_stack([times, events]), groups=group)
    assert one.strength_ == pytest.approx(chosen[1])
