"""A fully connected ReLU network, its gradient written out.

One job at a time, so that a job's numbers do not depend on its stack. With batches of ten these loops are faster
than calls of a matrix library, which would spend its time on packing the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from fco_cli.kernels.aligned import in_place, where_they_are
from fco_cli.kernels.compiled import Kernel, kernel
from fco_cli.kernels.products import add_products, add_rows
from fco_cli.problem.layout import Array, Block, Layout
from fco_cli.problem.models.linear import glorot_uniform
from fco_cli.problem.streams import MODEL, generator


@kernel
def inner_width(widths):
    """The width of all layers' inputs together."""
    total = 0
    for layer in range(widths.shape[0] - 1):
        total += widths[layer]
    return total


@kernel
def dense(w, inputs, scores):
    """scores [C, B] = kernel (C, d) times the inputs [B, d] plus bias (C), with w the two after one another."""
    outputs, features = scores.shape[0], inputs.shape[1]
    for c in range(outputs):
        for i in range(scores.shape[1]):
            scores[c, i] = w[outputs * features + c]
    batch = where_they_are(inputs, np.arange(inputs.shape[0]))
    add_products(w.reshape((1, w.shape[0])), outputs, features, batch, 0, features, scores)


@kernel
def activate(w, batch, widths, activations):
    """The inputs [B, width] of every layer of one job, flat, one after another; returns where the last layer starts.

    Two numbers: in the activations and in w.
    """
    x, rows, count = batch.x, batch.rows, batch.rows.shape[0]
    inputs = activations[: count * widths[0]].reshape((count, widths[0]))
    for i in range(count):
        for k in range(widths[0]):
            inputs[i, k] = x[rows[i], k]
    at, place = 0, 0
    for layer in range(1, widths.shape[0] - 1):
        features, outputs = widths[layer - 1], widths[layer]
        inputs = activations[at : at + count * features].reshape((count, features))
        at += count * features
        target = activations[at : at + count * outputs].reshape((count, outputs))
        scores = np.empty((outputs, count), w.dtype)
        dense(w[place:], inputs, scores)
        place += (features + 1) * outputs
        for c in range(outputs):
            for i in range(count):
                target[i, c] = max(scores[c, i], scores.dtype.type(0))
    return at, place


@kernel
def slope_below(weights, inputs, slope, below):
    """Slopes [d, B] by the scores of the layer below: the weights' transpose times `slope`, 0 where ReLU was 0."""
    every = where_they_are(weights, np.arange(weights.shape[0]))
    row = np.empty((1, weights.shape[1]), weights.dtype)
    column = np.empty((1, weights.shape[0]), weights.dtype)
    for i in range(inputs.shape[0]):
        for c in range(column.shape[1]):
            column[0, c] = slope[c, i]
        for k in range(row.shape[1]):
            row[0, k] = 0
        add_rows(row, 1, row.shape[1], every, column)
        for k in range(row.shape[1]):
            if inputs[i, k] > 0:
                below[k, i] = row[0, k]


@kernel
def network_forward(w, batch, widths):
    """Scores [J, C, B] of the rows."""
    count = batch.rows.shape[0]
    scores = np.empty((w.shape[0], widths[-1], count), w.dtype)
    activations = np.empty(count * inner_width(widths), w.dtype)
    for j in range(w.shape[0]):
        at, place = activate(w[j], batch, widths, activations)
        dense(w[j, place:], activations[at:].reshape((count, widths[-2])), scores[j])
    return scores


@kernel
def network_backward(gradient, w, batch, widths, slopes):
    """Add to `gradient` [J, P] the rows' sum of slope times derivative of the score; it may be w itself."""
    count = batch.rows.shape[0]
    every = np.arange(count)
    activations = np.empty(count * inner_width(widths), w.dtype)
    for j in range(w.shape[0]):
        at, place = activate(w[j], batch, widths, activations)
        slope = slopes[j]
        for layer in range(widths.shape[0] - 1, 0, -1):
            features, outputs = widths[layer - 1], widths[layer]
            inputs = activations[at : at + count * features].reshape((count, features))
            kernel_size = outputs * features
            below = np.zeros((features, count), w.dtype)
            if layer > 1:  # first what needs this layer's weights, then their change
                weights = w[j, place : place + kernel_size].reshape((outputs, features))
                slope_below(weights, inputs, slope, below)
            target = gradient[j, place : place + kernel_size].reshape((outputs, features))
            add_rows(target, 1, features, where_they_are(inputs, every), slope)
            for c in range(outputs):
                for i in range(count):
                    gradient[j, place + kernel_size + c] += slope[c, i]
            slope = below
            if layer > 1:
                at -= count * widths[layer - 2]
                place -= (widths[layer - 2] + 1) * features


@dataclass(frozen=True)
class Network:
    """Dense layers with ReLU between them; the weights of every layer are regularized on their own, no bias is."""

    features: int
    hidden: tuple[int, ...]
    outputs: int
    seed: int

    gather: ClassVar[Kernel] = in_place
    forward: ClassVar[Kernel] = network_forward
    forward_from_dual: ClassVar[Kernel | None] = None
    backward: ClassVar[Kernel] = network_backward
    convex: ClassVar[bool] = False
    site_bias: ClassVar[bool] = False

    @property
    def widths(self) -> Array:
        return np.array([self.features, *self.hidden, self.outputs])

    @property
    def layout(self) -> Layout:
        blocks: list[Block] = []
        widths = self.widths.tolist()
        for layer, (inputs, outputs) in enumerate(pairwise(widths), start=1):
            blocks += [
                Block(f"weights{layer}", (outputs, inputs)),
                Block(f"bias{layer}", (outputs,), regularized=False),
            ]
        return Layout(tuple(blocks))

    def initial(self) -> Array:
        """Glorot-uniform weights, zero biases (docs/method.md, "Experiments")."""
        random, layout = generator(self.seed, MODEL), self.layout
        w = np.zeros(layout.size)
        for block in layout.blocks:
            if block.regularized:
                w[layout.slices[block.name]] = glorot_uniform(random, *block.shape)
        return w
