"""An estimate of L, the largest Hessian eigenvalue over batches, and the step size it allows (SPEC section 6)."""

from __future__ import annotations

import numpy as np

from fco_cli.problem.data import Batches
from fco_cli.problem.problem import Problem
from fco_cli.problem.streams import PROBES, generator


def estimate_smoothness(problem: Problem, seed: int, batch_size: int, batches: int = 16, iterations: int = 20) -> float:
    """The largest eigenvalue met by power iteration on sampled batches, at w_0.

    A Hessian times a vector is the difference of two gradients, so any model and loss will do.
    """
    random = generator(seed, PROBES)
    data, dtype = problem.data, problem.dtype
    start = problem.model.start().astype(dtype)[None]
    largest = 0.0
    for m in random.integers(data.clients, size=batches):
        low, high = data.start[m], data.start[m + 1]
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
    return largest


def batch_gradient(problem: Problem, w: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The gradient at w [J, P] of the mean loss over the rows, by the kernel of the algorithms."""
    gradient, data = np.zeros_like(w), problem.data
    batch = Batches(data.x, data.y, rows, np.array([0, len(rows)]), problem.model.widths)
    problem.descend(gradient, w, batch, 0, -np.ones(len(w)))
    return gradient
