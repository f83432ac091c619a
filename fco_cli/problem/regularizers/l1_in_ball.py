"""Prox of the l1 norm restricted to an l1 ball around a given point."""

from __future__ import annotations

from fco_cli.kernels.compiled import kernel


@kernel
def prox_l1_with_multiplier(v, threshold, factors, multiplier, near, out):
    """out = argmin_w |w - v|^2 / 2 + threshold sum_i factors[i] |w_i| + multiplier |w - near|_1.

    Return |out - near|_1.
    """
    b, total = multiplier, 0.0
    for i in range(v.shape[0]):
        a = factors[i] * threshold
        low, high = min(near[i], 0), max(near[i], 0)
        between = v[i] - (a - b if near[i] > 0 else b - a)  # between 0 and near[i] the two slopes have opposite signs
        out[i] = min(max(between, low), high)
        if v[i] + a + b < low:
            out[i] = v[i] + a + b
        elif v[i] - a - b > high:
            out[i] = v[i] - a - b
        out[i] += 0 * v[i]  # propagate NaN and infinity
        total += abs(out[i] - near[i])
    return total


@kernel
def prox_l1_in_l1_ball(v, threshold, factors, near, radius, out):
    """out = argmin_w |w - v|^2 / 2 + threshold sum_i factors[i] |w_i| subject to |w - near|_1 <= radius.

    Bisection on the multiplier of the constraint.
    """
    if prox_l1_with_multiplier(v, threshold, factors, 0.0, near, out) <= radius:
        return
    low, high = 0.0, 0.0
    for i in range(v.shape[0]):
        high = max(high, factors[i] * threshold + abs(v[i] - near[i]))  # with this multiplier the solution is `near`
    while True:
        middle = low + (high - low) / 2
        if not low < middle < high:  # adjacent floating-point numbers, or NaN
            break
        if prox_l1_with_multiplier(v, threshold, factors, middle, near, out) > radius:
            low = middle
        else:
            high = middle
    prox_l1_with_multiplier(v, threshold, factors, high, near, out)
