"""Time of each stage of singular value thresholding of a 32 x 32 matrix, and of LAPACK's decomposition; one thread."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.results import Cell, format_cell, save
from fco_cli.kernels.compiled import kernel, specialize
from fco_cli.kernels.singular import (
    all_orthogonal,
    copy_squared_lengths,
    gram,
    reflect,
    rotated_eigenvectors,
    tridiagonal,
    write_product,
)
from fco_cli.kernels.tiles import TILE, add_product, empty_tiles, to_tiles
from fco_cli.kernels.tridiagonal import eigenvectors
from fco_cli.problem.regularizers import BlockInfo
from fco_cli.problem.regularizers.nuclear import Nuclear

SIDE, COUNT, SHARE = 32, 500, 0.05  # matrices, and the threshold as a share of the largest singular value
STAGES = (
    "a copy of norm 1", "A A^T", "tridiagonal", "its eigenvectors", "reflected to U", "U^T A", "orthogonal?", "result",
)  # fmt: skip
prox = Nuclear.prox


def find(diagonal, beside, u):  # bound by `specialize`
    raise NotImplementedError


@kernel
def find_by_rotations(diagonal, beside, u):
    rotated_eigenvectors(diagonal, beside, 2e-16, u)


@kernel
def first_stages(z, threshold, block, stages, out):
    """The first of the `stages` for every matrix of z: what one more of them takes is that stage's time."""
    for j in range(z.shape[0]):
        a, norm = to_tiles(z[j], block)
        g, u, rows = empty_tiles(SIDE, SIDE), empty_tiles(SIDE, SIDE), empty_tiles(SIDE, SIDE)
        share, squared, beside, factors = threshold[j] / norm, np.zeros(SIDE), np.zeros(SIDE), np.zeros(SIDE)
        for stage in range(1, stages):
            if stage == 1:
                gram(a, 1, SIDE, g)
            elif stage == 2:
                tridiagonal(g, factors, squared, beside)
            elif stage == 3:
                find(squared, beside, u)
            elif stage == 4:
                reflect(g, factors, u[0])
            elif stage == 5:
                add_product(u[0], 1, TILE, SIDE, SIDE, a[0], rows[0])
            elif stage == 6:
                gram(rows, 1, SIDE, g)
                copy_squared_lengths(g, squared)
                all_orthogonal(g, squared, 1e-12 * share)
            else:
                for i in range(SIDE):
                    squared[i] = norm * max(1 - share / np.sqrt(squared[i]), 0.0)
                write_product(u, squared, rows, block, out)


@kernel
def whole(z, threshold, psi, block, out):
    for j in range(z.shape[0]):
        prox(z[j], threshold[j], psi, block, out)


def microseconds(work: Callable[[], object]) -> float:
    """The fastest of 20, per matrix."""
    times = []
    for _ in range(21):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times[1:]) * 1e6 / COUNT


def main() -> None:
    z = np.random.default_rng(0).standard_normal((COUNT, SIDE * SIDE))
    largest = np.linalg.norm(z.reshape(-1, SIDE, SIDE), 2, axis=(1, 2))
    block, out = BlockInfo(0, SIDE, SIDE, np.ones(0)), np.empty(SIDE * SIDE)
    with threadpool_limits(1, user_api="blas"):
        lapack = microseconds(lambda: [np.linalg.svd(one) for one in z.reshape(-1, SIDE, SIDE)])
    kinds = [specialize(first_stages, find=how) for how in (eigenvectors, find_by_rotations)]
    until, rotating = (
        [microseconds(lambda n=n, run=run: run(z, SHARE * largest, block, n, out)) for n in range(1, len(STAGES) + 1)]
        for run in kinds
    )
    psi = Nuclear(strength=1.0).numbers[0]
    rows: list[list[Cell]] = [
        *([name, total - before] for name, total, before in zip(STAGES, until, [0.0, *until], strict=False)),
        ["the prox", microseconds(lambda: whole(z, SHARE * largest, psi, block, out))],
        ["eigenvectors by rotations", rotating[3] - rotating[2]],
        ["LAPACK's decomposition, without the result", lapack],
    ]
    for row in rows:
        print(" | ".join(map(format_cell, row)))
    save("singular", "python -m benchmarks.singular", ["stage", "us"], rows)


if __name__ == "__main__":
    main()
