"""Rounds and memory of prox_newton with a working set, 20 clients x 2,000 features: `python -m benchmarks.newton`."""

from __future__ import annotations

import resource
import time
from dataclasses import replace

import numpy as np

from fco_cli.algorithms import all_algorithms
from fco_cli.problem.data import ClientData
from fco_cli.problem.losses import all_losses
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers import all_regularizers
from fco_cli.testing.problems import bind, make_cohorts

CLIENTS, ROWS, FEATURES, NONZERO = 20, 250, 2_000, 50
CORRELATION = 0.5  # of neighboring features
STRENGTHS = (0.5, 0.2, 0.1, 0.05, 0.02)  # relative to the smallest strength with the null model
TOLERANCE = 1e-4  # on the KKT residual, relative to the strength
MOST_ROUNDS = 40


def make_problem() -> Problem:
    """Return a logistic problem with l1 whose clients have means of their own."""
    random, rows = np.random.default_rng(0), CLIENTS * ROWS
    x = random.standard_normal((rows, FEATURES))
    for k in range(1, FEATURES):
        x[:, k] = CORRELATION * x[:, k - 1] + np.sqrt(1 - CORRELATION**2) * x[:, k]
    x += np.repeat(0.3 * random.standard_normal((CLIENTS, FEATURES)), ROWS, axis=0)
    weights = np.zeros(FEATURES)
    weights[random.choice(FEATURES, NONZERO, replace=False)] = random.standard_normal(NONZERO)
    y = (random.random(rows) < 1 / (1 + np.exp(-x @ weights))).astype(float)
    data = ClientData(x, y, np.arange(0, rows + 1, ROWS))
    return Problem(
        data, Linear(FEATURES), all_losses()["logistic"](), regularizer=all_regularizers()["l1"](strength=1.0)
    )


def solve(problem: Problem, strength: float, start: np.ndarray) -> tuple[int, np.ndarray]:
    """Return the number of rounds to the tolerance and the model."""
    problem = replace(problem, regularizer=all_regularizers()["l1"](strength=strength))
    algorithm = bind(all_algorithms()["prox_newton"](), problem)
    (cohort,), numbers = make_cohorts(algorithm, problem, 1), problem.regularizer.numbers
    state = algorithm.initial_state(start[None])
    done, w = 0, start[None]
    while done < MOST_ROUNDS:
        state, done = algorithm.round(state, cohort).state, done + 1
        w = algorithm.output(state)
        if problem.kkt_residual(w, problem.risk(w).gradient, numbers)[0] <= TOLERANCE * strength:
            break
    return done, w[0]


def main() -> None:
    problem = make_problem()
    null, largest = null_model(problem)
    print("| strength | nonzero | rounds from the null model | warm | processor seconds, both |")
    print("|---|---|---|---|---|")
    warm = null
    for fraction in STRENGTHS:
        begin = time.process_time()
        cold_rounds, _ = solve(problem, fraction * largest, null)
        warm_rounds, warm = solve(problem, fraction * largest, warm)
        nonzero = np.count_nonzero(warm[:-1])
        print(
            f"| {fraction} | {nonzero} | {cold_rounds} | {warm_rounds} | {time.process_time() - begin:.0f} |",
            flush=True,
        )
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB of memory at the peak")


def null_model(problem: Problem) -> tuple[np.ndarray, float]:
    """Return the model with the bias alone and the smallest strength for which it is the solution."""
    w, means = np.zeros(FEATURES + 1), [problem.data.client(m).y.mean() for m in range(CLIENTS)]
    rate = float(problem.weights @ means)
    w[-1] = np.log(rate / (1 - rate))
    return w, float(np.abs(problem.risk(w[None]).gradient[0, :-1]).max())


if __name__ == "__main__":
    main()
