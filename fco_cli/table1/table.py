"""Table 1 from the statistics of the clients: counts, shares, means, quartiles and differences between clients."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from fco_cli.config.schemas import Table1Settings
from fco_cli.data.format import format_list
from fco_cli.data.preparation import OTHER
from fco_cli.data.readers.cells import category_name
from fco_cli.data.statistics import Summary
from fco_cli.errors import require
from fco_cli.problem.layout import Array
from fco_cli.table1.cohort import Cohort, as_category, merge, two_values
from fco_cli.table1.differences import category_difference, number_difference
from fco_cli.table1.suppression import suppressed_cells, suppressed_means

HIDDEN = "–"  # a suppressed number
MISSING = "missing"
ALL = "all clients"
MAX_LEVELS = 40  # categories of a column
MOMENTS = ("count", "mean", "deviations")


@dataclass
class Group:
    """One column of the table: a client, or several together."""

    name: str
    clients: list[str]
    summary: Summary

    @property
    def rows(self) -> int:
        return self.summary.rows


@dataclass
class Line:
    """One line of the table; cells are those of all clients, then of every group."""

    column: str
    statistic: str
    cells: list[str]
    smd: float | None = None
    p: float | None = None

    def plain(self) -> dict[str, Any]:
        return {"column": self.column, "statistic": self.statistic, "cells": self.cells, "smd": self.smd, "p": self.p}


@dataclass
class Table1:
    """Table 1 with its notes."""

    heads: list[str]
    lines: list[Line] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """Return the keys of result.json that hold the table."""
        return {"heads": self.heads, "lines": [line.plain() for line in self.lines], "notes": self.notes}


def table_of(cohort: Cohort, settings: Table1Settings) -> Table1:
    """Return table 1, with small counts suppressed."""
    groups = group_clients(cohort.summaries, settings.clients, settings.min_cell)
    builder = _Builder(cohort, settings, groups)
    table = Table1([ALL, *(group.name for group in groups)] if len(groups) > 1 else [ALL])
    rows = [builder.total.rows, *(group.rows for group in groups)][: len(table.heads)]
    table.lines.append(Line("rows", "n", [f"{count:,}" for count in rows]))
    columns = builder.total.columns
    for name in settings.columns:
        require(name in columns, "table1.columns", name, f"some of {format_list(columns)}")
    ordered = columns[len(columns) - cohort.outcomes :] + columns[: len(columns) - cohort.outcomes]
    for name in settings.columns or ordered:
        table.lines += builder.lines(columns.index(name))
    table.notes = [*builder.notes(), *cohort.notes]
    return table


def group_clients(summaries: Sequence[Summary], most: int, least: int) -> list[Group]:
    """Return the groups: clients by name; the smallest share one group if they are many or have few rows."""
    order = sorted(summaries, key=lambda one: (-one.rows, one.client))
    kept = [one for one in order if one.rows >= least]
    kept = kept if len(kept) == len(order) <= most else kept[: most - 1]
    rest = order[len(kept) :]
    while rest and kept and sum(one.rows for one in rest) < least:
        rest.append(kept.pop())
    groups = [Group(one.client, [one.client], one) for one in sorted(kept, key=lambda one: one.client)]
    if rest:
        name = f"{len(rest)} other clients" if kept else ALL
        groups.append(Group(name if len(rest) > 1 else rest[0].client, [one.client for one in rest], merge(rest)))
    return groups


class _Builder:
    """Lines of table 1, column by column."""

    def __init__(self, cohort: Cohort, settings: Table1Settings, groups: list[Group]) -> None:
        self.cohort, self.settings, self.groups = cohort, settings, groups
        self.total = merge(cohort.summaries)
        self.shown = len(groups) + 1 if len(groups) > 1 else 1  # columns of the table
        self.has_hidden = False

    def lines(self, column: int) -> list[Line]:
        """Return the lines of one column of the data."""
        name, summaries = self.total.columns[column], [group.summary for group in self.groups]
        if name in self.total.categories:
            counts = [one.categories.get(name, {}) for one in summaries]
            return self._of_categories(name, *_pooled(counts, self.total.categories[name]))
        if (pair := two_values(summaries, column)) is not None:
            texts = (category_name(pair[0]), category_name(pair[1]))
            return self._of_categories(name, [as_category(one, column, pair, texts) for one in summaries], [*texts])
        return self._of_numbers(name, column)

    def _of_categories(self, name: str, counts: list[dict[str, int]], levels: list[str]) -> list[Line]:
        table = np.array([[own.get(level, 0) for own in counts] for level in levels], int)
        rows = np.array([group.rows for group in self.groups])
        whole = np.vstack([table, rows - table.sum(axis=0)])
        hidden = suppressed_cells(whole, self.settings.min_cell)
        present = np.append(table.sum(axis=1).sum(), table.sum(axis=0))
        order = np.append(len(self.groups), np.arange(len(self.groups)))[: self.shown]  # all clients first
        counted, masked = np.column_stack([whole, whole.sum(axis=1)])[:, order], hidden[:, order]
        with_share = ~masked[-1]  # a share of the known values would reveal how many are missing
        lines = []
        used = levels[1:] if len(levels) == 2 else levels
        for level in used:
            k = levels.index(level)
            cells = [
                HIDDEN if masked[k, m] else _count_and_share(counted[k, m], present[m] if with_share[m] else 0)
                for m in range(self.shown)
            ]
            lines.append(Line(name, f"{level}, n (%)", cells))
        if whole[-1].any():
            lines.append(self._missing(name, counted[-1], masked[-1]))
        self.has_hidden |= bool(masked.any())
        if not hidden.any() and len(self.groups) > 1 and lines:
            lines[0].smd, lines[0].p = category_difference(table)
        return lines

    def _missing(self, name: str, counts: Array, masked: Array) -> Line:
        rows = [self.total.rows, *(group.rows for group in self.groups)]
        cells = [
            HIDDEN if is_hidden else _count_and_share(count, n)
            for count, is_hidden, n in zip(counts, masked, rows, strict=False)
        ]
        return Line(name, f"{MISSING}, n (%)", cells)

    def _of_numbers(self, name: str, column: int) -> list[Line]:
        summaries = [group.summary for group in self.groups]
        present = np.array([one.moments.count[column] for one in summaries])
        rows = np.array([group.rows for group in self.groups])
        whole = np.vstack([present, rows - present])
        hidden = suppressed_cells(whole, self.settings.min_cell)
        few, is_hidden = suppressed_means(present, self._is_small(column, present), self.settings.min_cell)
        masks = [is_hidden, *few]
        all_groups = [self.total, *summaries][: self.shown]
        digits = _digits(self.total, column)
        cells = [
            HIDDEN if mask else _mean_and_deviation(one, column, digits)
            for mask, one in zip(masks, all_groups, strict=False)
        ]
        lines = [Line(name, "mean (SD)", cells)]
        if self.settings.quartiles and (texts := self._quartile_cells(column, masks)) is not None:
            lines.append(Line(name, "median [quartiles]", texts))
        if whole[1].any():
            order = np.append(len(self.groups), np.arange(len(self.groups)))[: self.shown]
            counted, masked = np.append(whole[1], whole[1].sum())[order], hidden[1][order]
            lines.append(self._missing(name, counted, masked))
            self.has_hidden |= bool(masked.any())
        self.has_hidden |= any(masks[: self.shown])
        if not few.any() and len(self.groups) > 1:
            moments = [np.array([getattr(one.moments, part)[column] for one in summaries]) for part in MOMENTS]
            lines[0].smd, p = number_difference(*moments)
            lines[0].p = None if hidden.any() else p  # it depends on the numbers of values
        return lines

    def _is_small(self, column: int, present: Array) -> Array:
        """Return a mask of the groups in which few rows determine the mean."""
        small, few = present < self.settings.min_cell, self.cohort.few
        if few is None or not self.settings.min_cell:
            return small
        by_name = dict(zip(self.cohort.names, few[:, column], strict=True))
        return small | np.array([len(group.clients) == 1 and by_name[group.clients[0]] for group in self.groups])

    def _quartile_cells(self, column: int, masks: Sequence[bool]) -> list[str] | None:
        """Return the cells with medians and quartiles; None if they are not known."""
        if self._quartiles is None or column >= self._quartiles[0].shape[0]:
            return None
        values = [HIDDEN if mask else _quartile_text(own[column]) for mask, own in zip(masks, self._quartiles)]  # noqa: B905
        return values[: self.shown]

    @cached_property
    def _quartiles(self) -> list[Array] | None:
        """Quartiles [d, 3] of all clients and of every group."""
        if self.cohort.quartiles is None:
            return None
        parts = [[*self.cohort.names], *(group.clients for group in self.groups)][: self.shown]
        return [self.cohort.quartiles(names) for names in parts]

    def notes(self) -> list[str]:
        """Return the remarks that the table needs."""
        notes = ["n (%): share of the rows with a value; missing: share of all rows"]
        if self.has_hidden:
            least = self.settings.min_cell
            notes.append(f"{HIDDEN}: a count below {least}, a mean of few rows, or a number that would reveal one")
        if self.settings.smd and len(self.groups) > 1:
            notes.append(
                "SMD: standardized difference of two clients, mean over all pairs; none with suppressed counts"
            )
        if self.settings.p and len(self.groups) > 1:
            notes.append("p: chi-squared test, or analysis of variance, of equality of all clients; not adjusted")
        return notes


def _pooled(counts: list[dict[str, int]], total: dict[str, int]) -> tuple[list[dict[str, int]], list[str]]:
    """Return counts and sorted names of the most frequent categories; all others are named `other`."""
    kept = set(sorted(total, key=lambda name: (-total[name], name))[:MAX_LEVELS])
    pooled: list[dict[str, int]] = [{} for _ in counts]
    for own, made in zip(counts, pooled, strict=True):
        for name, count in own.items():
            key = name if name in kept else OTHER
            made[key] = made.get(key, 0) + count
    names = {name: count for name, count in total.items() if name in kept} | (
        {OTHER: 0} if len(kept) < len(total) else {}
    )
    return pooled, _sorted_levels(names)


def _sorted_levels(counts: dict[str, int]) -> list[str]:
    """Return the names of categories in natural order, `other` last."""
    return sorted(counts, key=lambda name: (name == OTHER, [
        (0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name)
    ]))  # fmt: skip


def _count_and_share(count: int, total: int) -> str:
    return f"{count:,} ({100 * count / total:.1f})" if total else f"{count:,}"


def _digits(summary: Summary, column: int) -> int:
    """Return the number of decimals that shows two digits of the standard deviation."""
    deviation = float(summary.moments.scale[column])
    return int(np.clip(1 - np.floor(np.log10(deviation)), 0, 8)) if np.isfinite(deviation) and deviation > 0 else 4


def _mean_and_deviation(summary: Summary, column: int, digits: int) -> str:
    """Return the mean and the standard deviation, with N - 1 in its denominator."""
    count, mean = int(summary.moments.count[column]), float(summary.moments.mean[column])
    if not count:
        return ""
    deviations = float(summary.moments.deviations[column])
    if count < 2 or not np.isfinite(deviations):
        return f"{mean:,.{digits}f}"
    return f"{mean:,.{digits}f} ({np.sqrt(deviations / (count - 1)):,.{digits}f})"


def _quartile_text(values: Array) -> str:
    return "" if np.isnan(values).any() else f"{values[1]:.4g} [{values[0]:.4g}, {values[2]:.4g}]"
