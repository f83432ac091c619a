"""Meta-analysis of the clients' separate estimates, for comparison with the federated fit.

Every client fits the model to its own rows, if they determine it. The estimates of a coefficient are pooled by inverse
variances (fixed effect) and with a variance tau^2 between clients (random effects), by DerSimonian and Laird (1986) and
by restricted maximum likelihood.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from scipy import stats

from fco_cli.errors import UserError
from fco_cli.inference.estimate import Estimates, estimate
from fco_cli.inference.sums import SumOptions, call
from fco_cli.problem.data import RemoteRows
from fco_cli.problem.layout import Array
from fco_cli.problem.problem import Problem

STEPS, ACCURACY = 1000, 1e-12  # of Fisher scoring for tau^2, relative to the mean variance


@dataclass(frozen=True)
class Pooled:
    """Pooled estimates of one coefficient; intervals have the given level."""

    count: int  # estimates
    fixed: float
    fixed_error: float
    dl: float  # random effects, DerSimonian and Laird
    dl_error: float
    dl_tau2: float
    reml: float  # random effects, restricted maximum likelihood
    reml_error: float
    reml_tau2: float
    q: float  # Cochran's statistic of heterogeneity
    q_p: float
    i2: float  # share of the variation between clients, (Q - df) / Q
    prediction_low: float | None  # interval for the coefficient at a new client (Higgins et al., 2009), from 3 clients
    prediction_high: float | None


def pool(values: Array, variances: Array, level: float = 0.95) -> Pooled:
    """Return the pooled estimates of values [k] with known variances [k]."""
    count, weights = len(values), 1 / variances
    fixed = float(weights @ values / weights.sum())
    q = float(weights @ (values - fixed) ** 2)
    excess = q - (count - 1)
    scale = weights.sum() - (weights**2).sum() / weights.sum()
    dl_tau2 = max(0.0, float(excess / scale)) if count > 1 else 0.0
    reml_tau2 = _reml(values, variances, dl_tau2) if count > 1 else 0.0
    dl, dl_error = _random(values, variances, dl_tau2)
    reml, reml_error = _random(values, variances, reml_tau2)
    low = high = None
    if count > 2:
        reach = float(stats.t.ppf((1 + level) / 2, count - 2)) * float(np.hypot(reml_error, np.sqrt(reml_tau2)))
        low, high = reml - reach, reml + reach
    q_p = float(stats.chi2.sf(q, count - 1)) if count > 1 else 1.0
    i2 = max(0.0, excess / q) if q > 0 else 0.0
    return Pooled(
        count, fixed, float(weights.sum() ** -0.5), dl, dl_error, dl_tau2, reml, reml_error, reml_tau2, q, q_p, i2,
        low, high,
    )  # fmt: skip


def _random(values: Array, variances: Array, tau2: float) -> tuple[float, float]:
    """Return the random-effects mean and its standard error."""
    weights = 1 / (variances + tau2)
    return float(weights @ values / weights.sum()), float(weights.sum() ** -0.5)


def _reml(values: Array, variances: Array, start: float) -> float:
    """Return the restricted maximum-likelihood estimate of tau^2, by Fisher scoring with steps that stay >= 0."""
    tau2, typical = start, float(variances.mean())
    for _ in range(STEPS):
        weights = 1 / (variances + tau2)
        total = weights.sum()
        mean = weights @ values / total
        trace = total - (weights**2).sum() / total
        slope = weights**2 @ (values - mean) ** 2 - trace
        information = (weights**2).sum() - 2 * (weights**3).sum() / total + ((weights**2).sum() / total) ** 2
        updated = max(0.0, float(tau2 + slope / information))
        if abs(updated - tau2) <= ACCURACY * (typical + tau2):
            return updated
        tau2 = updated
    return tau2


@dataclass(frozen=True)
class MetaAnalysis:
    """Estimates of every client and their pooled values."""

    names: list[str]  # coefficients
    clients: list[str]  # with a fit of their own
    rows: list[int]  # of these clients
    coefficients: Array  # [k, A]
    errors: Array  # [k, A]
    pooled: list[Pooled]  # by coefficient; empty if fewer than two clients have a fit
    without: dict[str, str]  # clients without a fit of their own, with the reason

    def client_lines(self) -> list[dict[str, Any]]:
        """Return a line per client and coefficient."""
        return [
            {"client": client, "rows": rows, "coefficient": name, "estimate": float(value), "error": float(error)}
            for client, rows, values, errors in zip(
                self.clients, self.rows, self.coefficients, self.errors, strict=True
            )
            for name, value, error in zip(self.names, values, errors, strict=True)
        ]

    def pooled_lines(self) -> list[dict[str, Any]]:
        """Return a line per coefficient; none if fewer than two clients have a fit."""
        lines = zip(self.names, self.pooled, strict=False)
        return [{"coefficient": name, **asdict(pooled)} for name, pooled in lines]


def meta_analysis(
    problem: Problem,
    federated: Estimates,
    level: float,
    drop: Sequence[str] = (),
    on_round: Callable[[], None] = lambda: None,
    retry: Callable[[Callable[[], Any]], Any] = call,
) -> MetaAnalysis:
    """Return the meta-analysis of a problem whose federated estimates are known; `retry` as in `SumOptions`."""
    options = SumOptions(with_rows=False, with_clients=False, retry=retry)
    names = problem.clients or [f"client {m}" for m in range(problem.data.clients)]
    fitted: dict[str, Estimates] = {}
    without: dict[str, str] = {}
    for m, name in enumerate(names):
        if isinstance(problem.data, RemoteRows) and (reason := problem.data.why_no_estimates(m)):
            without[name] = reason
            continue
        own = replace(problem, training=problem.training.client(m), clients=[name], held_out=None, test=None)
        try:
            fitted[name] = estimate(own, drop, with_tests=False, on_round=on_round, options=options)
        except UserError as problem_of_fit:
            without[name] = str(problem_of_fit).removeprefix("glm: ")
    size = len(federated.design.names)
    values = np.array([one.coefficients for one in fitted.values()]).reshape(-1, size)
    errors = np.array([np.sqrt(np.diag(one.covariance("model"))) for one in fitted.values()]).reshape(-1, size)
    pooled = [pool(values[:, k], errors[:, k] ** 2, level) for k in range(size)] if len(fitted) > 1 else []
    return MetaAnalysis(
        federated.design.names, list(fitted), [one.rows for one in fitted.values()], values, errors, pooled, without
    )
