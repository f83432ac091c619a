"""Where singular value thresholding of a 32 x 32 matrix spends its time, beside LAPACK's decomposition: one thread."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from threadpoolctl import threadpool_limits

from fco_cli.problem.compiled import kernel, specialize
from fco_cli.problem.regularizers import OneBlock
from fco_cli.problem.regularizers import singular as svd
from fco_cli.problem.regularizers.singular import empty_tiles, gram, lengths, spectral, tridiagonal, wide

SIDE, COUNT, SHARE = 32, 500, 0.05  # matrices, and the threshold as a share of the largest singular value
STAGES = ("a copy of norm 1", "A A^T", "tridiagonal", "its eigenvectors (QL)", "A A^T again", "the result")


def diagonalize(diagonal, beside, zero, tiles):  # bound by `specialize`
    raise NotImplementedError


@kernel
def first_stages(z, threshold, block, stages, out):
    """The first of the `stages` for every matrix of z: what one more of them takes is that stage's time."""
    for j in range(z.shape[0]):
        a, norm = wide(z[j], block)
        rows, g, share = a.copy(), empty_tiles(block.rows, block.rows), threshold[j] / norm
        squared, beside = np.zeros(block.rows), np.zeros(block.rows)
        for stage in range(1, stages):
            if stage in (1, 4):
                gram(rows, 1, block.rows, g)
                lengths(g, squared)
            elif stage == 2:
                tridiagonal(g, rows, squared, beside)
            elif stage == 3:
                diagonalize(squared, beside, 1e-13 * share, rows)
            elif stage == 5:
                for i in range(block.rows):
                    singular = np.sqrt(squared[i])
                    squared[i] = norm * max(1 - share / singular, 0.0) / squared[i]
                spectral(a, rows, squared, block, out)


@kernel
def leave(x, y, cosine, sine):
    pass


@kernel
def leave_both(tiles, i, cosine, sine, next_cosine, next_sine):
    pass


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
    block, out = OneBlock(0, SIDE, SIDE, np.ones(0)), np.empty(SIDE * SIDE)
    whole = specialize(first_stages, diagonalize=svd.diagonalize)
    alone = specialize(first_stages, diagonalize=specialize(svd.diagonalize, rotate=leave, rotate_twice=leave_both))
    with threadpool_limits(1, user_api="blas"):
        lapack = microseconds(lambda: [np.linalg.svd(one) for one in z.reshape(-1, SIDE, SIDE)])
    until = [microseconds(lambda n=n: whole(z, SHARE * largest, block, n, out)) for n in range(1, len(STAGES) + 1)]
    for name, total, before in zip(STAGES, until, [0.0, *until], strict=False):
        print(f"{name:24} {total - before:5.1f} us")
    print(f"{'all':24} {until[-1]:5.1f} us, LAPACK's decomposition {lapack:.1f} us")
    angles = microseconds(lambda: alone(z, SHARE * largest, block, 4, out)) - until[2]
    print(f"QL without rotating rows {angles:5.1f} us: roots and divisions, each waiting for the one before")


if __name__ == "__main__":
    main()
