"""Singular value decomposition of small matrices by the eigenvectors of A A^T.

A 32 x 32 matrix takes a sixth of LAPACK's time (benchmarks/singular.py).
"""

from __future__ import annotations

import numpy as np

from fco_cli.kernels.compiled import is_finite, kernel, kernel_in_order
from fco_cli.kernels.tiles import (
    TILE,
    add_product,
    add_rows,
    dot,
    empty_tiles,
    row_of,
    set_zero,
    subtract,
    to_tiles,
    write,
)
from fco_cli.kernels.tridiagonal import eigenvectors

ANGLE = 1e-13  # largest cosine of two rows that count as orthogonal
SWEEPS = 40  # upper bound, not reached in practice: about two per eigenvalue (QL), up to ten for rows (Jacobi)
ROUNDING = 1e-15  # singular values up to this fraction of the norm are rounding error
ROUNDING_OF_SQUARES = 1e-16  # rounding error of the entries of A A^T
NEGLIGIBLE = 1e-20  # a row of at most this length counts as orthogonal to all others


@kernel
def gram(tiles, own, count, g):
    """Compute g = A A^T, where A consists of the first `own` tiles, four products at a time."""
    for i in range(count):
        column = g[i // TILE, i % TILE :]
        for k in range(0, i + 1, 4):
            s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0
            for t in range(own):
                x, row = row_of(tiles[t], i), tiles[t, k * TILE :]
                for c in range(x.shape[0]):
                    s0 += x[c] * row[c]
                    s1 += x[c] * row[c + TILE]
                    s2 += x[c] * row[c + 2 * TILE]
                    s3 += x[c] * row[c + 3 * TILE]
            four = g[k // TILE, i * TILE + k % TILE :]
            four[0], four[1], four[2], four[3] = s0, s1, s2, s3
            part = column[k * TILE :]
            part[0], part[TILE], part[2 * TILE], part[3 * TILE] = s0, s1, s2, s3


@kernel
def copy_squared_lengths(g, squared):
    """Copy the first entries of the diagonal of A A^T, the squared lengths of the rows of A, to `squared`."""
    for i in range(squared.shape[0]):
        squared[i] = g[i // TILE, i * TILE + i % TILE]


@kernel
def tridiagonal(g, factors, diagonal, off_diagonal):
    """Reduce the symmetric `g` to tridiagonal form by Householder reflections I - factor_k v_k v_k^T, last k first.

    Each reflection gives G - v q^T - q v^T with p = factor G v and q = p - (factor v^T p / 2) v. Row k of g is
    overwritten by v_k. On entry, `off_diagonal` and `factors` are zero; the length of `factors` is a multiple of four.
    """
    count, width = diagonal.shape[0], TILE * g.shape[0]
    v, weights, p = np.zeros(width), np.zeros(width), np.zeros(width)
    for k in range(count - 1, -1, -1):
        diagonal[k], squared = g[k // TILE, k * TILE + k % TILE], 0.0
        for t in range(g.shape[0]):
            row, part = row_of(g[t], k), row_of(v, t)
            for c in range(row.shape[0]):
                part[c] = row[c] if c < k - t * TILE else 0.0
                row[c] = part[c]
                squared += part[c] * part[c]
        if squared <= 1e-40:  # the row is already reduced
            continue
        off_diagonal[k - 1] = -np.copysign(np.sqrt(squared), v[k - 1])
        factors[k] = 1 / (squared - off_diagonal[k - 1] * v[k - 1])
        v[k - 1] -= off_diagonal[k - 1]
        g[(k - 1) // TILE, k * TILE + (k - 1) % TILE] = v[k - 1]
        for c in range(width):
            weights[c] = factors[k] * v[c]
        set_zero(p)
        for t in range(g.shape[0]):
            add_rows(weights, g[t], k, row_of(p, t))
        half = dot(weights, p) / 2
        for c in range(width):
            p[c] = p[c] - half * v[c] if c < k else 0.0
        for t in range(g.shape[0]):
            subtract(g[t], k, v, row_of(p, t), p, row_of(v, t))


@kernel
def reflect(g, factors, tile):
    """Apply the reflections of `tridiagonal`, in reverse order, to the rows of `tile`.

    Four at a time: X + sum_j v_j w_j with w_j = -factor_j (v_j^T X + sum_i<j (v_j . v_i) w_i).
    """
    w = np.empty(4 * TILE)
    for first in range(0, factors.shape[0], 4):
        set_zero(w)
        for t in range(g.shape[0]):
            rows = min(first + 4 - t * TILE, TILE)  # v_j has j entries
            add_product(g[t, first * TILE :], TILE, 1, 4, rows, tile[t * TILE * TILE :], w)
        for j in range(4):
            target = row_of(w, j)
            for i in range(j):
                product, source = 0.0, row_of(w, i)
                for t in range(g.shape[0]):
                    product += dot(row_of(g[t], first + j), row_of(g[t], first + i))
                for c in range(TILE):
                    target[c] += product * source[c]
            for c in range(TILE):
                target[c] *= -factors[first + j]
        for t in range(g.shape[0]):
            rows = min(first + 4 - t * TILE, TILE)
            add_product(g[t, first * TILE :], 1, TILE, rows, 4, w, tile[t * TILE * TILE :])


@kernel
def rotate(x, y, cosine, sine):
    for c in range(x.shape[0]):
        u, v = x[c], y[c]
        x[c] = cosine * u - sine * v
        y[c] = sine * u + cosine * v


@kernel_in_order
def next_rotation(g, cosine, sine, shift, diagonal, off_diagonal, i):
    """Return (g, cosine, sine, shift) after the rotation of rows i and i + 1 in a sweep of implicit QL."""
    f, b = sine * off_diagonal[i], cosine * off_diagonal[i]
    square = f * f + g * g
    r, inverse = np.sqrt(square), 1 / square  # independent operations; f / r would wait for the root
    off_diagonal[i + 1] = r
    cosine, sine = (g * inverse * r, f * inverse * r) if square > 1e-300 else (1.0, 0.0)
    g = diagonal[i + 1] - shift
    r = (diagonal[i] - g) * sine + 2 * cosine * b
    shift = sine * r
    diagonal[i + 1] = g + shift
    return cosine * r - b, cosine, sine, shift


@kernel_in_order
def diagonalize(diagonal, off_diagonal, zero, tiles):
    """Diagonalize a tridiagonal matrix of trace 1 by implicit QL, applying the rotations to the rows of `tiles`.

    Off-diagonal entries of modulus at most `zero` count as 0.
    """
    count = diagonal.shape[0]
    for low in range(count):
        for _ in range(SWEEPS):
            high = low
            while high < count - 1 and abs(off_diagonal[high]) > zero:
                high += 1
            if high == low:
                break
            g = (diagonal[low + 1] - diagonal[low]) / (2 * off_diagonal[low])
            shift = diagonal[low] - off_diagonal[low] / (g + np.copysign(np.sqrt(g * g + 1), g))
            g, cosine, sine, h = diagonal[high] - shift, 1.0, 1.0, 0.0
            for i in range(high - 1, low - 1, -1):
                g, cosine, sine, h = next_rotation(g, cosine, sine, h, diagonal, off_diagonal, i)
                for t in range(tiles.shape[0]):
                    rotate(row_of(tiles[t], i), row_of(tiles[t], i + 1), cosine, sine)
            diagonal[low] -= h
            off_diagonal[low], off_diagonal[high] = g, 0.0


@kernel
def are_orthogonal(product, alpha, beta, slack):
    """Return True if two rows with this dot product and these squared lengths count as orthogonal.

    They do if their cosine is at most ANGLE, if their product is at most `slack`, or if it is rounding error.
    """
    rounding = (max(alpha, beta) <= ROUNDING * ROUNDING) | (min(alpha, beta) <= NEGLIGIBLE * NEGLIGIBLE)
    return rounding | (product * product <= max(ANGLE * ANGLE * alpha * beta, slack * slack))


@kernel
def all_orthogonal(g, squared, slack):
    """Return True if all pairs of rows of A count as orthogonal, given g = A A^T and its diagonal `squared`."""
    others, wrong = np.zeros(TILE * g.shape[0]), 0.0
    copy_squared_lengths(g, others[: squared.shape[0]])
    for i in range(squared.shape[0]):
        for t in range(g.shape[0]):
            row, beta = row_of(g[t], i), row_of(others, t)
            for c in range(row.shape[0]):
                orthogonal = are_orthogonal(row[c], squared[i], beta[c], slack) | (c >= i - t * TILE)
                wrong += 0.0 if orthogonal else 1.0
    return wrong == 0


@kernel
def jacobi(squared, rows, u, slack):
    """Do one sweep of one-sided Jacobi rotations of the rows and of the columns of u, updating squared lengths."""
    for i in range(squared.shape[0]):
        for k in range(i):
            product, alpha, beta = 0.0, squared[i], squared[k]
            for t in range(rows.shape[0]):
                product += dot(row_of(rows[t], i), row_of(rows[t], k))
            if are_orthogonal(product, alpha, beta, slack):
                continue
            difference = beta - alpha
            root = np.sqrt(difference * difference + 4 * product * product)
            tangent = 2 * product / (difference + np.copysign(root, difference))
            cosine = 1 / np.sqrt(1 + tangent * tangent)
            for t in range(rows.shape[0]):
                rotate(row_of(rows[t], i), row_of(rows[t], k), cosine, cosine * tangent)
            x, y = u[i // TILE, i % TILE :], u[k // TILE, k % TILE :]
            for r in range(0, squared.shape[0] * TILE, TILE):
                rotate(x[r : r + 1], y[r : r + 1], cosine, cosine * tangent)
            squared[i] -= tangent * product
            squared[k] += tangent * product


@kernel
def rotated_eigenvectors(diagonal, off_diagonal, zero, u):
    """Compute the eigenvectors of a tridiagonal matrix, as columns of u, by implicit QL."""
    count = diagonal.shape[0]
    rotated = empty_tiles(count, count)
    for i in range(count):
        rotated[i // TILE, i * TILE + i % TILE] = 1
    diagonalize(diagonal, off_diagonal, zero, rotated)
    for r in range(count):
        column = rotated[r // TILE, r % TILE :]
        for i in range(count):
            u[i // TILE, r * TILE + i % TILE] = column[i * TILE]


@kernel
def singular_pairs(a, count, slack):
    """Return the tiles of U and of U^T A = S V^T, and the squared singular values, unsorted, for A of norm 1.

    The columns of U are eigenvectors of A A^T, whose rounding errors hide singular values below 1e-8. One-sided Jacobi
    rotations (Hestenes) restore full accuracy. They are rarely needed if dot products of rows may be as large as
    `slack` (0: full accuracy). With such a slack, all eigenvectors are first computed at once (tridiagonal.py), and by
    rotations only if those are not orthogonal enough.
    """
    own, g, h = a.shape[0], empty_tiles(count, count), empty_tiles(count, count)
    diagonal, off_diagonal, factors = np.empty(count), np.zeros(count), np.zeros((count + 3) // 4 * 4)
    gram(a, own, count, g)
    tridiagonal(g, factors, diagonal, off_diagonal)
    u, rows, squared = empty_tiles(count, count), empty_tiles(count, own * TILE), np.empty(count)
    for rotations in (False, True):
        if rotations:
            rotated_eigenvectors(diagonal, off_diagonal, max(2e-16, 0.1 * slack), u)
        elif slack < ROUNDING_OF_SQUARES or not eigenvectors(diagonal, off_diagonal, u):
            continue
        for t in range(u.shape[0]):
            reflect(g, factors, u[t])
            for s in range(own):
                target, stop = rows[s, t * TILE * TILE :], min(count - t * TILE, TILE)
                set_zero(target[: stop * TILE])
                add_product(u[t], 1, TILE, stop, count, a[s], target)
        for _ in range(SWEEPS):
            gram(rows, own, count, h)
            copy_squared_lengths(h, squared)
            if not is_finite(squared[0]) or all_orthogonal(h, squared, slack):
                return u, rows, squared
            if not rotations:
                break
            jacobi(squared, rows, u, slack)
    return u, rows, squared


@kernel
def singular_values(z, block):
    """Return the singular values of the matrix z, unsorted."""
    tiles, norm = to_tiles(z, block)
    _u, _rows, values = singular_pairs(tiles, min(block.rows, block.columns), 0.0)
    for i in range(values.shape[0]):
        values[i] = 0.0 if values[i] <= ROUNDING * ROUNDING else norm * np.sqrt(values[i])
    return values


@kernel
def write_product(u, weights, rows, block, out):
    """Write the matrix sum_i weights_i u_i (row i) to `out`; `rows` are scaled in place."""
    count, tiles = weights.shape[0], empty_tiles(weights.shape[0], TILE * rows.shape[0])
    for s in range(rows.shape[0]):
        for i in range(count):
            row, weight = row_of(rows[s], i), weights[i]
            for c in range(TILE):
                row[c] *= weight
        for t in range(u.shape[0]):
            add_product(u[t], TILE, 1, count, min(count - t * TILE, TILE), rows[s, t * TILE * TILE :], tiles[s])
    write(tiles, block, out)
