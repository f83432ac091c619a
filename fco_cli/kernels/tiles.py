"""Matrices stored as tiles, and their products.

The first tile contains the first 32 columns of all rows, row by row, the second tile the next 32, and so on. Zeros pad
the columns to a multiple of 32 and the rows to a multiple of 8. The distance between two rows of a tile is a
compile-time constant, so that loops need no run-time check for overlap.
"""

from __future__ import annotations

import numpy as np

from fco_cli.kernels.compiled import is_finite, kernel
from fco_cli.kernels.products import two_norm

TILE = 32


@kernel
def empty_tiles(rows, columns):
    return np.zeros(((columns + TILE - 1) // TILE, (rows + 7) // 8 * 8 * TILE))


@kernel
def row_of(tile, r):
    return tile[r * TILE : (r + 1) * TILE]


@kernel
def dot(x, y):
    total = 0.0
    for c in range(x.shape[0]):
        total += x[c] * y[c]
    return total


@kernel
def set_zero(out):
    for c in range(out.shape[0]):
        out[c] = 0.0


@kernel
def add_rows(weights, tile, count, out):
    """Add sum_r weights_r (row r) over the first `count` rows to `out`; weights are zero-padded to a multiple of 8."""
    for r in range(0, count, 8):
        w0, w1, w2, w3 = weights[r], weights[r + 1], weights[r + 2], weights[r + 3]
        w4, w5, w6, w7 = weights[r + 4], weights[r + 5], weights[r + 6], weights[r + 7]
        row = tile[r * TILE :]
        for c in range(TILE):
            first = w0 * row[c] + w1 * row[c + TILE] + w2 * row[c + 2 * TILE] + w3 * row[c + 3 * TILE]
            second = w4 * row[c + 4 * TILE] + w5 * row[c + 5 * TILE] + w6 * row[c + 6 * TILE] + w7 * row[c + 7 * TILE]
            out[c] += first + second


@kernel
def add_product(weights, down, across, rows, count, tile, out):
    """Add sum_k weights[r down + k across] (row k of `tile`) to row r of `out`, for four r and four k at a time."""
    for r in range(0, rows, 4):
        target = out[r * TILE :]
        for k in range(0, count, 4):
            w, row = weights[r * down + k * across :], tile[k * TILE :]
            a0, a1, a2, a3 = w[0], w[across], w[2 * across], w[3 * across]
            b0, b1, b2, b3 = w[down], w[down + across], w[down + 2 * across], w[down + 3 * across]
            c0, c1, c2, c3 = w[2 * down], w[2 * down + across], w[2 * (down + across)], w[2 * down + 3 * across]
            d0, d1, d2, d3 = w[3 * down], w[3 * down + across], w[3 * down + 2 * across], w[3 * (down + across)]
            for c in range(TILE):
                x0, x1, x2, x3 = row[c], row[c + TILE], row[c + 2 * TILE], row[c + 3 * TILE]
                target[c] += a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3
                target[c + TILE] += b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3
                target[c + 2 * TILE] += c0 * x0 + c1 * x1 + c2 * x2 + c3 * x3
                target[c + 3 * TILE] += d0 * x0 + d1 * x1 + d2 * x2 + d3 * x3


@kernel
def subtract(tile, count, v, x, p, y):
    """Subtract v_r x + p_r y from row r, four rows at a time."""
    for r in range(0, count, 4):
        v0, v1, v2, v3 = v[r], v[r + 1], v[r + 2], v[r + 3]
        p0, p1, p2, p3 = p[r], p[r + 1], p[r + 2], p[r + 3]
        row = tile[r * TILE :]
        for c in range(TILE):
            a, b = x[c], y[c]
            row[c] -= v0 * a + p0 * b
            row[c + TILE] -= v1 * a + p1 * b
            row[c + 2 * TILE] -= v2 * a + p2 * b
            row[c + 3 * TILE] -= v3 * a + p3 * b


@kernel
def to_tiles(z, block):
    """Return the tiles of z / |z|, transposed if z has more rows than columns, and the norm |z|.

    The scaling avoids overflow and underflow of fourth powers. If z is not finite, the tiles are NaN. The result is
    float64 for every dtype of z.
    """
    rows, columns, norm = block.rows, block.columns, two_norm(z)
    tiles = empty_tiles(min(rows, columns), max(rows, columns))
    norm = norm if is_finite(norm) else np.nan
    inverse = 1 / norm if norm != 0 else 0.0
    for r in range(rows):
        if rows <= columns:
            for t in range(tiles.shape[0]):
                target, source = row_of(tiles[t], r), row_of(z[r * columns : (r + 1) * columns], t)
                for c in range(source.shape[0]):
                    target[c] = inverse * source[c]
        else:
            target = tiles[r // TILE, r % TILE :]
            for c in range(columns):
                target[c * TILE] = inverse * z[r * columns + c]
    return tiles, norm


@kernel
def write(tiles, block, out):
    """Write tiles to the matrix `out`, transposed as in `to_tiles`."""
    rows, columns = block.rows, block.columns
    for r in range(rows):
        if rows <= columns:
            for t in range(tiles.shape[0]):
                target, source = row_of(out[r * columns : (r + 1) * columns], t), row_of(tiles[t], r)
                for c in range(target.shape[0]):
                    target[c] = source[c]
        else:
            source = tiles[r // TILE, r % TILE :]
            for c in range(columns):
                out[r * columns + c] = source[c * TILE]
