"""Rows times weights, and sums of rows: what linear models spend their time with.

A number from memory serves several sums before it is let go: rows are taken five at a time, weight vectors two or four.
The order of every sum depends on its columns or rows alone, not on how many vectors there are.

Vectors are named by the place where they begin in an array, counted in numbers from its first.
"""

from __future__ import annotations

from fco_cli.problem.compiled import kernel

CHUNK = 1024  # columns that are finished for all vectors before the next: the rows' part stays in cache
many_registers = False  # in machine code this and the next two are those of lanes.py


def dots(w, vectors, x, rows, count):
    """(w_v . x_r, ...) for all vectors v and rows r, of `count` columns each."""
    w, x = w.reshape(-1), x.reshape(-1)
    return tuple(w[v : v + count] @ x[r : r + count] for v in vectors for r in rows)


def add_multiples(w, vectors, x, rows, count, slopes):
    """w_v += slopes[v, r] x_r for all vectors v and rows r, of `count` columns each."""
    w, x = w.reshape(-1), x.reshape(-1)
    for i, v in enumerate(vectors):
        for j, r in enumerate(rows):
            w[v : v + count] += slopes[i * len(rows) + j] * x[r : r + count]


@kernel
def place_of(w, v, outputs, features, low):
    """Where column `low` of vector v is: for every job, w [J, P] holds `outputs` vectors of `features`, then more."""
    return v // outputs * w.shape[1] + v % outputs * features + low


@kernel
def places_of_five(x, rows, i, low):
    """Where column `low` of five rows is, from the i-th on."""
    width = x.shape[1]
    return (
        rows[i] * width + low,
        rows[i + 1] * width + low,
        rows[i + 2] * width + low,
        rows[i + 3] * width + low,
        rows[i + 4] * width + low,
    )


@kernel
def products_of_some(w, vectors, x, rows, low, count, sums, first):
    """sums[first + v, i] += w_v . x[rows[i], low : low + count]; of four vectors, nine loads serve twenty products."""
    fives = rows.shape[0] // 5 * 5
    for i in range(0, fives, 5):
        found = dots(w, vectors, x, places_of_five(x, rows, i, low), count)
        for place in range(len(found)):
            sums[first + place // 5, i + place % 5] += found[place]
    for i in range(fives, rows.shape[0]):
        found = dots(w, vectors, x, (rows[i] * x.shape[1] + low,), count)
        for v in range(len(found)):
            sums[first + v, i] += found[v]


@kernel
def add_products(w, outputs, features, x, rows, first, last, sums):
    """sums[v, i] += w_v . x[rows[i], first:last], over these columns of all vectors v."""
    vectors = sums.shape[0]
    together = vectors // 4 * 4 if many_registers else vectors // 2 * 2
    for low in range(first, last, CHUNK):
        count = min(CHUNK, last - low)
        if many_registers:
            for v in range(0, together, 4):
                a, b = place_of(w, v, outputs, features, low), place_of(w, v + 1, outputs, features, low)
                c, d = place_of(w, v + 2, outputs, features, low), place_of(w, v + 3, outputs, features, low)
                products_of_some(w, (a, b, c, d), x, rows, low, count, sums, v)
        else:
            for v in range(0, together, 2):
                a, b = place_of(w, v, outputs, features, low), place_of(w, v + 1, outputs, features, low)
                products_of_some(w, (a, b), x, rows, low, count, sums, v)
        for v in range(together, vectors):
            products_of_some(w, (place_of(w, v, outputs, features, low),), x, rows, low, count, sums, v)


@kernel
def add_rows_to_one(w, a, x, rows, low, count, of_a):
    """w_a += sum_i of_a[i] x[rows[i], low : low + count]."""
    fives = rows.shape[0] // 5 * 5
    for i in range(0, fives, 5):
        slopes = (of_a[i], of_a[i + 1], of_a[i + 2], of_a[i + 3], of_a[i + 4])
        add_multiples(w, (a,), x, places_of_five(x, rows, i, low), count, slopes)
    for i in range(fives, rows.shape[0]):
        add_multiples(w, (a,), x, (rows[i] * x.shape[1] + low,), count, (of_a[i],))


@kernel
def add_rows_to_two(w, a, b, x, rows, low, count, of_a, of_b):
    """The same to two vectors with slopes of their own: a row is loaded once for both."""
    fives = rows.shape[0] // 5 * 5
    for i in range(0, fives, 5):
        slopes = (
            of_a[i], of_a[i + 1], of_a[i + 2], of_a[i + 3], of_a[i + 4],
            of_b[i], of_b[i + 1], of_b[i + 2], of_b[i + 3], of_b[i + 4],
        )  # fmt: skip
        add_multiples(w, (a, b), x, places_of_five(x, rows, i, low), count, slopes)
    for i in range(fives, rows.shape[0]):
        add_multiples(w, (a, b), x, (rows[i] * x.shape[1] + low,), count, (of_a[i], of_b[i]))


@kernel
def add_rows(w, outputs, features, x, rows, slopes):
    """w_v += sum_i slopes[v, i] x[rows[i]], for all vectors v."""
    vectors = slopes.shape[0]
    for low in range(0, features, CHUNK):
        count = min(CHUNK, features - low)
        for v in range(0, vectors - 1, 2):
            a, b = place_of(w, v, outputs, features, low), place_of(w, v + 1, outputs, features, low)
            add_rows_to_two(w, a, b, x, rows, low, count, slopes[v], slopes[v + 1])
        if vectors % 2 == 1:
            last = vectors - 1
            add_rows_to_one(w, place_of(w, last, outputs, features, low), x, rows, low, count, slopes[last])
