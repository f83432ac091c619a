"""The baseline: FedDualAvg as one would first write it in NumPy, a loop over clients and steps.

No compilation, no stacking, no sufficient statistics; nothing made slow on purpose either. A model is one flat vector.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np


def feddualavg(clients, start, gradient, prox, evaluate, rate, rounds, per_round, batch, epochs=1, seed=0):
    """`clients` is a list of (x, y); server learning rate 1. Returns the model; `evaluate` sees it every round."""
    z, time, w = start.copy(), 0.0, None
    for r in range(rounds):
        random = np.random.default_rng([seed, r])
        change, steps = np.zeros_like(z), 0
        for m in random.choice(len(clients), per_round, replace=False):
            x, y = clients[m]
            local, k = z.copy(), 0
            for _ in range(epochs):
                order = random.permutation(len(y))
                for low in range(0, len(y), batch):
                    rows = order[low : low + batch]
                    w = prox(local, time + k * rate)
                    local -= rate * gradient(w, x[rows], y[rows])
                    k += 1
            steps += k
            change += local - z
        z, time = z + change / per_round, time + rate * steps / per_round
        w = prox(z, time)
        evaluate(w)
    return w


def soft_threshold(strength):
    def prox(z, t):
        w = np.sign(z) * np.maximum(np.abs(z) - z.dtype.type(strength * t), 0)
        w[-1] = z[-1]  # the bias
        return w

    return prox


def singular_threshold(strength, shape):
    def prox(z, t):
        u, s, v = np.linalg.svd(z[:-1].reshape(shape), full_matrices=False)
        return np.append(((u * np.maximum(s - z.dtype.type(strength * t), 0)) @ v).reshape(-1), z[-1])

    return prox


def l1_balls(radius, blocks):
    """Project every block (a slice) onto the l1 ball, by sorting."""

    def prox(z, t):
        w = z.copy()
        for block in blocks:
            size = np.abs(z[block])
            if size.sum() > radius:
                ordered = np.sort(size)[::-1]
                excess = (np.cumsum(ordered) - radius) / np.arange(1, len(ordered) + 1)
                w[block] = np.sign(z[block]) * np.maximum(size - excess[np.nonzero(ordered > excess)[0][-1]], 0)
        return w

    return prox


def squared_gradient(w, x, y):
    slopes = 2 * (x @ w[:-1] + w[-1] - y) / len(y)
    return np.append(slopes @ x, slopes.sum())


def logistic_gradient(w, x, y):
    slopes = (1 / (1 + np.exp(-(x @ w[:-1] + w[-1]))) - y) / len(y)
    return np.append(slopes @ x, slopes.sum())


def squared_loss(w, x, y):
    return np.mean((x @ w[:-1] + w[-1] - y) ** 2)


def logistic_loss(w, x, y):
    score = x @ w[:-1] + w[-1]
    return np.mean(np.logaddexp(0, score) - y * score)


def network_gradient(widths):
    """Return the gradient of softmax regression (two widths) or a ReLU network, by layer: weights (out, in), bias."""

    def gradient(w, x, y):
        layers, at, inputs = [], 0, [x]
        for features, outputs in pairwise(widths):
            kernel = w[at : at + features * outputs].reshape(outputs, features)
            at += (features + 1) * outputs
            layers.append(kernel)
            inputs.append(np.maximum(inputs[-1] @ kernel.T + w[at - outputs : at], 0))
        scores = inputs[-2] @ layers[-1].T + w[at - widths[-1] : at]
        slopes = np.exp(scores - scores.max(axis=1, keepdims=True))
        slopes /= slopes.sum(axis=1, keepdims=True)
        slopes[np.arange(len(y)), y.astype(int)] -= 1
        slopes /= len(y)
        pieces = []
        for layer in range(len(layers) - 1, -1, -1):
            pieces[:0] = [(slopes.T @ inputs[layer]).reshape(-1), slopes.sum(axis=0)]
            slopes = (slopes @ layers[layer]) * (inputs[layer] > 0)
        return np.concatenate(pieces)

    return gradient
