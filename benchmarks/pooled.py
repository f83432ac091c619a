"""`algo=optimum` on pooled rows against solvers of the lasso and the group lasso: `python -m benchmarks.pooled`.

Three problems: the lasso on lasso I, a lasso on sparse rows like those of texts, and a group lasso with more features
than rows. Processor time of one thread to an objective within 10^-8 of the certified optimum's, relative to it, the
least of two turns; every solver at the loosest of its tolerances that gets there. scikit-learn, celer, skglm and adelie
(pooled_peers.py) take part where PEERS=python has them; by default in this interpreter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import scipy.sparse
from threadpoolctl import threadpool_limits

from benchmarks.cases import composed
from benchmarks.pooled_peers import TOLERANCES, fastest, objective
from benchmarks.results import Cell, save
from fco_cli.algorithms import Varying
from fco_cli.algorithms.baselines import Optimum
from fco_cli.kernels.compiled import set_threads
from fco_cli.problem.data import ClientData, SparseRows
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import all_losses
from fco_cli.problem.models.linear import Linear, SparseLinear
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers import all_regularizers
from fco_cli.simulation.problems import problem_of

GAP, CERTIFIED, TURNS = 1e-8, 1e-12, 2


@dataclass
class Pooled:
    """A problem, its rows in the format of SciPy, its strength and the size of the groups of its penalty."""

    name: str
    problem: Problem
    x: Array | scipy.sparse.csr_array
    strength: float  # of the objective with half of the mean squared error; that of the problem is twice as large
    group: int = 1

    def objective(self, w: Array) -> float:
        return objective(self.x, self.problem.data.y, self.strength, self.group, (w[:-1], float(w[-1])))


def lasso_one() -> Pooled:
    problem = problem_of(composed("task=lasso"))
    return Pooled("lasso I, 8,192 x 1,024", problem, problem.data.x, 0.25)


def text(rows: int = 10_000, features: int = 50_000, words: int = 60) -> Pooled:
    """Return a lasso whose features are inverse document frequencies of words with the frequencies of Zipf's law."""
    random = np.random.default_rng(0)
    frequency = 1 / np.arange(1, features + 1) ** 0.9
    drawn = random.choice(features, size=(rows, words), p=frequency / frequency.sum())
    counts = scipy.sparse.csr_array((np.ones(drawn.size), (np.repeat(np.arange(rows), words), drawn.ravel())))
    counts.resize(rows, features)
    counts.sum_duplicates()
    documents = np.bincount(counts.indices, minlength=features)
    counts.data = (1 + np.log(counts.data)) * (1 + np.log((1 + rows) / (1 + documents)))[counts.indices]
    x = scipy.sparse.csr_array(scipy.sparse.diags_array(1 / scipy.sparse.linalg.norm(counts, axis=1)) @ counts)
    weights = np.zeros(features)
    weights[random.choice(2_000, 200, replace=False)] = 3 * random.standard_normal(200)
    y = x @ weights + 0.3 * random.standard_normal(rows)
    x.indices, x.indptr = x.indices.astype(np.int32), x.indptr.astype(np.int32)
    own = SparseRows(x.data, x.indices, x.indptr.astype(np.int64), features)
    strength = 0.02 * float(np.abs(x.T @ (y - y.mean())).max()) / rows
    psi = all_regularizers()["l1"](strength=2 * strength)
    return Pooled("text, 10,000 x 50,000, 0.1% stored", _problem(own, y, features, psi), x, strength)


def grouped(rows: int = 2_000, features: int = 4_000, group: int = 10) -> Pooled:
    """Return a group lasso whose neighboring features have correlations of 0.5."""
    random = np.random.default_rng(0)
    x = random.standard_normal((rows, features))
    for k in range(1, features):
        x[:, k] = 0.5 * x[:, k - 1] + np.sqrt(0.75) * x[:, k]
    weights = np.zeros((features // group, group))
    active = random.choice(len(weights), min(20, len(weights)), replace=False)
    weights[active] = random.standard_normal((len(active), group))
    y = x @ weights.ravel() + 3 * random.standard_normal(rows)
    gradient = x.T @ (y - y.mean()) / rows
    strength = 0.1 * float(np.linalg.norm(gradient.reshape(-1, group), axis=1).max())
    psi = all_regularizers()["group_lasso"](strength=2 * strength, group_size=group)
    return Pooled("group lasso, 2,000 x 4,000", _problem(x, y, features, psi), x, strength, group)


def _problem(x: object, y: Array, features: int, psi: object) -> Problem:
    data = ClientData(x, y, np.array([0, len(y)]))  # type: ignore[arg-type]
    model = SparseLinear(features) if isinstance(x, SparseRows) else Linear(features)
    return Problem(data, model, all_losses()["squared"](), regularizer=psi)  # type: ignore[arg-type]


def solve(problem: Problem, tolerance: float) -> Array:
    """Return weights and bias; nothing is summed up before."""
    fresh, algorithm = replace(problem), Optimum(tolerance=tolerance)
    varying = Varying.from_rates(algorithm, fresh.regularizer, np.ones(1), np.ones(1))
    return algorithm.bind(fresh, varying).step(np.zeros((1, fresh.layout.size)), None)[0]


def attempt_of(pooled: Pooled) -> Callable[[float], tuple[float, float]]:
    def attempt(tolerance: float) -> tuple[float, float]:
        start = time.process_time()
        w = solve(pooled.problem, tolerance)
        return time.process_time() - start, pooled.objective(w)

    return attempt


def of_others(problems: list[tuple[Pooled, float]]) -> Iterator[list]:
    """Return problem, solver, seconds and tolerance of other software."""
    with tempfile.TemporaryDirectory() as place:
        for k, (pooled, required) in enumerate(problems):
            path = Path(place, f"{k}.json")
            settings = {"name": pooled.name, "strength": pooled.strength, "group": pooled.group, "required": required}
            path.write_text(json.dumps(settings))
            np.save(path.with_suffix(".y.npy"), pooled.problem.data.y)
            if isinstance(pooled.x, np.ndarray):
                np.save(path.with_suffix(".x.npy"), pooled.x)
            else:
                scipy.sparse.save_npz(path.with_suffix(".x.npz"), pooled.x)
        command = [os.environ.get("PEERS", sys.executable), str(Path(__file__).with_name("pooled_peers.py")), place]
        lines = subprocess.run([*command, str(TURNS)], stdout=subprocess.PIPE, text=True, check=True).stdout
    yield from map(json.loads, lines.splitlines())


def main() -> None:
    set_threads(1)
    problems, lines = [], []
    with threadpool_limits(1):
        for pooled in (lasso_one(), text(), grouped()):
            required = pooled.objective(solve(pooled.problem, CERTIFIED)) * (1 + GAP)
            attempt = attempt_of(pooled)
            seconds, tolerance = min(filter(None, (fastest(attempt, required) for _ in range(TURNS))))
            problems.append((pooled, required))
            lines.append([pooled.name, "`algo=optimum`", seconds, tolerance])
    lines += of_others(problems)
    for name, solver, seconds, tolerance in sorted(lines, key=lambda line: line[0]):
        print(f"{name} | {solver} | {f'{seconds:.3f}' if seconds else 'more'} | {tolerance or TOLERANCES[-1]:g}")
    names = [pooled.name for pooled, _ in problems]
    save("pooled", "python -m benchmarks.pooled", ["processor seconds", *names], table(names, lines))


def table(names: list[str], lines: list[list]) -> list[list[Cell]]:
    """Return a row per solver with its seconds on each problem: "more" if no tolerance sufficed, "–" if not run."""
    seconds = {(solver, name): spent or "more" for name, solver, spent, _ in lines}
    solvers = dict.fromkeys(solver for solver, _ in seconds)
    return [[solver, *(seconds.get((solver, name), "–") for name in names)] for solver in solvers]


if __name__ == "__main__":
    main()
