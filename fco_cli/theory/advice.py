"""Recommendations of the theorems for client_lr on a task's data (`fco-advise task=...`).

The constants are estimated from at most 64 clients, with gradients at the initial weights and near the pooled optimum
of these clients; the theorems use suprema over the domain. They are Euclidean; for the entropy map on the unit simplex
they are upper bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import pairwise

import numpy as np
from omegaconf import OmegaConf

from fco_cli.algorithms import Varying
from fco_cli.algorithms.baselines import Optimum
from fco_cli.config import Run
from fco_cli.errors import UserError
from fco_cli.problem.layout import Array
from fco_cli.problem.problem import Problem
from fco_cli.problem.streams import PROBES, generator
from fco_cli.simulation.clients import Sampler
from fco_cli.simulation.smoothness import batch_gradient, estimate_smoothness

CLIENTS, BATCHES = 64, 8
OPTIMUM_TOLERANCE = 1e-5  # enough, since B enters the recommendations only through its roots


@dataclass(frozen=True)
class Constants:
    """Constants of a problem and its hyperparameters that appear in the theorems."""

    smoothness: float  # L, of the loss on a batch
    sigma: float  # standard deviation of batch gradients around the client's gradient
    zeta: float  # largest distance of a client's gradient from the mean
    gradient: float  # G, largest norm of a batch gradient
    divergence: float  # B = D_h(w*, w_0)
    steps: float  # K, the mean over the clients
    rounds: int  # R
    clients: int  # M, clients per round

    @property
    def largest_stable(self) -> float:
        """Step size 2/L, above which a gradient step overshoots on some batch."""
        return 2 / self.smoothness

    def recommended(self) -> dict[str, dict[str, float]]:
        """Return the limits on the step size by theorem and reason; the smallest one is the recommendation."""
        smoothness, sigma, zeta = self.smoothness, self.sigma, self.zeta
        b, k, r, m = self.divergence, self.steps, self.rounds, self.clients
        noise = _ratio(np.sqrt(m * b), sigma * np.sqrt(k * r))
        third = np.cbrt(b / (smoothness * r))
        return {
            "theorem 0, as server_lr * client_lr": {"smoothness": 1 / (4 * k * smoothness), "noise": noise},
            "theorem 1 (bounded gradients)": {
                "smoothness": 1 / (4 * smoothness),
                "noise": noise,
                "client drift": _ratio(third, k * np.cbrt(self.gradient**2)),
            },
            "theorem 2 (quadratic)": {
                "smoothness": 1 / (4 * smoothness),
                "noise": noise,
                "noise between clients": _ratio(third, np.cbrt(k * sigma) ** 2),
                "heterogeneity": _ratio(third, k * np.cbrt(zeta**2)),
            },
        }


def _ratio(numerator: float, denominator: float) -> float:
    return float(numerator / denominator) if denominator > 0 else np.inf


def estimate_constants(run: Run, problem: Problem) -> Constants:
    """Return the constants of a problem with local rows, estimated from a sample of its clients."""
    if not (problem.model.convex and problem.regularizer.convex):
        raise UserError("task: the theorems need a convex problem; use a linear model and a convex regularizer")
    hparams, psi = run.hparams, run.regularizer.numbers
    random = generator(run.seed, PROBES, 1)
    chosen = random.permutation(problem.data.clients)[:CLIENTS]
    sample = replace(problem, training=problem.data.take(np.isin(problem.data.owners, chosen)))
    start, method = sample.initial_models(psi), Optimum(tolerance=OPTIMUM_TOLERANCE)
    solver = method.bind(sample, Varying.from_rates(method, run.regularizer, np.ones(1), np.ones(1)))
    optimum = solver.output(solver.round(solver.initial_state(start)).state).astype(sample.dtype)
    sigma = zeta = largest = 0.0
    for w in (start, optimum):
        mean = sample.risk(w).gradient
        for low, high in pairwise(sample.data.offsets):
            own = np.arange(low, high)
            client = batch_gradient(sample, w, own)
            zeta = max(zeta, float(np.linalg.norm(client - mean)))
            rows = [random.permutation(own)[: hparams.batch_size] for _ in range(BATCHES)]
            batches = np.concatenate([batch_gradient(sample, w, batch) for batch in rows])
            sigma = max(sigma, float(np.sqrt(((batches - client) ** 2).sum(axis=1).mean())))
            largest = max(largest, float(np.linalg.norm(batches, axis=1).max()))
    return Constants(
        smoothness=estimate_smoothness(problem, run.seed, hparams.batch_size),
        sigma=sigma,
        zeta=zeta,
        gradient=largest,
        divergence=_divergence(problem, optimum[0], start[0]),
        steps=Sampler(problem.data.sizes, hparams, run.seed).mean_steps,
        rounds=hparams.last_round,
        clients=min(hparams.sampled(problem.data.clients), problem.data.clients),
    )


def _divergence(problem: Problem, w: Array, start: Array) -> float:
    """Return D_h summed over all blocks; blocks without regularization are Euclidean."""
    total = 0.0
    for block in problem.layout.blocks:
        columns = problem.layout.slices[block.name]
        a, b = w[columns].astype(float), start[columns].astype(float)
        total += problem.mirror.divergence(a, b) if block.regularized else float(((a - b) ** 2).sum() / 2)
    return total


def paper_grid() -> list[float]:
    """Return the client learning rates of the paper's grid, read from the configuration."""
    text = files("fco_cli.conf").joinpath("hparams/grid/paper.yaml").read_text(encoding="utf-8")
    params = OmegaConf.create(text).hydra.sweeper.params
    return [float(rate) for rate in str(params["hparams.client_lr"]).split(",")]
