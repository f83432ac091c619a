"""Bases of splines and polynomials of a number, as piecewise polynomials.

bs    B-splines, as in R and patsy, without the first one; constant beyond the boundary knots
ns    natural cubic splines with the basis of R's `splines::ns`; linear beyond the boundary knots
poly  orthonormal polynomials over the rows, as in R
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fco_cli.data.expressions import Expression, Piecewise
from fco_cli.problem.layout import Array


@dataclass(frozen=True)
class Basis:
    """Piecewise polynomials with common breaks."""

    breaks: Array  # [K]
    coefficients: Array  # [K + 1, powers, functions], constant first

    def of(self, argument: Expression) -> list[Piecewise]:
        """Return the functions of an expression."""
        breaks = tuple(self.breaks.tolist())
        return [
            Piecewise(argument, breaks, tuple(map(tuple, self.coefficients[:, :, k].tolist())))
            for k in range(self.coefficients.shape[2])
        ]


def b_splines(inner: Array, lower: float, upper: float, degree: int) -> Basis:
    """Return the B-splines with these inner and boundary knots, without the first one."""
    breaks, pieces = _pieces(inner, lower, upper, degree)
    ends = np.zeros((2, *pieces.shape[1:]))
    for side, value in enumerate(_ends(breaks, pieces, 0)):
        ends[side, 0] = value
    return Basis(breaks, np.concatenate([ends[:1], pieces, ends[1:]])[:, :, 1:])


def natural_splines(inner: Array, lower: float, upper: float) -> Basis:
    """Return a basis of the natural cubic splines with these inner and boundary knots that vanish at `lower`.

    The second derivatives at the boundary knots are 0. The basis is the null space of these two conditions, from the QR
    decomposition that R's `splines::ns` uses.
    """
    breaks, pieces = _pieces(inner, lower, upper, 3)
    pieces = pieces[:, :, 1:]
    rotation, _ = np.linalg.qr(_ends(breaks, pieces, 2).T, mode="complete")
    pieces = pieces @ rotation[:, 2:]
    ends = np.zeros((2, *pieces.shape[1:]))
    for derivative in (0, 1):
        ends[:, derivative] = _ends(breaks, pieces, derivative)
    return Basis(breaks, np.concatenate([ends[:1], pieces, ends[1:]]))


def _pieces(inner: Array, lower: float, upper: float, degree: int) -> tuple[Array, Array]:
    """Return the knots and the B-splines between them: [K - 1, degree + 1, functions]."""
    from scipy.interpolate import BSpline

    knots = np.concatenate([np.full(degree + 1, lower), inner, np.full(degree + 1, upper)])
    splines = BSpline(knots, np.eye(len(knots) - degree - 1), degree)
    breaks = np.concatenate([[lower], inner, [upper]])
    taylor = [splines(breaks[:-1], nu=power) / math.factorial(power) for power in range(degree + 1)]
    return breaks, np.stack(taylor, axis=1)


def _ends(breaks: Array, pieces: Array, derivative: int) -> Array:
    """Return a derivative of the functions at the first and the last break: [2, functions]."""
    powers = np.arange(pieces.shape[1])
    factors = np.array([np.prod(np.arange(power - derivative + 1, power + 1)) for power in powers], dtype=float)
    factors[powers < derivative] = 0
    at_first = factors * (powers == derivative)
    at_last = factors * (breaks[-1] - breaks[-2]) ** np.maximum(powers - derivative, 0.0)
    return np.stack([at_first @ pieces[0], at_last @ pieces[-1]])


def orthonormal_polynomials(center: float, scale: float, moments: Array) -> Basis:
    """Return the polynomials 1, ..., d that are orthonormal over the rows, given the sums of powers 0, ..., 2 d.

    The powers are those of u = (x - center) / scale.
    """
    degree = (len(moments) - 1) // 2
    gram = moments[np.add.outer(np.arange(degree + 1), np.arange(degree + 1))]
    inverse = np.linalg.inv(np.linalg.cholesky(gram))  # row k: coefficients of polynomial k
    coefficients = (inverse[1:] / scale ** np.arange(degree + 1)).T
    return Basis(np.array([center]), np.stack([coefficients, coefficients]))
