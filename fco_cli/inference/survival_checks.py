"""Checks of a Cox model: concordance, and score tests of proportional hazards, as sums over clients.

The test of Grambsch and Therneau (1994) adds x g(t) to the features x. Its score is the sum over events of the
Schoenfeld residuals x - m times g(t). Its information matrix has the blocks sum V, sum g V and sum g^2 V. Here m and V
are the mean and the covariance matrix of x over the rows at risk, with weights e^score.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import stats

from fco_cli.inference.survival_curves import ALL_CLIENTS, FittedCox, kaplan_meier
from fco_cli.problem.layout import Array
from fco_cli.problem.risk_sets import RiskTable

ALL_TERMS = "all terms"


def concordance_lines(model: FittedCox) -> list[dict[str, Any]]:
    """Return Harrell's concordance of all pairs within clients, and of every client, with jackknife standard errors.

    There is no line about all clients if a client does not share its pairs.
    """
    total, by_client = model.clients.pairs()
    own = [{"client": model.names[m], **_concordance(sums, model.sizes[m])} for m, sums in by_client.items()]
    if total is None:
        return own
    rows = sum(model.sizes[m] for m in by_client) if by_client else sum(model.sizes)
    return [{"client": ALL_CLIENTS, **_concordance(total, rows)}, *own]


def _concordance(sums: Array, rows: int) -> dict[str, Any]:
    """Return the concordance and its infinitesimal-jackknife error, from sums of pairs [6] (`survival_tables.py`)."""
    concordant, discordant, tied, squares, products, counts = sums.tolist()
    pairs = concordant + discordant + tied
    line: dict[str, Any] = {"rows": rows, "concordance": None, "error": None}
    if pairs:
        share = (concordant + tied / 2) / pairs
        variance = squares - 2 * share * products + share**2 * counts
        line |= {"concordance": share, "error": float(np.sqrt(max(variance, 0.0))) / pairs}
    return line | {"concordant": int(concordant), "discordant": int(discordant), "tied": int(tied)}


def proportional_hazards_lines(model: FittedCox, transform: str) -> list[dict[str, Any]]:
    """Return the score test of every term and of all terms; `transform` names g(t). Clients without a table have g = 0.

    There are no lines without tables.
    """
    if not model.tables:
        return []
    design, size = model.design, len(model.design.columns)
    own_score, blocks = model.clients.test_sums(transformed_times(model.tables, transform))
    score = np.append(np.zeros(size), own_score)  # the first part is 0 at the maximum of the likelihood
    information = np.block([[blocks[0], blocks[1]], [blocks[1], blocks[2]]])
    lines = []
    for name, coefficients in [*design.terms.items(), (ALL_TERMS, np.arange(len(design.names)))]:
        places = np.append(np.arange(size), size + np.sort(design.weights_of(coefficients)))
        step = np.linalg.solve(information[np.ix_(places, places)], score[places])
        statistic, degrees = float(step @ score[places]), len(places) - size
        line = {"term": name, "statistic": statistic, "df": degrees, "p": float(stats.chi2.sf(statistic, degrees))}
        lines.append(line)
    return lines


def transformed_times(tables: Mapping[int, RiskTable], transform: str) -> dict[int, Array]:
    """Return g(t) at the times of every table, with mean 0 over the events.

    `km` is 1 - the Kaplan-Meier estimate before t of the rows of all tables together, `rank` the mean rank among them.
    """
    whole = pooled(tables)
    if transform == "km":
        g = 1 - np.append(1, kaplan_meier(whole, 0.95).survival)[:-1]
    elif transform == "rank":
        rows = whole.events + whole.censored
        g = np.cumsum(rows) - (rows - 1) / 2
    else:
        g = np.log(whole.times) if transform == "log" else whole.times
    g = g - (whole.events @ g) / whole.events.sum()
    return {m: g[np.searchsorted(whole.times, table.times)] for m, table in tables.items()}


def pooled(tables: Mapping[int, RiskTable]) -> RiskTable:
    """Return the table of the rows of all tables, without weights."""
    times, place = np.unique(np.concatenate([table.times for table in tables.values()]), return_inverse=True)
    events, censored = (
        np.bincount(place, np.concatenate([getattr(table, name) for table in tables.values()]), len(times))
        for name in ("events", "censored")
    )
    at_risk = np.cumsum((events + censored)[::-1])[::-1]
    return RiskTable(times, at_risk, events, censored, at_risk, events)
