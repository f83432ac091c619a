"""The baseline: FedDualAvg as one would first write it in NumPy, a loop over clients and steps.

No compilation, no stacking, no sufficient statistics; nothing made slow on purpose either. Every round it evaluates
the objective on all training data, the validation loss and the metrics of the task.
"""

from __future__ import annotations

import numpy as np


def soft_threshold(z, t):
    return np.sign(z) * np.maximum(np.abs(z) - t, 0)


def singular_threshold(z, t):
    u, s, v = np.linalg.svd(z.reshape(32, 32))
    return ((u * np.maximum(s - t, 0)) @ v).reshape(-1)


def squared_slope(score, y):
    return 2 * (score - y)


def logistic_slope(score, y):
    return 1 / (1 + np.exp(-score)) - y


def squared_loss(score, y):
    return np.mean((score - y) ** 2)


def logistic_loss(score, y):
    return np.mean(np.logaddexp(0, score) - y * score)


def feddualavg(x, y, x_val, y_val, prox, slope, loss, measure, strength, rate, rounds, clients, batch, seed=0):
    """x [M, n, d], y [M, n]; one local epoch; server learning rate 1. Returns the model and the last evaluation."""
    count, samples, features = x.shape
    pooled, labels = x.reshape(-1, features), y.reshape(-1)
    pooled_val, labels_val = x_val.reshape(-1, features), y_val.reshape(-1)
    z, bias = np.zeros(features, x.dtype), x.dtype.type(0)
    time, evaluation = 0.0, None
    for r in range(rounds):
        random = np.random.default_rng([seed, r])
        change, bias_change, steps = np.zeros_like(z), x.dtype.type(0), 0
        for m in random.choice(count, clients, replace=False):
            local, local_bias = z.copy(), bias
            order = random.permutation(samples)
            for k, low in enumerate(range(0, samples, batch)):
                rows = order[low : low + batch]
                features_of_batch = x[m][rows]
                w = prox(local, strength * (time + k * rate))
                slopes = slope(features_of_batch @ w + local_bias, y[m][rows]) * (rate / len(rows))
                local -= slopes @ features_of_batch
                local_bias -= slopes.sum()
            steps = k + 1
            change += local - z
            bias_change += local_bias - bias
        z, bias = z + change / clients, bias + bias_change / clients
        time += rate * steps
        w = prox(z, strength * time)
        objective = loss(pooled @ w + bias, labels)
        evaluation = (objective, loss(pooled_val @ w + bias, labels_val), *measure(w))
    return w, evaluation
