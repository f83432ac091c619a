"""Working sets: the weights whose Hessian a path uses if there are many weights and the regularizer is sparse."""

from __future__ import annotations

import numpy as np

from fco_cli.kernels.compiled import kernel, specialize
from fco_cli.problem.layout import Array, Numbers
from fco_cli.problem.problem import Problem
from fco_cli.problem.quadratic_solver import scalar_forms

FULL_HESSIAN = 300  # largest number of parameters without a working set, if psi is sparse
EXTENSION = 32  # weights that join a working set at once, in addition to a quarter of their number so far


def with_largest(columns: Array, excess: Array) -> Array:
    """Return a working set with the weights of the largest positive `excess` [P], at most a quarter plus EXTENSION."""
    excess[columns] = 0
    count = min(int((excess > 0).sum()), len(columns) // 4 + EXTENSION)
    added = np.argpartition(-excess, count - 1)[:count] if count else np.empty(0, int)
    return np.union1d(columns, added)


@kernel
def raise_excess(gradient, w, bounds, jobs, excess):
    """Raise excess [P] to |gradient| - bound at the weights of the jobs that are 0, if that is larger."""
    for n in range(jobs.shape[0]):
        j = jobs[n]
        for k in range(excess.shape[0]):
            own = abs(gradient[j, k]) - bounds[j, k]
            if own > excess[k] and w[j, k] == 0:
                excess[k] = own


def largest_excess(gradient: Array, w: Array, bounds: Array, jobs: Array) -> Array:
    """Return the largest violations [P] of the optimality conditions |gradient| <= bound by zero weights of jobs."""
    excess = np.zeros(gradient.shape[1])
    specialize(raise_excess)(gradient, w, bounds, jobs, excess)
    return excess


def penalty_bounds(problem: Problem, numbers: Numbers) -> Array:
    """Return the bounds [J, P] on the gradient at weights that are 0; 0 for unpenalized weights."""
    forms = scalar_forms(problem, numbers, np.arange(problem.layout.size))
    assert forms is not None
    return forms[0]


def is_sparse(problem: Problem) -> bool:
    """Return True if psi is a sum of a_i |w_i| + b_i w_i^2 / 2, with a_i > 0 for most weights."""
    forms = scalar_forms(problem, problem.regularizer.numbers, np.arange(problem.layout.size))
    return forms is not None and bool(np.isinf(forms[2:]).all()) and bool((forms[0] > 0).mean() > 0.5)


def uses_working_set(problem: Problem) -> bool:
    """Return True if the Hessians are those of a working set."""
    return problem.layout.size > FULL_HESSIAN and is_sparse(problem)
