"""Choice of the method that solves a path, and its application to all fits.

Hessians make a path exact in a few rounds (second_order.py). They are used if the model and the loss have them and if
their size permits; otherwise every fit is solved by the algorithm of the run, one gradient a round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fco_cli.algorithms import all_algorithms
from fco_cli.config import Run
from fco_cli.errors import require
from fco_cli.path.round import evaluator
from fco_cli.path.second_order import (
    refine,
    solve_by_moments,
    solve_second_order,
)
from fco_cli.path.solve import Checkpoint, Solutions, problem_for, solve_by_rounds, with_value
from fco_cli.path.working_set import is_sparse, uses_working_set
from fco_cli.problem.curvature import has_curvature
from fco_cli.problem.data import RemoteRows
from fco_cli.problem.layout import Array, stack_numbers
from fco_cli.problem.problem import Problem, TaskData
from fco_cli.problem.quadratic_solver import scalar_forms
from fco_cli.problem.regularizers import Regularizer
from fco_cli.simulation.evaluate import residual_threshold

AUTO, DEFAULT = "auto", "fista"
SECOND_ORDER = ("moments", "prox_newton")
LARGEST_HESSIAN, LARGEST_COUPLED = 1000, 200  # parameters, for a coordinate-separable and for any other psi
LARGEST_SUPPORT = 4000  # rows or parameters, whichever is less, with a working set
PATH_TOLERANCE = 1e-4  # of a method that needs gradients only


@dataclass(frozen=True)
class Method:
    """Method that solves a path, and the reason for it."""

    name: str
    reason: str

    @property
    def is_second_order(self) -> bool:
        return self.name in SECOND_ORDER

    @property
    def line(self) -> str:
        """Summary in one line."""
        return f"path: {self.name} ({self.reason})"

    def tolerance(self, run: Run, given: float | None) -> float:
        """Return the tolerance along a path: the given one or the default of the method."""
        if given is not None:
            return given
        return run.hparams.tolerance if self.is_second_order else max(PATH_TOLERANCE, run.hparams.tolerance)


def choose_method(run: Run, problem: Problem, name: str = AUTO) -> Method:
    """Return the method of this name; for `auto` that of the run's algorithm or, with the default, the cheapest."""
    known = [
        *SECOND_ORDER,
        *(key for key, kind in all_algorithms().items() if kind.federated and key not in SECOND_ORDER),
    ]
    require(name == AUTO or name in known, "path.algo", name, "one of auto, " + ", ".join(known))
    size, loss = problem.layout.size, problem.loss.name
    what = f"{size:,} parameters, {loss} loss"
    obstacle = _obstacle(problem)
    if name == AUTO and run.algo.name == DEFAULT:
        if obstacle:  # between sites, rounds cost more than the server's arithmetic
            gradients_only = "quasi_newton" if isinstance(problem.data, RemoteRows) else DEFAULT
            return Method(gradients_only, f"{what}: {obstacle}, so that gradients are used")
        if _has_moments(problem):
            return Method("moments", f"{what}: one round of second moments determines every solution")
        part = " of a working set" if uses_working_set(problem) else ""
        return Method("prox_newton", f"{what}: Hessians{part} make the path exact in few rounds")
    chosen, key = (run.algo.name, "algo") if name == AUTO else (name, "path.algo")
    if chosen in SECOND_ORDER:
        require(not obstacle, key, chosen, f"another for this problem: {obstacle}")
    if chosen == "moments":
        require(_has_moments(problem), key, chosen, f"another for {what}: moments are those of a squared loss")
    return Method(chosen, f"{what}: {key}={chosen}")


def _has_moments(problem: Problem) -> bool:
    """Return True if second moments determine the solutions and are small enough."""
    return problem.loss.quadratic and not problem.model.site_bias and problem.layout.size <= LARGEST_HESSIAN


def _obstacle(problem: Problem) -> str:
    """Return the reason why Hessians cannot be used, or an empty string."""
    size = problem.layout.size
    if not has_curvature(problem.model, problem.loss):
        return "the model or the loss has no Hessian"
    if isinstance(problem.data, RemoteRows) and (reason := problem.data.why_no_hessian(size)):
        return reason
    is_separable = scalar_forms(problem, problem.regularizer.numbers, np.arange(size)) is not None
    if size > (LARGEST_HESSIAN if is_separable else LARGEST_COUPLED):
        support = min(size, int(problem.data.sizes.sum()))
        if not is_sparse(problem) or support > LARGEST_SUPPORT:
            return f"a Hessian of {size:,} parameters is too large for {problem.regularizer.name}"
    return ""


def solve_fits(
    run: Run, method: Method, fits: Sequence[TaskData], values: Array, tolerance: float, on_round: Callable[[], None],
    checkpoint: Checkpoint | None = None,
) -> list[Solutions]:  # fmt: skip
    """Return the solutions of all fits for every value of the path."""
    regularizers = [with_value(run.regularizer, value) for value in values]
    return _solve(run, method, fits, regularizers, tolerance, on_round, checkpoint)


def solve(
    run: Run,
    data: TaskData,
    regularizers: list[Regularizer],
    tolerance: float,
    on_round: Callable[[], None] = lambda: None,
    algo: str = AUTO,
) -> Solutions:
    """Solve for every regularizer of a list; all are of one kind and differ in numbers only."""
    method = choose_method(run, problem_for(replace(run, regularizer=regularizers[0]), data), algo)
    return _solve(run, method, [data], regularizers, tolerance, on_round)[0]


def _solve(
    run: Run,
    method: Method,
    fits: Sequence[TaskData],
    regularizers: list[Regularizer],
    tolerance: float,
    on_round: Callable[[], None],
    checkpoint: Checkpoint | None = None,
) -> list[Solutions]:
    if not method.is_second_order:
        own = _with_algorithm(run, method)
        return [solve_by_rounds(own, data, regularizers, tolerance, on_round) for data in fits]
    problems, numbers = [_training_problem(run, data) for data in fits], stack_numbers(regularizers)
    evaluate = evaluator(run.hparams.fraction_bits)
    if method.name == "moments":
        solutions = solve_by_moments(problems, numbers, tolerance, evaluate)
        on_round()
        return solutions
    strengths = np.array([getattr(psi, "strength", 1.0) for psi in regularizers])
    most_rounds = run.hparams.most_rounds
    return solve_second_order(problems, numbers, strengths, tolerance, on_round, most_rounds, evaluate, checkpoint)


def refit(
    run: Run, method: Method, data: TaskData, values: Array, path: Solutions, tolerance: float,
    on_round: Callable[[], None],
) -> Solutions:  # fmt: skip
    """Return the solutions of one fit to another tolerance, from those of its path at the same values."""
    regularizers = [with_value(run.regularizer, value) for value in values]
    if not method.is_second_order:
        own = _with_algorithm(run, method)
        return solve_by_rounds(own, data, regularizers, tolerance, on_round, path.models)
    problem, numbers = _training_problem(run, data), stack_numbers(regularizers)
    is_accurate = path.residuals * problem.kkt_scale(numbers) <= residual_threshold(problem, numbers, tolerance)
    if method.name == "moments" or (is_accurate & path.converged).all():
        return replace(path, converged=is_accurate & path.converged)
    evaluate = evaluator(run.hparams.fraction_bits)
    return refine(problem, numbers, path.models, tolerance, on_round, run.hparams.most_rounds, evaluate)


def _with_algorithm(run: Run, method: Method) -> Run:
    """Return the run with the algorithm of the method, if it has another one."""
    return run if run.algo.name == method.name else replace(run, algo=all_algorithms()[method.name]())  # type: ignore[call-arg]


def _training_problem(run: Run, data: TaskData) -> Problem:
    return replace(problem_for(run, data), held_out=None, test=None)
