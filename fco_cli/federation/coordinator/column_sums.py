"""Sums and counts of columns, or of terms, over the sites: exact sums and cumulative counts, also of masked answers."""

from __future__ import annotations

from typing import Any

import numpy as np

from fco_cli.data.exact_sums import WORDS, exact_sum, from_integers, from_words
from fco_cli.federation.coordinator.checks import check_cumulative, check_sums
from fco_cli.federation.coordinator.responses import report_invalid_sum
from fco_cli.federation.coordinator.sites import Agreement, report_invalid_response
from fco_cli.federation.message import ArraySpec
from fco_cli.federation.sharing import EXACT
from fco_cli.problem.layout import Array


def exact_sums(
    agreement: Agreement,
    head: dict[str, Any],
    arrays: dict[str, Array],
    sizes: dict[int, int],
    rows: dict[int, dict[str, int]],
) -> dict[int, Array]:
    """Return the exact sums of sizes, by fit, over the sites with training rows; NaN for a number out of range."""
    columns = {k: len(arrays[f"center.{k}"]) for k in sizes}
    if agreement.sites.mask_bits is not None:
        specs = {f"{EXACT}.{k}": ArraySpec((size, WORDS)) for k, size in sizes.items()}
        masked = agreement.sum_of_all("summarize", head, arrays, specs)
        totals = {k: from_integers(from_words(masked[k].totals[EXACT].view(np.uint64)), masked[k].fits) for k in sizes}
        with report_invalid_sum(next(iter(rows.values())), "summarize"):
            for k, total in totals.items():
                check_sums(total, columns[k], sum(rows[k].values()))
        return totals

    def expected(name: str) -> dict[str, ArraySpec]:
        return {f"{EXACT}.{k}": ArraySpec((size,), finite=False) for k, size in sizes.items() if name in rows[k]}

    sites = [name for name in agreement.sites.names if any(name in own for own in rows.values())]
    responses = agreement.request("summarize", head, arrays, sites, expected=expected)
    for name, response in responses.items():
        with report_invalid_response(name, "summarize"):
            for k, own in rows.items():
                if name in own:
                    check_sums(response.arrays[f"{EXACT}.{k}"], columns[k], own[name])
    return {k: exact_sum(responses[name].arrays[f"{EXACT}.{k}"] for name in own) for k, own in rows.items()}


def counts_up_to(
    edges: dict[int, Array],
    agreement: Agreement,
    rows: dict[int, dict[str, int]],
    terms: dict[str, Any] | None = None,
) -> dict[int, list[Array]]:
    """Return the numbers of values up to each edge by fit: of every site, or their sum if responses are masked."""
    specs = {f"counts.{k}": ArraySpec(one.shape, np.int64) for k, one in edges.items()}
    head, arrays = {"fits": list(edges), **(terms or {})}, {f"edges.{k}": one for k, one in edges.items()}
    if agreement.sites.mask_bits is not None:
        totals = agreement.sum_of_all("count", head, arrays, specs)
        with report_invalid_sum(next(iter(rows.values())), "count"):
            for k, total in totals.items():
                check_cumulative(total.totals["counts"], sum(rows[k].values()))
        return {k: [total.totals["counts"]] for k, total in totals.items()}

    def expected(name: str) -> dict[str, ArraySpec]:
        return {f"counts.{k}": specs[f"counts.{k}"] for k in edges if name in rows[k]}

    sites = [name for name in agreement.sites.names if any(name in rows[k] for k in edges)]
    responses = agreement.request("count", head, arrays, sites, expected=expected)
    for name, response in responses.items():
        with report_invalid_response(name, "count"):
            for k in edges:
                if name in rows[k]:
                    check_cumulative(response.arrays[f"counts.{k}"], rows[k][name])
    return {k: [responses[name].arrays[f"counts.{k}"] for name in rows[k]] for k in edges}
