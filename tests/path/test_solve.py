"""Tests of the largest value of a path for every regularizer: its dual norm, or a one-line error."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.errors import UserError
from fco_cli.path.solve import find_largest, minimize_risk, null_model, path_parameter, path_values, with_value
from fco_cli.problem.regularizers import all_regularizers

SHAPE = (3, 4)


def by_group(g):
    return np.linalg.norm(g.reshape(-1, 4), axis=1).max()


def by_slope(g):
    """Return the dual norm of slope with weights from 1.5 to 1: the largest ratio of cumulative sums."""
    return (np.cumsum(-np.sort(-abs(g))) / np.cumsum(np.linspace(1.5, 1, len(g)))).max()


def spectral(g):
    return np.linalg.norm(g.reshape(SHAPE), 2)


DUAL_NORMS = {  # penalties; applied to the gradient at the null model
    "l1": lambda g: abs(g).max(),
    "elastic_net": lambda g: abs(g).max(),
    "l2_norm": np.linalg.norm,
    "group_lasso": by_group,
    "slope": by_slope,
    "nuclear": spectral,
}
NORMS = {  # balls; applied to the unconstrained solution
    "l1_ball": lambda w: abs(w).sum(),
    "l2_ball": np.linalg.norm,
    "linf_ball": lambda w: abs(w).max(),
    "nuclear_ball": lambda w: np.linalg.norm(w.reshape(SHAPE), "nuc"),
}
BY_HAND = {"l2_squared", "total_variation", "fused_lasso"}  # solution never null, or no closed form
REFUSED = {"none", "box", "non_negative", "simplex", "monotone", "l0", "l0_ball", "blockwise"}


def test_every_regularizer_is_covered():
    assert {*DUAL_NORMS, *NORMS, *BY_HAND, *REFUSED} == set(all_regularizers())


@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("name", DUAL_NORMS)
def test_the_largest_strength_is_the_dual_norm_of_the_gradient(make_problem, regularizer, name, loss):
    shape = SHAPE if name == "nuclear" else None
    psi = regularizer(name, group_size=4)
    problem = make_problem(psi, loss, sizes=(20, 9, 14), features=12, weights_shape=shape, weighting="uniform")
    null = null_model(problem)
    gradient = problem.risk(null[None]).gradient[0]
    assert not null[:-1].any()
    assert abs(gradient[-1]) < 1e-8  # the bias is fitted
    np.testing.assert_allclose(find_largest(problem), DUAL_NORMS[name](gradient[:-1]), rtol=1e-6)


@pytest.mark.parametrize("name", DUAL_NORMS)
def test_just_below_the_largest_strength_the_model_is_not_null(make_problem, regularizer, make_algorithm, name):
    shape = SHAPE if name == "nuclear" else None
    problem = make_problem(regularizer(name, group_size=4), sizes=(20, 9, 14), features=12, weights_shape=shape)
    largest = find_largest(problem)
    for times, is_null in ((1.001, True), (0.98, False)):
        psi = with_value(problem.regularizer, times * largest)
        residual = problem.kkt_residual(
            null_model(problem)[None], problem.risk(null_model(problem)[None]).gradient, psi.numbers
        )
        assert (residual[0] < 1e-8) == is_null


@pytest.mark.parametrize("name", NORMS)
def test_the_largest_radius_contains_the_unconstrained_solution(make_problem, regularizer, name):
    shape = SHAPE if name == "nuclear_ball" else None
    problem = make_problem(regularizer(name), sizes=(20, 9, 14), features=12, weights_shape=shape)
    free = minimize_risk(problem, np.ones(13, dtype=bool))
    np.testing.assert_allclose(find_largest(problem), NORMS[name](free[:-1]), rtol=1e-6)
    values = path_values(problem, 5, 0.1)
    assert (np.diff(values) > 0).all()  # simplest model first


@pytest.mark.parametrize("name", sorted(REFUSED - {"blockwise"}))
def test_regularizers_without_a_path_are_refused(regularizer, name):
    with pytest.raises(UserError, match=r"^regularizer: got '.*', must be (one with a strength or a radius|convex)"):
        path_parameter(regularizer(name, lower=-1, upper=1, nonzeros=2))


def test_a_regularizer_without_a_formula(make_problem, regularizer):
    """The fused lasso needs a smaller strength than l1, found from its prox."""
    problem = make_problem(regularizer("fused_lasso", variation_strength=0.2), features=12)
    gradient = problem.risk(null_model(problem)[None]).gradient[0, :-1]
    assert 0 < find_largest(problem) < abs(gradient).max()


@pytest.mark.parametrize("name", ["l2_squared", "total_variation"])
def test_a_regularizer_that_is_never_null_needs_a_largest_strength(make_problem, regularizer, name):
    problem = make_problem(regularizer(name))
    with pytest.raises(
        UserError, match=rf"^path.largest: got null, must be a number for {name}, whose solution is never"
    ):
        find_largest(problem)
    np.testing.assert_allclose(path_values(problem, 3, 0.01, largest=2.0), [2, 0.2, 0.02])


def test_labels_independent_of_all_features_are_refused(make_problem, regularizer):
    problem = make_problem(regularizer("l1"))
    problem.data.y[:] = 3.0
    with pytest.raises(UserError, match=r"^path: the null model is optimal at every strength"):
        find_largest(problem)


def test_a_path_of_null_models_is_refused(make_problem, regularizer):
    problem = make_problem(regularizer("l1"))
    with pytest.raises(UserError, match=r"^path\.largest: got 1000000000.*is the null model"):
        path_values(problem, 3, 0.01, largest=1e9)
