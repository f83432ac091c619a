"""`algo=optimum` on the pooled lasso I against solvers of the lasso: `python -m benchmarks.pooled`.

Processor time of one thread to an objective within 10^-8 of the certified optimum's, relative to it; every solver at
the loosest of its tolerances that gets there. celer and skglm take part where they are installed.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.cases import composed
from fco_cli.algorithms import Varying
from fco_cli.algorithms.baselines import Optimum
from fco_cli.kernels.compiled import set_threads
from fco_cli.problem.layout import Array
from fco_cli.problem.problem import Problem
from fco_cli.simulation.problems import problem_of

STRENGTH, GAP, CERTIFIED = 0.5, 1e-8, 1e-12
TOLERANCES = [10.0**-k for k in range(2, 13)]
Solver = Callable[[float], Array]  # a tolerance -> weights and bias


def ours(problem: Problem) -> Solver:
    def solve(tolerance: float) -> Array:
        fresh = replace(problem)  # nothing summed up yet
        algorithm = Optimum(tolerance=tolerance)
        varying = Varying.from_rates(algorithm, fresh.regularizer, np.ones(1), np.ones(1))
        return algorithm.bind(fresh, varying).step(np.zeros((1, fresh.layout.size)), None)[0]

    return solve


def fitted(estimator: Callable[..., object], problem: Problem, **options: object) -> Solver:
    """scikit-learn's objective is half of ours."""

    def solve(tolerance: float) -> Array:
        model = estimator(alpha=STRENGTH / 2, tol=tolerance, **options)
        model.fit(problem.data.x, problem.data.y)  # type: ignore[attr-defined]
        return np.append(model.coef_, model.intercept_)  # type: ignore[attr-defined]

    return solve


def solvers(problem: Problem) -> Iterator[tuple[str, Solver]]:
    from sklearn.linear_model import Lasso

    yield "`algo=optimum`", ours(problem)
    yield "scikit-learn `Lasso`", fitted(Lasso, problem, max_iter=10**5)
    yield "scikit-learn `Lasso(precompute=True)`", fitted(Lasso, problem, max_iter=10**5, precompute=True)
    for name in ("celer", "skglm"):
        try:
            module = __import__(name)
        except ImportError:
            continue
        yield f"{name} `Lasso`", fitted(module.Lasso, problem)


def main() -> None:
    warnings.simplefilter("ignore")  # of solvers that stop before their tolerance
    set_threads(1)
    problem = problem_of(composed("task=lasso"))
    x, y = problem.data.x, problem.data.y

    def objective(w: Array) -> float:
        return float(np.mean((x @ w[:-1] + w[-1] - y) ** 2) + STRENGTH * np.abs(w[:-1]).sum())

    with threadpool_limits(1):
        best = objective(ours(problem)(CERTIFIED))
        for name, solve in solvers(problem):
            solve(1.0)  # compiles
            for tolerance in TOLERANCES:
                start = time.process_time()
                w = solve(tolerance)
                seconds = time.process_time() - start
                if objective(w) <= best * (1 + GAP):
                    print(f"| {name} | {seconds:.2f} | {tolerance:g} |", flush=True)
                    break


if __name__ == "__main__":
    main()
