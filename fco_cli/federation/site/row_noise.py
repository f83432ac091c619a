"""Randomness of a site that hides its single rows: secret batches and noise of a round, and noisy evaluations.

Nothing here depends on the seed of the run, which the analyst has, unless the run requests no noise.
"""

from __future__ import annotations

import math
import secrets

import numpy as np

from fco_cli.algorithms.protocol import Federated
from fco_cli.federation.message import Arrays
from fco_cli.federation.policy import Policy
from fco_cli.federation.schema import Noise, Train
from fco_cli.problem.data import ClientData, SparseRows
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.private_descent import CohortNoise
from fco_cli.problem.risk import scores_of
from fco_cli.problem.streams import batches_of, local_steps_of, row_noise, sampled_batches, secret_noise


def draw_batches(
    algorithm: Federated, request: Train, client: int, seed: int, policy: Policy
) -> tuple[Array, Array, CohortNoise | None]:
    """Return the order and edges of a site's batches in a round, and the noise of their gradients, if any.

    If the transform hides rows, batches are samples and noise is independent for every job, both from the operating
    system's secure generator. Without noise, batches depend on `seed`; both are those of a simulation with this seed.
    Raise Refusal if the policy does not allow this number of noise vectors.
    """
    sizes, clients = algorithm.problem.data.sizes, np.array([client])
    if not algorithm.transform.protects_rows:
        order, edges, _ = batches_of(
            seed, request.round, clients, sizes,
            request.batch_size, request.local_epochs, request.last_batch, request.steps,
        )  # fmt: skip
        return order, edges, None
    steps = local_steps_of(sizes, request.batch_size, request.local_epochs, request.last_batch)
    if request.steps is not None:
        steps = np.full(1, request.steps)
    (vectors,), size = algorithm.noise_vectors(steps).tolist(), algorithm.problem.layout.size
    policy.check_numbers(max(vectors * len(algorithm.varying) * size, int(steps[0] * sizes[0])))
    if algorithm.has_noise:
        seed, noise = secrets.randbits(63), secret_noise(vectors, len(algorithm.varying), size)
    else:
        noise = row_noise(request.seed, request.round, client, vectors, size)[:, None]
    order, edges, _ = sampled_batches(seed, request.round, clients, sizes, request.batch_size, steps)
    return order, edges, CohortNoise(noise, np.array([0, vectors]), request.batch_size)


def noisy_row_sums(
    data: ClientData, model: Linear, loss: Loss, w: Array, weight: float, gradient: bool, noise: Noise,
    scale: float = 1.0,
) -> Arrays:  # fmt: skip
    """Return the evaluation of models w [J, P] as sums over clipped rows, with noise that hides single rows.

    The loss, the gradient and the hit of a row are clipped as one vector to the norm `noise.most`. A vector that is not
    finite counts as 0. Value and gradient are multiplied by the site's weight and divided by its number of rows; if
    sites share the noise, their noise is multiplied by `scale`, for sites with other weights.
    """
    scores, rows = scores_of(model, data, w), len(data.y)  # [J, C, N]
    values, hits, slopes = np.empty((len(w), rows)), np.zeros((len(w), rows)), scores.astype(float)
    kernels = {name: loss.bound_kernel(name).as_python for name in ("value", "slope", "is_correct")}
    for j in range(len(w)):
        for i, label in enumerate(data.y):
            values[j, i] = kernels["value"](scores[j, :, i], label)
            hits[j, i] = loss.classification and kernels["is_correct"](scores[j, :, i], label)
            kernels["slope"](slopes[j, :, i], label)
    squares = values**2 + hits**2
    if gradient:
        squares += (slopes**2).sum(axis=1) * (1 + _squared_lengths(data))
    norms = np.sqrt(squares)
    factors = np.where(np.isfinite(norms), noise.most / np.maximum(norms, noise.most), 0)  # [J, N]
    values, slopes = np.where(factors > 0, values, 0), np.where(factors[:, None] > 0, slopes, 0)
    sums = {"value": (factors * values).sum(axis=1)}
    if gradient:
        sums["gradient"] = _gradients(data, factors[:, None] * slopes)
    if loss.classification:
        sums["hits"] = (factors * hits).sum(axis=1)
    draws = secret_noise(1, len(w), sum(values[0].size for values in sums.values()))[0]
    ends = np.cumsum([values[0].size for values in sums.values()])
    parts = np.split(noise.deviation / math.sqrt(noise.shares) * draws, ends[:-1], axis=1)
    answer = {}
    for (name, values), part in zip(sums.items(), parts, strict=True):
        unit, factor = (1.0, 1.0) if name == "hits" else (weight / rows, scale)
        answer[name] = (values + factor * part.reshape(values.shape)) * unit
    return answer


def _squared_lengths(data: ClientData) -> Array:
    """Return |x|^2 of every row."""
    if isinstance(data.x, SparseRows):
        return np.add.reduceat(np.append(data.x.values.astype(float) ** 2, 0), data.x.starts[:-1]) * (
            np.diff(data.x.starts) > 0
        )
    return (np.asarray(data.x, float) ** 2).sum(axis=1)


def _gradients(data: ClientData, slopes: Array) -> Array:
    """Return the sums over rows of slope times derivative of the score: [J, P] for slopes [J, C, N]."""
    if isinstance(data.x, SparseRows):
        from scipy.sparse import csr_array

        x = csr_array((data.x.values, data.x.columns, data.x.starts), shape=data.x.shape)
        weights = np.stack([(x.T @ job.T).T for job in slopes])
    else:
        weights = np.stack([job @ data.x for job in slopes])
    return np.concatenate([weights.reshape(len(slopes), -1), slopes.sum(axis=2)], axis=1)
