"""Rules about a preparation that a coordinator sends: indicators, fill values and units of a site's columns.

A preparation is a choice of the analyst. If small cells are hidden, it must not mark few rows: neither by an indicator
of missing values, nor by a fill value, nor by a unit in which the largest value of a column overflows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fco_cli.data.expressions import Expression
from fco_cli.data.format import Features, shown
from fco_cli.data.offsets import offset_column
from fco_cli.data.preparation import Categories, Preparation
from fco_cli.data.statistics import category_counts
from fco_cli.federation.policy import POLICY_FILE, Refusal
from fco_cli.federation.site.cells import check_rare_values, grid_steps
from fco_cli.federation.site.disclosure import Disclosure
from fco_cli.federation.site.rows import Split
from fco_cli.problem.layout import Array

UNIT_RANGE = 1e6  # of fill values and scales, relative to the standard deviation of the site's values
# Of centers: values far from a center lose digits, and two such centers can round a single row differently. Within
# these ranges, the difference is below the rounding of sums over the rows.
MIN_CENTERS, CENTERS_PER_ROW = 8.0, 1 / 32


def check_preparation(preparation: Preparation, table: Features, disclosure: Disclosure) -> None:
    """Raise Refusal if columns, or indicators of a preparation, mark few rows of the site, or lack categories."""
    if disclosure.policy.hide_small_cells and len(table.x):
        check_rare_values(table, disclosure.policy)  # also of rows that need no summary
    for k, name in enumerate(table.names):
        if k in table.levels and name not in preparation.categories:
            raise Refusal(f"column {shown(name)!r}: holds texts; declare its categories (task.ranges)")
        missing = np.isnan(table.x[:, k])
        if name in preparation.categories and k not in table.levels and not missing.all():
            raise Refusal(f"column {shown(name)!r}: indicators of numbers requested; they are allowed for categories")
        hidden = disclosure.policy.hide_small_cells and name in preparation.flagged and missing.any()
        if hidden and missing.sum() < len(missing):
            remedy = "set task.flag_missing=false"
            subject = f"an indicator of missing values ({shown(name)})"
            disclosure.policy.check_rows(int(missing.sum()), subject, remedy)


def check_offset(expression: Expression, table: Features, disclosure: Disclosure) -> None:
    """Raise Refusal if an offset has another value in few training rows: runs with and without it would isolate them.

    The column of an offset is not among those of a formula, whose columns are checked.
    """
    if not disclosure.policy.hide_small_cells or not len(table.x):
        return
    place = table.names.index(offset_column(expression))
    check_rare_values(replace(table, x=table.x[:, [place]], names=[table.names[place]], levels={}), disclosure.policy)


def with_own_fills(preparation: Preparation, split: Split, disclosure: Disclosure) -> Preparation:
    """Return the preparation with the site's own fill values of columns in which a part has few missing values.

    Two fill values would mark these rows. The site's are the mean of the training rows, or the shares of categories.
    """
    policy, training = disclosure.policy, split.training_table()
    if not policy.hide_small_cells or not len(training.x):
        return preparation
    missing = np.array([np.isnan(split.table(rows).x).sum(axis=0) for rows in split.parts])  # [parts, columns]
    few = ((missing > 0) & (missing < policy.min_rows)).any(axis=0)
    if not few.any():
        return preparation
    merged = disclosure.merge_levels(training, training)
    counts, fill, categories = category_counts(merged), list(preparation.fill), dict(preparation.categories)
    for k in np.flatnonzero(few).tolist():
        name = training.names[k]
        place = preparation.columns.index(name)
        if name in categories:
            categories[name] = _with_own_shares(categories[name], counts.get(name, {}))
        else:
            values = training.x[:, k]
            present = values[~np.isnan(values)]
            fill[place] = float(present.mean()) if len(present) else 0.0
    return replace(preparation, fill=fill, categories=categories)


def _with_own_shares(encoding: Categories, counts: dict[str, int]) -> Categories:
    """Return an encoding whose fill values are the shares of its categories in these counts."""
    shares = np.zeros(len(encoding.names))
    for place, count in zip(encoding.indices(list(counts)), counts.values(), strict=True):
        shares[place] += count * (place >= 0)
    return replace(encoding, fill=(shares / max(shares.sum(), 1.0)).tolist())


def check_units(preparation: Preparation, split: Split, disclosure: Disclosure) -> None:
    """Raise Refusal if centers, scales or fill values are far from the site's values.

    Values overflow in such units, and the edge between requests that overflow and others would be the largest value of
    a column. Values far from a center are rounded to a grid that moves with the center, and the difference of two
    answers would be about a single row. The limits depend on the standard deviation, rounded to a power of two, and the
    mean, rounded to that.
    """
    if not disclosure.policy.hide_small_cells:
        return
    used = np.logical_or.reduce(split.parts)
    table = split.table(used)
    merged = disclosure.merge_levels(table, split.training_table())
    numbers = [k for k, name in enumerate(table.names) if name not in preparation.categories]
    fill = np.array([preparation.fill[preparation.columns.index(table.names[k])] for k in numbers])
    _check_near(np.asarray(table.x[:, numbers], float), fill, np.ones(0), "fill values", UNIT_RANGE)
    shares = [value for one in preparation.categories.values() for value in one.fill]
    if any(not 0 <= share <= 1 for share in shares):
        raise Refusal("fill values of categories outside of 0 to 1 requested")
    if preparation.mean:
        encoded = replace(preparation, mean=[], scale=[]).encode(merged)
        limit = max(MIN_CENTERS, CENTERS_PER_ROW * int(split.parts.training.sum()))
        _check_near(encoded, np.array(preparation.mean), np.array(preparation.scale), "units", min(limit, UNIT_RANGE))


def _check_near(x: Array, center: Array, scale: Array, subject: str, limit: float) -> None:
    """Raise Refusal if centers of columns are far from their values, or scales much smaller than their deviation."""
    with np.errstate(all="ignore"):
        counts = np.maximum((~np.isnan(x)).sum(axis=0), 1)
        mean = np.nansum(x, axis=0) / counts
        deviation = np.sqrt(np.nansum((x - mean) ** 2, axis=0) / counts)
    varies = (deviation > 0) & np.isfinite(deviation)
    step = grid_steps(deviation)
    is_far = np.abs(center - np.rint(mean / step) * step) > limit * step
    is_fine = scale < step / UNIT_RANGE if len(scale) else np.zeros(len(step), bool)
    if (varies & (is_far | is_fine)).any():
        raise Refusal(
            f"{subject} of columns far from the values of the site requested; the site's policy allows ordinary ones "
            f"({POLICY_FILE}: hide_small_cells)"
        )
