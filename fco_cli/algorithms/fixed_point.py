"""Conversion to and from 64-bit fixed point: integer multiples of 2^-bits.

Fixed-point sums are exact modulo 2^64 and independent of the order of summation. Secure aggregation requires this:
masks that cancel (fco_cli/federation/masks.py) leave every bit of the sum unchanged.
"""

from __future__ import annotations

import numpy as np

from fco_cli.problem.layout import Array

MAX_FRACTION_BITS = 52  # maximum number of fraction bits


def to_fixed_point(arrays: dict[str, Array], bits: int, clients: int) -> tuple[dict[str, Array], Array]:
    """Return one client's arrays [J, ...] as int64, and in which jobs they are within range: [J].

    Values are within range if the sum over all clients cannot exceed 2^62. In other jobs the result is 0.
    """
    scaled = {name: np.ldexp(np.asarray(values, float), bits) for name, values in arrays.items()}
    (jobs,) = {len(values) for values in scaled.values()}
    with np.errstate(invalid="ignore"):
        # NaN compares as False.
        in_range = [np.abs(values).reshape(jobs, -1) <= 2.0**62 / clients for values in scaled.values()]
    fits = np.asarray(np.concatenate(in_range, axis=1).all(axis=1))
    integers = {
        name: np.rint(np.where(fits.reshape(-1, *[1] * (values.ndim - 1)), values, 0)).astype(np.int64)
        for name, values in scaled.items()
    }
    return integers, fits


def from_fixed_point(total: Array, bits: int) -> Array:
    """Return a fixed-point sum (int64) in floating point."""
    return np.ldexp(total.astype(float), -bits)
