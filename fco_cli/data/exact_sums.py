"""Exact sums of columns over clients, for a preparation that discloses sums only.

Every client computes counts, sums and sums of squares around a public center, in floating point. These numbers are
added as integers in units of 2^-576, modulo 2^1152, so that the sum over the clients is exact: it does not depend on
the order of the clients, nor on whether the numbers were masked (`federation/masks.py`). A second exchange around the
mean of the first one makes the squared deviations accurate for any unit and offset of a column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from fco_cli.data.format import Features
from fco_cli.data.statistics import Moments, Summary, category_counts, check_summary
from fco_cli.problem.layout import Array

WORDS = 18  # 64-bit words of an integer
FRACTION_BITS = 32 * WORDS  # units of 2^-576, about 4e-174
MAX_CLIENTS = 2**30
BRACKET_SLACK = 1e-9  # relative, of the interval that contains the median

Names = Mapping[str, list[str]]  # names of categories by column
SumOverClients = Callable[[Array, Names], Array]  # of `column_sums`, NaN where a number is out of range


def column_sums(table: Features, center: Array, names: Names) -> Array:
    """Return the sums of one client [3 d + cells].

    By column: the number of values, their sum and their sum of squares, both around the center; then the number of rows
    of every named category. The sums depend on the moments of the column only: for any center, rounding discloses
    nothing more about single values.
    """
    x = np.array(table.x, dtype=float)
    x[:, list(table.levels)] = np.nan
    with np.errstate(over="ignore", invalid="ignore"):  # numbers out of range are detected in the sum
        moments = Moments.of(x)
        shift = moments.mean - center
        by_column = [moments.count, moments.count * shift, moments.deviations + moments.count * shift**2]
    counts = category_counts(table)
    cells = [counts.get(column, {}).get(name, 0) for column in sorted(names) for name in names[column]]
    return np.concatenate([*by_column, np.array(cells, float)])


def cell_count(names: Names) -> int:
    """Return the number of named categories."""
    return sum(map(len, names.values()))


def category_names(tables: Iterable[Features]) -> dict[str, list[str]]:
    """Return the union of the names of the categories by column, sorted."""
    return merged_names({column: list(counts) for column, counts in category_counts(one).items()} for one in tables)


def merged_names(clients: Iterable[Names]) -> dict[str, list[str]]:
    """Return the union of the clients' names by column, sorted."""
    union: dict[str, set[str]] = {}
    for one in clients:
        for column, names in one.items():
            union.setdefault(column, set()).update(names)
    return {column: sorted(names) for column, names in sorted(union.items())}


def sum_summary(columns: list[str], client: str, rows: int, names: Names, total: SumOverClients) -> Summary:
    """Return the summary of all rows from two sums over the clients; no client's own numbers are needed.

    Extremes are replaced by the mean minus and plus the standard deviation, between which the median is.
    """
    sums = total(np.zeros(len(columns)), names)
    return summary_of_sums(columns, client, rows, names, sums, total(center_of_sums(sums, len(columns)), {}))


def center_of_sums(sums: Array, columns: int) -> Array:
    """Return the means of the columns from sums around 0, as the center of the second sums."""
    return np.nan_to_num(sums[columns : 2 * columns] / np.maximum(sums[:columns].astype(np.int64), 1), nan=0.0)


def summary_of_sums(columns: list[str], client: str, rows: int, names: Names, sums: Array, around: Array) -> Summary:
    """Return the summary from the sums around 0 and those around their center (`sum_summary`)."""
    size = len(columns)
    count = sums[:size].astype(np.int64)
    some, center = np.maximum(count, 1), center_of_sums(sums, size)
    in_range = np.isfinite(sums[: 3 * size].reshape(3, size)).all(axis=0)
    in_range &= np.isfinite(around.reshape(3, size)).all(axis=0)
    shift = around[size : 2 * size] / some
    mean = np.where(in_range, center + shift, np.inf)
    with np.errstate(invalid="ignore"):
        deviations = np.where(in_range, np.maximum(around[2 * size :] - shift**2 * some, 0.0), np.inf)
    cells = iter(sums[3 * size :].astype(np.int64).tolist())
    counted = {column: {name: next(cells) for name in names[column]} for column in sorted(names)}
    categories = {column: {name: n for name, n in one.items() if n} for column, one in counted.items()}
    with np.errstate(invalid="ignore", over="ignore"):
        width = np.sqrt(deviations / some) * (1 + BRACKET_SLACK) + BRACKET_SLACK * np.abs(mean)
        low, high = mean - width, mean + width
    return check_summary(Summary(client, rows, columns, categories, Moments(count, mean, deviations), low, high))


def exact_sum(clients: Iterable[Array]) -> Array:
    """Return the sum of the clients' numbers [n], rounded once; NaN where a number of a client is out of range."""
    total: list[int] = []
    fits = np.ones(0, dtype=bool)
    for values in clients:
        integers, in_range = to_integers(values)
        total = [one + other for one, other in zip(total, integers, strict=True)] if total else integers
        fits = fits & in_range if len(fits) else in_range
    return from_integers(total, fits)


def to_integers(values: Array) -> tuple[list[int], Array]:
    """Return numbers [n] as integers in units of 2^-576, and which of them are in range; 0 for the others.

    Numbers are in range if the sum over `MAX_CLIENTS` clients is.
    """
    with np.errstate(invalid="ignore"):
        fits = np.abs(values) < np.ldexp(1.0, FRACTION_BITS - 1) / MAX_CLIENTS  # NaN compares as False
    mantissa, exponent = np.frexp(np.where(fits, values, 0.0))
    digits, shifts = np.ldexp(mantissa, 53).astype(np.int64).tolist(), (exponent - 53 + FRACTION_BITS).tolist()
    pairs = zip(digits, shifts, strict=True)
    return [digit << shift if shift >= 0 else digit >> -shift for digit, shift in pairs], fits


def from_integers(total: list[int], fits: Array) -> Array:
    """Return integers in units of 2^-576 as floating-point numbers, each rounded once; NaN where `fits` is False."""
    return np.where(fits, np.array([one / 2**FRACTION_BITS for one in total], float), np.nan)


def to_words(integers: list[int]) -> Array:
    """Return integers modulo 2^1152 as 64-bit words [n, WORDS], lowest first."""
    content = b"".join((one % 2 ** (64 * WORDS)).to_bytes(8 * WORDS, "little") for one in integers)
    return np.frombuffer(content, "<u8").reshape(-1, WORDS).astype(np.uint64)


def from_words(words: Array) -> list[int]:
    """Return the integers of `to_words`, from -2^1151 on."""
    content = words.astype("<u8").tobytes()
    size = 8 * WORDS
    return [int.from_bytes(content[at : at + size], "little", signed=True) for at in range(0, len(content), size)]


def add_words(one: Array, other: Array) -> Array:
    """Return the sum of integers given as words [n, WORDS], modulo 2^1152."""
    total = one + other
    carry = total < one
    for k in range(1, total.shape[1]):
        total[:, k] += carry[:, k - 1]
        carry[:, k] |= carry[:, k - 1] & (total[:, k] == 0)
    return total


def subtract_words(one: Array, other: Array) -> Array:
    """Return the difference of integers given as words [n, WORDS], modulo 2^1152."""
    return ~add_words(~one, other)
