"""Exact minimization of g'd + d'Hd / 2 + psi(w + d) over d, for every convex psi.

If psi is a sum of a_i |w_i| + b_i w_i^2 / 2 and of bounds on single weights, sweeps of coordinate descent find the
weights at a kink (0 or a bound), and a Cholesky factorization finds all other weights at once. A step ends at the first
kink on its way, and the weight stays there. Every step decreases the objective, and every minimizer of a set of free
weights occurs once: the method ends with the solution, however strongly the features are correlated. Weights whose
columns depend linearly on those of others move along the null space until one of them is at a kink.

Any other psi is that of proximal_model.py.
"""

from __future__ import annotations

import numpy as np

from fco_cli.errors import require
from fco_cli.kernels.compiled import kernel, specialize
from fco_cli.problem.layout import Array, Numbers
from fco_cli.problem.mirror_maps import Euclidean
from fco_cli.problem.problem import Problem
from fco_cli.problem.proximal_model import ProximalModel

prange = range  # Numba's parallel range in the compiled kernel

EPS = 2.3e-16
TOLERANCE = 2e-15  # on violations of the optimality conditions, relative to the terms of the gradient
SWEEPS, ITERATIONS = 8, 1000  # of coordinate descent between two factorizations, and of both together
REFINEMENTS = 3  # of a solution whose weights at kinks no longer change; further ones only change the rounding
DEPENDENT = 64 * EPS  # relative pivots below belong to columns that depend on the previous ones
FLAT = 1e-7  # entries of a flat direction below it, relative to the largest, are rounding errors


# Coordinate-separable psi.


@kernel
def entry(hessian, k, i):
    """Return the entry (k, i) of a Hessian (left, right, share) between two others."""
    left, right, share = hessian
    if share == 0:
        return left[k, i]
    return (1 - share) * left[k, i] + share * right[k, i]


@kernel
def gradient_of_model(hessian, linear, start, w, slopes, sizes):
    """Compute slopes = linear + H (w - start), and sizes, which times eps bound the rounding error of every slope."""
    for i in range(w.shape[0]):
        slopes[i], sizes[i] = linear[i], abs(linear[i])
    for k in range(w.shape[0]):
        move, length = w[k] - start[k], max(abs(w[k]), abs(start[k]))
        if length > 0:
            for i in range(w.shape[0]):
                one = entry(hessian, k, i)
                slopes[i] += one * move
                sizes[i] += abs(one) * length


@kernel
def add_column(hessian, k, change, slopes):
    """Add change times column k of H to the slopes."""
    for i in range(slopes.shape[0]):
        slopes[i] += entry(hessian, k, i) * change


@kernel
def sweep(hessian, form, slopes, sizes, tolerance, w):
    """Minimize over one weight after the other; return the number of weights that moved and that changed their piece.

    Weights that are optimal up to the tolerance do not move.
    """
    moved, changed = 0, 0
    for i in range(w.shape[0]):
        a, b, lower, upper = form[0, i], form[1, i], form[2, i], form[3, i]
        diagonal = entry(hessian, i, i)
        curvature = diagonal + b
        if curvature > 0:
            target = diagonal * w[i] - slopes[i]
            target = (target - min(max(target, -a), a)) / curvature
            target = min(max(target, lower), upper)
            step = target - w[i]
            size = sizes[i] + a + abs(b * w[i])
            was_at_kink = (w[i] == 0 and a > 0) or w[i] in (lower, upper)
            if abs(step) * curvature > tolerance * size:
                moved += 1
                is_at_kink = (target == 0 and a > 0) or target in (lower, upper)
                if was_at_kink or is_at_kink or target * w[i] < 0:
                    changed += 1
                add_column(hessian, i, step, slopes)
                w[i] = target
    return moved, changed


@kernel
def solve_factorized(factor, count, vector):
    """Replace vector [count] by the solution of L L' x = vector; row r of L has the entries factor[r, :r + 1]."""
    for r in range(count):
        total = vector[r]
        for c in range(r):
            total -= factor[r, c] * vector[c]
        vector[r] = total / factor[r, r]
    for r in range(count - 1, -1, -1):
        vector[r] /= factor[r, r]
        for c in range(r):
            vector[c] -= factor[r, c] * vector[r]


@kernel
def factorize_free(hessian, form, w, factor, free, dependent):
    """Compute the Cholesky factor of H + b over the weights that are not at a kink; return the numbers of both lists.

    `free` lists the rows of the factor, `dependent` the weights whose columns depend linearly on those of the rows.
    """
    count, others = 0, 0
    for i in range(w.shape[0]):
        if (w[i] == 0 and form[0, i] > 0) or w[i] in (form[2, i], form[3, i]):
            continue
        diagonal = entry(hessian, i, i) + form[1, i]
        pivot = diagonal
        for c in range(count):
            product = entry(hessian, i, free[c])
            for k in range(c):
                product -= factor[count, k] * factor[c, k]
            product /= factor[c, c]
            factor[count, c] = product
            pivot -= product * product
        if pivot > DEPENDENT * diagonal:
            factor[count, count] = np.sqrt(pivot)
            free[count] = i
            count += 1
        else:
            dependent[others] = i
            others += 1
    return count, others


@kernel
def step_to_kink(hessian, form, indices, count, direction, largest, slopes, w):
    """Move the weights of `indices` along `direction`, at most `largest` times, up to the first kink.

    Return 1 if a weight has reached a kink, -1 if the direction has no kink and no largest step, else 0.
    """
    length, first, kink = largest, -1, 0.0
    for r in range(count):
        i, step = indices[r], direction[r]
        if step == 0:
            continue
        a, bound = form[0, i], form[3, i] if step > 0 else form[2, i]
        if a > 0 and w[i] * step < 0:
            bound = max(bound, 0.0) if step < 0 else min(bound, 0.0)
        reach = (bound - w[i]) / step
        if reach < length:
            length, first, kink = reach, r, bound
    if length == np.inf:
        return -1
    for r in range(count):
        i = indices[r]
        step = kink - w[i] if r == first else length * direction[r]
        if step != 0:
            add_column(hessian, i, step, slopes)
            w[i] = kink if r == first else w[i] + step
    return 1 if first >= 0 else 0


@kernel
def slope_with_psi(form, slopes, w, i):
    """Return the derivative of the objective by a weight that is not at a kink."""
    sign = 0.0
    if w[i] > 0:
        sign = 1.0
    elif w[i] < 0:
        sign = -1.0
    return slopes[i] + form[0, i] * sign + form[1, i] * w[i]


@kernel
def drop_rounding(hessian, form, indices, count, direction):
    """Set the entries of a flat direction that are rounding errors to 0, relative to the curvatures of their weights.

    Otherwise a kink that such an entry reaches would end a step of any length, for example along the biases of classes.
    """
    largest = 0.0
    for r in range(count):
        i = indices[r]
        largest = max(largest, direction[r] * direction[r] * (entry(hessian, i, i) + form[1, i]))
    for r in range(count):
        i = indices[r]
        if direction[r] * direction[r] * (entry(hessian, i, i) + form[1, i]) <= FLAT * FLAT * largest:
            direction[r] = 0.0


@kernel
def minimize_free(hessian, form, slopes, sizes, tolerance, w, factor, free, dependent, direction):
    """Minimize over the weights that are not at a kink; weights that reach a kink stay there."""
    for _ in range(2 * w.shape[0] + 2):
        count, others = factorize_free(hessian, form, w, factor, free, dependent)
        for r in range(count):
            direction[r] = -slope_with_psi(form, slopes, w, free[r])
        solve_factorized(factor, count, direction)
        outcome = step_to_kink(hessian, form, free, count, direction, 1.0, slopes, w)
        if outcome == 0:
            for n in range(others):
                i = dependent[n]
                slope = slope_with_psi(form, slopes, w, i)
                if abs(slope) > tolerance * (sizes[i] + form[0, i]):
                    # Along (-H_SS^-1 H_Si, 1) the quadratic is constant, and the objective is linear.
                    side = -1.0 if slope > 0 else 1.0
                    for r in range(count):
                        direction[r] = -side * entry(hessian, i, free[r])
                    solve_factorized(factor, count, direction)
                    free[count], direction[count] = i, side
                    drop_rounding(hessian, form, free, count + 1, direction)
                    outcome = step_to_kink(hessian, form, free, count + 1, direction, np.inf, slopes, w)
                    break
        if outcome != 1:
            return


@kernel
def minimize_separable(hessians, places, shares, linear, start, forms, tolerance, chain, w):
    """Minimize for every job; the jobs of a chain start at the previous solution.

    The Hessian of a job is interpolated between two of hessians [K, n, n], those of places [2, J], by shares [J].
    linear [J, n] at start [J, n], forms [4, J, n]; w [J, n] is overwritten by the solutions.
    """
    jobs, size = w.shape[0], w.shape[1]
    for first in prange(jobs // chain):
        slopes, sizes, direction = np.empty(size), np.empty(size), np.empty(size + 1)
        free, dependent = np.empty(size + 1, np.int64), np.empty(size, np.int64)
        factor = np.empty((size, size))
        for j in range(first * chain, (first + 1) * chain):
            hessian = (hessians[places[0, j]], hessians[places[1, j]], shares[j])
            form, own = forms[:, j], w[j]
            if j > first * chain:
                for i in range(size):
                    own[i] = w[j - 1, i]
            for i in range(size):
                own[i] = min(max(own[i], form[2, i]), form[3, i])
            refinements = 0
            for _iteration in range(ITERATIONS):
                gradient_of_model(hessian, linear[j], start[j], own, slopes, sizes)
                moved, changed = sweep(hessian, form, slopes, sizes, tolerance, own)
                refinements = refinements + 1 if changed == 0 else 0
                if moved == 0 or refinements > REFINEMENTS:
                    break
                for _sweep in range(SWEEPS):
                    if changed == 0:
                        break
                    moved, changed = sweep(hessian, form, slopes, sizes, tolerance, own)
                minimize_free(hessian, form, slopes, sizes, tolerance, own, factor, free, dependent, direction)


# The interface.


def minimize_quadratic(
    problem: Problem,
    numbers: Numbers,
    hessian: Array,
    gradient: Array,
    w: Array,
    columns: Array | None = None,
    tolerance: float = TOLERANCE,
    chain: int = 1,
    start: Array | None = None,
    between: tuple[Array, Array] | None = None,
) -> Array:
    """Return the minimizers [J, P] of g'd + d'Hd / 2 + psi(w + d); the bits of a job do not depend on other jobs.

    Parameters
    ----------
    numbers
        Parameters of psi [J].
    hessian, gradient
        H [K, A, A], positive semidefinite, and g [J, A] at w [J, P]; J / K consecutive jobs share a matrix.
    columns
        Sorted indices [A] of the weights that may change; all by default. psi must then be coordinate-separable.
    tolerance
        On violations of the optimality conditions, relative to the sum of the absolute terms of the gradient.
    chain
        Number of consecutive jobs that are solved in order, each from the solution of the previous one.
    start
        First guess of the minimizers [J, P]; w by default.
    between
        Indices [2, J] of two of the K matrices and shares [J] of the second one, between which the Hessian of every job
        is interpolated.
    """
    w = np.ascontiguousarray(w, dtype=float)
    hessian, gradient = (np.ascontiguousarray(array, dtype=float) for array in (hessian, gradient))
    assert len(w) % chain == 0
    part = np.arange(w.shape[1]) if columns is None else columns
    solutions = (w if start is None else np.asarray(start, dtype=float)).copy()
    forms = scalar_forms(problem, numbers, part)
    if forms is not None:
        solutions[:, part] = minimize_scalar_forms(
            hessian, gradient, w[:, part], forms, tolerance, chain, solutions[:, part], between
        )
        return solutions
    require(
        columns is None, "regularizer", problem.regularizer.name, "coordinate-separable to use a part of the weights"
    )
    places, shares = _without_interpolation(len(w), len(hessian)) if between is None else between
    for j in range(len(w)):
        (left, right), share = hessian[places[:, j]], shares[j]
        own_hessian = (1 - share) * left + share * right if share else left
        job = ProximalModel(problem, numbers[j : j + 1], own_hessian, gradient[j], w[j])
        first = solutions[j - 1] if j % chain else solutions[j]
        solutions[j] = job.minimize(first, max(tolerance, 8 * EPS))
    return solutions


def minimize_scalar_forms(
    hessian: Array,
    gradient: Array,
    w: Array,
    forms: Array,
    tolerance: float = TOLERANCE,
    chain: int = 1,
    start: Array | None = None,
    between: tuple[Array, Array] | None = None,
) -> Array:
    """Return the minimizers [J, A] for a psi of the given `scalar_forms` [4, J, A], from w [J, A].

    All other parameters are those of `minimize_quadratic`, restricted to its columns.
    """
    solutions = np.array(w if start is None else start, dtype=float, order="C")
    hessian, gradient, w, forms = (np.ascontiguousarray(array, dtype=float) for array in (hessian, gradient, w, forms))
    places, shares = _without_interpolation(len(w), len(hessian)) if between is None else between
    minimize = specialize(minimize_separable, parallel=True)
    minimize(hessian, places, shares, gradient, w, forms, max(tolerance, 8 * EPS), chain, solutions)
    return solutions


def _without_interpolation(jobs: int, matrices: int) -> tuple[Array, Array]:
    """Return the matrix of every job, twice, and shares of 0; consecutive jobs have the same one."""
    assert jobs % matrices == 0
    return np.tile(np.arange(jobs) // (jobs // matrices), (2, 1)), np.zeros(jobs)


def scalar_forms(problem: Problem, numbers: Numbers, columns: Array) -> Array | None:
    """Return `Regularizer.scalar_form` of sorted weights, [4, J, A]; None if psi or the domain of h has none."""
    if not isinstance(problem.mirror, Euclidean):
        return None
    psi, layout = problem.regularizer, problem.layout
    forms = np.zeros((4, len(numbers), len(columns)))
    forms[2], forms[3] = -np.inf, np.inf
    per_weight = problem.geometry(numbers).per_weight[columns].astype(float)
    for block in layout.blocks:
        if block.regularized:
            place = layout.slices[block.name]
            own = slice(*np.searchsorted(columns, (place.start, place.stop)))
            form = psi.scalar_form(numbers, per_weight[own], block.name)
            if form is None:
                return None
            forms[:, :, own] = form
    return forms
