"""Fully connected ReLU network with an explicit backward pass.

Jobs are computed one at a time, so that results do not depend on the stack. For batches of ten rows these loops are
faster than a matrix library, which would spend most of the time packing the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from fco_cli.kernels.compiled import Kernel, kernel
from fco_cli.kernels.products import add_products, add_rows, batch_in_place, gather_in_place
from fco_cli.problem.layout import Array, Block, Layout
from fco_cli.problem.models.linear import glorot_uniform
from fco_cli.problem.streams import MODEL, generator


@kernel
def total_input_width(widths):
    """Return the sum of the input widths of all layers."""
    total = 0
    for layer in range(widths.shape[0] - 1):
        total += widths[layer]
    return total


@kernel
def dense(w, inputs, scores):
    """Write weights (C, d) times the inputs [B, d] plus bias (C) to scores [C, B]; w is the weights, then the bias."""
    outputs, features = scores.shape[0], inputs.shape[1]
    for c in range(outputs):
        for i in range(scores.shape[1]):
            scores[c, i] = w[outputs * features + c]
    batch = batch_in_place(inputs, np.arange(inputs.shape[0]))
    add_products(w.reshape((1, w.shape[0])), outputs, features, batch, 0, features, scores)


@kernel
def compute_activations(w, batch, widths, activations):
    """Write the inputs [B, width] of all layers of one job to `activations`, flat and consecutive.

    Return the start of the last layer in `activations` and in w.
    """
    x, rows, count = batch.x, batch.rows, batch.rows.shape[0]
    inputs = activations[: count * widths[0]].reshape((count, widths[0]))
    for i in range(count):
        for k in range(widths[0]):
            inputs[i, k] = x[rows[i], k]
    input_start, weight_start = 0, 0
    for layer in range(1, widths.shape[0] - 1):
        features, outputs = widths[layer - 1], widths[layer]
        inputs = activations[input_start : input_start + count * features].reshape((count, features))
        input_start += count * features
        target = activations[input_start : input_start + count * outputs].reshape((count, outputs))
        scores = np.empty((outputs, count), w.dtype)
        dense(w[weight_start:], inputs, scores)
        weight_start += (features + 1) * outputs
        for c in range(outputs):
            for i in range(count):
                target[i, c] = max(scores[c, i], scores.dtype.type(0))
    return input_start, weight_start


@kernel
def backpropagate(weights, inputs, slope, below):
    """Write the slopes [d, B] of the layer below: transposed weights times `slope`, 0 where the ReLU is inactive."""
    all_rows = batch_in_place(weights, np.arange(weights.shape[0]))
    row = np.empty((1, weights.shape[1]), weights.dtype)
    column = np.empty((1, weights.shape[0]), weights.dtype)
    for i in range(inputs.shape[0]):
        for c in range(column.shape[1]):
            column[0, c] = slope[c, i]
        for k in range(row.shape[1]):
            row[0, k] = 0
        add_rows(row, 1, row.shape[1], all_rows, column)
        for k in range(row.shape[1]):
            if inputs[i, k] > 0:
                below[k, i] = row[0, k]


@kernel
def network_forward(w, batch, widths):
    """Return the scores [J, C, B] of the rows."""
    count = batch.rows.shape[0]
    scores = np.empty((w.shape[0], widths[-1], count), w.dtype)
    activations = np.empty(count * total_input_width(widths), w.dtype)
    for j in range(w.shape[0]):
        input_start, weight_start = compute_activations(w[j], batch, widths, activations)
        dense(w[j, weight_start:], activations[input_start:].reshape((count, widths[-2])), scores[j])
    return scores


@kernel
def network_backward(gradient, w, batch, widths, slopes):
    """Add the sum over rows of slope times derivative of the score to `gradient` [J, P], which may be w itself."""
    count = batch.rows.shape[0]
    all_rows = np.arange(count)
    activations = np.empty(count * total_input_width(widths), w.dtype)
    for j in range(w.shape[0]):
        input_start, weight_start = compute_activations(w[j], batch, widths, activations)
        slope = slopes[j]
        for layer in range(widths.shape[0] - 1, 0, -1):
            features, outputs = widths[layer - 1], widths[layer]
            inputs = activations[input_start : input_start + count * features].reshape((count, features))
            kernel_size = outputs * features
            below = np.zeros((features, count), w.dtype)
            if layer > 1:  # reads the weights of this layer before they may change
                weights = w[j, weight_start : weight_start + kernel_size].reshape((outputs, features))
                backpropagate(weights, inputs, slope, below)
            target = gradient[j, weight_start : weight_start + kernel_size].reshape((outputs, features))
            add_rows(target, 1, features, batch_in_place(inputs, all_rows), slope)
            for c in range(outputs):
                for i in range(count):
                    gradient[j, weight_start + kernel_size + c] += slope[c, i]
            slope = below
            if layer > 1:
                input_start -= count * widths[layer - 2]
                weight_start -= (widths[layer - 2] + 1) * features


@dataclass(frozen=True)
class Network:
    """Dense layers with ReLU between them; the weights of each layer are regularized separately, biases are not."""

    features: int
    hidden: tuple[int, ...]
    outputs: int
    seed: int

    gather: ClassVar[Kernel] = gather_in_place
    forward: ClassVar[Kernel] = network_forward
    forward_from_dual: ClassVar[Kernel | None] = None
    backward: ClassVar[Kernel] = network_backward
    row_norm: ClassVar[Kernel | None] = None
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
        """Return Glorot-uniform weights and zero biases (docs/paper.md, "Experiments")."""
        random, layout = generator(self.seed, MODEL), self.layout
        w = np.zeros(layout.size)
        for block in layout.blocks:
            if block.regularized:
                w[layout.slices[block.name]] = glorot_uniform(random, *block.shape)
        return w
