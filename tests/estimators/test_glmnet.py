"""Cross-validated estimators have the definitions of R's cv.glmnet: losses, standard errors, min and 1se."""

from __future__ import annotations

import json
import shutil
import subprocess

import numpy as np
import pytest

from fco_cli.estimators import FederatedClassifierCV, FederatedElasticNetCV, FederatedRegressorCV

ROWS = 150
FOLD = np.arange(ROWS) % 5
PATH = {
    "n_strengths": 10, "ratio": 0.01, "tol": 1e-11,
    "cv": [(np.flatnonzero(k != FOLD), np.flatnonzero(k == FOLD)) for k in range(5)],
}  # fmt: skip
PROGRAM = """
suppressMessages({library(glmnet); library(jsonlite)})
d <- fromJSON(file("stdin")); glmnet.control(epsnr = 1e-14)
c <- cv.glmnet(d$x, d$y, family = d$family, lambda = d$lambda, foldid = d$fold + 1, standardize = FALSE,
               thresh = 1e-20, maxit = 1e7)
g <- glmnet(d$x, d$y, family = d$family, standardize = FALSE, nlambda = 5)
cat(toJSON(list(mean = c$cvm, error = c$cvsd, min = c$lambda.min, one = c$lambda.1se, largest = g$lambda[1],
                coef = as.vector(coef(c$glmnet.fit, s = c$lambda.min))), digits = I(17)))
"""


def from_r(**data: object) -> dict:
    """Return the results of R's glmnet."""
    if shutil.which("Rscript") is None:
        pytest.skip("Rscript is not installed")
    text = json.dumps(data, default=lambda array: array.tolist())
    done = subprocess.run(
        ["Rscript", "-e", PROGRAM], input=text, capture_output=True, text=True, timeout=60, check=False
    )
    if "there is no package called" in done.stderr:
        pytest.skip("R's glmnet or jsonlite is not installed")
    assert done.returncode == 0, done.stderr
    return {name: np.squeeze(value) for name, value in json.loads(done.stdout).items()}


@pytest.mark.ci
@pytest.mark.parametrize("family", ["gaussian", "poisson", "binomial"])
def test_the_selected_strengths_are_those_of_glmnet(family):
    """A squared loss has no factor 1/2 here; deviances are twice the losses, except for a constant."""
    random = np.random.default_rng(0)
    x, clients = random.standard_normal((ROWS, 6)), random.choice(["a", "b", "c"], ROWS)
    scores = x @ [0.5, -0.3, 0, 0, 0.2, 0]
    y = {
        "gaussian": scores + random.standard_normal(ROWS),
        "poisson": random.poisson(np.exp(scores)),
        "binomial": (random.random(ROWS) < 1 / (1 + np.exp(-2 * scores))).astype(int),
    }[family]
    make = {
        "gaussian": lambda **own: FederatedElasticNetCV(l1_ratio=1.0, **PATH, **own),
        "poisson": lambda **own: FederatedRegressorCV("poisson", **PATH, **own),
        "binomial": lambda **own: FederatedClassifierCV("l1", **PATH, **own),
    }[family]
    mine = make().fit(x, y, groups=clients)
    to_lambda, deviance = (0.5, 1) if family == "gaussian" else (1, 2)
    theirs = from_r(x=x, y=y, family=family, fold=FOLD, **{"lambda": to_lambda * mine.path_.strengths})
    np.testing.assert_allclose(to_lambda * mine.path_.strengths[0], theirs["largest"], rtol=2e-6)  # a margin of 1e-6
    difference = deviance * mine.path_.mean - theirs["mean"]
    np.testing.assert_allclose(difference, difference[0] if family == "poisson" else 0, atol=1e-9)
    np.testing.assert_allclose(deviance * mine.path_.error, theirs["error"], rtol=1e-8)
    assert to_lambda * mine.strength_ == pytest.approx(theirs["min"], rel=1e-12)
    np.testing.assert_allclose([*np.ravel(mine.intercept_), *np.ravel(mine.coef_)], theirs["coef"], atol=1e-9)
    simple = make(choice="1se").fit(x, y, groups=clients)
    assert to_lambda * simple.strength_ == pytest.approx(theirs["one"], rel=1e-12)
