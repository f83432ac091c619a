"""Estimates with their covariance matrices and likelihood-ratio tests, from sums over clients.

The objective is F = -log likelihood / N (squared loss: RSS / N). With its Hessian H, the covariance matrices are

    model    phi H^-1 / N, phi = 1, or 2 sigma^2 for the squared loss, sigma^2 = RSS / (N - A)
    hc0      H^-1 (sum over rows of u u') H^-1, u = gradient of the row's contribution to F
    hc1      hc0 times N / (N - A)
    cluster  H^-1 (sum over clients of U U') H^-1, times M / (M - 1) (N - 1) / (N - A) unless the loss is Cox's

for N rows of M clients and A coefficients, as in statsmodels and, for the Cox loss, R's survival.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import stats

from fco_cli.errors import UserError, require
from fco_cli.inference.design import Design, design_of
from fco_cli.inference.fit import check_design, check_maximum, fit_columns
from fco_cli.inference.sums import ClientSums, SumOptions, Sums
from fco_cli.problem.layout import Array
from fco_cli.problem.nodewise import nodewise_inverse
from fco_cli.problem.problem import Problem
from fco_cli.problem.quadratic_solver import scalar_forms

COVARIANCES = ("model", "hc0", "hc1", "cluster")
LIKELIHOODS = ("squared", "logistic", "poisson", "softmax", "cox")
NEGLIGIBLE = 1e-7  # relative KKT residual of a fit that rounding has stopped


class Test(NamedTuple):
    """Test of a hypothesis: a likelihood ratio with a chi-squared distribution, or an F statistic."""

    statistic: float
    numerator: int  # degrees of freedom
    denominator: int | None  # of an F statistic
    p: float

    @classmethod
    def of(cls, statistic: float, numerator: int, denominator: int | None = None) -> Test:
        tail = stats.chi2.sf(statistic, numerator) if denominator is None else stats.f.sf(
            statistic, numerator, denominator
        )  # fmt: skip
        return cls(float(statistic), numerator, denominator, float(tail))


@dataclass(frozen=True)
class Estimates:
    """Estimated coefficients in the units of the table."""

    design: Design
    weights: Array  # [A], for prepared features
    inverse: Array  # [A, A], H^-1 or, after selection, an approximation
    sums: Sums
    rows: int
    clients: int
    loss: str
    dispersion: float  # sigma^2 of the squared loss, else 1
    is_debiased: bool
    selected: list[str]  # after selection: coefficients that the regularizer left non-zero
    rounds: int
    null_value: float  # F of the null model
    test: Test | None  # of all terms; None after selection
    term_tests: dict[str, Test]

    @property
    def coefficients(self) -> Array:
        return self.design.coefficients(self.weights)

    def degrees(self, kind: str) -> int | None:
        """Return the degrees of freedom of the t distribution of a squared loss; None: normal distribution.

        Tests with robust covariance matrices use the normal distribution.
        """
        is_t = self.loss == "squared" and kind == "model" and not self.is_debiased
        return self.rows - len(self.weights) if is_t else None

    @property
    def kinds(self) -> list[str]:
        """Covariance matrices that the sums determine; clusters need two clients."""
        missing = {"hc0", "hc1", "cluster"} if self.sums.rows is None else set[str]()
        if self.sums.clients is None or self.clients < 2:
            missing.add("cluster")
        return [kind for kind in COVARIANCES if kind not in missing]

    def covariance(self, kind: str) -> Array:
        """Return a covariance matrix [A, A] of the coefficients; `kind` is one of COVARIANCES."""
        require(kind in COVARIANCES, "covariance", kind, "one of " + ", ".join(COVARIANCES))
        require(kind in self.kinds, "covariance", kind, f"one of {', '.join(self.kinds)}: no other sums were requested")
        size = len(self.selected) if self.is_debiased else len(self.weights)
        if kind == "model":
            factor = 2 * self.dispersion if self.loss == "squared" else 1.0
            middle = factor * self.sums.hessian / self.rows
        elif kind == "cluster":
            is_corrected = self.loss != "cox"
            factor = self.clients / (self.clients - 1) * (self.rows - 1) / (self.rows - size) if is_corrected else 1.0
            assert self.sums.clients is not None
            middle = factor * self.sums.clients
        else:
            assert self.sums.rows is not None
            middle = (self.rows / (self.rows - size) if kind == "hc1" else 1.0) * self.sums.rows
        return self.design.covariance(self.inverse @ middle @ self.inverse.T)

    @property
    def deviance(self) -> float:
        """-2 log likelihood, up to a constant of the data; RSS for the squared loss."""
        return self.rows * self.sums.value * (1 if self.loss == "squared" else 2)

    @property
    def null_deviance(self) -> float:
        return self.rows * self.null_value * (1 if self.loss == "squared" else 2)


def estimate(
    problem: Problem,
    drop: Sequence[str] = (),
    with_tests: bool = True,
    on_round: Callable[[], None] = lambda: None,
    options: SumOptions = SumOptions(),  # noqa: B008 (immutable)
) -> Estimates:
    """Return the maximum-likelihood estimates or, with an l1 regularizer, debiased ones.

    `drop` are features or columns that are left out. `with_tests` adds likelihood-ratio tests of the terms. `options`
    are those of the sums over clients.
    """
    check_problem(problem)
    design = design_of(problem, drop)
    own_sums = ClientSums(problem, design.columns, options)
    if is_penalized(problem, design):
        return _estimate_debiased(own_sums, design, on_round)
    first = check_design(own_sums, design)
    null = np.setdiff1d(design.columns, design.columns[design.weights_of(_slopes(design))])
    terms = {} if problem.loss.quadratic or not with_tests else design.terms
    sets = [design.columns, *([null] if len(null) else [])]
    sets += [columns for places in terms.values() if len(columns := design.columns_without(places))]
    fits = fit_columns(own_sums, first, design.start, sets, on_round)
    full = fits[0]
    sums = own_sums.at(full.w[0])
    check_maximum(
        design, first.hessian[0], sums.hessian, bool(full.converged[0] or full.solutions.residuals[0] < NEGLIGIBLE)
    )
    inverse = np.linalg.inv(sums.hessian)
    inverse = (inverse + inverse.T) / 2
    at_start = float(first.value[0])
    null_value = float(fits[1].value[0]) if len(null) else at_start
    values = iter(float(fit.value[0]) for fit in fits[len(sets) - len(terms) :])
    rows, size = int(problem.data.sizes.sum()), len(design.columns)
    is_quadratic = problem.loss.quadratic
    result = Estimates(
        design, full.w[0, design.columns] - inverse @ sums.gradient, inverse, sums, rows, problem.data.clients,
        problem.loss.name, rows * sums.value / (rows - size) if is_quadratic else 1.0, False, [],
        max(int(fit.rounds.max()) for fit in fits), null_value,
        _test(rows, size, null_value, sums.value, len(_slopes(design)), is_quadratic), {},
    )  # fmt: skip
    if is_quadratic and with_tests:
        covariance, values_of = result.covariance("model"), result.coefficients
        for name, places in design.terms.items():
            own = values_of[places]
            statistic = own @ np.linalg.solve(covariance[np.ix_(places, places)], own) / len(places)
            result.term_tests[name] = Test.of(float(statistic), len(places), rows - size)
    for name, places in terms.items():
        value = next(values) if len(places) < size else at_start
        result.term_tests[name] = _test(rows, size, value, sums.value, len(places), False)
    return result


def check_problem(problem: Problem) -> None:
    """Raise UserError if the loss, the weighting or the regularizer does not permit inference."""
    loss, psi = problem.loss.name, problem.regularizer.name
    require(loss in LIKELIHOODS, "task.loss", loss, f"one of {', '.join(LIKELIHOODS)} for experiment=glm")
    require(problem.weighting == "examples", "hparams.weighting", problem.weighting, "examples for experiment=glm")
    if psi not in ("none", "l1"):
        raise UserError(
            f"regularizer: got {psi}, must be none, or l1 for debiased intervals: estimates with {psi} are biased, and "
            "their intervals do not have the stated coverage"
        )


def is_penalized(problem: Problem, design: Design) -> bool:
    """Return True if the regularizer changes an estimated weight."""
    return bool(penalties(problem, design).any())


def penalties(problem: Problem, design: Design) -> Array:
    """Return the l1 penalty of every estimated weight [A]."""
    forms = scalar_forms(problem, problem.regularizer.numbers, np.arange(problem.layout.size))
    assert forms is not None
    return forms[0, 0, design.columns]


def _slopes(design: Design) -> Array:
    """Return the indices of the coefficients other than intercepts."""
    return np.setdiff1d(np.arange(len(design.names)), design.intercepts)


def _test(rows: int, size: int, restricted: float, full: float, count: int, is_quadratic: bool) -> Test:
    """Return the likelihood-ratio test, or the F test of a squared loss, of a restricted model."""
    if is_quadratic:
        return Test.of((restricted - full) / count / (full / (rows - size)), count, rows - size)
    return Test.of(max(0.0, 2 * rows * (restricted - full)), count)


def nodewise_penalty(rows: int, features: int) -> float:
    """Return the penalty of the nodewise regressions of features of unit variance: sqrt(log(p) / N) / 4.

    A small penalty favors coverage over short intervals: the remaining bias is proportional to it.
    """
    return float(np.sqrt(np.log(max(features, 2)) / rows)) / 4


def _estimate_debiased(own_sums: ClientSums, design: Design, on_round: Callable[[], None]) -> Estimates:
    """Return the lasso plus one Newton step with an approximate inverse Hessian (van de Geer et al., 2014)."""
    problem = own_sums.problem
    first = own_sums.quadratic(design.start)
    null = float(first.value[0])
    (fit,) = fit_columns(own_sums, first, design.start, [design.columns], on_round)
    if not (fit.converged[0] or fit.solutions.residuals[0] < NEGLIGIBLE):
        raise UserError("glm: the lasso has not converged; rescale the columns or raise regularizer.strength")
    w = fit.w[0]
    sums = own_sums.at(w)
    rows = int(problem.data.sizes.sum())
    is_free = penalties(problem, design) == 0
    inverse = nodewise_inverse(sums.hessian, is_free, nodewise_penalty(rows, int((~is_free).sum())))
    own = w[design.columns]
    nonzero = np.flatnonzero(own)
    names = [design.names[k] for k, place in enumerate(design.weights_of(np.arange(len(own)))) if place in nonzero]
    dispersion = rows * sums.value / max(1, rows - len(nonzero)) if problem.loss.quadratic else 1.0
    return Estimates(
        design, own - inverse @ sums.gradient, inverse, sums, rows, problem.data.clients, problem.loss.name,
        dispersion, True, names, int(fit.rounds.max()), null, None, {},
    )  # fmt: skip
