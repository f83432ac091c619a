"""Debiased lasso: limits and coverage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fco_cli.inference.estimate import estimate
from fco_cli.problem.regularizers import all_regularizers

l1 = all_regularizers()["l1"]


def test_a_vanishing_penalty_gives_maximum_likelihood(problem_of):
    """Features with factor 0 are unpenalized: all features, or one of them while the others have a tiny penalty."""
    exact = estimate(problem_of("logistic"))
    free = estimate(problem_of("logistic", psi=l1(strength=0.0)))
    assert not free.is_debiased
    np.testing.assert_array_equal(free.coefficients, exact.coefficients)
    tiny = estimate(problem_of("logistic", psi=l1(strength=1e-6)))
    assert tiny.is_debiased
    assert tiny.test is None
    np.testing.assert_allclose(tiny.coefficients, exact.coefficients, atol=1e-5)


def test_the_penalty_is_removed(problem_of):
    """The debiased estimate lies nearer to the truth than the lasso, which is 0 here."""
    problem = problem_of("squared", rows=300, psi=l1(strength=0.8))
    ours = estimate(problem)
    assert len(ours.selected) < 4
    assert np.abs(ours.coefficients[1] - 0.6) < 3 * np.sqrt(ours.covariance("model")[1, 1])


@pytest.mark.ci
@pytest.mark.machine_code
@pytest.mark.parametrize("index", [0, 1, -2])
def test_coverage(monkeypatch, index):
    """docs/inference.md has the numbers of 1,000 federations; 60 suffice to notice an error of a few percent."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    from benchmarks.coverage import CASES, coverage

    share = coverage(CASES[index], 60)[0]
    assert 0.91 <= share <= 0.985
