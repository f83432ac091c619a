"""Reference implementations in plain NumPy and fixtures shared by the tests of the algorithms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from fco_cli.algorithms import Algorithm, Cohort, State
from fco_cli.problem.data import ClientData
from fco_cli.problem.problem import Problem
from fco_cli.simulation.memory import ProcessMemory


def gradient(w, x, y):
    """Return the gradient of the mean of (x'w + b - y)^2; the bias is the last entry."""
    slopes = 2 * (x @ w[:-1] + w[-1] - y) / len(y)
    return np.append(x.T @ slopes, slopes.sum())


def soft_threshold(z, threshold):
    """Return the prox of the l1 norm, bias excluded."""
    w = np.sign(z) * np.maximum(np.abs(z) - threshold, 0)
    w[-1] = z[-1]
    return w


def run(
    name: str,
    data: ClientData,
    cohorts: list[Cohort],
    eta_c: float,
    eta_s: float,
    prox: Callable[[np.ndarray, float], np.ndarray],
    strength: float = 0.0,
) -> list[np.ndarray]:
    """Return the models after every round; each branch is one row of the paper's table of algorithms."""
    s = np.zeros(data.x.shape[1] + 1)
    elapsed, outputs = 0.0, []
    for cohort in cohorts:
        finals, steps = [], []
        for i in range(len(cohort.clients)):
            v = s.copy()
            edges = cohort.edges[cohort.first[i] : cohort.first[i + 1] + 1]
            for k, (low, high) in enumerate(pairwise(edges)):
                rows = data.offsets[cohort.clients[i]] + cohort.order[low:high]
                x, y = data.x[rows], data.y[rows]
                if name in ("fedavg", "fedmid_osp", "feddualavg_osp"):
                    v = v - eta_c * gradient(v, x, y)
                elif name == "fedavg_subgrad":
                    v = v - eta_c * (gradient(v, x, y) + np.append(strength * np.sign(v[:-1]), 0))
                elif name == "fedmid":
                    v = prox(v - eta_c * gradient(v, x, y), eta_c)
                elif name == "feddualavg":
                    v = v - eta_c * gradient(prox(v, elapsed + eta_c * k), x, y)
            finals.append(v)
            steps.append(len(edges) - 1)
        share = cohort.weights / cohort.weights.sum()
        changes, mean_steps = np.array(finals) - s, share @ np.array(steps)
        if cohort.normalize:
            mean_steps = cohort.mean_steps
            changes *= mean_steps / np.array(steps)[:, None]
        delta = share @ changes
        s = s + eta_s * delta
        elapsed += eta_s * eta_c * mean_steps
        if name in ("fedmid", "fedmid_osp"):
            s = prox(s, eta_s * eta_c * mean_steps)
        outputs.append(prox(s, elapsed) if name.startswith("feddualavg") else s.copy())
    return outputs


@pytest.fixture(scope="session")
def whole_batches(make_hparams, cohorts_of):
    """Return cohorts with full gradients and K_m = epochs * ceil(n_m / 3)."""

    def make(problem: Problem, sampled: int, rounds: int, epochs: int = 1) -> list[Cohort]:
        hparams = make_hparams(
            clients_per_round=sampled, batch_size=3, local_epochs=epochs, weighting=problem.weighting
        )
        sizes, cohorts = problem.data.sizes, []
        for cohort in cohorts_of(problem, hparams, rounds):
            lengths = np.repeat(sizes[cohort.clients], cohort.steps)
            order, edges = np.concatenate([np.arange(n) for n in lengths]), np.append(0, np.cumsum(lengths))
            cohorts.append(replace(cohort, order=order, edges=edges))
        return cohorts

    return make


@pytest.fixture(scope="session")
def optimum_of(make_algorithm):
    """Return the optimum w* [P] of a problem, to 13 digits."""

    def solve(problem: Problem) -> np.ndarray:
        solver = make_algorithm("optimum", problem, tolerance=1e-13)
        return solver.output(solver.round(solver.initial_state(np.zeros((1, problem.layout.size)))).state)[0]

    return solve


@pytest.fixture(scope="session")
def kkt():
    """Return the KKT residual of the first job's model."""

    def residual(problem: Problem, models: np.ndarray) -> float:
        return float(
            problem.kkt_residual(models[:1], problem.risk(models[:1]).gradient, problem.regularizer.numbers)[0]
        )

    return residual


@pytest.fixture(scope="session")
def reference():
    return run


@pytest.fixture(scope="session")
def l1_prox():
    return lambda strength: lambda z, t: soft_threshold(z, t * strength)


@pytest.fixture(scope="session")
def drive():
    """Run rounds of a bound algorithm. Return the models after each, the final state and the clients' memory."""

    def run(algorithm: Algorithm, cohorts: list[Cohort], state: State | None = None, memory=None):
        w = np.zeros((len(algorithm.varying), algorithm.problem.layout.size), algorithm.problem.dtype)
        state = algorithm.initial_state(w) if state is None else state
        memory = memory or ProcessMemory(algorithm.initial_client_arrays(w))
        models = []
        for cohort in cohorts:
            made = algorithm.round(state, cohort, memory.read(cohort.clients) if algorithm.client_arrays else None)
            if algorithm.client_arrays:
                memory.write(cohort.clients, made.memory, made.arrived)
            state = made.state
            models.append(algorithm.output(state).copy())
        return models, state, memory

    return run


@pytest.fixture(scope="session")
def whole_steps():
    """Return a cohort of all clients, where client m takes steps[m] full-gradient steps."""

    def make(problem, steps) -> Cohort:
        sizes, weights = problem.data.sizes, problem.weights
        order = np.concatenate([np.tile(np.arange(size), k) for size, k in zip(sizes, steps, strict=True)])
        edges = np.append(0, np.cumsum(np.repeat(sizes, steps)))
        first, clients = np.append(0, np.cumsum(steps)), np.arange(len(sizes))
        return Cohort(clients, order, edges, first, weights, 1.0, float(weights @ np.asarray(steps)))

    return make


@pytest.fixture(scope="session")
def full_gradients():
    """Return cohorts with the same clients and K_m, but full gradients in every step."""

    def widen(cohorts: list[Cohort], sizes) -> list[Cohort]:
        wide = []
        for cohort in cohorts:
            rows = [np.arange(sizes[m]) for m, k in zip(cohort.clients, cohort.steps, strict=True) for _ in range(k)]
            edges = np.append(0, np.cumsum([len(each) for each in rows]))
            wide.append(replace(cohort, order=np.concatenate(rows), edges=edges))
        return wide

    return widen


@pytest.fixture(scope="session")
def client_gradient():
    """Return the gradient of F_m, or of its loss on some rows, at w; squared or logistic loss, bias last."""

    def compute(problem: Problem, m: int, w, rows=None):
        own = problem.data.client(m)
        x, y = (own.x, own.y) if rows is None else (own.x[rows], own.y[rows])
        scores = x @ w[:-1] + w[-1]
        slopes = 2 * (scores - y) if problem.loss.name == "squared" else 1 / (1 + np.exp(-scores)) - y
        return np.append(x.T @ slopes, slopes.sum()) / len(y)

    return compute


@pytest.fixture(scope="session")
def solution(client_gradient):
    """Return w* [P], by proximal gradient in plain NumPy, and L, the largest curvature of a client."""

    def solve(problem: Problem, prox: Callable[[np.ndarray, float], np.ndarray]):
        rows = [
            np.hstack([own.x, np.ones((len(own.y), 1))])
            for own in map(problem.data.client, range(problem.data.clients))
        ]
        curvature = 2 if problem.loss.name == "squared" else 0.25
        largest = curvature * max(np.linalg.norm(own.T @ own, 2) / len(own) for own in rows)
        w, last = np.zeros(problem.layout.size), None
        while last is None or np.abs(w - last).max() > 1e-16:
            pooled = sum(p * client_gradient(problem, m, w) for m, p in enumerate(problem.weights))
            w, last = prox(w - pooled / largest, 1 / largest), w
        return w, largest

    return solve
