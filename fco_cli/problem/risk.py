"""Exact value, gradient and accuracy of F over a data set.

For a squared loss, one pass over the data computes the sufficient statistics A, c and e in F(w) = w'Aw - 2c'w + e.
Other losses pass over the rows at every evaluation. Results are bitwise independent of the number of jobs and threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple, Protocol

import numpy as np
from threadpoolctl import ThreadpoolController

from fco_cli.kernels.compiled import Kernel, declared, kernel, kernel_in_order, specialize
from fco_cli.kernels.products import PANEL, add_to_columns, batch_in_place, to_panels
from fco_cli.problem.data import ClientData, RemoteRows
from fco_cli.problem.descent import cached_by_format, each_row, model_kernels, row_kernels, row_loop
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss
from fco_cli.problem.losses.base import on_row
from fco_cli.problem.losses.site_bias import bias_finder, client_biases
from fco_cli.problem.models.external import ExternalModel
from fco_cli.problem.models.linear import Linear, Model

model: Model = declared(Model)
prange = range  # Numba's parallel range in the compiled kernel

GRAM_LIMIT = 4096  # largest number of parameters for which sufficient statistics pay off
ROW_GROUP = 5  # rows that products.py processes together
CACHE_BYTES = 512 * 2**10
PARTS = 8  # parts of a pass over the data, for any number of threads


class Evaluation(NamedTuple):
    """Value, gradient and accuracy of F for every job."""

    value: Array  # [J]
    gradient: Array  # [J, P]; [0, P] if not requested
    accuracy: Array | None  # [J], for classification losses


class Risk(Protocol):
    """F on one data set as a function of the models w [J, P]."""

    def __call__(self, w: Array, gradient: bool = True) -> Evaluation: ...


@kernel
def evaluate_quadratic(panels, linear, constant, w, rows, products, values, gradient):
    """Compute values [J] = w'Aw - 2c'w + e and, unless `gradient` is empty, gradient [J, P] = 2 (Aw - c).

    `panels` are those of A (aligned.to_panels). Without a gradient they are those of its upper triangle with doubled
    off-diagonal entries, which halves the work. `products` [J, P] is overwritten by Aw; `rows` is arange(P).
    """
    size, half = rows.shape[0], gradient.shape[0] == 0
    for turn in prange(panels.shape[0]):
        # Alternate between the first and the last panels, whose work differs, to balance the threads.
        panel = panels.shape[0] - 1 - turn // 2 if turn % 2 else turn // 2
        low, high = panel * PANEL, min((panel + 1) * PANEL, size)
        for j in range(w.shape[0]):
            for k in range(low, high):
                products[j, k] = 0
        columns = batch_in_place(panels[panel], rows[:high] if half else rows)
        add_to_columns(products, 1, size, low, columns, 0, high - low, w)
    for j in prange(w.shape[0]):
        total = 0.0
        for k in range(size):
            total += w[j, k] * (products[j, k] - 2 * linear[k])
            if not half:
                gradient[j, k] = 2 * (products[j, k] - linear[k])
        values[j] = total + constant


@cache
def blas() -> ThreadpoolController:
    """Return the controller of NumPy's threads; the search for the libraries takes milliseconds."""
    return ThreadpoolController()


@dataclass(frozen=True)
class QuadraticRisk:
    """F of a squared loss from sufficient statistics, always in float64."""

    matrix: Array  # [P, P]
    linear: Array  # [P]
    constant: float

    @classmethod
    def of(cls, data: ClientData, weights: Array, rows_at_once: int = 1024) -> QuadraticRisk:
        """Return F for data with these client weights."""
        x = data.x
        assert isinstance(x, np.ndarray)
        features = x.shape[1]
        moments = np.zeros((features + 2, features + 2))  # of (x, 1, y); the constant is the feature of the bias
        row_weights = np.repeat(weights / data.sizes, data.sizes)
        if data.relative_weights is not None:
            row_weights *= data.relative_weights
        # Use one thread: the bits of a product depend on the number of threads, which differs between processes.
        with blas().limit(limits=1, user_api="blas"):
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
        """Panels of the upper triangle of A with doubled off-diagonal entries: sufficient for w'Aw."""
        return to_panels(np.triu(2 * self.matrix) - np.diag(np.diag(self.matrix)))

    @cached_property
    def _rows(self) -> Array:
        return np.arange(len(self.linear))

    def __call__(self, w: Array, gradient: bool = True) -> Evaluation:
        w = np.ascontiguousarray(w, dtype=float)
        values, gradients, products = np.empty(len(w)), np.empty((len(w) * gradient, w.shape[1])), np.empty_like(w)
        panels = self._panels if gradient else self._panels_of_upper
        evaluate = specialize(evaluate_quadratic, parallel=True)
        evaluate(panels, self.linear, self.constant, w, self._rows, products, values, gradients)
        return Evaluation(values, gradients, None)


@kernel
def observe_loss(scores, y, weight, j, i, observed):
    """Record the weighted loss of a row and whether its prediction is correct."""
    losses, hits = observed
    losses[j, i] = weight * on_row.value(scores, y)
    hits[j] += on_row.is_correct(scores, y)


@kernel
def add_client(w, x, y, widths, low, high, step, weight, values, hits, gradient):
    """Add one client's contribution to F, to the number of correct rows and, unless it is empty, to the gradient.

    Rows low to high are processed `step` at a time.
    """
    share, slopes = weight / (high - low), gradient.shape[0] > 0
    for begin in range(low, high, step):
        rows = np.arange(begin, min(begin + step, high))
        coming = np.arange(min(begin + step, high), min(begin + 2 * step, high))
        batch = model.gather(x, rows, coming, w.shape[0] * widths[-1])
        scores = model.forward(w, batch, widths)
        losses = np.empty((w.shape[0], rows.shape[0]), scores.dtype)
        each_row(scores, y, rows, (losses, hits), slopes)
        for j in range(w.shape[0]):
            for i in range(rows.shape[0]):
                values[j] += share * losses[j, i]
                for c in range(scores.shape[1]):
                    scores[j, c, i] *= share
        if slopes:
            model.backward(gradient, w, batch, widths, scores)


@kernel
def sum_clients(w, x, y, widths, start, step, weights, values, hits, gradients):
    """Sum the contributions of the clients, separately for every part; a part is a range of clients."""
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
def evaluate_own_models(models, x, y, widths, start, owners, losses, hits):
    """Compute mean losses and numbers of correct rows [n, J] of models[i] [J, P] on the rows of client owners[i]."""
    for i in prange(models.shape[0]):
        low, high = start[owners[i]], start[owners[i] + 1]
        no_gradient = np.empty((0, models.shape[2]), models.dtype)
        add_client(models[i], x, y, widths, low, high, high - low, 1.0, losses[i], hits[i], no_gradient)


@kernel
def score_clients(w, x, widths, start, scores):
    """Compute the scores [J, C, N] of all rows, one client at a time, so that its rows stay in cache."""
    for m in prange(start.shape[0] - 1):
        rows = np.arange(start[m], start[m + 1])
        own = model.forward(w, batch_in_place(x, rows), widths)
        for j in range(own.shape[0]):
            for c in range(own.shape[1]):
                for i in range(own.shape[2]):
                    scores[j, c, rows[i]] = own[j, c, i]


@dataclass(frozen=True)
class DataRisk:
    """F of any loss and model, evaluated by a pass over the rows."""

    data: ClientData
    weights: Array  # [M]
    model: Model
    loss: Loss

    @cached_property
    def _pass(self) -> Kernel:
        return _sum_of_losses(self.data, self.model, self.loss)

    def __call__(self, w: Array, gradient: bool = True) -> Evaluation:
        data, w = self.data, np.ascontiguousarray(w, dtype=self.data.x.dtype)
        parts = min(PARTS, data.clients)
        values, hits = np.zeros((parts, len(w))), np.zeros((parts, len(w)))
        shape = (parts, len(w) * gradient, w.shape[1])
        gradients = self._buffers.pop(shape, None)  # removed, so that no other thread uses the same buffer
        if gradients is None:
            gradients = np.empty(shape, w.dtype)
        self._pass(
            w, data.x, data.targets, self.model.widths, data.offsets, self._rows_at_a_time, self.weights,
            values, hits, gradients,
        )  # fmt: skip
        accuracy = hits.sum(axis=0) / len(data.y) if self.loss.classification else None
        evaluation = Evaluation(ordered_sum(values), ordered_sum(gradients), accuracy)
        self._buffers.clear()
        self._buffers[shape] = gradients
        return evaluation

    @cached_property
    def _buffers(self) -> dict[tuple[int, ...], Array]:
        """Gradient buffer of the last call, by its shape; allocating it again would take a fifth of a pass."""
        return {}

    @cached_property
    def _rows_at_a_time(self) -> int:
        """Number of rows per step: few enough to stay in a core's cache from their scores to their gradient.

        At least ten, because wide models are read from memory at every step. All rows of a client if the loss couples
        them, and for networks, whose layers are faster on many rows.
        """
        all_rows = not isinstance(self.model, Linear) or self.model.site_bias or self.loss.client_loss is not None
        groups = CACHE_BYTES // (ROW_GROUP * self.data.x.shape[1] * self.data.x.dtype.itemsize)
        return int(self.data.sizes.max()) if all_rows else ROW_GROUP * max(2, groups)


@cached_by_format
def _one_client(data: ClientData, model: Model, loss: Loss) -> Kernel:
    observe = specialize(
        observe_loss, on_row={"value": loss.bound_kernel("value"), "is_correct": loss.bound_kernel("is_correct")}
    )
    loop = row_loop(data, model, loss, observe)
    return specialize(add_client, model=model_kernels(model), each_row=loop)


@cached_by_format
def _sum_of_losses(data: ClientData, model: Model, loss: Loss) -> Kernel:
    return specialize(sum_clients, parallel=True, add_client=_one_client(data, model, loss))


def own_losses(data: ClientData, model: Model, loss: Loss, models: Array, clients: Array) -> tuple[Array, Array | None]:
    """Return mean losses and accuracies [n, J] of models[i] [J, P] on the rows of clients[i] only."""
    if isinstance(model, ExternalModel):
        return model.own_losses(data, loss, models, clients)
    models = np.ascontiguousarray(models, dtype=data.x.dtype)
    losses, hits = np.zeros(models.shape[:2]), np.zeros(models.shape[:2])
    evaluate = specialize(evaluate_own_models, parallel=True, add_client=_one_client(data, model, loss))
    evaluate(models, data.x, data.targets, model.widths, data.offsets, clients, losses, hits)
    return losses, hits / data.sizes[clients][:, None] if loss.classification else None


def scores_of(model: Model, data: ClientData, w: Array) -> Array:
    """Return the scores of all rows: [J, C, N]."""
    if isinstance(model, ExternalModel):
        return model.scores(data, w)
    w = np.ascontiguousarray(w, dtype=data.x.dtype)
    scores = np.empty((len(w), model.widths[-1], len(data.y)), w.dtype)
    score = specialize(score_clients, parallel=True, model=model_kernels(model))
    score(w, data.x, model.widths, data.offsets, scores)
    return scores


@kernel_in_order
def add_parts(parts, total):
    """Compute total [J, n], the sum of parts [parts, J, n] in order; the order of NumPy's sum depends on J."""
    for j in prange(parts.shape[1]):
        for k in range(parts.shape[2]):
            total[j, k] = 0
        for part in range(parts.shape[0]):
            for k in range(parts.shape[2]):
                total[j, k] += parts[part, j, k]


def ordered_sum(parts: Array) -> Array:
    """Return the sum over the first axis in float64, in an order that does not depend on the number of jobs."""
    total = np.empty((parts.shape[1], int(np.prod(parts.shape[2:]))))
    specialize(add_parts, parallel=True)(parts.reshape(len(parts), *total.shape), total)
    return total.reshape(parts.shape[1:])


def risk_of(data: ClientData, weights: Array, model: Model, loss: Loss) -> Risk:
    """Return F: from sufficient statistics if that is cheaper, else by passes over the rows; from sites if remote."""
    if isinstance(data, RemoteRows):
        return data.risk(weights)
    if isinstance(model, ExternalModel):
        return model.risk(data, weights, loss)
    size = model.layout.size
    plain = isinstance(model, Linear) and not model.site_bias and isinstance(data.x, np.ndarray)
    if loss.quadratic and plain and size <= GRAM_LIMIT and size <= len(data.y):
        return QuadraticRisk.of(data, weights)
    return DataRisk(data, weights, model, loss)


def biases_of(data: ClientData, model: Model, loss: Loss, w: Array) -> Array:
    """Return the bias of every client that minimizes the loss of its rows: [M, J]."""
    finder = bias_finder(row_kernels(data, loss), loss)
    find = specialize(client_biases, parallel=True, model=model_kernels(model), best_bias=finder)
    biases = np.empty((data.clients, len(w)), w.dtype)
    find(w, data.x, data.targets, model.widths, data.offsets, biases)
    return biases
