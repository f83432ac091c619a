"""Checks of a Cox model: concordance, and score tests of proportional hazards, as sums over clients.

The test of Grambsch and Therneau (1994) adds x g(t) to the features x. Its score is the sum over events of the
Schoenfeld residuals x - m times g(t). Its information matrix has the blocks sum V, sum g V and sum g^2 V. Here m and V
are the mean and the covariance matrix of x over the rows at risk, with weights e^score.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

from fco_cli.inference.survival_curves import FittedCox, kaplan_meier
from fco_cli.kernels.compiled import kernel, specialize
from fco_cli.problem.data import SparseRows
from fco_cli.problem.layout import Array
from fco_cli.problem.risk_sets import risk_table

ALL_CLIENTS, ALL_TERMS = "all clients", "all terms"


@kernel
def count_pairs_of_rows(scores, y, concordant, discordant, tied):
    """Add the pairs in which every row of a client takes part; a pair is comparable if the shorter time is an event."""
    for i in range(scores.shape[0]):
        if y[i] > 0:
            for k in range(scores.shape[0]):
                if abs(y[k]) > y[i] or (y[k] < 0 and -y[k] == y[i]):
                    if scores[i] > scores[k]:
                        concordant[i] += 1
                        concordant[k] += 1
                    elif scores[i] < scores[k]:
                        discordant[i] += 1
                        discordant[k] += 1
                    else:
                        tied[i] += 1
                        tied[k] += 1


def concordance_lines(model: FittedCox) -> list[dict[str, Any]]:
    """Return Harrell's concordance of every client and of all pairs within clients, with jackknife standard errors."""
    y, scores = model.y, model.scores
    counts = np.zeros((3, len(y)))  # concordant, discordant and tied pairs of every row
    count = specialize(count_pairs_of_rows)
    lines = []
    for m in range(model.data.clients):
        own = model.rows(m)
        count(scores[own], y[own], counts[0, own], counts[1, own], counts[2, own])
        lines.append({"client": model.names[m], **_concordance(counts[:, own])})
    return [{"client": ALL_CLIENTS, **_concordance(counts)}, *lines]


def _concordance(counts: Array) -> dict[str, Any]:
    """Return the concordance of rows with given numbers of pairs [3, N] and its infinitesimal-jackknife error."""
    concordant, discordant, tied = (float(total) / 2 for total in counts.sum(axis=1))
    pairs = concordant + discordant + tied
    line: dict[str, Any] = {"rows": counts.shape[1], "concordance": None, "error": None}
    if pairs:
        share = (concordant + tied / 2) / pairs
        influence = (counts[0] + counts[2] / 2 - share * counts.sum(axis=0)) / pairs
        line |= {"concordance": share, "error": float(np.sqrt((influence**2).sum()))}
    return line | {"concordant": int(concordant), "discordant": int(discordant), "tied": int(tied)}


def proportional_hazards_lines(model: FittedCox, transform: str) -> list[dict[str, Any]]:
    """Return the score test of every term and of all terms; `transform` names g(t)."""
    g = transformed_times(model.y, transform)
    design, size = model.design, len(model.design.columns)
    score, information = np.zeros(2 * size), np.zeros((2 * size, 2 * size))
    for m in range(model.data.clients):
        own = model.rows(m)
        x = _columns(model, own)
        _add_client(x, model.y[own], model.scores[own], g[own], model.ties == "efron", score, information)
    score[:size] = 0  # at the maximum of the likelihood
    lines = []
    for name, coefficients in [*design.terms.items(), (ALL_TERMS, np.arange(len(design.names)))]:
        places = np.append(np.arange(size), size + np.sort(design.weights_of(coefficients)))
        step = np.linalg.solve(information[np.ix_(places, places)], score[places])
        statistic, degrees = float(step @ score[places]), len(places) - size
        line = {"term": name, "statistic": statistic, "df": degrees, "p": float(stats.chi2.sf(statistic, degrees))}
        lines.append(line)
    return lines


def transformed_times(y: Array, transform: str) -> Array:
    """Return g(t) of every row, with mean 0 over the events; km: 1 - the Kaplan-Meier estimate of all rows before t."""
    times = np.abs(y)
    if transform == "km":
        table = risk_table(y)
        before = np.append(1, kaplan_meier(table, 0.95).survival)
        g = 1 - before[np.searchsorted(table.times, times, side="left")]
    else:
        g = {"identity": lambda: times, "rank": lambda: stats.rankdata(times), "log": lambda: np.log(times)}[
            transform
        ]()
    return g - g[y > 0].mean()


def _add_client(x: Array, y: Array, scores: Array, g: Array, is_efron: bool, score: Array, information: Array) -> None:
    """Add the score [2A] and the information matrix [2A, 2A] of one client."""
    size, e, times = x.shape[1], np.exp(scores - scores.max()), np.abs(y)
    x = x - x.mean(axis=0)
    order = np.argsort(-times, kind="stable")
    starts = np.flatnonzero(np.append(True, np.diff(times[order]) != 0))
    total, sums, products = 0.0, np.zeros(size), np.zeros((size, size))
    for low, high in zip(starts, np.append(starts[1:], len(y)), strict=True):  # in order of decreasing time
        own = order[low:high]
        total, sums = total + e[own].sum(), sums + e[own] @ x[own]
        products = products + (x[own].T * e[own]) @ x[own]
        tied = own[y[own] > 0]
        if not len(tied):
            continue
        tied_total, tied_sums, tied_products = e[tied].sum(), e[tied] @ x[tied], (x[tied].T * e[tied]) @ x[tied]
        time = g[tied[0]]
        score[size:] += time * x[tied].sum(axis=0)
        for r in range(len(tied)):
            removed = r / len(tied) if is_efron else 0.0
            denominator = total - removed * tied_total
            mean = (sums - removed * tied_sums) / denominator
            own_information = (products - removed * tied_products) / denominator - np.outer(mean, mean)
            score[size:] -= time * mean
            information += np.kron(np.array([[1, time], [time, time**2]]), own_information)


def _columns(model: FittedCox, rows: slice) -> Array:
    """Return the columns of the estimated weights [n, A] of some rows."""
    x, columns = model.data.x, model.design.columns
    if not isinstance(x, SparseRows):
        return np.asarray(x[rows][:, columns], dtype=float)
    dense = np.zeros((rows.stop - rows.start, x.features))
    for i in range(rows.start, rows.stop):
        entries = slice(x.starts[i], x.starts[i + 1])
        np.add.at(dense[i - rows.start], x.columns[entries], x.values[entries])
    return dense[:, columns]
