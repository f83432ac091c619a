"""Vectorized computation of all eigenvectors of a tridiagonal matrix.

QL (singular.py) computes eigenvalues one after another by rotations, each of which depends on a square root and a
division of the previous one. Here the eigenvalues are computed independently, as roots of the characteristic
polynomial, and then their vectors, so that one instruction processes a register of them. Vectors of close eigenvalues
are not orthogonal by construction: the last step orthogonalizes neighbors, and the caller must check the result.

The matrix T has the diagonal d_0, d_1, ... and the off-diagonal b_1, b_2, ..., with b_k in rows k - 1 and k; b_0 and
the entry after the last are 0. Eigenvalues are numbered in ascending order. 32 of them are computed at once, one per
lane; lane 0 has number `first`. All variables of the lanes are segments of one array, so that the compiler
can assume that they do not overlap.
"""

from __future__ import annotations

import numpy as np

from fco_cli.kernels.compiled import kernel

LANES = 32
LOW, HIGH, UNDER, OVER, X, BELOW, P, _, SLOPE, _ = range(0, 10 * LANES, LANES)  # per eigenvalue
LARGEST, MEET, LEFT, RIGHT, RATIO, SQUARED = range(0, 6 * LANES, LANES)  # per eigenvector
PASSES = 40  # limit for bisection and Newton steps; about ten suffice, more for close eigenvalues
NEAR = 1e-11  # last Newton step; the remaining error is its square divided by the eigenvalues' distance
RESIDUAL = 1e-15  # largest entry of T v - x v for an eigenvector v of length 1


@kernel
def characteristic(d, squares, x, p, slope, below):
    """Compute p = det(T - x), its derivative, and the number of eigenvalues below x, for every x.

    The leading principal minors p_k+1 = (d_k - x) p_k - b_k^2 p_k-1 change sign once per eigenvalue below x (Sturm).
    The second half of `p` and `slope` holds p_k-1 and its derivative. Rows are processed four at a time.
    """
    for i in range(LANES):
        p[i], p[i + LANES], slope[i], slope[i + LANES], below[i] = 1.0, 0.0, 0.0, 0.0, 0.0
    for k in range(0, d.shape[0], 4):
        d0, d1, d2, d3 = d[k], d[k + 1], d[k + 2], d[k + 3]
        b0, b1, b2, b3 = squares[k], squares[k + 1], squares[k + 2], squares[k + 3]
        for i in range(LANES):
            u, v, du, dv, count = p[i + LANES], p[i], slope[i + LANES], slope[i], below[i]
            u, v, du, dv = v, (d0 - x[i]) * v - b0 * u, dv, (d0 - x[i]) * dv - b0 * du - v
            count += 1.0 if (v < 0) != (u < 0) else 0.0
            u, v, du, dv = v, (d1 - x[i]) * v - b1 * u, dv, (d1 - x[i]) * dv - b1 * du - v
            count += 1.0 if (v < 0) != (u < 0) else 0.0
            u, v, du, dv = v, (d2 - x[i]) * v - b2 * u, dv, (d2 - x[i]) * dv - b2 * du - v
            count += 1.0 if (v < 0) != (u < 0) else 0.0
            u, v, du, dv = v, (d3 - x[i]) * v - b3 * u, dv, (d3 - x[i]) * dv - b3 * du - v
            count += 1.0 if (v < 0) != (u < 0) else 0.0
            p[i + LANES], p[i], slope[i + LANES], slope[i], below[i] = u, v, du, dv, count


@kernel
def enclose(first, at, n, lane):
    """Tighten the bounds LOW and HIGH of all lanes, and the counts UNDER and OVER: `n` eigenvalues are below `at`."""
    for i in range(LANES):
        beyond, nearer = n > first + i, at < lane[i + HIGH]
        lane[i + LOW] = lane[i + LOW] if beyond else at
        lane[i + UNDER] = lane[i + UNDER] if beyond else n
        lane[i + HIGH] = at if beyond & nearer else lane[i + HIGH]
        lane[i + OVER] = n if beyond & nearer else lane[i + OVER]


@kernel
def find_eigenvalues(d, squares, first, count, top, lane):
    """Compute X, the eigenvalues from number `first` on; all `count` eigenvalues are between 0 and `top`.

    Bisects by the number of eigenvalues below a point, then takes Newton steps once the bounds enclose one eigenvalue.
    """
    x, below = lane[X : X + LANES], lane[BELOW : BELOW + LANES]
    p, slope = lane[P : P + 2 * LANES], lane[SLOPE : SLOPE + 2 * LANES]
    for i in range(LANES):
        lane[i + LOW], lane[i + HIGH], lane[i + UNDER], lane[i + OVER] = 0.0, top, 0.0, count
        share = (i + 0.5) / LANES
        lane[i + X] = top * share * share  # squared singular values: their roots are spread evenly
    for n in range(PASSES):
        characteristic(d, squares, x, p, slope, below)
        if n == 0:
            for k in range(LANES):  # x is ascending
                enclose(first, x[k], below[k], lane)
            for i in range(LANES):
                lane[i + X] = 0.5 * (lane[i + LOW] + lane[i + HIGH])
            continue
        moving = 0.0
        for i in range(LANES):
            at, below_it, step = lane[i + X], lane[i + BELOW], lane[i + P] / lane[i + SLOPE]
            beyond = below_it > first + i
            low, under = lane[i + LOW] if beyond else at, lane[i + UNDER] if beyond else below_it
            high, over = at if beyond else lane[i + HIGH], below_it if beyond else lane[i + OVER]
            alone, near, inside = over - under == 1.0, abs(step) <= NEAR, (at - step > low) & (at - step < high)
            lane[i + LOW], lane[i + UNDER], lane[i + HIGH], lane[i + OVER] = low, under, high, over
            lane[i + X] = at - step if alone & (near | inside) else 0.5 * (low + high)
            moving += 0.0 if (alone & near) | (first + i >= count) else 1.0
        if moving == 0:
            break


@kernel
def solve(d, b, inverse, x, rows):
    """Solve (T - x) v = 0 by forward and by backward recurrence: left and right half of `rows`.

    b_k+1 v_k+1 = (x - d_k) v_k - b_k v_k-1. A row of zeros precedes the first row and follows the last.
    """
    count, end = d.shape[0], rows[d.shape[0] * 2 * LANES :]
    for i in range(LANES):
        rows[i], rows[i + LANES], rows[i + 2 * LANES] = 0.0, 0.0, 1.0
        end[i + LANES], end[i + 2 * LANES], end[i + 3 * LANES] = 1.0, 0.0, 0.0
    for k in range(count - 1):
        dk, bk, over, row = d[k], b[k], inverse[k + 1], rows[k * 2 * LANES :]
        for i in range(LANES):
            row[i + 4 * LANES] = ((x[i] - dk) * row[i + 2 * LANES] - bk * row[i]) * over
    for k in range(count - 1, 0, -1):
        dk, bk, over, row = d[k], b[k + 1], inverse[k], rows[k * 2 * LANES + LANES :]
        for i in range(LANES):
            row[i] = ((x[i] - dk) * row[i + 2 * LANES] - bk * row[i + 4 * LANES]) * over


@kernel
def join(count, rows, lane):
    """Combine both solutions to eigenvectors in the right half of `rows`: the left one up to row MEET, then the right.

    Each recurrence loses accuracy beyond the largest entry of v. MEET is that entry, where the product is largest.
    """
    for i in range(LANES):
        lane[i + LARGEST], lane[i + MEET], lane[i + LEFT], lane[i + RIGHT], lane[i + SQUARED] = 0.0, 0.0, 0.0, 0.0, 0.0
    for k in range(count):
        row = rows[(k + 1) * 2 * LANES :]
        for i in range(LANES):
            size = abs(row[i] * row[i + LANES])
            more = size > lane[i + LARGEST]
            lane[i + LARGEST] = size if more else lane[i + LARGEST]
            lane[i + MEET] = k if more else lane[i + MEET]
            lane[i + LEFT] = row[i] if more else lane[i + LEFT]
            lane[i + RIGHT] = row[i + LANES] if more else lane[i + RIGHT]
    for i in range(LANES):
        lane[i + RATIO] = lane[i + RIGHT] / lane[i + LEFT]
    for k in range(count):
        row = rows[(k + 1) * 2 * LANES :]
        for i in range(LANES):
            v = lane[i + RATIO] * row[i] if k < lane[i + MEET] else row[i + LANES]
            row[i + LANES] = v
            lane[i + SQUARED] += v * v


@kernel
def normalize(count, lanes, rows, squared, v):
    """Write the right half of `rows` to v, with columns of length 1 and zeros in lanes without an eigenvalue."""
    for i in range(LANES):
        squared[i] = 1 / np.sqrt(squared[i])
    for k in range(count + 2):
        row, target = rows[k * 2 * LANES + LANES :], v[k * LANES : (k + 1) * LANES]
        for i in range(LANES):
            target[i] = squared[i] * row[i] if i < lanes else 0.0


@kernel
def are_solutions(d, b, x, v):
    """Return True if T v = x v in every lane, up to RESIDUAL; False for NaN."""
    wrong = 0.0
    for k in range(d.shape[0]):
        dk, before, after, row = d[k], b[k], b[k + 1], v[k * LANES :]
        for i in range(LANES):
            residual = before * row[i] + (dk - x[i]) * row[i + LANES] + after * row[i + 2 * LANES]
            wrong += 0.0 if abs(residual) <= RESIDUAL else 1.0
    return wrong == 0


@kernel
def orthogonalize_neighbors(count, v, out):
    """Orthogonalize neighboring eigenvectors: out_i = v_i - sum_k (v_i . v_k) v_k / 2 for k = i - 1 and i + 1."""
    half = np.zeros(2 * LANES)
    with_next = half[LANES:]
    for k in range(0, count, 2):
        row = v[(k + 1) * LANES :]
        for i in range(LANES):
            with_next[i] += 0.5 * (row[i] * row[i + 1] + row[i + LANES] * row[i + LANES + 1])
    with_next[LANES - 1] = 0.0
    for k in range(count):
        row, target = v[(k + 1) * LANES - 1 :], out[k * LANES : (k + 1) * LANES]
        for i in range(LANES):
            target[i] = row[i + 1] - half[i + LANES] * row[i + 2] - half[i + LANES - 1] * row[i]


@kernel
def eigenvectors(diagonal, off_diagonal, tiles):
    """Compute the eigenvectors of a positive matrix of trace 1 as columns of `tiles`; return True if T v = x v for all.

    `off_diagonal` has b_1, b_2, ... Close eigenvalues may have the same vector: the caller must check orthogonality.
    """
    count = diagonal.shape[0]
    padded = (count + 3) // 4 * 4
    d, b, squares, inverse, top = np.full(padded, 4.0), np.zeros(count + 1), np.zeros(padded), np.zeros(count), 0.0
    for k in range(count):
        d[k] = diagonal[k]  # padding rows have the eigenvalue 4, outside the spectrum
    for k in range(1, count):
        b[k] = off_diagonal[k - 1]
        squares[k], inverse[k] = b[k] * b[k], 1 / b[k]
        if not squares[k] > 0:  # the matrix decouples, or NaN
            return False
    for k in range(count):
        top = max(top, d[k] + abs(b[k]) + abs(b[k + 1]))
    lane, vector_lane = np.empty(10 * LANES), np.empty(6 * LANES)
    rows, v = np.empty((count + 2) * 2 * LANES), np.zeros((count + 3) * LANES)
    for t in range(tiles.shape[0]):
        find_eigenvalues(d, squares, t * LANES, count, top, lane)
        solve(d[:count], b, inverse, lane[X:], rows)
        join(count, rows, vector_lane)
        normalize(count, count - t * LANES, rows, vector_lane[SQUARED:], v)
        if not are_solutions(d[:count], b, lane[X:], v):
            return False
        orthogonalize_neighbors(count, v, tiles[t])
    return True
