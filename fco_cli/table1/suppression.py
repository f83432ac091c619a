"""Suppression of small counts in a table whose totals are published.

A count from 1 to k - 1 is suppressed, together with as many others as keep its value uncertain: an
attacker who knows all published counts and totals, and that counts are not negative, must find at least k + 1 possible
values of it, or as many as its column has. The extreme values are those of linear programs (cell suppression, see
Hundepool et al., Statistical Disclosure Control, 2012); their solutions are integers, since the constraints are those
of a flow in a network.
"""

from __future__ import annotations

from itertools import product

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from fco_cli.problem.layout import Array

Cell = tuple[int, int]


def suppressed_cells(counts: Array, least: int) -> Array:
    """Return the mask [R, M + 1] of the cells to suppress: those of the M columns, then the totals of the rows.

    `counts` [R, M] are the rows of a column of the table by category, missing values included; its column sums are
    published.
    """
    table = np.column_stack([counts, counts.sum(axis=1)])
    small = (table > 0) & (table < least)
    hidden = small.copy()
    for row, column in zip(*np.nonzero(small), strict=True):  # a protected cell stays so if more are suppressed
        cell = int(row), int(column)
        while _is_exposed(table, hidden, cell, least):
            for other in _rectangle(table, hidden, *cell, least) or [_smallest_near(table, hidden, *cell)]:
                hidden[other] = True
    return hidden


def _is_exposed(table: Array, hidden: Array, cell: Cell, least: int) -> bool:
    """Return True if a suppressed cell has too few possible values and more cells can be suppressed."""
    low, high = possible_values(table, hidden, *cell)
    return high - low < min(least, table[:, cell[1]].sum()) and not hidden.all()


def _rectangle(table: Array, hidden: Array, row: int, column: int, least: int) -> list[Cell]:
    """Return the corners of a rectangle to suppress, with the fewest new cells; empty if none protects the cell.

    Cells of two rows and two columns can change by the same amount, in opposite directions, and keep all sums: the
    smaller of the two decreasing cells is the largest change. A total of a row increases with its cell.
    """
    last, best, lowest = table.shape[1] - 1, list[Cell](), np.inf
    for r, m in product(range(table.shape[0]), range(table.shape[1])):
        if r == row or m == column:
            continue
        decreasing = [(r, column), (r, m)] if last in (m, column) else [(r, column), (row, m)]
        if min(table[cell] for cell in decreasing) < least:
            continue
        corners = [cell for cell in ((row, m), (r, column), (r, m)) if not hidden[cell]]
        cost = sum(1 + (cell[1] == last) + table[cell] / (1 + table.max()) for cell in corners)
        if corners and cost < lowest:
            best, lowest = corners, cost
    return best


def _smallest_near(table: Array, hidden: Array, row: int, column: int) -> Cell:
    """Return the smallest published cell of the row or the column, not 0 if possible, else of the table."""
    near = np.zeros(table.shape, bool)
    near[row], near[:, column] = True, True
    for candidates in (near & (table > 0), near, table > 0, np.ones(table.shape, bool)):
        if (free := candidates & ~hidden).any():
            place = int(np.flatnonzero(free)[np.argmin(table[free])])
            return place // table.shape[1], place % table.shape[1]
    raise AssertionError("all cells are suppressed")


def possible_values(table: Array, hidden: Array, row: int, column: int) -> tuple[float, float]:
    """Return the smallest and the largest value of a suppressed cell that the published numbers allow."""
    cells = list(zip(*np.nonzero(hidden), strict=True))
    place = {cell: k for k, cell in enumerate(cells)}
    rows, columns = table.shape
    known = np.where(hidden, 0, table)
    entries = []  # of the constraints: line, unknown cell, coefficient
    bounds = []
    for r in range(rows):  # the cells of a row minus its total are 0
        entries += [(r, place[r, m], 1 if m < columns - 1 else -1) for m in range(columns) if hidden[r, m]]
        bounds.append(known[r, -1] - known[r, :-1].sum())
    for r, m in product(range(rows), range(columns)):
        if hidden[r, m]:
            entries.append((rows + m, place[r, m], 1))
    bounds += (table.sum(axis=0) - known.sum(axis=0)).tolist()
    lines, unknown, coefficients = zip(*entries, strict=True)
    matrix = coo_array((coefficients, (lines, unknown)), shape=(rows + columns, len(cells)))
    used = np.unique(lines)
    objective = np.zeros(len(cells))
    objective[place[row, column]] = 1.0
    ends = []
    for sign in (1, -1):
        solution = linprog(
            sign * objective, A_eq=matrix.tocsr()[used], b_eq=np.array(bounds, float)[used], method="highs"
        )
        ends.append(float(np.rint(solution.x[place[row, column]])))
    return ends[0], ends[1]


def suppressed_means(present: Array, is_small: Array, least: int) -> tuple[Array, bool]:
    """Return the mask of the clients whose means are suppressed, and whether that of all clients is.

    `present` [M] are the clients' numbers of values and `is_small` [M] marks means of few rows. The mean of all clients
    reveals the sum over the clients without one: these must be two or more, with at least `least` values.
    """
    hidden = is_small & (present > 0)
    if not hidden.any():
        return hidden, False
    for m in np.argsort(present, kind="stable"):
        if hidden.sum() > 1 and present[hidden].sum() >= least:
            break
        hidden[m] |= present[m] > 0
    return hidden, bool(hidden.sum() < 2 or present[hidden].sum() < least)
