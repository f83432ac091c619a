"""Times until an event: the Cox model, whose baseline hazard is every client's own."""

from __future__ import annotations

import numpy as np

from fco_cli.kernels.compiled import kernel
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss


def see(scores, y, weight, j, i, seen):  # bound by `specialize`
    raise NotImplementedError


@kernel
def own_value(scores, y):
    """What `partial_likelihood` has put in the place of a row's scores."""
    return scores[0]


@kernel
def partial_likelihood(scores, y, rows, seen, slopes):
    """`each_row` of the Cox model: the rows of a batch, which must be all of a client, in the order of their times.

    Of a row with an event the loss is log(sum over those at risk of e^score) - score, where at risk are all whose time
    is not shorter (Breslow's way with ties); of a censored one 0.
    """
    count = rows.shape[0]
    times = np.empty(count)
    for i in range(count):
        times[i] = abs(y[rows[i]])
    order = np.argsort(times)
    at_risk, loss = np.empty(count), np.empty(1, scores.dtype)
    for j in range(scores.shape[0]):
        s = scores[j, 0]
        top = s[0]
        for i in range(count):
            top = max(top, s[i])
        total, high = 0.0, count
        while high > 0:  # from the longest time on, equal times together
            low = high - 1
            while low > 0 and times[order[low - 1]] == times[order[high - 1]]:
                low -= 1
            for k in range(low, high):
                total += np.exp(s[order[k]] - top)
            for k in range(low, high):
                at_risk[order[k]] = total
            high = low
        for i in range(count):
            event = y[rows[i]] > 0
            loss[0] = np.log(at_risk[i]) + top - s[i] if event else 0.0
            see(loss, y[rows[i]], 1.0, j, i, seen)
        if slopes:
            hazard, low = 0.0, 0
            while low < count:  # from the shortest time on
                high = low
                while high < count and times[order[high]] == times[order[low]]:
                    hazard += 1.0 / at_risk[order[high]] if y[rows[order[high]]] > 0 else 0.0
                    high += 1
                for k in range(low, high):
                    i = order[k]
                    s[i] = np.exp(s[i] - top) * hazard - (1.0 if y[rows[i]] > 0 else 0.0)
                low = high


class Cox(Loss):
    """Minus the log of the partial likelihood within a client, per row (Cox, 1972; stratified by client).

    A label is a time, negative where the row was censored at it. The bias cancels and stays 0. It is most curved where
    all scores are 0, or nearly: those at risk may be weighed so that they are further apart.
    """

    name = "cox"
    value = own_value
    together = partial_likelihood

    def metrics(self, scores: Array, y: Array, offsets: Array) -> dict[str, float]:
        """Of the pairs within a client of whom one is known to have lasted longer: in how many it scores lower."""
        pairs = np.zeros(2)
        count_pairs(scores, y, offsets, pairs)
        return {"concordance": float(pairs[0] / pairs[1]) if pairs[1] > 0 else 0.5}

    def allowed(self, classes: int | None = None) -> str:
        return "a time, negative where the row was censored, never 0, and an event somewhere"

    def takes(self, y: Array, classes: int | None = None) -> Array:
        return np.isfinite(y) & (y != 0) & (y > 0).any()


@kernel
def count_pairs(scores, y, offsets, pairs):
    """Add the pairs in the right order, ties counting half, to pairs[0], and all that can be compared to pairs[1]."""
    for m in range(offsets.shape[0] - 1):
        for i in range(offsets[m], offsets[m + 1]):
            if y[i] > 0:
                for k in range(offsets[m], offsets[m + 1]):
                    if abs(y[k]) > y[i] or (y[k] < 0 and -y[k] == y[i]):
                        pairs[1] += 1
                        pairs[0] += 1.0 if scores[i] > scores[k] else 0.5 if scores[i] == scores[k] else 0.0
