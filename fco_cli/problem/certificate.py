"""Bound on the suboptimality of a model, relative to a scale that is invariant to the units of features and labels.

For convex F and psi, a proximal step w+ = prox(w - D^-1 grad F(w)) gives a subgradient e of F + psi at w+, and

    Phi(w) - Phi* <= grad F(w)'(w - w+) + psi(w) - psi(w+) + e'(H + R)^-1 e / 2 + (slack of R),

where H is the Hessian of F, and R is the contribution of psi: its curvature, or delta / U_i^2 if psi bounds the
distance to the solution by U. For a quadratic F this is a rigorous bound; for other losses it is an estimate with H
evaluated at the model (docs/paper.md, "Metrics").
"""

from __future__ import annotations

import numpy as np

from fco_cli.problem.data import RemoteRows, SparseRows
from fco_cli.problem.descent import row_loop
from fco_cli.problem.layout import Array, Numbers
from fco_cli.problem.mirror_maps import Euclidean
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers.penalties import WeightedPenalty
from fco_cli.problem.risk import QuadraticRisk, scores_of

GAP = 10  # tolerance on the relative gap, as a multiple of the tolerance on KKT residuals
ROUNDING = 16  # rounding error of a gradient, in units of the machine epsilon
LARGEST_MATRIX, LARGEST_DIFFERENCED = 2048, 256  # maximum parameters of a Hessian from sums, and from gradients
MATRIX_WORK = 10**10  # maximum number of multiplications for a Hessian from rows
STEP = 1e-4  # finite-difference step of the scores
CACHED_ENTRIES = 2**17  # of rows that are squared at a time
DIFFERENCED_DIGITS = 1e-6  # smaller relative eigenvalues of a finite-difference Hessian are noise


def is_certified(problem: Problem, numbers: Numbers, model: Array, tolerance: float) -> bool | None:
    """Return True if the relative gap of one job, numbers [1] and model [P], is at most GAP * tolerance.

    Return None if no gap is available: for non-convex models or regularizers, for noisy sums, and for more than
    LARGEST_DIFFERENCED parameters if only gradients of F are available.
    """
    if not (problem.model.convex and problem.regularizer.convex):
        return None
    if isinstance(problem.data, RemoteRows) and not problem.data.is_exact:
        return None
    with np.errstate(all="ignore"):
        w = np.asarray(model, dtype=float)
        matrix = hessian(problem, w)
        if matrix is None and not _has_rows(problem):
            return None
        return _is_certified(problem, numbers, w, matrix, tolerance)


def _is_certified(problem: Problem, numbers: Numbers, w: Array, matrix: Array | None, tolerance: float) -> bool:
    eps = float(np.finfo(problem.dtype).eps)
    at = problem.risk(w[None])
    diagonal = _diagonal(problem, w) if matrix is None else matrix.diagonal().copy()
    diagonal[~(diagonal > 0)] = diagonal.max() if diagonal.max() > 0 else 1.0
    moved, step_sizes = _proximal_step(problem, numbers, w, at.gradient[0], diagonal)
    subgradient = problem.risk(moved[None]).gradient[0] - at.gradient[0] + (w - moved) / step_sizes
    objective = float(at.value[0]) + _psi(problem, w, numbers)
    scale = objective + _explained(problem, w, matrix)
    if not scale > np.finfo(float).tiny / eps:  # underflow: there is no scale for a relative gap
        return not subgradient.any() and bool((w == moved).all())
    allowed_gap = max(max(GAP * tolerance, ROUNDING * eps) * scale, eps * float(problem.at_start.value[0]))
    step_gain = float(at.gradient[0] @ (w - moved)) + _psi(problem, w, numbers) - _psi(problem, moved, numbers)
    added = _added_curvature(problem, numbers, objective, allowed_gap)
    # The other half is the slack of `added`.
    return bool(max(step_gain, 0.0) + _decrement(subgradient, matrix, diagonal, added) <= allowed_gap / 2)


def separates_classes(problem: Problem, objective: float) -> bool:
    """Return True if a model with this objective shows that there is no finite solution.

    Without psi, every row's class has a probability above 1/2: longer weights have a smaller loss.
    """
    data, is_linear = problem.data, problem.model.convex and isinstance(problem.mirror, Euclidean)
    if problem.regularizer.name != "none" or problem.loss.name not in ("logistic", "softmax") or not is_linear:
        return False
    if data.row_weights is not None or (isinstance(data, RemoteRows) and not data.is_exact):
        return False
    return bool(objective < float((problem.weights / data.sizes).min()) * np.log(2))


def _psi(problem: Problem, w: Array, numbers: Numbers) -> float:
    return float(problem.psi(w[None], numbers)[0])


def _proximal_step(
    problem: Problem, numbers: Numbers, w: Array, gradient: Array, diagonal: Array
) -> tuple[Array, Array]:
    """Return w+ and the step sizes [P]: inverse curvatures if psi is separable, else the inverse of their sum."""
    if problem.regularizer.separable and isinstance(problem.mirror, Euclidean):
        step_sizes, moved = 1 / diagonal, np.empty_like(w)
        problem.prox_of_each(
            (w - step_sizes * gradient)[None], step_sizes[None], problem.geometry(numbers), moved[None]
        )
        return moved, step_sizes
    step_sizes = np.full(len(w), 1 / diagonal.sum())
    return problem.prox((w - step_sizes * gradient)[None], step_sizes[:1], numbers)[0], step_sizes


def _added_curvature(problem: Problem, numbers: Numbers, objective: float, slack: float) -> Array:
    """Return R [P], whose slack is half of `slack`; 0 for weights whose distance psi does not bound."""
    psi = problem.regularizer
    per_weight = psi.coordinate_numbers(problem.layout, problem.features)
    added = psi.curvature(numbers, per_weight)
    factors = per_weight if isinstance(psi, WeightedPenalty) else np.ones(len(per_weight))
    if psi.dominates_two_norm:
        added = added + slack * (numbers["strength"][0] * factors / (2 * objective)) ** 2
    if psi.bounds_two_norm:
        added = added + slack / (2 * numbers["radius"][0]) ** 2
    return np.where(problem.layout.regularized, added, 0.0)


def _decrement(subgradient: Array, matrix: Array | None, diagonal: Array, added: Array) -> float:
    """Return e'(H + R)^-1 e / 2, with diagonal scaling; with the diagonal of H only if `matrix` is None."""
    if matrix is None:
        return float((subgradient**2 / (diagonal + added)).sum() / 2)
    units = np.sqrt(diagonal + added)
    scaled = (matrix + np.diag(added)) / units / units[:, None]
    shift = ROUNDING * len(units) * np.finfo(float).eps
    while shift < 1:
        try:
            factor = np.linalg.cholesky(scaled + shift * np.eye(len(units)))
        except np.linalg.LinAlgError:
            shift *= 16
            continue
        return float((np.linalg.solve(factor, subgradient / units) ** 2).sum() / 2)
    return np.inf


def _explained(problem: Problem, w: Array, matrix: Array | None) -> float:
    """Return the part of the null model's loss that the weights explain: half of their variance in the metric H."""
    if matrix is not None:
        part = problem.layout.regularized
        coupling = matrix[~part][:, part] @ w[part]
        removed = coupling @ np.linalg.pinv(matrix[np.ix_(~part, ~part)], hermitian=True) @ coupling
        return max(0.0, float(w[part] @ matrix[np.ix_(part, part)] @ w[part] - removed) / 2)
    curvature, scores = _row_curvature(problem, w), scores_of(problem.model, problem.data, w[None])[0].astype(float)
    own = np.einsum("ccn->cn", curvature)
    mean = (own * scores).sum(axis=1) / np.maximum(own.sum(axis=1), np.finfo(float).tiny)
    return float((own * (scores - mean[:, None]) ** 2).sum() / 2)


# Curvature.


def hessian(problem: Problem, w: Array) -> Array | None:
    """Return the Hessian of F at a model [P]: [P, P]; None if there are too many parameters."""
    if isinstance(problem.risk, QuadraticRisk):
        return 2 * problem.risk.matrix if len(w) <= LARGEST_MATRIX else None
    if _has_rows(problem):
        rows = len(problem.data.y)
        return _from_rows(problem, w) if len(w) <= LARGEST_MATRIX and rows * len(w) ** 2 <= MATRIX_WORK else None
    small = len(w) <= LARGEST_DIFFERENCED and problem.dtype == np.float64
    return _from_gradients(problem, w) if small and problem.model.convex else None


def _has_rows(problem: Problem) -> bool:
    """Return True if F is a sum over local rows that depend on their own scores only."""
    linear = isinstance(problem.model, Linear) and not problem.model.site_bias
    return linear and problem.loss.client_loss is None and not isinstance(problem.data, RemoteRows)


def _row_curvature(problem: Problem, w: Array) -> Array:
    """Return the second derivatives of every row's contribution to F with respect to its scores: [C, C, N]."""
    data = problem.data
    scores = scores_of(problem.model, data, w[None])[0].astype(float)
    steps = STEP * np.maximum(1.0, np.abs(scores))
    compute_slopes = row_loop(data, problem.model, problem.loss)
    share = np.repeat(problem.weights / data.sizes, data.sizes)
    curvature = np.empty((len(scores), *scores.shape))
    for c in range(len(scores)):
        both = np.stack([scores, scores])
        both[0, c] += steps[c]
        both[1, c] -= steps[c]
        compute_slopes(both, data.targets, np.arange(len(data.y)), None, True)
        curvature[:, c] = (both[0] - both[1]) / (2 * steps[c]) * share
    return (curvature + curvature.transpose(1, 0, 2)) / 2


def _dense(rows: Array | SparseRows) -> Array:
    if not isinstance(rows, SparseRows):
        return np.asarray(rows, dtype=float)
    dense = np.zeros(rows.shape)
    dense[np.repeat(np.arange(len(dense)), np.diff(rows.starts)), rows.columns] = rows.values
    return dense


def _from_rows(problem: Problem, w: Array) -> Array:
    """Return the sum over rows of curvature times x x'; the weights of all outputs precede the biases."""
    x, curvature = _dense(problem.data.x), _row_curvature(problem, w)
    outputs, features = len(curvature), x.shape[1]
    x = np.column_stack([x, np.ones(len(x))])
    matrix = np.empty((outputs, features + 1, outputs, features + 1))
    for c in range(outputs):
        for other in range(outputs):
            matrix[c, :, other] = x.T @ (x * curvature[c, other][:, None])
    order = np.arange(outputs * (features + 1)).reshape(outputs, -1)
    order = np.concatenate([order[:, :-1].ravel(), order[:, -1]])
    return matrix.reshape(len(order), -1)[np.ix_(order, order)]


def _diagonal(problem: Problem, w: Array) -> Array:
    """Return the diagonal of the Hessian [P], computed from rows."""
    x, own = problem.data.x, np.einsum("ccn->cn", _row_curvature(problem, w))
    if isinstance(x, SparseRows):
        sizes, squares = np.diff(x.starts), x.values.astype(float) ** 2
        weights = [np.bincount(x.columns, np.repeat(one, sizes) * squares, x.features) for one in own]
    else:
        weights = [sum_of_squares(x, one) for one in own]
    return np.concatenate([*weights, own.sum(axis=1)])


def sum_of_squares(x: Array, weights: Array) -> Array:
    """Return the weighted sum of squares of every column of x [N, d], in float64 and without copying x: [d]."""
    total, rows_at_once = np.zeros(x.shape[1]), max(1, CACHED_ENTRIES // x.shape[1])
    for low in range(0, len(x), rows_at_once):
        chunk = slice(low, low + rows_at_once)
        total += weights[chunk] @ x[chunk].astype(float, copy=False) ** 2
    return total


def _from_gradients(problem: Problem, w: Array) -> Array:
    """Return the Hessian from finite differences of gradients; eigenvalues below the noise level are set to about 0.

    Steps change the scores by about STEP or, for a squared loss, whose gradient is linear, by the root of F(w_0).
    """
    size = np.sqrt(max(float(problem.at_start.value[0]), STEP**2)) if problem.loss.quadratic else STEP
    steps = np.full(len(w), STEP * max(1.0, float(np.linalg.norm(w))))
    for _ in range(4):
        moves = np.diag(steps)
        rise = problem.risk(w + moves).gradient - problem.risk(w - moves).gradient
        rise /= 2 * steps[:, None]
        curvature = np.abs(rise.diagonal())
        suitable = np.where(curvature > 0, size / np.sqrt(np.where(curvature > 0, curvature, 1.0)), steps)
        if (np.abs(np.log10(suitable / steps)) <= 2).all():
            break
        steps = suitable
    matrix = (rise + rise.T) / 2
    units = np.sqrt(np.where(curvature > 0, curvature, 1.0))
    values, vectors = np.linalg.eigh(matrix / units / units[:, None])
    values = np.where(values > DIFFERENCED_DIGITS, values, len(w) * np.finfo(float).eps)
    return (vectors * values) @ vectors.T * units * units[:, None]
