"""Nothing tuned, against scikit-learn's pooled solution of the same objective."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import Lasso, LogisticRegression

from fco_cli.selection.solve import problem_on, solve_path

CASES = {
    "heart": ("heart_disease", [0.05]),
    "crime": ("communities_crime", [0.1, 0.02, 0.005]),
    "eicu": ("eicu_demo", [0.02, 0.01, 0.003]),
}


def pooled(problem, strength):
    """Weights and bias on all rows together, every row with the weight that it has in F."""
    data = problem.data
    weights = np.repeat(problem.weights / data.sizes, data.sizes) * len(data.y)
    if problem.loss.name == "logistic":
        model = LogisticRegression(
            penalty="l1", C=1 / (strength * len(data.y)), solver="saga", tol=1e-12, max_iter=100_000
        )
    else:
        model = Lasso(alpha=strength / 2, tol=1e-14, max_iter=1_000_000)
    model.fit(data.x, data.y, sample_weight=weights)
    return np.append(model.coef_, model.intercept_)


def held_out(problem, w):
    """AUC, or R^2 and RMSE, on the rows that neither has seen."""
    scores = problem.test.x @ w[:-1] + w[-1]
    return problem.loss.metrics(scores, problem.test.y, problem.test.offsets)


@pytest.mark.slow
@pytest.mark.machine_code
@pytest.mark.filterwarnings("ignore")  # scikit-learn's words for l1 change
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize("name", CASES)
def test_the_pooled_solution(run_of, real_data, name, weighting):
    folder, strengths = CASES[name]
    words = [f"task={name}", f"task.data_dir={real_data(folder)}", f"hparams.weighting={weighting}", "task.test=rows"]
    run = run_of(*words)
    data = run.task.cross_validated().data(0, "float64")
    solved = solve_path(run, data, np.array(strengths), 1e-8, lambda: None)
    problem = problem_on(run, data)
    for strength, model in zip(strengths, solved.models, strict=True):
        best = pooled(problem, strength)
        assert np.abs(model - best).max() <= 1e-6
        np.testing.assert_array_equal(model != 0, best != 0)
        ours, theirs = (held_out(problem, w) for w in (model, best))
        assert ours == pytest.approx(theirs, abs=1e-4)
