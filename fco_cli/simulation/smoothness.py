"""Estimates of the smoothness constant L, the largest Hessian eigenvalue over batches, and step sizes based on it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from fco_cli.client_rate import AUTO
from fco_cli.errors import require
from fco_cli.problem.data import RemoteRows, SparseRows
from fco_cli.problem.descent import Batches
from fco_cli.problem.layout import Array
from fco_cli.problem.mirror_maps import Euclidean
from fco_cli.problem.models.linear import Linear, Model, SparseLinear
from fco_cli.problem.problem import Problem
from fco_cli.problem.streams import PROBES, generator

BATCHES = 16
MOST_CLIENTS = 256  # sampled by client_lr=auto
MARGIN = 1.02  # power iteration converges from below
UNKNOWN = "a number > 0: auto needs the smoothness constant L, which is unknown"


def estimate_smoothness(problem: Problem, seed: int, batch_size: int, iterations: int = 20) -> float:
    """Estimate L from batches of a few random clients, precisely enough for a warning."""
    if isinstance(problem.data, RemoteRows):
        return problem.data.smoothness(seed, batch_size)
    random = generator(seed, PROBES)
    return largest_curvature(
        problem, random.integers(problem.data.clients, size=BATCHES), batch_size, random, iterations
    )


def automatic_rate(problem: Problem, seed: int, batch_size: int) -> float:
    """Return the rate of `hparams.client_lr=auto`: 1/L to three digits, with L the largest over a batch per client.

    Steps overshoot above 2/L; the factor 2 is a margin for batches that were not sampled. If other batches exceed it,
    those by which `warning_of_large_steps` judges, L is theirs.
    """
    _check_automatic(problem)
    random = generator(seed, PROBES, 2)
    clients = random.permutation(problem.data.clients)[:MOST_CLIENTS]
    if isinstance(problem.data, RemoteRows):
        return _inverse(problem.data.smoothness(seed, batch_size))
    smoothness = largest_curvature(problem, np.resize(clients, max(len(clients), BATCHES)), batch_size, random)
    other = estimate_smoothness(problem, seed, batch_size)
    return _inverse(other if other > 2 * smoothness else smoothness)


def automatic_rate_of_mean(problem: Problem, seed: int) -> float:
    """Return the rate of `hparams.client_lr=auto` for steps along grad F: 1/L with the L of F."""
    _check_automatic(problem)
    is_known = _with_curvature_bound(problem) is problem or not isinstance(problem.data, RemoteRows)
    require(is_known, "hparams.client_lr", AUTO, f"{UNKNOWN} for the {problem.loss.name} loss of rows at other sites")
    return _inverse(smoothness_of_mean(problem, seed, iterations=50))


@np.errstate(all="ignore")
def smoothness_of_mean(problem: Problem, seed: int, iterations: int = 20) -> float:
    """Return the largest Hessian eigenvalue of F at w_0, by power iteration on differences of gradients."""
    problem, start = _with_curvature_bound(problem), problem.model.initial()[None]
    vector = generator(seed, PROBES, 3).standard_normal(start.shape)
    smoothness = 0.0
    for _ in range(iterations):
        vector *= 1e-2 / np.linalg.norm(vector)
        ahead, behind = problem.risk(np.concatenate([start + vector, start - vector])).gradient
        product = (ahead - behind)[None] / 2
        smoothness = float((vector * product).sum() / (vector * vector).sum())
        vector = product
    return MARGIN * smoothness


def _check_automatic(problem: Problem) -> None:
    model, mirror = problem.model, problem.mirror
    require(model.convex, "hparams.client_lr", AUTO, f"{UNKNOWN} for a model that is not convex")
    require(mirror.name == "euclidean", "hparams.client_lr", AUTO, f"{UNKNOWN} in the norm of mirror={mirror.name}")


def _inverse(smoothness: float) -> float:
    """Return 1/L to three digits; raise UserError if L is 0 or overflows."""
    is_known = 0 < smoothness < float(np.finfo(float).max)
    require(is_known, "hparams.client_lr", AUTO, f"{UNKNOWN} for these data")
    return float(f"{1 / smoothness:.3g}")


@np.errstate(all="ignore")  # overflow is detected by the first evaluation of the objective
def largest_curvature(
    problem: Problem, clients: Array, batch_size: int, random: np.random.Generator, iterations: int = 20
) -> float:
    """Return the largest Hessian eigenvalue at w_0 over one batch of each client, by power iteration.

    Hessian-vector products are differences of two gradients, which every model and loss provides.
    """
    data, dtype, problem = problem.data, problem.dtype, _with_curvature_bound(problem)
    largest = 0.0
    for m in clients:
        low, high = data.offsets[m], data.offsets[m + 1]
        model, batch = _probe(problem, random.permutation(high - low)[:batch_size] + low)
        start = model.initial().astype(dtype)[None]
        vector = random.standard_normal(start.shape).astype(dtype)
        for _ in range(iterations):
            vector *= 1e-2 / np.linalg.norm(vector)
            ahead, behind = _gradient(problem, np.concatenate([start + vector, start - vector]), batch)
            product = (ahead - behind)[None]
            eigenvalue = float((vector * product).sum() / (2 * (vector * vector).sum()))
            if not np.linalg.norm(product) > 0:
                break
            vector = product
        largest = max(largest, eigenvalue)
    return min(largest, float(np.finfo(float).max))


def _with_curvature_bound(problem: Problem) -> Problem:
    """Return the problem with the loss whose curvature at w_0 bounds that of its loss everywhere."""
    loss = problem.loss.curvature_bound
    return problem if loss is problem.loss else replace(problem, loss=loss)


def _probe(problem: Problem, rows: Array) -> tuple[Model, Batches]:
    """Return a model and a batch of some rows; sparse rows are restricted to the columns with stored entries."""
    x, model, targets, edges = problem.data.x, problem.model, problem.data.targets, np.array([0, len(rows)])
    if not isinstance(x, SparseRows) or not isinstance(model, SparseLinear):
        return model, Batches(x, targets, rows, edges, model.widths, len(edges) - 1)
    entries = np.concatenate([np.arange(x.starts[row], x.starts[row + 1]) for row in rows])
    used, columns = np.unique(x.columns[entries], return_inverse=True)
    starts = np.append(0, np.cumsum(x.starts[rows + 1] - x.starts[rows]))
    compact = SparseRows(x.values[entries], columns.astype(x.columns.dtype), starts, len(used))
    model = SparseLinear(len(used), model.outputs, site_bias=model.site_bias)
    return model, Batches(compact, targets[rows], np.arange(len(rows)), edges, model.widths, len(edges) - 1)


def _gradient(problem: Problem, w: Array, batch: Batches) -> Array:
    gradient = np.zeros_like(w)
    problem.descend(gradient, w, batch, 0, -np.ones(len(w)))
    return gradient


def batch_gradient(problem: Problem, w: Array, rows: Array) -> Array:
    """Return the gradient at w [J, P] of the mean loss over the rows, with the kernel of the algorithms."""
    data = problem.data
    return _gradient(problem, w, Batches(data.x, data.targets, rows, np.array([0, len(rows)]), problem.model.widths, 1))


BOUNDED_SLOPES = ("logistic", "softmax", "huber")  # losses whose gradient steps are bounded: they overshoot, no more


def can_diverge(problem: Problem) -> bool:
    """Return True if steps above 2/L can diverge.

    L is a Euclidean constant. Steps of a linear model on a loss with bounded slopes are bounded.
    """
    is_bounded = problem.loss.name in BOUNDED_SLOPES and isinstance(problem.model, Linear)
    return isinstance(problem.mirror, Euclidean) and not is_bounded


def warning_of_large_steps(client_lr: float, smoothness: float | None, on_mean: bool = False) -> str | None:
    """Return a warning if the step size is above 2/L, with the L of batches or, for steps along grad F, of F."""
    if not smoothness or client_lr <= 2 / smoothness:
        return None
    source = "of the objective" if on_mean else "the largest over sampled batches"
    return (
        f"hparams.client_lr={client_lr:g} is above 2/L = {2 / smoothness:.2g} "
        f"(L = {smoothness:.4g}, {source}): this run may diverge"
    )


def larger_server_lr(server_lr: float, local_step: float, smoothness: float | None) -> str | None:
    """Return a setting that speeds up a run if eta_s eta_c K, the effective step of a round, is well below 1/L."""
    factor = 1 / (server_lr * local_step * smoothness) if smoothness else 1.0
    if factor < 2:
        return None
    rate = server_lr * min(factor, 10.0)
    digit = 10.0 ** math.floor(math.log10(rate))
    return f"hparams.server_lr={math.floor(rate / digit) * digit:g}"


def why_diverged(result: dict[str, Any]) -> str:
    """Return one line that explains a divergence."""
    client_lr, smoothness = result.get("client_lr"), result["smoothness"]
    if client_lr is None:
        return f"diverged in round {result['diverged_round']}"
    limit = 2 / smoothness if smoothness else None
    line = f"diverged in round {result['diverged_round']} with client_lr {client_lr:g}"
    if limit is None:
        return f"{line}: use a smaller hparams.client_lr"
    if client_lr > limit:
        return f"{line}, which is above 2/L = {limit:.2g}: use a smaller hparams.client_lr"
    return f"{line}, although it is below 2/L = {limit:.2g}: use a smaller hparams.server_lr"
