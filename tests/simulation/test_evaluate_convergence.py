from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fco_cli.algorithms import all_algorithms
from fco_cli.problem.certificate import separates_classes
from fco_cli.problem.losses import all_losses
from fco_cli.simulation.evaluate import hessian, judge, residual_threshold

RATES = [0.001, 0.02, 0.03, 0.04]  # each reaches the tolerance in another round; the first one never does


def history(residuals, objectives=None):
    rounds = [float(r) for r in range(len(residuals))]
    return {"round": rounds, "kkt_residual": list(residuals), "objective": list(objectives or residuals)}


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_the_distance_holds(make_problem, make_algorithm, regularizer, loss):
    """(1 + L) / mu times the residual is an upper bound on the distance to the solution for a model near it."""
    problem = make_problem(regularizer("l1", strength=0.05), loss, sizes=(30, 20, 40))
    solver = make_algorithm("optimum", problem, tolerance=1e-13)
    best = solver.output(solver.round(solver.initial_state(np.zeros((1, problem.layout.size)))).state)[0]
    random = np.random.default_rng(0)
    for size in (1e-3, 1e-5):
        near = best + size * random.standard_normal(len(best)) * (best != 0)
        residual = float(
            problem.kkt_residual(near[None], problem.risk(near[None]).gradient, problem.regularizer.numbers)[0]
        )
        verdict = judge(problem, problem.regularizer.numbers, 0.999, near, history([1.0, residual]), None)
        assert verdict.converged
        away = np.linalg.norm(near - best)
        assert away <= verdict.distance <= 1e3 * away
        assert (verdict.bound is None) == (loss == "logistic")
        assert verdict.bound is None or verdict.distance <= verdict.bound <= 1e3 * away
        assert verdict.line.startswith(f"converged: within {verdict.distance:.0e} of the pooled solution (an estimate")


def test_the_hessian_of_a_logistic_loss(make_problem):
    problem = make_problem(loss="logistic", weighting="examples")
    w = np.linspace(-1, 1, problem.layout.size)
    x = np.column_stack([problem.data.x, np.ones(len(problem.data.y))])
    p = 1 / (1 + np.exp(-x @ w))
    np.testing.assert_allclose(hessian(problem, w), x.T @ (x * (p * (1 - p))[:, None]) / len(p), atol=1e-7)


def test_residuals_are_relative_to_lambda_or_the_initial_gradient(make_problem, regularizer):
    for psi, scale in (("l1", 0.7), ("elastic_net", 0.7), ("l1_ball", None), ("none", None)):
        problem = make_problem(regularizer(psi))
        start = np.linalg.norm(problem.risk(np.zeros((1, problem.layout.size))).gradient)
        expected = 1e-3 * (start if scale is None else scale)
        np.testing.assert_allclose(residual_threshold(problem, problem.regularizer.numbers, 1e-3), expected)
        verdict = judge(problem, problem.regularizer.numbers, 1e-9, np.zeros(problem.layout.size), history([1.0]), None)
        assert verdict.relative_to == ("the initial gradient" if scale is None else "lambda")
        np.testing.assert_allclose(verdict.kkt, 1e3 * 1e-3 / (start if scale is None else scale))


def test_a_negligible_lambda_is_not_used_as_scale(make_problem, regularizer):
    """A residual relative to lambda would overflow."""
    problem = make_problem(regularizer("l1", strength=1e-320))
    numbers, model = problem.regularizer.numbers, np.zeros(problem.layout.size)
    verdict = judge(problem, numbers, 1e-9, model, history([1.0]), None)
    assert verdict.relative_to == "the initial gradient"
    np.testing.assert_allclose(verdict.kkt, 1 / problem.gradient_at_start)


def test_the_threshold_is_at_least_the_rounding_error(make_problem, regularizer):
    """Residuals below the rounding error of the gradient are not required, however small lambda is."""
    problem = make_problem(regularizer("l1", strength=1e-12), dtype="float32")
    enough = residual_threshold(problem, problem.regularizer.numbers, 1e-8)
    assert enough > 1e-7 * problem.gradient_at_start


def test_the_number_of_remaining_rounds(make_problem, regularizer):
    """A residual that decreases by 10 in 50 rounds needs 200 rounds for 4 digits; a constant residual is detected."""
    problem = make_problem(regularizer("l1", strength=1.0))
    numbers, model = problem.regularizer.numbers, np.zeros(problem.layout.size)
    falling = history(10.0 ** (-np.arange(101) / 50))
    verdict = judge(problem, numbers, 1e-6, model, falling, "hparams.server_lr=3")
    assert (verdict.converged, verdict.more_rounds) == (False, 200)
    assert verdict.line.startswith(
        "not converged: about 200 more rounds, or hparams.server_lr=3; KKT residual 1.0e-02 of"
    )
    assert -0.02 < verdict.slope < 0
    still = judge(problem, numbers, 1e-6, model, history(np.full(101, 0.1)), None)
    assert still.more_rounds is None
    assert still.line.startswith("not converged: the residual hardly decreases; use a smaller hparams.client_lr")


def test_the_advice_for_short_runs_and_small_steps(make_problem, regularizer):
    """Three evaluations do not show whether the residual decreases; a smaller step does not speed up small steps."""
    problem = make_problem(regularizer("l1", strength=1.0))
    numbers, model = problem.regularizer.numbers, np.zeros(problem.layout.size)
    short = judge(problem, numbers, 1e-6, model, history([1.0, 0.5, 0.2]), None)
    assert short.line.startswith("not converged: too few evaluated rounds for an estimate; increase hparams.rounds")
    slow = judge(problem, numbers, 1e-6, model, history(np.full(101, 0.1)), "hparams.server_lr=3")
    assert slow.advice.startswith("the residual hardly decreases; use hparams.server_lr=3, a smaller hparams.client_lr")


@pytest.mark.ci
@pytest.mark.parametrize("algo", ["centralized", "zhj"])
def test_jobs_leave_when_they_have_converged(make_setup, simulate, algo):
    """Every job leaves in its own round, with the same bits as alone, also when resumed from a snapshot."""
    changes = {"rounds": "auto", "tolerance": 0.3, "most_rounds": 90, "eval_every": 3, "clients_per_round": "all"}
    setup = make_setup("lasso", algo, **changes, batch_size=100)
    stacked = simulate(setup, RATES, rounds=90)
    assert [job.ended for job in stacked] == [True] * 4
    assert len({job.round for job in stacked}) >= 3
    assert stacked[0].round == 90
    for job, rate in zip(stacked, RATES, strict=True):
        (alone,) = simulate(setup, [rate], rounds=90)
        np.testing.assert_array_equal(job.model, alone.model)
        assert job.round == alone.round == job.history["round"][-1]
        assert (job.history["kkt_residual"][-1] <= 0.3 * 0.5) == (job.round < 90)
        assert min([1.0, *job.history["kkt_residual"][:-1]]) > 0.3 * 0.5
    early = min(job.round for job in stacked) - 1
    halves = simulate(setup, RATES, rounds=early)
    for job, right in zip(simulate(setup, RATES, halves, rounds=90), stacked, strict=True):
        np.testing.assert_array_equal(job.model, right.model)
        assert job.history == right.history


def test_every_algorithm_with_rounds_auto_has_one_model():
    assert {name for name, kind in all_algorithms().items() if kind.personal} >= {"local"}


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_separated_classes_have_no_solution_without_a_penalty(make_problem, regularizer, loss):
    """Every row has a loss below log 2 if the objective is below the share of one row times log 2."""
    problem = make_problem(regularizer("none"), loss, sizes=(8, 4))
    numbers, model = problem.regularizer.numbers, np.zeros(problem.layout.size)
    limit = np.log(2) / 2 / 8
    for objective, is_separated in ((0.99 * limit, True), (1.01 * limit, False)):
        assert separates_classes(problem, objective) is is_separated
        verdict = judge(problem, numbers, 1e-9, model, history([1.0, 1e-20], [1.0, objective]), None)
        assert ("there is no finite solution without a penalty" in verdict.line) is is_separated
        assert not (is_separated and verdict.converged)
    penalized = make_problem(regularizer("l1", strength=1e-3), loss, sizes=(8, 4))
    assert not separates_classes(penalized, 0.5 * limit)


@pytest.mark.parametrize("algo", ["fista", "prox_newton"])
def test_rounds_auto_ends_when_the_classes_are_separated(make_setup, simulate, regularizer, algo):
    setup = make_setup("lasso", algo, rounds="auto", most_rounds=1000, eval_every=1, clients_per_round="all")
    rows = replace(setup.problem.data, y=(setup.problem.data.x[:, 0] > 0).astype(setup.problem.data.y.dtype))
    problem = replace(setup.problem, training=rows, loss=all_losses()["logistic"](), regularizer=regularizer("none"))
    (job,) = simulate(replace(setup, problem=problem), [1.0], rounds=1000)
    assert job.ended
    assert 1 < job.round < 900
    assert not job.certified
    assert separates_classes(problem, job.history["objective"][-1])
    assert not separates_classes(problem, job.history["objective"][-2])
