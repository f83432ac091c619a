"""Maximum likelihood: Newton's method on sums over clients, for several sets of columns at once.

The full model, the null model and the models without one term advance together: one round answers all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from fco_cli.errors import UserError
from fco_cli.inference.design import LISTED, Design, check_rank
from fco_cli.inference.sums import ClientSums
from fco_cli.path.second_order import Fit, advance
from fco_cli.problem.curvature import Quadratic
from fco_cli.problem.layout import Array
from fco_cli.problem.problem import Problem
from fco_cli.simulation.evaluate import residual_threshold

TOLERANCE = 1e-12  # on the relative KKT residual
FIXED_POINT = 2.0**12  # the same with fixed-point sums, in units of their last bit
MAX_ROUNDS = 200
SEPARATED = 1e-7  # curvature along a direction, relative to that at the start, below which there is no maximum


class RestrictedFit(Fit):
    """Fit of some columns; all other weights keep their initial values. Every round has a Hessian."""

    def __init__(self, problem: Problem, start: Array, columns: Array, tolerance: float, slope_at_start: float):
        super().__init__(problem, problem.regularizer.numbers, start[None], columns, tolerance)
        self.is_estimated = np.isin(np.arange(problem.layout.size), columns)
        self.slope_at_start = slope_at_start
        self.can_be_narrow = False  # the sums contain complete gradients

    @cached_property
    def threshold(self) -> Array:
        return residual_threshold(self.problem, self.numbers, self.tolerance, self.slope_at_start)

    def receive(self, answer: Quadratic, round_number: int) -> None:
        super().receive(answer._replace(gradient=answer.gradient * self.is_estimated), round_number)
        self.needs_hessians = True

    def _extend_columns(self) -> None:
        """Keep the columns."""


def fit_columns(
    sums: ClientSums, first: Quadratic, start: Array, columns: Sequence[Array], on_round: Callable[[], None]
) -> list[RestrictedFit]:
    """Return a fit for every set of columns; all begin at `start` [P], where the sums are `first`."""
    bits = sums.options.bits
    tolerance = TOLERANCE if bits is None else max(TOLERANCE, FIXED_POINT * 2.0**-bits)
    slope = float(np.linalg.norm(first.gradient))
    fits = [RestrictedFit(sums.problem, start, own, tolerance, slope) for own in columns]
    advance(fits, on_round, MAX_ROUNDS, sums.evaluate, 0)
    return fits


def check_design(sums: ClientSums, design: Design) -> Quadratic:
    """Return the sums at the start; raise UserError for too few rows or collinear columns."""
    problem = sums.problem
    rows, size = int(problem.data.sizes.sum()), len(design.columns)
    if not size:
        raise UserError("glm: the table has no features to estimate coefficients of")
    if rows <= size:
        raise UserError(
            f"glm: {rows} rows cannot determine {size} coefficients; remove columns (glm.drop) or use regularizer=l1"
        )
    first = sums.quadratic(design.start)
    hessian = first.hessian[0]
    if not np.isfinite(hessian).all():
        raise UserError("glm: the likelihood overflows at the start; rescale the data, or lower hparams.fraction_bits")
    order = design.weights_of(np.arange(len(design.names)))
    is_within = problem.loss.client_loss is not None or problem.model.site_bias
    check_rank(hessian[np.ix_(order, order)], design.names, is_within)
    return first


def check_maximum(design: Design, first: Array, hessian: Array, has_converged: bool) -> None:
    """Raise UserError if the likelihood has no maximum, given the Hessians at the start and at the last model."""
    factor = np.linalg.cholesky(first)
    half = np.linalg.solve(factor, hessian)
    ratio = np.linalg.solve(factor, half.T)
    values, vectors = np.linalg.eigh((ratio + ratio.T) / 2)
    if values[0] < SEPARATED * max(1.0, values[-1]):
        direction = np.abs(np.linalg.solve(factor.T, vectors[:, 0]) * np.sqrt(np.diag(first)))
        order = design.weights_of(np.arange(len(design.names)))
        is_large = direction[order] > 0.05 * direction.max()
        names = [design.names[k] for k in np.flatnonzero(is_large) if k not in design.intercepts]
        shown = ", ".join(names[:LISTED]) + (", ..." if len(names) > LISTED else "")
        raise UserError(
            f"glm: the likelihood has no maximum (separation): the labels are determined along {shown}; "
            "remove or merge these columns (glm.drop), or use regularizer=l1"
        )
    if not has_converged:
        raise UserError("glm: Newton's method has not converged; rescale the columns or remove outliers")
