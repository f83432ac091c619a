"""Estimates of L, the largest Hessian eigenvalue over batches, and the step sizes they allow."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from fco_cli.client_rate import AUTO
from fco_cli.errors import require
from fco_cli.problem.data import Batches, Elsewhere, SparseRows
from fco_cli.problem.layout import Array
from fco_cli.problem.models.linear import Model, SparseLinear
from fco_cli.problem.problem import Problem
from fco_cli.problem.streams import PROBES, generator

BATCHES = 16
MOST_CLIENTS = 256  # that `auto` looks at
MARGIN = 1.02  # power iteration comes from below
UNKNOWN = "a number > 0 here: L, of which it is the inverse, is not known"


def estimate_smoothness(problem: Problem, seed: int, batch_size: int, iterations: int = 20) -> float:
    """The largest eigenvalue over batches of some clients: enough for a warning."""
    if isinstance(problem.data, Elsewhere):
        return problem.data.smoothness(seed, batch_size)
    random = generator(seed, PROBES)
    return largest_curvature(
        problem, random.integers(problem.data.clients, size=BATCHES), batch_size, random, iterations
    )


def automatic_rate(problem: Problem, seed: int, batch_size: int) -> float:
    """What `hparams.client_lr=auto` takes: 1/L, to three digits, L the largest over a batch of every client.

    That is half of 2/L, beyond which a step overshoots: the room is for batches that were not looked at.
    """
    _check_automatic(problem)
    random = generator(seed, PROBES, 2)
    clients = random.permutation(problem.data.clients)[:MOST_CLIENTS]
    if isinstance(problem.data, Elsewhere):
        return _inverse(problem.data.smoothness(seed, batch_size))
    return _inverse(largest_curvature(problem, np.resize(clients, max(len(clients), BATCHES)), batch_size, random))


def automatic_rate_of_mean(problem: Problem, seed: int) -> float:
    """The same for steps along grad F, with the L of F itself."""
    _check_automatic(problem)
    known = _most_curved(problem) is problem or not isinstance(problem.data, Elsewhere)
    require(known, "hparams.client_lr", AUTO, f"{UNKNOWN} for the {problem.loss.name} loss of rows at other sites")
    return _inverse(smoothness_of_mean(problem, seed, iterations=50))


@np.errstate(all="ignore")
def smoothness_of_mean(problem: Problem, seed: int, iterations: int = 20) -> float:
    """Return the largest eigenvalue of the Hessian of F at w_0, by power iteration: clients send gradients."""
    curved, start = _most_curved(problem), problem.model.initial()[None]
    vector = generator(seed, PROBES, 3).standard_normal(start.shape)
    smoothness = 0.0
    for _ in range(iterations):
        vector *= 1e-2 / np.linalg.norm(vector)
        ahead, behind = curved.risk(np.concatenate([start + vector, start - vector])).gradient
        product = (ahead - behind)[None] / 2
        smoothness = float((vector * product).sum() / (vector * vector).sum())
        vector = product
    return MARGIN * smoothness


def _check_automatic(problem: Problem) -> None:
    model, mirror = problem.model, problem.mirror
    require(model.convex, "hparams.client_lr", AUTO, f"{UNKNOWN} for a network from where it starts")
    require(mirror.name == "euclidean", "hparams.client_lr", AUTO, f"{UNKNOWN} in the norm of mirror={mirror.name}")


def _inverse(smoothness: float) -> float:
    known = 0 < smoothness < float(np.finfo(float).max)
    require(known, "hparams.client_lr", AUTO, f"{UNKNOWN} on these data")
    return float(f"{1 / smoothness:.3g}")


@np.errstate(all="ignore")  # data beyond all numbers are refused where the objective is first computed
def largest_curvature(
    problem: Problem, clients: Array, batch_size: int, random: np.random.Generator, iterations: int = 20
) -> float:
    """The largest eigenvalue met by power iteration at w_0, on a batch of each of the clients.

    A Hessian times a vector is the difference of two gradients, so any model and loss will do.
    """
    data, dtype, problem = problem.data, problem.dtype, _most_curved(problem)
    largest = 0.0
    for m in clients:
        low, high = data.offsets[m], data.offsets[m + 1]
        model, batch = _looked_at(problem, random.permutation(high - low)[:batch_size] + low)
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


def _most_curved(problem: Problem) -> Problem:
    """With the loss that says at the start how curved it may become."""
    loss = problem.loss.most_curved
    return problem if loss is problem.loss else replace(problem, loss=loss)


def _looked_at(problem: Problem, rows: Array) -> tuple[Model, Batches]:
    """Some rows as a batch, and the model that it needs: of sparse rows one with the weights of stored entries only."""
    x, model, targets, edges = problem.data.x, problem.model, problem.data.targets, np.array([0, len(rows)])
    if not isinstance(x, SparseRows) or not isinstance(model, SparseLinear):
        return model, Batches(x, targets, rows, edges, model.widths)
    entries = np.concatenate([np.arange(x.starts[row], x.starts[row + 1]) for row in rows])
    known, columns = np.unique(x.columns[entries], return_inverse=True)
    starts = np.append(0, np.cumsum(x.starts[rows + 1] - x.starts[rows]))
    few = SparseRows(x.values[entries], columns.astype(x.columns.dtype), starts, len(known))
    model = SparseLinear(len(known), model.outputs, site_bias=model.site_bias)
    return model, Batches(few, targets[rows], np.arange(len(rows)), edges, model.widths)


def _gradient(problem: Problem, w: Array, batch: Batches) -> Array:
    gradient = np.zeros_like(w)
    problem.descend(gradient, w, batch, 0, -np.ones(len(w)))
    return gradient


def batch_gradient(problem: Problem, w: Array, rows: Array) -> Array:
    """The gradient at w [J, P] of the mean loss over the rows, by the kernel of the algorithms."""
    data = problem.data
    return _gradient(problem, w, Batches(data.x, data.targets, rows, np.array([0, len(rows)]), problem.model.widths))


def warning_of_large_steps(client_lr: float, smoothness: float | None, on_mean: bool = False) -> str | None:
    """Return one line if steps of this size overshoot: on some batch, or on F where they are along its gradient."""
    if not smoothness or client_lr <= 2 / smoothness:
        return None
    source = "of the objective's loss" if on_mean else "the largest over sampled batches"
    return (
        f"hparams.client_lr={client_lr:g} is above 2/L = {2 / smoothness:.2g} "
        f"(L = {smoothness:.4g}, {source}): this run may diverge"
    )


def larger_server_lr(server_lr: float, local_way: float, smoothness: float | None) -> str | None:
    """A setting that hastens a run, if a round, eta_s times the way eta_c K of its clients, is well below 1/L."""
    room = 1 / (server_lr * local_way * smoothness) if smoothness else 1.0
    if room < 2:
        return None
    rate = server_lr * min(room, 10.0)
    digit = 10.0 ** math.floor(math.log10(rate))
    return f"hparams.server_lr={math.floor(rate / digit) * digit:g}"


def why_diverged(result: dict[str, Any]) -> str:
    """One line that explains a divergence."""
    client_lr, smoothness = result.get("client_lr"), result["smoothness"]
    if client_lr is None:
        return f"diverged in round {result['diverged_round']}"
    limit = 2 / smoothness if smoothness else None
    line = f"diverged in round {result['diverged_round']} with client_lr {client_lr:g}"
    if limit is None:
        return f"{line}: take a smaller hparams.client_lr"
    if client_lr > limit:
        return f"{line}, which is above 2/L = {limit:.2g}: steps beyond 2/L overshoot; take a smaller hparams.client_lr"
    return f"{line}, although it is below 2/L = {limit:.2g}: take a smaller hparams.server_lr"
