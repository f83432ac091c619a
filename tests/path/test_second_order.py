"""Tests of second-order paths: agreement with independent solutions, rounds, anchors, working sets, bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fco_cli.errors import UserError
from fco_cli.path import second_order, solve, working_set
from fco_cli.path.round import evaluate_round
from fco_cli.path.second_order import (
    refine,
    solve_by_moments,
    solve_second_order,
    stages_of,
)
from fco_cli.path.solve import Cache, Checkpoint, find_largest
from fco_cli.path.working_set import with_largest
from fco_cli.problem.layout import stack_numbers
from fco_cli.problem.losses import all_losses
from fco_cli.problem.regularizers.penalties import L1, ElasticNet
from fco_cli.problem.regularizers.structured import GroupLasso
from fco_cli.testing.problems import make_problem

SIZES = (14, 8, 18)


def ignore_round() -> None:
    """Do nothing after a round."""


def path_of(problem, count: int = 6):
    """Return the strengths of a path and the parameters of psi."""
    values = find_largest(problem) * np.geomspace(1, 0.05, count)
    return values, stack_numbers([replace(problem.regularizer, strength=value) for value in values])


def residuals(problem, models, numbers):
    return problem.kkt_residual(models, problem.risk(models).gradient, numbers)


@pytest.mark.parametrize("loss", ["logistic", "poisson", "huber", "softmax", "cox", "squared"])
@pytest.mark.parametrize("psi", [L1(strength=0.1), ElasticNet(strength=0.1, l2_strength=0.2)], ids=lambda psi: psi.name)
def test_every_model_is_optimal_in_few_rounds(loss, psi):
    problem = make_problem(psi, all_losses()[loss](), sizes=SIZES)
    values, numbers = path_of(problem)
    (solutions,) = solve_second_order([problem], numbers, values, 1e-9, ignore_round, 100)
    assert solutions.converged.all()
    assert (residuals(problem, solutions.models, numbers) <= 1e-8 * values).all()
    assert solutions.rounds.max() <= 15


@pytest.mark.parametrize(
    ("largest", "line"),
    [
        (300, "a round has up to 12 models of 2 fits, 672 bytes of gradients, and 6 Hessians of a fit, 2.688 kB"),
        (
            3,
            "12 models of 2 fits, 672 bytes of gradients, and Hessians of working sets, up to 67.11 MB",
        ),
    ],
)
def test_the_size_of_a_round_is_logged_before_it(monkeypatch, caplog, largest, line):
    monkeypatch.setattr(working_set, "FULL_HESSIAN", largest)
    problem = make_problem(L1(strength=0.1), all_losses()["logistic"](), sizes=SIZES)
    values, numbers = path_of(problem)

    def refuse(requests):
        raise UserError("no round")

    with caplog.at_level("INFO"), pytest.raises(UserError, match="no round"):
        solve_second_order([problem, problem], numbers, values, 1e-9, ignore_round, 100, refuse)
    assert line in caplog.text


def test_a_psi_that_couples_weights():
    problem = make_problem(GroupLasso(strength=0.1, group_size=3), all_losses()["logistic"](), sizes=SIZES)
    values, numbers = path_of(problem, 4)
    (solutions,) = solve_second_order([problem], numbers, values, 1e-9, ignore_round, 100)
    assert solutions.converged.all()
    assert (residuals(problem, solutions.models, numbers) <= 1e-8 * values).all()


def test_moments_need_one_round():
    problems = [make_problem(L1(strength=0.1), sizes=SIZES, seed=seed) for seed in (0, 1)]
    values, numbers = path_of(problems[0])
    calls = []

    def evaluate(requests):
        calls.append(len(requests))
        return evaluate_round(requests)

    for problem, solutions in zip(problems, solve_by_moments(problems, numbers, 1e-10, evaluate), strict=True):
        assert solutions.converged.all()
        assert (residuals(problem, solutions.models, numbers) <= 1e-10 * values).all()
    assert calls == [2]


def test_anchors_change_the_rounds_but_not_the_solution(monkeypatch):
    problem = make_problem(L1(strength=0.1), all_losses()["logistic"](), sizes=SIZES)
    values, numbers = path_of(problem, 9)
    made, curved = {}, []

    def evaluate(requests):
        curved.append(max(int(request.curved.sum()) for request in requests))
        return evaluate_round(requests)

    for anchors in (2, 9):
        monkeypatch.setattr(second_order, "MAX_ANCHORS", anchors)
        curved.clear()
        (made[anchors],) = solve_second_order([problem], numbers, values, 1e-10, ignore_round, 100, evaluate)
        assert max(curved) <= anchors
        assert made[anchors].converged.all()
    np.testing.assert_allclose(made[2].models, made[9].models, atol=1e-7)
    np.testing.assert_array_equal(made[2].models == 0, made[9].models == 0)
    assert made[9].rounds.max() <= made[2].rounds.max()


@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_a_working_set_gives_the_same_solutions(monkeypatch, loss):
    """More features than rows; Hessians are those of a few weights, and no violation remains."""
    problem = make_problem(L1(strength=0.1), all_losses()[loss](), sizes=SIZES, features=60)
    values, numbers = path_of(problem, 5)
    (full,) = solve_second_order([problem], numbers, values, 1e-9, ignore_round, 100)
    monkeypatch.setattr(working_set, "FULL_HESSIAN", 10)
    monkeypatch.setattr(working_set, "EXTENSION", 4)
    sizes = []

    def evaluate(requests):
        sizes.extend(len(request.columns) for request in requests)
        return evaluate_round(requests)

    (part,) = solve_second_order([problem], numbers, values, 1e-9, ignore_round, 100, evaluate)
    assert part.converged.all()
    assert max(sizes) < 61
    assert (residuals(problem, part.models, numbers) <= 1e-8 * values).all()
    np.testing.assert_allclose(part.models, full.models, atol=1e-6)


def test_a_fit_has_the_same_bits_alone_and_with_others():
    problems = [make_problem(L1(strength=0.1), all_losses()["logistic"](), sizes=SIZES, seed=s) for s in (0, 1)]
    values, numbers = path_of(problems[0])
    together = solve_second_order(problems, numbers, values, 1e-8, ignore_round, 100)
    for problem, solutions in zip(problems, together, strict=True):
        (alone,) = solve_second_order([problem], numbers, values, 1e-8, ignore_round, 100)
        np.testing.assert_array_equal(alone.models, solutions.models)
        np.testing.assert_array_equal(alone.rounds, solutions.rounds)


def test_a_refinement_reaches_a_smaller_tolerance():
    problem = make_problem(L1(strength=0.1), all_losses()["logistic"](), sizes=SIZES)
    values, numbers = path_of(problem)
    (rough,) = solve_second_order([problem], numbers, values, 1e-2, ignore_round, 100)
    fine = refine(problem, numbers[3:5], rough.models[3:5], 1e-11, ignore_round, 100)
    assert fine.converged.all()
    assert (residuals(problem, fine.models, numbers[3:5]) <= 1e-10 * values[3:5]).all()


def test_a_limit_of_rounds_leaves_models_unconverged():
    problem = make_problem(L1(strength=0.1), all_losses()["logistic"](), sizes=SIZES)
    values, numbers = path_of(problem)
    (solutions,) = solve_second_order([problem], numbers, values, 1e-12, ignore_round, 2)
    assert not solutions.converged.all()
    assert solutions.rounds.max() == 2


def test_counts_that_overflow_are_reported():
    """e^score is infinite at the first model: one line."""
    problem = make_problem(L1(strength=0.1), all_losses()["poisson"](), sizes=SIZES)
    problem.data.x[:] *= 1e200
    values, numbers = np.ones(1), stack_numbers([L1(strength=1.0)])
    with pytest.raises(UserError, match=r"^path: the initial objective or its gradient overflows"):
        solve_second_order([problem], numbers, values, 1e-8, ignore_round, 100)


def test_stages_have_similar_strengths():
    assert stages_of(np.array([1.0, 0.6, 0.4, 0.3, 0.1])) == [slice(0, 2), slice(2, 4), slice(4, 5)]
    assert stages_of(np.ones(1)) == [slice(0, 1)]


def test_a_working_set_grows_by_the_largest_violations(monkeypatch):
    monkeypatch.setattr(working_set, "EXTENSION", 1)
    excess = np.array([0.5, -1.0, 3.0, 0.0, 2.0, 4.0])
    np.testing.assert_array_equal(with_largest(np.array([1]), excess.copy()), [1, 5])
    np.testing.assert_array_equal(with_largest(np.array([2, 5, 4, 0]), excess.copy()), [0, 2, 4, 5])


class Killed(Exception):
    """End of a process between two rounds."""


@pytest.mark.ci
@pytest.mark.parametrize("largest", [300, 0], ids=["whole Hessian", "working set"])
def test_a_killed_solve_resumes_after_its_last_round(monkeypatch, largest):
    monkeypatch.setattr(working_set, "FULL_HESSIAN", largest)
    monkeypatch.setattr(solve, "STORE_SECONDS", 0.0)
    problems = [make_problem(L1(strength=0.1), all_losses()["logistic"](), sizes=SIZES, seed=seed) for seed in (0, 1)]
    values, numbers = path_of(problems[0], 16)
    calls = []

    def evaluate(requests):
        calls.append(len(requests))
        return evaluate_round(requests)

    class Dictionary(Cache):
        is_persistent = True

        def __init__(self):
            self.parts = {}

        def load(self, name):
            return self.parts.get(name)

        def store(self, name, part):
            self.parts[name] = {key: array.copy() for key, array in part.items()}

    whole = solve_second_order(problems, numbers, values, 1e-9, ignore_round, 100, evaluate)
    total = len(calls)
    assert total > 5
    for last in range(1, total):
        calls.clear()
        checkpoint = Checkpoint(Dictionary())

        def stop(last=last):
            if len(calls) == last:
                raise Killed

        with pytest.raises(Killed):
            solve_second_order(problems, numbers, values, 1e-9, stop, 100, evaluate, checkpoint)
        resumed = solve_second_order(problems, numbers, values, 1e-9, ignore_round, 100, evaluate, checkpoint)
        assert len(calls) == total
        for one, other in zip(whole, resumed, strict=True):
            for name, array in one.as_arrays().items():
                assert array.tobytes() == other.as_arrays()[name].tobytes(), name
