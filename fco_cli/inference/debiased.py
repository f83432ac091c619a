"""Approximate inverse of a Hessian by nodewise regressions, for the debiased lasso.

With more coefficients than the rows determine well, H^-1 is replaced by a matrix whose rows are lasso regressions of
every feature on all others (Meinshausen and Buhlmann, 2006), computed from H alone. A Newton step from the lasso with
this matrix removes the bias of the lasso (van de Geer et al., 2014; Javanmard and Montanari, 2014).
"""

from __future__ import annotations

import numpy as np

from fco_cli.kernels.compiled import kernel, specialize
from fco_cli.problem.layout import Array

SWEEPS = 1000
ACCURACY = 1e-8  # of coordinate descent, relative to features of unit variance


@kernel
def nodewise(gram, j, penalty, coefficients):
    """Minimize |x_j - X c|^2 / 2N + penalty |c|_1 over c with c_j = 0, given the Gram matrix X'X / N."""
    size = gram.shape[0]
    slopes = np.empty(size)
    for k in range(size):
        slopes[k], coefficients[k] = -gram[j, k], 0.0
    for _ in range(SWEEPS):
        largest = 0.0
        for k in range(size):
            if k != j and gram[k, k] > 0:
                target = gram[k, k] * coefficients[k] - slopes[k]
                target = (target - min(max(target, -penalty), penalty)) / gram[k, k]
                change = target - coefficients[k]
                if change != 0:
                    largest = max(largest, abs(change))
                    coefficients[k] = target
                    for i in range(size):
                        slopes[i] += gram[k, i] * change
        if largest <= ACCURACY:
            break


def nodewise_inverse(hessian: Array, is_free: Array, rows: int) -> Array:
    """Return an approximate inverse [A, A] of the Hessian.

    `is_free` [A] is the mask of unpenalized weights, which are eliminated exactly.
    """
    free, kept = np.flatnonzero(is_free), np.flatnonzero(~is_free)
    inverse = np.zeros(hessian.shape)
    elimination = np.zeros((len(free), len(kept)))
    schur = hessian[np.ix_(kept, kept)]
    if len(free):
        own = np.linalg.inv(hessian[np.ix_(free, free)])
        elimination = own @ hessian[np.ix_(free, kept)]
        schur = schur - hessian[np.ix_(kept, free)] @ elimination
        inverse[np.ix_(free, free)] = own
    deviation = np.sqrt(np.maximum(np.diag(schur), 1e-300))
    gram = np.ascontiguousarray(schur / np.outer(deviation, deviation))
    penalty = nodewise_penalty(rows, len(kept))
    theta, coefficients = np.zeros(gram.shape), np.empty(len(kept))
    solve = specialize(nodewise)
    for j in range(len(kept)):
        solve(gram, j, penalty, coefficients)
        variance = 1 - gram[j] @ coefficients
        theta[j] = -coefficients / variance
        theta[j, j] = 1 / variance
    theta /= np.outer(deviation, deviation)
    inverse[np.ix_(kept, kept)] = theta
    if len(free):
        inverse[np.ix_(free, kept)] = -elimination @ theta
        inverse[np.ix_(kept, free)] = -theta @ elimination.T
        inverse[np.ix_(free, free)] += elimination @ theta @ elimination.T
    return inverse


def nodewise_penalty(rows: int, features: int) -> float:
    """Return the penalty of the nodewise regressions of features of unit variance: sqrt(log(p) / N) / 4.

    A small penalty favors coverage over short intervals: the remaining bias is proportional to it.
    """
    return float(np.sqrt(np.log(max(features, 2)) / rows)) / 4
