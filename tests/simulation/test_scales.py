"""Features and labels of any scale: no run claims to have converged whose objective is far from the exact optimum.

The optimum is computed in rational numbers, by trying every pattern of signs: nothing of the package takes part.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.algorithms.transforms import NoTransform
from fco_cli.errors import NoCertificate
from fco_cli.problem.data import ClientData
from fco_cli.problem.losses import Squared
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.problem import Problem
from fco_cli.simulation.engine import Job, Setup, Simulation
from fco_cli.simulation.evaluate import judge
from fco_cli.simulation.smoothness import automatic_rate, automatic_rate_of_mean
from fco_cli.tasks.base import Task

ROWS = 24
BOUND = 1e-6  # on the true suboptimality of converged models, relative to the best constant model


def data_of(scale: str) -> tuple[np.ndarray, np.ndarray]:
    """Return three features, two of them relevant, and labels with an offset."""
    random = np.random.default_rng(0)
    x = random.standard_normal((ROWS, 3))
    y = x @ [2.0, -1.0, 0.0] + 0.3 * random.standard_normal(ROWS) + 5
    units = {"1e-9": 1e-9, "1e-12": 1e-12, "1e9": 1e9, "mixed": np.array([1e-9, 1.0, 1e6])}
    x = x * units.get(scale, 1.0)
    if scale.startswith("timestamp"):
        x[:, 0] = 1.6e9 + float(scale.split()[1]) * x[:, 0]
    return x, y * {"labels 1e-300": 1e-300, "labels 1e6": 1e6}.get(scale, 1.0)


SCALES = ["1", "1e-9", "1e-12", "1e9", "mixed", "timestamp 1e3", "timestamp 1e7", "labels 1e-300", "labels 1e6"]
PSI = ["none", "l1", "l2_squared", "l1_ball"]


@pytest.fixture(scope="module")
def problem_of(regularizer):
    """Return a function that builds the problem of a scale, with a psi that is neither negligible nor dominant."""

    @cache
    def make(scale: str, psi: str) -> Problem:
        x, y = data_of(scale)
        spread, height = x.std(axis=0), float((y / y.max()).std() * y.max())
        numbers = {
            "l1": {"strength": 0.2 * height * float(np.median(spread))},
            "l2_squared": {"strength": 0.1 * float(np.median(spread)) ** 2},
            "l1_ball": {"radius": 0.5 * height / float(np.median(spread))},
        }
        offsets = np.array([0, 10, ROWS], dtype=np.int64)
        return Problem(
            ClientData(x, y, offsets), Linear(3), Squared(), regularizer=regularizer(psi, **numbers.get(psi, {}))
        )

    return make


# The exact optimum.


def rational(values: np.ndarray) -> list:
    """Return nested lists of exact fractions."""
    return [rational(row) for row in values] if np.ndim(values) else Fraction(float(values))


def solved(matrix: list[list[Fraction]], right: list[Fraction]) -> list[Fraction]:
    """Solve a linear system by Gaussian elimination."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for k in range(len(rows)):
        pivot = next(i for i in range(k, len(rows)) if rows[i][k])
        rows[k], rows[pivot] = rows[pivot], rows[k]
        for i in range(len(rows)):
            if i != k and (factor := rows[i][k] / rows[k][k]):
                rows[i] = [a - factor * b for a, b in zip(rows[i], rows[k], strict=True)]
    return [row[-1] / row[k] for k, row in enumerate(rows)]


class Exact:
    """F(w) = w'Aw - 2c'w + e over (features, 1), and psi."""

    def __init__(self, problem: Problem) -> None:
        x = rational(np.column_stack([problem.data.x, np.ones(ROWS)]))
        y, sizes = rational(problem.data.y), np.repeat(problem.data.sizes, problem.data.sizes)
        share = [Fraction(1, 2 * int(size)) for size in sizes]
        self.psi, self.size = problem.regularizer, len(x[0])
        self.matrix = [
            [sum(p * row[i] * row[k] for p, row in zip(share, x, strict=True)) for k in range(self.size)]
            for i in range(self.size)
        ]
        self.linear = [sum(p * row[i] * v for p, row, v in zip(share, x, y, strict=True)) for i in range(self.size)]
        self.constant = sum(p * v * v for p, v in zip(share, y, strict=True))
        self.strength = Fraction(float(getattr(self.psi, "strength", 0.0)))
        self.radius = Fraction(float(getattr(self.psi, "radius", 0.0)))

    def objective(self, w: list[Fraction]) -> Fraction:
        products = [sum(a * v for a, v in zip(row, w, strict=True)) for row in self.matrix]
        loss = sum(v * (p - 2 * c) for v, p, c in zip(w, products, self.linear, strict=True)) + self.constant
        penalties = {"l1": sum(map(abs, w[:-1])), "l2_squared": sum(v * v for v in w[:-1]) / 2}
        return loss + self.strength * penalties.get(self.psi.name, 0)

    def stationary(self, signs: tuple[int, ...], on_sphere: bool) -> list[Fraction]:
        """Return the stationary point with the given signs (0: zero weight), with |w|_1 = radius if `on_sphere`."""
        free = [i for i, sign in enumerate(signs) if sign] + [self.size - 1]
        sign = [*signs, 0]
        matrix = [[2 * self.matrix[i][k] for k in free] for i in free]
        right = [2 * self.linear[i] - (self.strength * sign[i] if self.psi.name == "l1" else 0) for i in free]
        if self.psi.name == "l2_squared":
            for place in range(len(free) - 1):
                matrix[place][place] += self.strength
        if on_sphere:
            border = [Fraction(sign[i]) for i in free]
            matrix = [[*row, value] for row, value in zip(matrix, border, strict=True)] + [[*border, Fraction(0)]]
            right = [*right, self.radius]
        w = [Fraction(0)] * self.size
        for i, value in zip(free, solved(matrix, right), strict=False):
            w[i] = value
        return w

    def optimum(self) -> Fraction:
        """Return the smallest objective over all feasible stationary points, one of which is the solution."""
        ball, every = self.psi.name == "l1_ball", list(itertools.product([-1, 0, 1], repeat=self.size - 1))
        points = [self.stationary(signs, False) for signs in every]
        if ball:
            points += [self.stationary(signs, True) for signs in every if any(signs)]
            points = [w for w in points if sum(map(abs, w[:-1])) <= self.radius]
        return min(map(self.objective, points))

    def suboptimality(self, w: np.ndarray) -> float:
        """Return the gap of a model relative to the loss of the best constant one; scale weights back to the ball."""
        null, model = self.linear[-1] ** 2 / self.matrix[-1][-1], rational(np.asarray(w, dtype=float))
        if self.psi.name == "l1_ball" and (length := sum(map(abs, model[:-1]))) > self.radius:
            model = [v * self.radius / length for v in model[:-1]] + model[-1:]
        return float((self.objective(model) - self.optimum()) / (self.constant - null))


@pytest.fixture(scope="module")
def exact_of(problem_of):
    return cache(lambda scale, psi: Exact(problem_of(scale, psi)))


class Given(Task):
    """Task with a given problem."""

    def build(self, seed, dtype):
        raise NotImplementedError


def ended(problem: Problem, name: str, hparams) -> tuple[Job, object]:
    """Run until convergence; return the job and its verdict."""
    algorithm = all_algorithms()[name]().with_transform(NoTransform())
    rate = 1.0
    if "client_lr" in algorithm.uses:
        mean = algorithm.uses_mean_gradient
        rate = automatic_rate_of_mean(problem, 0) if mean else automatic_rate(problem, 0, ROWS)
    varying = Varying.from_rates(algorithm, problem.regularizer, np.array([rate]), np.ones(1))
    setup = Setup(Given(name="given", strength=0.0, radius=1.0), problem, hparams, 0, algorithm)
    job = Job()
    simulation = Simulation(setup, [job], varying)
    while simulation.advance():
        pass
    numbers = problem.regularizer.numbers
    return job, judge(problem, numbers, hparams.tolerance, job.model, job.history, None, job.certified)


@pytest.fixture(scope="module")
def until_converged(make_hparams):
    options = {"rounds": "auto", "most_rounds": 60, "clients_per_round": "all", "batch_size": ROWS, "server_lr": 1.0}
    return make_hparams(**options)


@pytest.mark.ci
@pytest.mark.parametrize("psi", PSI)
@pytest.mark.parametrize("scale", SCALES)
def test_converged_models_are_optimal(problem_of, exact_of, until_converged, make_algorithm, scale, psi):
    problem = problem_of(scale, psi)
    for name in ("fista", "zhj", "feddualavg"):
        job, verdict = ended(problem, name, until_converged)
        suboptimality = exact_of(scale, psi).suboptimality(job.model)
        assert not verdict.converged or suboptimality <= BOUND, (name, suboptimality)
        assert verdict.converged or job.round == 60
        assert verdict.converged or scale != "1" or name != "fista"
    solver = make_algorithm("optimum", problem, max_iterations=300)
    try:
        model = solver.output(solver.round(solver.initial_state(np.zeros((1, 4)))).state)[0]
    except NoCertificate:
        assert scale not in ("1", "labels 1e6")
    else:
        assert exact_of(scale, psi).suboptimality(model) <= BOUND


def test_the_exact_optimum(problem_of, exact_of, until_converged):
    """The reference optimum is reached to the last digits, and no model is below it."""
    for psi in PSI:
        job, verdict = ended(problem_of("1", psi), "fista", replace(until_converged, tolerance=1e-10, most_rounds=500))
        assert verdict.converged
        assert 0 <= exact_of("1", psi).suboptimality(job.model) <= 1e-12
