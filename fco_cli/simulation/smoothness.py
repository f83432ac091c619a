"""An estimate of L, the largest Hessian eigenvalue over batches, and the step sizes it allows."""

from __future__ import annotations

from typing import Any

import numpy as np

from fco_cli.problem.data import Batches
from fco_cli.problem.problem import Problem
from fco_cli.problem.streams import PROBES, generator


@np.errstate(all="ignore")  # data beyond all numbers are refused where the objective is first computed
def estimate_smoothness(problem: Problem, seed: int, batch_size: int, batches: int = 16, iterations: int = 20) -> float:
    """The largest eigenvalue met by power iteration on sampled batches, at w_0.

    A Hessian times a vector is the difference of two gradients, so any model and loss will do.
    """
    random = generator(seed, PROBES)
    data, dtype = problem.data, problem.dtype
    start = problem.model.initial().astype(dtype)[None]
    largest = 0.0
    for m in random.integers(data.clients, size=batches):
        low, high = data.offsets[m], data.offsets[m + 1]
        rows = random.permutation(high - low)[:batch_size] + low
        vector = random.standard_normal(start.shape).astype(dtype)
        for _ in range(iterations):
            vector *= 1e-2 / np.linalg.norm(vector)
            product = batch_gradient(problem, start + vector, rows) - batch_gradient(problem, start - vector, rows)
            eigenvalue = float((vector * product).sum() / (2 * (vector * vector).sum()))
            if not np.linalg.norm(product) > 0:
                break
            vector = product
        largest = max(largest, eigenvalue)
    return min(largest, float(np.finfo(float).max))


def batch_gradient(problem: Problem, w: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The gradient at w [J, P] of the mean loss over the rows, by the kernel of the algorithms."""
    gradient, data = np.zeros_like(w), problem.data
    one = Batches(data.x, data.y, rows, np.array([0, len(rows)]), problem.model.widths)
    problem.descend(gradient, w, one, 0, -np.ones(len(w)))
    return gradient


def warning_of_large_steps(client_lr: float, smoothness: float | None) -> str | None:
    """One line, if steps of this size overshoot on some batch."""
    if smoothness is None or client_lr <= 2 / smoothness:
        return None
    return (
        f"hparams.client_lr={client_lr:g} is above 2/L = {2 / smoothness:.2g} "
        f"(L = {smoothness:.4g}, the largest over sampled batches): this run may diverge"
    )


def why_diverged(client_lr: float, result: dict[str, Any]) -> str:
    """One line that explains a divergence."""
    limit = 2 / result["smoothness"] if result["smoothness"] else None
    line = f"diverged in round {result['diverged_round']} with client_lr {client_lr:g}"
    if limit is None:
        return f"{line}: take a smaller hparams.client_lr"
    if client_lr > limit:
        return f"{line}, which is above 2/L = {limit:.2g}: steps beyond 2/L overshoot; take a smaller hparams.client_lr"
    return f"{line}, although it is below 2/L = {limit:.2g}: take a smaller hparams.server_lr"
