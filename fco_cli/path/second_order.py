"""Second-order solutions of paths: sums over clients of losses, gradients and Hessians.

All fits of a path (all rows, every fold) advance together. In a round, clients send the loss and the gradient at every
model that has not converged, and the Hessians at some of them, the anchors. The server then minimizes the quadratic
model of every strength with the Hessian interpolated between the anchors next to it. A model is judged by its own
gradient, so that the solution does not depend on the anchors. If few models are left, each is an anchor, and the method
is proximal Newton with step halving.

For a squared loss, the loss, gradient and Hessian at one model determine all solutions: one round.

With many parameters and a sparse regularizer, the path is divided into stages of similar strengths. The Hessian is
that of a working set: non-zero weights, and those whose gradient exceeds the penalty of a strength of the stage, at the
end of the previous stage or at a later model. Gradients at the solutions are complete, so that no violation remains.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np

from fco_cli.memory_limit import in_units
from fco_cli.path.fit import MAX_ANCHORS, SHORTEST_STEP, STAGE_ANCHORS, Fit
from fco_cli.path.round import Evaluate, Request, evaluate_round
from fco_cli.path.solve import Checkpoint, Part, Solutions, unpenalized_mask
from fco_cli.path.working_set import penalty_bounds, uses_working_set, with_largest
from fco_cli.problem.curvature import Quadratic, packed_size
from fco_cli.problem.layout import Array, Numbers
from fco_cli.problem.moments import log_condition, warn_of_lost_digits
from fco_cli.problem.problem import Problem
from fco_cli.problem.quadratic_solver import minimize_quadratic
from fco_cli.simulation.evaluate import residual_threshold

log = logging.getLogger(__name__)

ANCHOR_BYTES = 64 * 2**20  # of the Hessians in a round
MAX_NEWTON_STEPS, NULL_TOLERANCE = 50, 1e-12  # of the null model, relative to the first gradient
STAGE_RATIO = 0.5  # smallest strength of a stage, relative to the largest


def first_request(problem: Problem, whole: bool) -> Request:
    """Return the request of the first round at the initial model; `whole`: for the whole Hessian in any case."""
    columns = None if whole or not uses_working_set(problem) else np.flatnonzero(unpenalized_mask(problem))
    return Request(problem, problem.model.initial()[None], np.ones(1, bool), columns)


def null_gradient(problem: Problem, whole: bool, evaluate: Evaluate = evaluate_round) -> Array:
    """Return the gradient of F [P] at the null model, which minimizes F over the unpenalized weights.

    Newton's method with step halving starts at the initial model of the first round.
    """
    request = first_request(problem, whole)
    w, free = request.models[0].copy(), np.flatnonzero(unpenalized_mask(problem))
    w[np.setdiff1d(np.arange(len(w)), free)] = 0
    (answer,) = evaluate([request._replace(models=w[None])])
    own = free if request.columns is None else np.searchsorted(request.columns, free)
    hessian, scale = answer.hessian[0][np.ix_(own, own)], np.linalg.norm(answer.gradient[0])
    if problem.loss.quadratic:
        step = -np.linalg.lstsq(hessian, answer.gradient[0, free], rcond=None)[0]
        return answer.gradient[0] + answer.hessian[0][:, own] @ step if len(free) else answer.gradient[0]
    for _ in range(MAX_NEWTON_STEPS):
        if np.linalg.norm(answer.gradient[0, free]) <= NULL_TOLERANCE * scale or not np.isfinite(hessian).all():
            break
        step, factor = -np.linalg.lstsq(hessian, answer.gradient[0, free], rcond=None)[0], 1.0
        while factor >= SHORTEST_STEP:
            trial = w.copy()
            trial[free] += factor * step
            (tried,) = evaluate([Request(problem, trial[None], np.ones(1, bool), free)])
            if tried.value[0] <= answer.value[0] or _is_smaller(tried.gradient[0, free], answer.gradient[0, free]):
                break
            factor /= 2
        else:
            break
        w, answer, hessian = trial, tried, tried.hessian[0]
    return answer.gradient[0]


def _is_smaller(one: Array, other: Array) -> bool:
    return bool(np.linalg.norm(one) < np.linalg.norm(other))


def solve_second_order(
    problems: Sequence[Problem],
    numbers: Numbers,
    strengths: Array,
    tolerance: float,
    on_round: Callable[[], None],
    most_rounds: int,
    evaluate: Evaluate = evaluate_round,
    checkpoint: Checkpoint | None = None,
) -> list[Solutions]:
    """Return the solutions of every problem for the parameters [J] of psi, simplest model first."""
    checkpoint = checkpoint or Checkpoint()
    state = checkpoint.load()
    with_set = [uses_working_set(problem) for problem in problems]
    _log_sizes(problems, len(numbers), any(with_set))
    stages = stages_of(strengths) if any(with_set) else [slice(0, len(numbers))]
    starts = [problem.model.initial()[None] for problem in problems]
    parts: list[list[Solutions]] = [[] for _ in problems]
    last: list[Fit] = []
    done, first = 0, 0
    if state is not None:
        first = int(state["stage"])
        if first:
            parts = [[Solutions(**_part_of(state, f"solved_{k}_"))] for k in range(len(problems))]
    for index, stage in enumerate(stages[first:], first):
        own = numbers[stage]
        columns = [
            first_working_set(problem, own, last[k] if last else None) if with_set[k] else None
            for k, problem in enumerate(problems)
        ]
        fits = [
            Fit(problem, own, start, column, tolerance)
            for problem, start, column in zip(problems, starts, columns, strict=True)
        ]
        before = done
        if state is not None:
            before, done = int(state["before"]), int(state["done"])
            for k, fit in enumerate(fits):
                fit.restore(_part_of(state, f"fit_{k}_"))
            state = None

        def store(done: int, place: tuple[int, int] = (index, before), fits: list[Fit] = fits) -> None:
            checkpoint.store(lambda: _state_of(*place, done, parts, fits))

        done = advance(fits, on_round, before + most_rounds, evaluate, done, store)
        for part, fit in zip(parts, fits, strict=True):
            part.append(fit.solutions)
        starts, last = [fit.w[-1:] for fit in fits], fits
    return [Solutions.joined(part) for part in parts]


def _log_sizes(problems: Sequence[Problem], strengths: int, with_set: bool) -> None:
    """Log the bounds on the numbers of a round."""
    fits, size = len(problems), max(problem.layout.size for problem in problems)
    models = f"{fits * strengths:,} models of {fits} fits, {in_units(8 * fits * strengths * size)}"
    if with_set:
        limit = in_units(ANCHOR_BYTES)
        log.info(
            "a round has up to %s of gradients, and Hessians of working sets, up to %s or two of a fit", models, limit
        )
        return
    anchors = min(max_anchors(fits * size**2), strengths)
    hessians = in_units(8 * fits * anchors * packed_size(size))
    log.info("a round has up to %s of gradients, and %d Hessians of a fit, %s", models, anchors, hessians)


def max_anchors(entries: int) -> int:
    """Return the number of Hessians of every fit in a round, for the `entries` of one Hessian of all fits."""
    return max(2, min(MAX_ANCHORS, ANCHOR_BYTES // (8 * max(entries, 1))))


def _state_of(stage: int, before: int, done: int, parts: list[list[Solutions]], fits: list[Fit]) -> Part:
    """Return the state of a solve in a stage: the solutions of earlier stages and the fits of this one."""
    state = {"stage": np.array(stage), "before": np.array(before), "done": np.array(done)}
    for k, (part, fit) in enumerate(zip(parts, fits, strict=True)):
        solved = Solutions.joined(part).as_arrays() if part else {}
        state |= {f"solved_{k}_{name}": array for name, array in solved.items()}
        state |= {f"fit_{k}_{name}": array for name, array in fit.state.items()}
    return state


def _part_of(state: Part, prefix: str) -> Part:
    return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}


def refine(
    problem: Problem, numbers: Numbers, start: Array, tolerance: float, on_round: Callable[[], None],
    most_rounds: int, evaluate: Evaluate = evaluate_round,
) -> Solutions:  # fmt: skip
    """Return more accurate solutions of one problem, from models [J, P] next to them."""
    columns = None
    if uses_working_set(problem):
        columns = np.flatnonzero((start != 0).any(axis=0) | (penalty_bounds(problem, numbers) == 0).any(axis=0))
    fit = Fit(problem, numbers, start, columns, tolerance)
    advance([fit], on_round, most_rounds, evaluate, 0)
    return fit.solutions


def advance(
    fits: Sequence[Fit], on_round: Callable[[], None], last_round: int, evaluate: Evaluate, done: int,
    store: Callable[[int], None] = lambda done: None,
) -> int:  # fmt: skip
    """Run rounds until every model of the fits has converged or failed; return the number of rounds, plus `done`."""
    while (active := [fit for fit in fits if len(fit.active)]) and done < last_round:
        done += 1
        size = sum((fit.problem.layout.size if fit.columns is None else len(fit.columns)) ** 2 for fit in active)
        anchors = max_anchors(size)
        requests = [fit.request(anchors if fit.columns is None else min(STAGE_ANCHORS, anchors)) for fit in active]
        answers = evaluate(requests)
        for fit, answer in zip(active, answers, strict=True):
            fit.receive(answer, done)
        store(done)
        on_round()
    return done


def stages_of(strengths: Array) -> list[slice]:
    """Return slices of consecutive strengths, each at least STAGE_RATIO times the first of its slice."""
    starts = [0]
    for j in range(1, len(strengths)):
        if strengths[j] < STAGE_RATIO * strengths[starts[-1]]:
            starts.append(j)
    return [slice(low, high) for low, high in zip(starts, [*starts[1:], len(strengths)], strict=True)]


def first_working_set(problem: Problem, numbers: Numbers, last: Fit | None) -> Array:
    """Return the working set of a stage: unpenalized and non-zero weights, and those with the largest gradients.

    A weight may leave 0 within the stage if its gradient exceeds the penalty of the smallest strength.
    """
    smallest = penalty_bounds(problem, numbers[-1:])[0]
    if last is None:
        return np.flatnonzero(smallest == 0)
    columns = np.flatnonzero((smallest == 0) | (last.w[-1] != 0))
    return with_largest(columns, np.abs(last.gradient[-1]) - smallest)


def solve_by_moments(
    problems: Sequence[Problem], numbers: Numbers, tolerance: float, evaluate: Evaluate = evaluate_round
) -> list[Solutions]:
    """Return the solutions for a squared loss from one round."""
    starts = [problem.model.initial()[None] for problem in problems]
    one = np.ones(1, bool)
    answers = evaluate([Request(problem, w, one, None) for problem, w in zip(problems, starts, strict=True)])
    log_condition([answers[0].hessian[0]])
    warn_of_lost_digits([answer.hessian[0] for answer in answers])
    return [
        _solve_moments(problem, numbers, tolerance, w, answer)
        for problem, w, answer in zip(problems, starts, answers, strict=True)
    ]


def _solve_moments(problem: Problem, numbers: Numbers, tolerance: float, w: Array, answer: Quadratic) -> Solutions:
    jobs = len(numbers)
    start, gradient = np.repeat(w, jobs, axis=0), np.repeat(answer.gradient, jobs, axis=0)
    models = minimize_quadratic(problem, numbers, answer.hessian, gradient, start, chain=jobs)
    change = models - start
    slope = change @ answer.hessian[0]
    residuals = problem.kkt_residual(models, gradient + slope, numbers)
    converged = residuals <= residual_threshold(problem, numbers, tolerance)
    train_losses = answer.value + (change * (gradient + slope / 2)).sum(axis=1)
    return Solutions(models, np.ones(jobs, int), residuals / problem.kkt_scale(numbers), converged, train_losses)
