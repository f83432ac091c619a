"""Checks of the sites' answers about their tables, and what follows from all of them."""

from __future__ import annotations

import numpy as np

from fco_cli.data.preparation import Preparation
from fco_cli.errors import UserError
from fco_cli.federation.message import BadMessage
from fco_cli.federation.response_schema import Description, RowCounts
from fco_cli.federation.sharing import EXACT
from fco_cli.problem.layout import Array

Counts = dict[str, RowCounts]  # of one fit, by site


def check_names(descriptions: dict[str, Description]) -> None:
    """Raise UserError if the features' names differ between sites; digests are compared."""
    (first, pattern), *others = descriptions.items()
    for name, head in others:
        if (head.names_digest, head.features) != (pattern.names_digest, pattern.features):
            counts = f"{head.features} and {pattern.features}"
            raise UserError(
                f"{name}: its features differ from those of {first} ({counts}; names and order must be equal)"
            )


def no_preparation(columns: list[str]) -> Preparation:
    """Return a preparation that leaves rows unchanged."""
    return Preparation(columns, [0.0] * len(columns), {}, [])


def columns_of(description: Description) -> list[str]:
    """Return the column names that a site uses in messages."""
    return description.names or [f"x{k}" for k in range(description.features)]


def held_out_events(counts: Counts) -> int | None:
    """Return the number of events among the held-out rows of all sites, None if a site does not share it."""
    known = [one.events for one in counts.values() if one.held_out]
    return sum(events for events in known if events is not None) if None not in known else None


def least_limit(limits: list[int | None]) -> int | None:
    """Return the smallest limit; None: no limit."""
    return min((one for one in limits if one is not None), default=None)


def has_rows(counts: Counts, part: str) -> bool:
    return any(getattr(one, part) for one in counts.values())


def check_counts(name: str, counts: RowCounts, columns: list[str], with_summary: bool, with_sums: bool) -> None:
    """Raise BadMessage if a site's summary, or its names of categories, do not match its counts and the columns."""
    summary, categories, is_needed = counts.summary, counts.categories, with_summary and counts.training > 0
    if (summary is not None) != (is_needed and not with_sums):
        raise BadMessage("summary: must be present exactly if it was requested and the site has training rows")
    if (categories is not None) != (is_needed and with_sums):
        raise BadMessage("categories: must be present exactly if they were requested and the site has training rows")
    if categories is not None and not categories.keys() <= set(columns):
        raise BadMessage("categories: must be those of the used columns")
    if summary is not None:
        if (summary.client, summary.rows) != (name, counts.training):
            raise BadMessage("summary: must be of this site's training rows")
        if summary.columns != columns:
            raise BadMessage("summary: its columns must be the used columns")


def check_sums(sums: Array, columns: int, rows: int) -> None:
    """Raise BadMessage if counts are not those of at most `rows` rows, or squares are negative."""
    counts = np.concatenate([sums[:columns], sums[3 * columns :]])
    if not ((counts >= 0) & (counts <= rows) & (counts == np.floor(counts))).all():
        raise BadMessage(f"the array {EXACT} must have counts from 0 to {rows}, the number of training rows")
    if (sums[2 * columns : 3 * columns] < 0).any():
        raise BadMessage(f"the array {EXACT} must have sums of squares >= 0")


def check_cumulative(counts: Array, rows: int) -> None:
    """Raise BadMessage if counts [d, edges] are not cumulative counts of at most `rows` rows."""
    if (counts < 0).any() or (counts > rows).any() or (np.diff(counts, axis=1) < 0).any():
        raise BadMessage(f"the array counts must increase from 0 to {rows}, the number of training rows")


def agreed_classes(descriptions: dict[str, Description]) -> list[str] | None:
    """Return the union of all sites' classes, sorted; None if labels are numbers."""
    if all(head.classes is None for head in descriptions.values()):
        return None
    for name, head in descriptions.items():
        if head.classes is None:
            raise UserError(f"{name}: labels are class names at some sites and numbers at others")
    return sorted({label for head in descriptions.values() for label in head.classes or []})
