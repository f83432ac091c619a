"""Rows times weights, and sums of rows: what linear models spend their time with.

A number from memory serves several sums before it is let go: weight vectors are taken four or two at a time.
The order of every sum depends on its columns or rows alone, not on how many vectors there are.

Vectors are named by the place where they begin in an array, counted in numbers from its first.
"""

from __future__ import annotations

from fco_cli.kernels.aligned import ask_for_two, two_are_left
from fco_cli.kernels.compiled import kernel, specialize

CHUNK = 1024  # columns, at least, that are finished for all vectors before the next: the rows' part stays in cache
many_registers = False  # in machine code this and the next two are those of vector.py


def dots(w, vectors, x, rows, count, soon):
    """(w_v . x_r, ...) for all vectors v and rows r, of `count` columns each.

    Meanwhile memory is asked for as many columns at the addresses `soon`.
    """
    w, x = w.reshape(-1), x.reshape(-1)
    return tuple(w[v : v + count] @ x[r : r + count] for v in vectors for r in rows)


def add_multiples(w, vectors, x, rows, low, count, slopes, first):
    """w_v += slopes[first + v, i] x[rows[i], low : low + count] for all vectors v and rows i."""
    w = w.reshape(-1)
    for own, v in zip(slopes[first:], vectors, strict=False):
        for i, row in enumerate(rows):
            w[v : v + count] += own[i] * x[row, low : low + count]


@kernel
def chunk_end(low, last):
    """Where the columns end that are taken together, from `low` on: a short rest goes with those before it."""
    return last if last - low < 2 * CHUNK else low + CHUNK


@kernel
def place_of(w, v, outputs, features, low):
    """Where column `low` of vector v is: for every job, w [J, P] holds `outputs` vectors of `features`, then more."""
    return v // outputs * w.shape[1] + v % outputs * features + low


@kernel
def places_of_two(w, v, outputs, features, low):
    return place_of(w, v, outputs, features, low), place_of(w, v + 1, outputs, features, low)


@kernel
def places_of_four(w, v, outputs, features, low):
    return places_of_two(w, v, outputs, features, low) + places_of_two(w, v + 2, outputs, features, low)


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
def products_of_some(w, vectors, batch, low, count, sums, first):
    """sums[first + v, i] += w_v . x[rows[i], low : low + count]; of four vectors, nine loads serve twenty products."""
    x, rows = batch.x, batch.rows
    fives = rows.shape[0] // 5 * 5
    for i in range(0, fives, 5):
        five = places_of_five(x, rows, i, low)
        if two_are_left(batch):
            found = dots(w, vectors, x, five, count, ask_for_two(batch))
        else:
            found = dots(w, vectors, x, five, count, ())
        for place in range(len(found)):
            sums[first + place // 5, i + place % 5] += found[place]
    for i in range(fives, rows.shape[0]):
        found = dots(w, vectors, x, (rows[i] * x.shape[1] + low,), count, ())
        for v in range(len(found)):
            sums[first + v, i] += found[v]


@kernel
def add_to_some(w, vectors, batch, low, count, slopes, first):
    """w_v += slopes[first + v, i] x[rows[i], low : low + count]."""
    add_multiples(w, vectors, batch.x, batch.rows, low, count, slopes, first)


def act(w, vectors, batch, low, count, numbers, first):  # bound by `specialize` to one of the two
    raise NotImplementedError


@kernel
def some_at_a_time(w, outputs, features, at, batch, low, count, numbers):
    """Act on all vectors, as many as there are numbers [vectors, rows], from column `at` on: on four, two or one."""
    vectors = numbers.shape[0]
    fours, twos = vectors // 4 * 4 if many_registers else 0, vectors // 2 * 2
    if many_registers:
        for v in range(0, fours, 4):
            act(w, places_of_four(w, v, outputs, features, at), batch, low, count, numbers, v)
    for v in range(fours, twos, 2):
        act(w, places_of_two(w, v, outputs, features, at), batch, low, count, numbers, v)
    for v in range(twos, vectors):
        act(w, (place_of(w, v, outputs, features, at),), batch, low, count, numbers, v)


# sums[v, i] += w_v[at : at + count] . x[rows[i], low : low + count], for all vectors v
products_of_columns = specialize(some_at_a_time, act=products_of_some)
# w_v[at : at + count] += sum_i slopes[v, i] x[rows[i], low : low + count]
add_to_columns = specialize(some_at_a_time, act=add_to_some)


@kernel
def add_products(w, outputs, features, batch, first, last, sums):
    """sums[v, i] += w_v . x[rows[i], first:last], over these columns of all vectors v."""
    low = first
    while low < last:
        count = chunk_end(low, last) - low
        products_of_columns(w, outputs, features, low, batch, low, count, sums)
        low += count


@kernel
def add_rows(w, outputs, features, batch, slopes):
    """w_v += sum_i slopes[v, i] x[rows[i]], for all vectors v."""
    low = 0
    while low < features:
        count = chunk_end(low, features) - low
        add_to_columns(w, outputs, features, low, batch, low, count, slopes)
        low += count
