"""Tasks with structured true weights: their structure and their metrics."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.errors import UserError
from fco_cli.problem.regularizers.ordered import Monotone
from fco_cli.problem.regularizers.sets import Simplex
from fco_cli.problem.regularizers.structured import GroupLasso, TotalVariation
from fco_cli.tasks.shapes import GroupSparse, Mixture, MonotoneRegression, Piecewise

COMMON = {"clients": 8, "samples": 40, "heterogeneity": 0.3, "strength": 0.3, "radius": 1.0}
TASKS = [
    (Mixture(name="mixture", dimension=30, active=3, **COMMON), Simplex(total=1.0)),
    (Piecewise(name="piecewise", dimension=30, pieces=3, **COMMON), TotalVariation(strength=0.2)),
    (MonotoneRegression(name="monotone", dimension=30, **COMMON), Monotone()),
    (
        GroupSparse(name="group_sparse", dimension=30, group_size=3, active=2, **COMMON),
        GroupLasso(strength=0.1, group_size=3),
    ),
]
PERFECT = {"f1": 1, "precision": 1, "recall": 1}


@pytest.mark.parametrize(("task", "regularizer"), TASKS, ids=lambda one: one.name)
def test_the_truth_scores_perfectly_and_noise_does_not(task, regularizer):
    problem = task.build(0, "float64").to_problem(regularizer)
    noisy = problem.truth + 0.3 * np.random.default_rng(0).standard_normal(31)
    metrics = task.metrics(problem, np.array([problem.truth, noisy]))
    assert task.main_metric == "recovery_error"
    for name, (best, other) in metrics.items():
        ends = {"f1": 1, "precision": 1, "recall": 1}
        goal = ends.get(name.split("_")[-1], 0)
        if name == "jumps":
            assert (best, other) == (2, 29)
        elif name == "group_density":
            assert (best, other) == (0.2, 1.0)
        elif "recall" not in name:
            assert best == pytest.approx(goal, abs=1e-12), name
            assert abs(other - goal) > 0.05, name


@pytest.mark.parametrize(("task", "regularizer"), TASKS, ids=lambda one: one.name)
def test_the_optimum_recovers_the_shape(task, regularizer, make_algorithm):
    """The pooled optimum is much closer to the truth than least squares."""
    problem = task.build(0, "float64").to_problem(regularizer)
    solver = make_algorithm("optimum", problem)
    w = solver.output(solver.round(solver.initial_state(problem.initial_models(regularizer.numbers))).state)
    x = np.hstack([problem.data.x, np.ones((len(problem.data.y), 1))])
    plain = np.linalg.lstsq(x, problem.data.y, rcond=None)[0]
    with_shape, without = task.metrics(problem, np.array([w[0], plain]))["recovery_error"]
    assert with_shape < 0.93 * without


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: Mixture(name="m", dimension=3, active=4, **COMMON),
            "task.active: got 4, must be from 1 to the dimension, 3",
        ),
        (lambda: Piecewise(name="p", dimension=3, pieces=0, **COMMON), "task.pieces: got 0"),
        (lambda: GroupSparse(name="g", dimension=10, group_size=3, active=1, **COMMON), "task.group_size: got 3"),
        (lambda: GroupSparse(name="g", dimension=9, group_size=3, active=4, **COMMON), "task.active: got 4"),
        (lambda: MonotoneRegression(name="m", dimension=0, **COMMON), "task.dimension: got 0"),
    ],
)
def test_wrong_sizes_are_refused_by_name(make, words):
    with pytest.raises(UserError) as error_message:
        make()
    assert words in str(error_message.value)
