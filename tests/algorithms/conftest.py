"""The algorithms once more, as plain NumPy loops over one model: what the compiled, stacked ones must reproduce."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from fco_cli.algorithms import Algorithm, Cohort, State
from fco_cli.problem.data import ClientData
from fco_cli.simulation.memory import ProcessMemory


def gradient(w, x, y):
    """Of the mean of (x'w + b - y)^2; the bias is the last entry."""
    slopes = 2 * (x @ w[:-1] + w[-1] - y) / len(y)
    return np.append(x.T @ slopes, slopes.sum())


def soft_threshold(z, threshold):
    """prox of the l1 norm, bias excluded."""
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
    """The outputs after every round, by the table of algorithms in the paper (one row of it per branch)."""
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
def reference():
    return run


@pytest.fixture(scope="session")
def l1_prox():
    return lambda strength: lambda z, t: soft_threshold(z, t * strength)


@pytest.fixture(scope="session")
def drive():
    """Rounds of a bound algorithm, with its clients' memory: the models after each, the last state, the memory."""

    def run(algorithm: Algorithm, cohorts: list[Cohort], state: State | None = None, memory=None):
        w = np.zeros((len(algorithm.varying), algorithm.problem.layout.size), algorithm.problem.dtype)
        state = algorithm.initial_state(w) if state is None else state
        memory = memory or ProcessMemory(algorithm.initial_memory(w))
        models = []
        for cohort in cohorts:
            made = algorithm.round(state, cohort, memory.read(cohort.clients) if algorithm.remembered else None)
            if algorithm.remembered:
                memory.write(cohort.clients, made.memory, made.arrived)
            state = made.state
            models.append(algorithm.output(state).copy())
        return models, state, memory

    return run
