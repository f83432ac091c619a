"""A bound on the suboptimality of a model, in units that do not depend on those of features and labels.

For convex F and psi a proximal step w+ = prox(w - D^-1 grad F(w)) gives a subgradient e of F + psi at w+, and

    Phi(w) - Phi* <= grad F(w)'(w - w+) + psi(w) - psi(w+) + e'(H + R)^-1 e / 2 + (slack of R),

H the Hessian of F and R what psi adds to it: its own curvature, or delta / U_i^2 where psi bounds the distance of the
solution by U. A quadratic F has one Hessian, and this is a bound; for other losses H is taken at the model
(docs/method.md, "Metrics").
"""

from __future__ import annotations

import numpy as np

from fco_cli.problem.data import Elsewhere, SparseRows
from fco_cli.problem.descent import over_rows
from fco_cli.problem.layout import Array
from fco_cli.problem.mirror_maps import Euclidean
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.numbers import Numbers
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers.penalties import Weighted
from fco_cli.problem.risk import QuadraticRisk, scores_of

GAP = 10  # times the tolerance on KKT residuals: the tolerance on the relative gap
ROUNDING = 16  # units of the last digit of a gradient: no residual falls further
LARGEST_MATRIX, LARGEST_DIFFERENCED = 2048, 256  # parameters: of a Hessian from sums, and of one from gradients
MATRIX_WORK = 10**10  # multiplications for a Hessian from rows
STEP = 1e-4  # of scores, by which slopes and gradients are differenced
DIFFERENCED_DIGITS = 1e-6  # smaller eigenvalues of a differenced Hessian, relative to its diagonal, are noise


def is_certified(problem: Problem, numbers: Numbers, model: Array, tolerance: float) -> bool | None:
    """Return whether the relative gap of one job, numbers [1] and model [P], is at most GAP * tolerance.

    None where no gap is known: for a model or a regularizer that is not convex, for noisy sums, and for more than
    LARGEST_DIFFERENCED parameters where gradients are all that is known of F.
    """
    if not (problem.model.convex and problem.regularizer.convex):
        return None
    if isinstance(problem.data, Elsewhere) and not problem.data.exact:
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
    moved, time = _proximal_step(problem, numbers, w, at.gradient[0], diagonal)
    subgradient = problem.risk(moved[None]).gradient[0] - at.gradient[0] + (w - moved) / time
    objective = float(at.value[0]) + _psi(problem, w, numbers)
    scale = objective + _explained(problem, w, matrix)
    if not scale > np.finfo(float).tiny / eps:  # underflow: no gap can be compared with it
        return not subgradient.any() and bool((w == moved).all())
    enough = max(max(GAP * tolerance, ROUNDING * eps) * scale, eps * float(problem.at_start.value[0]))
    step_gain = float(at.gradient[0] @ (w - moved)) + _psi(problem, w, numbers) - _psi(problem, moved, numbers)
    added = _added_curvature(problem, numbers, objective, enough)
    # The slack of `added` is the other half.
    return bool(max(step_gain, 0.0) + _decrement(subgradient, matrix, diagonal, added) <= enough / 2)


def _psi(problem: Problem, w: Array, numbers: Numbers) -> float:
    return float(problem.psi(w[None], numbers)[0])


def _proximal_step(
    problem: Problem, numbers: Numbers, w: Array, gradient: Array, diagonal: Array
) -> tuple[Array, Array]:
    """Return w+ and the step sizes [P]: those of every weight's curvature where psi is separable, else of their sum."""
    if problem.regularizer.separable and isinstance(problem.mirror, Euclidean):
        time, moved = 1 / diagonal, np.empty_like(w)
        problem.prox_of_each((w - time * gradient)[None], time[None], problem.geometry(numbers), moved[None])
        return moved, time
    time = np.full(len(w), 1 / diagonal.sum())
    return problem.prox((w - time * gradient)[None], time[:1], numbers)[0], time


def _added_curvature(problem: Problem, numbers: Numbers, objective: float, slack: float) -> Array:
    """Return R [P] for a slack of half of `slack`; 0 for weights whose distance psi does not bound."""
    psi = problem.regularizer
    each = psi.each(problem.layout, problem.features)
    added, factors = psi.curvature(numbers, each), each if isinstance(psi, Weighted) else np.ones(len(each))
    if psi.dominates_two_norm:
        added = added + slack * (numbers["strength"][0] * factors / (2 * objective)) ** 2
    if psi.bounds_two_norm:
        added = added + slack / (2 * numbers["radius"][0]) ** 2
    return np.where(problem.layout.regularized, added, 0.0)


def _decrement(subgradient: Array, matrix: Array | None, diagonal: Array, added: Array) -> float:
    """Return e'(H + R)^-1 e / 2, in the units of the diagonal; with the diagonal of H alone where H is not known."""
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
    """Return the part of the null model's loss that the weights explain: half of their variance in units of H."""
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
    """Return the Hessian of F at a model [P]: [P, P]. None if there are too many parameters."""
    if isinstance(problem.risk, QuadraticRisk):
        return 2 * problem.risk.matrix if len(w) <= LARGEST_MATRIX else None
    if _has_rows(problem):
        rows = len(problem.data.y)
        return _from_rows(problem, w) if len(w) <= LARGEST_MATRIX and rows * len(w) ** 2 <= MATRIX_WORK else None
    small = len(w) <= LARGEST_DIFFERENCED and problem.dtype == np.float64
    return _from_gradients(problem, w) if small and problem.model.convex else None


def _has_rows(problem: Problem) -> bool:
    """Return whether F is a sum over rows in this process, each by its own scores."""
    linear = isinstance(problem.model, Linear) and not problem.model.site_bias
    return linear and problem.loss.together is None and not isinstance(problem.data, Elsewhere)


def _row_curvature(problem: Problem, w: Array) -> Array:
    """Return the second derivatives of every row's share of F by its scores: [C, C, N]."""
    data = problem.data
    scores = scores_of(problem.model, data, w[None])[0].astype(float)
    steps = STEP * np.maximum(1.0, np.abs(scores))
    slopes = over_rows(data, problem.model, problem.loss)
    share = np.repeat(problem.weights / data.sizes, data.sizes)
    curvature = np.empty((len(scores), *scores.shape))
    for c in range(len(scores)):
        both = np.stack([scores, scores])
        both[0, c] += steps[c]
        both[1, c] -= steps[c]
        slopes(both, data.targets, np.arange(len(data.y)), None, True)
        curvature[:, c] = (both[0] - both[1]) / (2 * steps[c]) * share
    return (curvature + curvature.transpose(1, 0, 2)) / 2


def _dense(rows: Array | SparseRows) -> Array:
    if not isinstance(rows, SparseRows):
        return np.asarray(rows, dtype=float)
    dense = np.zeros(rows.shape)
    dense[np.repeat(np.arange(len(dense)), np.diff(rows.starts)), rows.columns] = rows.values
    return dense


def _from_rows(problem: Problem, w: Array) -> Array:
    """Return the sum over rows of their curvature times x x', the weights of every output before the biases."""
    x, curvature = _dense(problem.data.x), _row_curvature(problem, w)
    outputs, features = len(curvature), x.shape[1]
    x = np.column_stack([x, np.ones(len(x))])
    matrix = np.empty((outputs, features + 1, outputs, features + 1))
    for c in range(outputs):
        for other in range(outputs):
            matrix[c, :, other] = x.T @ (x * curvature[c, other][:, None])
    order = np.arange(outputs * (features + 1)).reshape(outputs, -1)
    places = np.concatenate([order[:, :-1].ravel(), order[:, -1]])
    return matrix.reshape(len(places), -1)[np.ix_(places, places)]


def _diagonal(problem: Problem, w: Array) -> Array:
    """Return the Hessian's diagonal [P], from rows."""
    x, own = problem.data.x, np.einsum("ccn->cn", _row_curvature(problem, w))
    if isinstance(x, SparseRows):
        sizes, squares = np.diff(x.starts), x.values.astype(float) ** 2
        weights = [np.bincount(x.columns, np.repeat(one, sizes) * squares, x.features) for one in own]
    else:
        weights = [sum_of_squares(x, one) for one in own]
    return np.concatenate([*weights, own.sum(axis=1)])


def sum_of_squares(x: Array, weights: Array, rows_at_once: int = 4096) -> Array:
    """Return the weighted sum of squares of every column of x [N, d], in float64 and without a copy of x: [d]."""
    total = np.zeros(x.shape[1])
    for low in range(0, len(x), rows_at_once):
        chunk = slice(low, low + rows_at_once)
        total += weights[chunk] @ x[chunk].astype(float) ** 2
    return total


def _from_gradients(problem: Problem, w: Array) -> Array:
    """Return the Hessian by differences of gradients, which sites send; eigenvalues below their noise become tiny.

    Steps change the scores by STEP, of a squared loss by its root: its gradient is linear.
    """
    size = np.sqrt(max(float(problem.at_start.value[0]), STEP**2)) if problem.loss.quadratic else STEP
    steps = np.full(len(w), STEP * max(1.0, float(np.linalg.norm(w))))
    for _ in range(4):
        moves = np.diag(steps)
        rise = problem.risk(w + moves).gradient - problem.risk(w - moves).gradient
        rise /= 2 * steps[:, None]
        curvature = np.abs(rise.diagonal())
        suitable = np.where(curvature > 0, size / np.sqrt(curvature), steps)
        if (np.abs(np.log10(suitable / steps)) <= 2).all():
            break
        steps = suitable
    matrix = (rise + rise.T) / 2
    units = np.sqrt(np.where(curvature > 0, curvature, 1.0))
    values, vectors = np.linalg.eigh(matrix / units / units[:, None])
    values = np.where(values > DIFFERENCED_DIGITS, values, len(w) * np.finfo(float).eps)
    return (vectors * values) @ vectors.T * units * units[:, None]
