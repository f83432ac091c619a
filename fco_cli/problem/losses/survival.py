"""Survival analysis: the Cox model, with a separate baseline hazard for each client.

Ties of d events at a time t follow Efron (1977) or Breslow (1974). Let S be the sum of e^score over the rows at risk,
and D its part that belongs to the tied events. The r-th tied event has the denominator S - r D / d with Efron's method,
r = 0, ..., d - 1, and S with Breslow's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.errors import require
from fco_cli.kernels.compiled import Kernel, kernel, specialize
from fco_cli.problem.layout import Array
from fco_cli.problem.losses.base import Loss, on_row

TIES = ("breslow", "efron")
efron = np.nan  # bound to 1 for Efron's method, 0 for Breslow's


@kernel
def stored_value(scores, y):
    """Return the loss of a row, which `partial_likelihood` passes in place of the scores."""
    return scores[0]


@kernel
def partial_likelihood(scores, y, rows, seen, slopes):
    """Apply the Cox loss to a batch, which must contain all rows of a client; replaces `each_row`.

    The loss of a row with an event is log(its denominator) - score. The rows at risk are those whose time is not
    shorter. The loss of a censored row is 0.
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
        while high > 0:  # in order of decreasing time; rows with equal times share a risk set
            low = high - 1
            while low > 0 and times[order[low - 1]] == times[order[high - 1]]:
                low -= 1
            events, tied, rank = 0, 0.0, 0
            for k in range(low, high):
                term = np.exp(s[order[k]] - top)
                total += term
                if y[rows[order[k]]] > 0:
                    events, tied = events + 1, tied + term
            for k in range(low, high):
                at_risk[order[k]] = total
                if y[rows[order[k]]] > 0:
                    at_risk[order[k]] -= efron * rank / events * tied
                    rank += 1
            high = low
        for i in range(count):
            event = y[rows[i]] > 0
            loss[0] = np.log(at_risk[i]) + top - s[i] if event else 0.0
            on_row.observe(loss, y[rows[i]], 1.0, j, i, seen)
        if slopes:
            hazard, low = 0.0, 0
            while low < count:  # in order of increasing time
                high, events, rank = low, 0, 0
                while high < count and times[order[high]] == times[order[low]]:
                    events += y[rows[order[high]]] > 0
                    high += 1
                hazard_of_events = hazard
                for k in range(low, high):
                    if y[rows[order[k]]] > 0:
                        hazard += 1.0 / at_risk[order[k]]
                        hazard_of_events += (1.0 - efron * rank / events) / at_risk[order[k]]
                        rank += 1
                for k in range(low, high):
                    i = order[k]
                    if y[rows[i]] > 0:
                        s[i] = np.exp(s[i] - top) * hazard_of_events - 1.0
                    else:
                        s[i] = np.exp(s[i] - top) * hazard
                low = high


@kernel
def partial_likelihood_curvature(scores, y, rows, x, share, coefficients, packed):
    """Assign `coefficients` [B] and add the rest of the Hessian of one job to `packed`, so that their sum is it.

    With e = e^score, the Hessian is share times sum_i e_i h_i x_i x_i' - sum_r m_r m_r'. Here h_i is the cumulative
    hazard until the time of row i, and m_r the mean of x over the rows at risk of event r with weights e; Efron's
    method multiplies the weights of tied events, also in h_i, by 1 - r / d. `coefficients` are those of the first sum.
    """
    count, size = rows.shape[0], x.shape[1]
    times, terms, at_risk = np.empty(count), np.empty(count), np.empty(count)
    for i in range(count):
        times[i] = abs(y[rows[i]])
    order = np.argsort(times)
    top = scores[0]
    for i in range(count):
        top = max(top, scores[i])
    for i in range(count):
        terms[i] = np.exp(np.float64(scores[i]) - top)
    sums, tied_sums, mean = np.zeros(size), np.empty(size), np.empty(size)
    total, high = 0.0, count
    while high > 0:  # in order of decreasing time; rows with equal times share a risk set
        low = high - 1
        while low > 0 and times[order[low - 1]] == times[order[high - 1]]:
            low -= 1
        events, tied, rank = 0, 0.0, 0
        for f in range(size):
            tied_sums[f] = 0.0
        for k in range(low, high):
            i = order[k]
            total += terms[i]
            for f in range(size):
                sums[f] += terms[i] * x[i, f]
            if y[rows[i]] > 0:
                events, tied = events + 1, tied + terms[i]
                for f in range(size):
                    tied_sums[f] += terms[i] * x[i, f]
        for k in range(low, high):
            at_risk[order[k]] = total
            if y[rows[order[k]]] > 0:
                at_risk[order[k]] -= efron * rank / events * tied
                rank += 1
        for r in range(events if efron > 0 else min(events, 1)):
            repeats = 1 if efron > 0 else events  # Breslow: all events of a time have the same mean
            for f in range(size):
                mean[f] = (sums[f] - efron * r / events * tied_sums[f]) / (total - efron * r / events * tied)
            start = 0
            for a in range(size):
                factor, target = -share * repeats * mean[a], packed[start : start + size - a]
                for b in range(size - a):
                    target[b] += factor * mean[a + b]
                start += size - a
        high = low
    hazard, low = 0.0, 0
    while low < count:  # in order of increasing time
        high, events, rank = low, 0, 0
        while high < count and times[order[high]] == times[order[low]]:
            events += y[rows[order[high]]] > 0
            high += 1
        hazard_of_events = hazard
        for k in range(low, high):
            if y[rows[order[k]]] > 0:
                hazard += 1.0 / at_risk[order[k]]
                hazard_of_events += (1.0 - efron * rank / events) / at_risk[order[k]]
                rank += 1
        for k in range(low, high):
            is_event = y[rows[order[k]]] > 0
            coefficients[order[k]] = share * terms[order[k]] * (hazard_of_events if is_event else hazard)
        low = high


@kernel
def score_residuals(scores, y, rows, x, slopes, curvatures):
    """Replace the features x [B, F] of a client by the negative score residuals of its rows (Lin and Wei, 1989).

    That of row i is event_i (m(t_i) - x_i) + e^score_i * sum over events j until t_i of (x_i - m_j) / s_j, where s_j is
    the denominator of event j, m_j the mean of x over its rows at risk with weights e^score, and m(t) the mean of m_j
    over the events at t. Efron's method weights tied events as in the Hessian.
    """
    count, size = rows.shape[0], x.shape[1]
    times, terms, own = np.empty(count), np.empty(count), scores[0, 0]
    for i in range(count):
        times[i] = abs(y[rows[i]])
    order = np.argsort(times)
    top = own[0]
    for i in range(count):
        top = max(top, own[i])
    for i in range(count):
        terms[i] = np.exp(np.float64(own[i]) - top)
    totals, means = np.empty(count), np.empty((count, size))  # of the risk set of every row
    sums, tied_sums, total, high = np.zeros(size), np.empty(size), 0.0, count
    while high > 0:  # in order of decreasing time; rows with equal times share a risk set
        low = high - 1
        while low > 0 and times[order[low - 1]] == times[order[high - 1]]:
            low -= 1
        events, tied, rank = 0, 0.0, 0
        for f in range(size):
            tied_sums[f] = 0.0
        for k in range(low, high):
            total += terms[order[k]]
            for f in range(size):
                sums[f] += terms[order[k]] * x[order[k], f]
            if y[rows[order[k]]] > 0:
                events, tied = events + 1, tied + terms[order[k]]
                for f in range(size):
                    tied_sums[f] += terms[order[k]] * x[order[k], f]
        for k in range(low, high):
            removed = 0.0
            if y[rows[order[k]]] > 0:
                removed = efron * rank / events
                rank += 1
            totals[order[k]] = total - removed * tied
            for f in range(size):
                means[order[k], f] = (sums[f] - removed * tied_sums[f]) / totals[order[k]]
        high = low
    hazard, weighted, low = 0.0, np.zeros(size), 0
    own_weighted, mean = np.empty(size), np.empty(size)
    while low < count:  # in order of increasing time
        high, events, rank = low, 0, 0
        while high < count and times[order[high]] == times[order[low]]:
            events += y[rows[order[high]]] > 0
            high += 1
        own_hazard = hazard  # of the events of this time
        for f in range(size):
            own_weighted[f], mean[f] = weighted[f], 0.0
        for k in range(low, high):
            i = order[k]
            if y[rows[i]] > 0:
                part = (1.0 - efron * rank / events) / totals[i]
                hazard += 1.0 / totals[i]
                own_hazard += part
                for f in range(size):
                    weighted[f] += means[i, f] / totals[i]
                    own_weighted[f] += means[i, f] * part
                    mean[f] += means[i, f] / events
                rank += 1
        for k in range(low, high):
            i = order[k]
            for f in range(size):
                if y[rows[i]] > 0:
                    residual = terms[i] * (x[i, f] * own_hazard - own_weighted[f])
                    x[i, f] = residual + mean[f] - x[i, f]
                else:
                    x[i, f] = terms[i] * (x[i, f] * hazard - weighted[f])
            slopes[0, 0, i] = 1.0
        low = high


@dataclass(frozen=True)
class Cox(Loss):
    """Cox loss: negative log partial likelihood per row, stratified by client (Cox, 1972).

    A label is a time; a negative label means that the row was censored at that time. The bias cancels and stays 0. The
    curvature at zero scores is close to its maximum; scores that weight distant rows of a risk set may exceed it.
    `ties` is the method for tied event times, one of TIES.
    """

    name = "cox"
    ties: str = "breslow"
    link = "log_hazard"
    censored_labels = True
    value = stored_value
    client_loss = partial_likelihood
    client_curvature = partial_likelihood_curvature
    client_residuals = score_residuals

    def __post_init__(self) -> None:
        require(self.ties in TIES, "task.cox_ties", self.ties, " or ".join(TIES))

    def bound_kernel(self, name: str) -> Kernel:
        return specialize(getattr(self, name), efron=float(self.ties == "efron"))

    def metrics(self, scores: Array, y: Array, offsets: Array) -> dict[str, float]:
        """Return the concordance index over comparable pairs of rows of the same client."""
        pairs = np.zeros(2)
        count_pairs(scores, y, offsets, pairs)
        return {"concordance": float(pairs[0] / pairs[1]) if pairs[1] > 0 else 0.5}

    def describe_labels(self, classes: int | None = None) -> str:
        return "non-zero times, negative for censored rows, with at least one event"

    def accepts_labels(self, y: Array, classes: int | None = None) -> Array:
        return np.isfinite(y) & (y != 0) & (y > 0).any()


@kernel
def count_pairs(scores, y, offsets, pairs):
    """Add the number of concordant pairs, with ties as 1/2, to pairs[0], and of comparable pairs to pairs[1]."""
    for m in range(offsets.shape[0] - 1):
        for i in range(offsets[m], offsets[m + 1]):
            if y[i] > 0:
                for k in range(offsets[m], offsets[m + 1]):
                    if abs(y[k]) > y[i] or (y[k] < 0 and -y[k] == y[i]):
                        pairs[1] += 1
                        pairs[0] += 1.0 if scores[i] > scores[k] else 0.5 if scores[i] == scores[k] else 0.0
