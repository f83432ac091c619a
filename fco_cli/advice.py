"""What the theorems say about client_lr on a task's data (`fco-run task=... advise=true`).

The constants are estimates: gradients are sampled at the start and near the pooled optimum, where the theorems ask
for suprema over the domain. They are Euclidean; for the entropy map on the unit simplex they are upper bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

import numpy as np
from omegaconf import OmegaConf

from fco_cli.algorithms import Jobs
from fco_cli.algorithms.baselines import proximal_step
from fco_cli.config import Run
from fco_cli.problem.layout import Array
from fco_cli.problem.problem import Problem
from fco_cli.problem.streams import PROBES, generator
from fco_cli.simulation.smoothness import batch_gradient, estimate_smoothness

CLIENTS, BATCHES, POOLED_STEPS = 64, 8, 100


@dataclass(frozen=True)
class Constants:
    """What the theorems need to know of a problem and of how it is run."""

    smoothness: float  # L, of the loss on a batch
    sigma: float  # of a batch's gradient about its client's
    zeta: float  # the largest distance of a client's gradient from the mean
    gradient: float  # G, the longest batch gradient met
    divergence: float  # B = D_h(w*, w_0)
    steps: float  # K, the clients' mean
    rounds: int  # R
    clients: int  # M, those of one round

    @property
    def largest_stable(self) -> float:
        """Beyond 2/L a gradient step overshoots on some batch."""
        return 2 / self.smoothness

    def recommended(self) -> dict[str, dict[str, float]]:
        """For every theorem the limits on its step size, by their reason; the smallest is the recommendation."""
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


def _ratio(above: float, below: float) -> float:
    return float(above / below) if below > 0 else np.inf


def estimate_constants(run: Run, problem: Problem) -> Constants:
    settings, parameters = run.hparams, run.regularizer.parameters[None]
    start = problem.start(parameters)
    far = _near_optimum(problem, start, parameters)
    random = generator(run.seed, PROBES, 1)
    chosen = random.permutation(problem.data.clients)[:CLIENTS]
    sigma = zeta = longest = 0.0
    for w in (start, far):
        mean = problem.risk(w).gradient
        for m in chosen:
            own = np.arange(problem.data.start[m], problem.data.start[m + 1])
            client = batch_gradient(problem, w, own)
            zeta = max(zeta, float(np.linalg.norm(client - mean)))
            batches = [
                batch_gradient(problem, w, random.permutation(own)[: settings.batch_size]) for _ in range(BATCHES)
            ]
            sigma = max(sigma, float(np.sqrt(np.mean([np.sum((g - client) ** 2) for g in batches]))))
            longest = max(longest, *(float(np.linalg.norm(g)) for g in batches))
    steps = np.ceil(problem.data.sizes / settings.batch_size).mean() * settings.local_epochs
    return Constants(
        smoothness=estimate_smoothness(problem, run.seed, settings.batch_size),
        sigma=sigma,
        zeta=zeta,
        gradient=longest,
        divergence=_divergence(problem, far[0], start[0]),
        steps=float(steps),
        rounds=settings.rounds,
        clients=min(settings.clients_per_round, problem.data.clients),
    )


def _near_optimum(problem: Problem, w: Array, parameters: Array) -> Array:
    """Where pooled proximal steps of size 1/L lead in a while: B enters the advice only by its roots."""
    step = np.array([1 / _pooled_smoothness(problem, w)])
    for _ in range(POOLED_STEPS):
        w = proximal_step(problem, w, problem.risk(w), Jobs(step, np.ones(1), parameters))
    return w


def _pooled_smoothness(problem: Problem, w: Array, iterations: int = 20) -> float:
    """The largest Hessian eigenvalue of F at w, by power iteration on differences of gradients."""
    vector = generator(0, PROBES, 2).standard_normal(w.shape)
    for _ in range(iterations):
        vector *= 1e-2 / np.linalg.norm(vector)
        product = problem.risk(w + vector).gradient - problem.risk(w - vector).gradient
        largest = float(np.linalg.norm(product) / 2e-2)
        vector = product
    return largest


def _divergence(problem: Problem, w: Array, start: Array) -> float:
    """D_h over all blocks; those that are not regularised are Euclidean."""
    total = 0.0
    for block in problem.layout.blocks:
        place = problem.layout.slices[block.name]
        a, b = w[place].astype(float), start[place].astype(float)
        total += problem.mirror.divergence(a, b) if block.regularised else float(((a - b) ** 2).sum() / 2)
    return total


def paper_grid() -> list[float]:
    """The client learning rates of the paper's grid, from its one home in the configuration."""
    text = files("fco_cli.conf").joinpath("hparams/grid/paper.yaml").read_text()
    params = OmegaConf.create(text).hydra.sweeper.params
    return [float(rate) for rate in str(params["hparams.client_lr"]).split(",")]
