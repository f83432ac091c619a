"""Approximate inverse of a Hessian by nodewise regressions, for debiased lassos.

With more weights than the rows determine well, H^-1 is replaced by a matrix whose rows are lasso regressions of every
feature on all others (Meinshausen and Buhlmann, 2006), computed from H alone. A Newton step from the lasso with this
matrix removes the bias of the lasso (van de Geer et al., 2014; Javanmard and Montanari, 2014).
"""

from __future__ import annotations

import numpy as np

from fco_cli.problem.layout import Array
from fco_cli.problem.quadratic_solver import minimize_scalar_forms


def nodewise_inverse(hessian: Array, is_free: Array, penalty: float) -> Array:
    """Return an approximate inverse [A, A] of a positive semidefinite matrix.

    `is_free` [A] is the mask of unpenalized weights, which are eliminated exactly. `penalty` is that of regressions of
    features of unit variance; features of zeros have zeros in the inverse.
    """
    free, kept = np.flatnonzero(is_free), np.flatnonzero(~is_free)
    own = np.linalg.pinv(hessian[np.ix_(free, free)], hermitian=True)
    elimination = own @ hessian[np.ix_(free, kept)]
    theta = _of_penalized(hessian[np.ix_(kept, kept)] - hessian[np.ix_(kept, free)] @ elimination, penalty)
    inverse = np.empty(hessian.shape)
    inverse[np.ix_(kept, kept)] = theta
    inverse[np.ix_(free, kept)] = -elimination @ theta
    inverse[np.ix_(kept, free)] = -theta @ elimination.T
    inverse[np.ix_(free, free)] = own + elimination @ theta @ elimination.T
    return inverse


def _of_penalized(matrix: Array, penalty: float) -> Array:
    """Return the inverse of a matrix whose features are all penalized."""
    size, deviation = len(matrix), np.sqrt(np.maximum(matrix.diagonal(), 0))
    deviation[deviation == 0] = np.inf
    gram = matrix / np.outer(deviation, deviation)
    forms = np.zeros((4, size, size))
    forms[0], forms[2], forms[3] = penalty, -np.inf, np.inf
    forms[2:, np.arange(size), np.arange(size)] = 0  # a feature does not explain itself
    coefficients = minimize_scalar_forms(gram[None], -gram, np.zeros((size, size)), forms)
    variances = 1 - np.einsum("ij,ij->i", gram, coefficients)
    return (np.eye(size) - coefficients) / variances[:, None] / np.outer(deviation, deviation)
