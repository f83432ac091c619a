"""Sums in 64-bit fixed point: whole multiples of 2^-bits, exact in any order and modulo 2^64.

To such sums clients can add masks that cancel (fco_cli/federation/masks.py), with no bit of the sum changed.
"""

from __future__ import annotations

import numpy as np

from fco_cli.problem.layout import Array

MOST_BITS = 52  # behind the point


def rounded(arrays: dict[str, Array], bits: int, clients: int) -> tuple[dict[str, Array], Array]:
    """One client's arrays [J, ...] as int64, and in which jobs they fit: [J]; in the others they are 0.

    They fit where as many of them as there are clients add up to less than 2^62.
    """
    scaled = {name: np.ldexp(np.asarray(values, float), bits) for name, values in arrays.items()}
    (jobs,) = {len(values) for values in scaled.values()}
    with np.errstate(invalid="ignore"):
        small = [np.abs(values).reshape(jobs, -1) <= 2.0**62 / clients for values in scaled.values()]  # NaN is not
    fits = np.asarray(np.concatenate(small, axis=1).all(axis=1))
    whole = {
        name: np.rint(np.where(fits.reshape(-1, *[1] * (values.ndim - 1)), values, 0)).astype(np.int64)
        for name, values in scaled.items()
    }
    return whole, fits


def as_numbers(total: Array, bits: int) -> Array:
    """What a sum of int64 stands for."""
    return np.ldexp(total.astype(float), -bits)
