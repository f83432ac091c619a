"""F over a whole data set: its value, gradient and accuracy, exactly.

A squared loss needs its data only once, for the matrix A, the vector c and the number e in
F(w) = w'Aw - 2c'w + e; other losses pass over the rows each time. Both are bit for bit independent of the
number of jobs and of threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from threadpoolctl import threadpool_limits

from fco_cli.kernels.aligned import PANEL, to_panels, where_they_are
from fco_cli.kernels.compiled import Kernel, kernel, kernel_in_order, specialize
from fco_cli.kernels.products import add_to_columns
from fco_cli.problem.data import ClientData, Elsewhere
from fco_cli.problem.descent import backward, each_row, forward, gather, of_a_row, over_rows
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss
from fco_cli.problem.losses.site_bias import bias_finder, client_biases
from fco_cli.problem.models.linear import Linear, Model

prange = range  # Numba's parallel range in the compiled kernel

GRAM_LIMIT = 4096  # parameters; a larger matrix costs more than it saves
FIVE = 5  # rows that products.py takes together
CACHED = 512 * 2**10  # bytes
PARTS = 8  # pieces of a pass over the data, whatever the number of threads


class Evaluation(NamedTuple):
    """F and what comes with it, for every job."""

    value: Array  # [J]
    gradient: Array  # [J, P]; [0, P] if it was not asked for
    accuracy: Array | None  # [J], for classification


class Risk(Protocol):
    """F on one data set."""

    def __call__(self, w: Array, gradient: bool = True) -> Evaluation: ...


@kernel
def quadratics(panels, linear, constant, w, rows, products, values, gradient):
    """values [J] = w'Aw - 2c'w + e and, unless it has no rows, gradient [J, P] = 2 (Aw - c), for all jobs.

    A comes as panels of its columns, see aligned.py; without a gradient as its upper triangle, off the diagonal
    doubled: half of it. `products` [J, P] become Aw, the sum of A's rows, each as often as w says; `rows` [P] count
    from 0.
    """
    size, half = rows.shape[0], gradient.shape[0] == 0
    for turn in prange(panels.shape[0]):
        # A long and a short one in turn, for equal threads.
        panel = panels.shape[0] - 1 - turn // 2 if turn % 2 else turn // 2
        low, high = panel * PANEL, min((panel + 1) * PANEL, size)
        for j in range(w.shape[0]):
            for k in range(low, high):
                products[j, k] = 0
        columns = where_they_are(panels[panel], rows[:high] if half else rows)
        add_to_columns(products, 1, size, low, columns, 0, high - low, w)
    for j in prange(w.shape[0]):
        total = 0.0
        for k in range(size):
            total += w[j, k] * (products[j, k] - 2 * linear[k])
            if not half:
                gradient[j, k] = 2 * (products[j, k] - linear[k])
        values[j] = total + constant


@dataclass(frozen=True)
class QuadraticRisk:
    """F of a squared loss by its sufficient statistics, always in float64."""

    matrix: Array  # [P, P]
    linear: Array  # [P]
    constant: float

    @classmethod
    def of(cls, data: ClientData, weights: Array, rows_at_once: int = 1024) -> QuadraticRisk:
        """Gather the statistics; `weights` are the clients'."""
        x = data.x
        assert isinstance(x, np.ndarray)
        features = x.shape[1]
        moments = np.zeros((features + 2, features + 2))  # of (x, 1, y): the bias sees a constant feature
        row_weights = np.repeat(weights / data.sizes, data.sizes)
        if data.relative_weights is not None:
            row_weights *= data.relative_weights
        # One thread: the bits of a product depend on how many make it, and a worker process has fewer than its parent.
        with threadpool_limits(1, user_api="blas"):
            for low in range(0, len(data.y), rows_at_once):
                chunk = slice(low, low + rows_at_once)
                scale = np.sqrt(row_weights[chunk])[:, None]
                rows = np.empty((len(scale), features + 2))
                rows[:, :features], rows[:, features], rows[:, -1] = x[chunk], 1, data.y[chunk]
                rows *= scale
                moments += rows.T @ rows
        return cls(np.ascontiguousarray(moments[:-1, :-1]), moments[:-1, -1].copy(), float(moments[-1, -1]))

    @cached_property
    def _panels(self) -> Array:
        return to_panels(self.matrix)

    @cached_property
    def _panels_of_upper(self) -> Array:
        """All that w'Aw needs."""
        return to_panels(np.triu(2 * self.matrix) - np.diag(np.diag(self.matrix)))

    @cached_property
    def _every(self) -> Array:
        return np.arange(len(self.linear))

    def __call__(self, w: Array, gradient: bool = True) -> Evaluation:
        w = np.ascontiguousarray(w, dtype=float)
        values, gradients, products = np.empty(len(w)), np.empty((len(w) * gradient, w.shape[1])), np.empty_like(w)
        panels = self._panels if gradient else self._panels_of_upper
        of_all = specialize(quadratics, parallel=True)
        of_all(panels, self.linear, self.constant, w, self._every, products, values, gradients)
        return Evaluation(values, gradients, None)


def value(scores, y):  # bound by `specialize` to the loss
    raise NotImplementedError


def hit(scores, y):
    raise NotImplementedError


@kernel
def record(scores, y, weight, j, i, seen):
    """What a pass over the data sees of a row: its loss, as often as it counts, and whether its scores are right."""
    losses, hits = seen
    losses[j, i] = weight * value(scores, y)
    hits[j] += hit(scores, y)


@kernel
def add_client(w, x, y, widths, low, high, step, weight, values, hits, gradient):
    """Add one client's share of F, of the correct rows and of the gradient, unless that has no rows; `step` of its rows
    at a time."""
    share, slopes = weight / (high - low), gradient.shape[0] > 0
    for begin in range(low, high, step):
        rows = np.arange(begin, min(begin + step, high))
        coming = np.arange(min(begin + step, high), min(begin + 2 * step, high))
        batch = gather(x, rows, coming, w.shape[0] * widths[-1])
        scores = forward(w, batch, widths)
        losses = np.empty((w.shape[0], rows.shape[0]), scores.dtype)
        each_row(scores, y, rows, (losses, hits), slopes)
        for j in range(w.shape[0]):
            for i in range(rows.shape[0]):
                values[j] += share * losses[j, i]
                for c in range(scores.shape[1]):
                    scores[j, c, i] *= share
        if slopes:
            backward(gradient, w, batch, widths, scores)


@kernel
def pass_over(w, x, y, widths, start, step, weights, values, hits, gradients):
    """The sums of the clients' shares, part by part; a part is some clients in a row."""
    parts = values.shape[0]
    clients = weights.shape[0]
    for part in prange(parts):
        for j in range(gradients.shape[1]):
            for k in range(gradients.shape[2]):
                gradients[part, j, k] = 0
        for m in range(part * clients // parts, (part + 1) * clients // parts):
            low, high = start[m], start[m + 1]
            add_client(w, x, y, widths, low, high, step, weights[m], values[part], hits[part], gradients[part])


@kernel
def pass_over_own(models, x, y, widths, start, owners, losses, hits):
    """Every client's own models [n, J, P] on its rows, those of client owners[i]: mean losses [n, J], correct rows."""
    for i in prange(models.shape[0]):
        low, high = start[owners[i]], start[owners[i] + 1]
        nothing = np.empty((0, models.shape[2]), models.dtype)
        add_client(models[i], x, y, widths, low, high, high - low, 1.0, losses[i], hits[i], nothing)


@kernel
def score_clients(w, x, widths, start, scores):
    """Scores [J, C, N] of all rows, a client at a time: its rows stay in cache."""
    for m in prange(start.shape[0] - 1):
        rows = np.arange(start[m], start[m + 1])
        own = forward(w, where_they_are(x, rows), widths)
        for j in range(own.shape[0]):
            for c in range(own.shape[1]):
                for i in range(own.shape[2]):
                    scores[j, c, rows[i]] = own[j, c, i]


@dataclass(frozen=True)
class DataRisk:
    """F of any loss and model by a pass over the rows."""

    data: ClientData
    weights: Array  # [M]
    model: Model
    loss: Loss

    @cached_property
    def _pass(self) -> Kernel:
        return specialize(pass_over, parallel=True, add_client=_one_client(self.data, self.model, self.loss))

    def __call__(self, w: Array, gradient: bool = True) -> Evaluation:
        data, w = self.data, np.ascontiguousarray(w, dtype=self.data.x.dtype)
        parts = min(PARTS, data.clients)
        values, hits = np.zeros((parts, len(w))), np.zeros((parts, len(w)))
        shape = (parts, len(w) * gradient, w.shape[1])
        gradients = self._spare.pop(shape, None)  # another thread then finds none, and makes its own
        if gradients is None:
            gradients = np.empty(shape, w.dtype)
        self._pass(
            w, data.x, data.targets, self.model.widths, data.offsets, self._rows_at_a_time, self.weights,
            values, hits, gradients,
        )  # fmt: skip
        accuracy = hits.sum(axis=0) / len(data.y) if self.loss.classification else None
        found = Evaluation(ordered_sum(values), ordered_sum(gradients), accuracy)
        self._spare.clear()
        self._spare[shape] = gradients
        return found

    @cached_property
    def _spare(self) -> dict[tuple[int, ...], Array]:
        """Room for gradients that the last call no longer needs, by its shape: fresh memory takes a fifth of a pass."""
        return {}

    @cached_property
    def _rows_at_a_time(self) -> int:
        """So few that they stay in a core's cache from their scores to their gradient, but ten at least: wide models
        come from memory for each; all of a client's where these belong together, and of a network, whose layers want
        many."""
        whole = not isinstance(self.model, Linear) or self.model.site_bias or self.loss.together is not None
        fives = CACHED // (FIVE * self.data.x.shape[1] * self.data.x.dtype.itemsize)
        return int(self.data.sizes.max()) if whole else FIVE * max(2, fives)


def _one_client(data: ClientData, model: Model, loss: Loss) -> Kernel:
    seeing = specialize(record, value=loss.bound("value"), hit=loss.bound("hit"))
    rows = over_rows(data, model, loss, seeing)
    return specialize(add_client, gather=model.gather, forward=model.forward, backward=model.backward, each_row=rows)


def own_losses(data: ClientData, model: Model, loss: Loss, models: Array, clients: Array) -> tuple[Array, Array | None]:
    """The mean loss of models [n, J, P] on the rows of clients [n], each on its own: [n, J]; accuracy likewise."""
    models = np.ascontiguousarray(models, dtype=data.x.dtype)
    losses, hits = np.zeros(models.shape[:2]), np.zeros(models.shape[:2])
    visit_own = specialize(pass_over_own, parallel=True, add_client=_one_client(data, model, loss))
    visit_own(models, data.x, data.targets, model.widths, data.offsets, clients, losses, hits)
    return losses, hits / data.sizes[clients][:, None] if loss.classification else None


def scores_of(model: Model, data: ClientData, w: Array) -> Array:
    """The scores of all rows: [J, C, N]."""
    w = np.ascontiguousarray(w, dtype=data.x.dtype)
    scores = np.empty((len(w), model.widths[-1], len(data.y)), w.dtype)
    specialize(score_clients, parallel=True, forward=model.forward)(w, data.x, model.widths, data.offsets, scores)
    return scores


@kernel_in_order
def add_parts(parts, total):
    """total [J, n] = the sum of parts [parts, J, n], one after another: NumPy's sum takes another order for one job."""
    for j in prange(parts.shape[1]):
        for k in range(parts.shape[2]):
            total[j, k] = 0
        for part in range(parts.shape[0]):
            for k in range(parts.shape[2]):
                total[j, k] += parts[part, j, k]


def ordered_sum(parts: Array) -> Array:
    """The sum over the first axis, in float64, in an order that does not depend on the number of jobs."""
    total = np.empty((parts.shape[1], int(np.prod(parts.shape[2:]))))
    specialize(add_parts, parallel=True)(parts.reshape(len(parts), *total.shape), total)
    return total.reshape(parts.shape[1:])


def risk_of(data: ClientData, weights: Array, model: Model, loss: Loss) -> Risk:
    """The cheaper of the two ways to compute the same F; rows that are elsewhere are summed up there."""
    if isinstance(data, Elsewhere):
        return data.risk(weights)
    size = model.layout.size
    plain = isinstance(model, Linear) and not model.site_bias and isinstance(data.x, np.ndarray)
    if loss.quadratic and plain and size <= GRAM_LIMIT and size <= len(data.y):
        return QuadraticRisk.of(data, weights)
    return DataRisk(data, weights, model, loss)


def biases_of(data: ClientData, model: Model, loss: Loss, w: Array) -> Array:
    """Every client's own bias, the best for its rows: [M, J]."""
    finder = bias_finder(of_a_row(data, loss), loss)
    find = specialize(client_biases, parallel=True, forward=model.forward, best_bias=finder)
    biases = np.empty((data.clients, len(w)), w.dtype)
    find(w, data.x, data.targets, model.widths, data.offsets, biases)
    return biases
