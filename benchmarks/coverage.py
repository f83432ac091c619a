"""Coverage of confidence intervals over simulated federations: python -m benchmarks.coverage [--federations 1000].

`--first 1000` draws other federations than those on which the constants of the debiased lasso were chosen.

Every federation draws new rows at clients of different sizes and different means of the features. The table lists, for
every model, the share of 95 % intervals that contain the true coefficient, over all coefficients other than the
intercept. `debiased` is the debiased lasso with 1,000 rows, 200 features and 5 non-zero coefficients.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from fco_cli.inference.estimate import estimate
from fco_cli.path.select import limited_threads
from fco_cli.problem.data import ClientData
from fco_cli.problem.losses import all_losses
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.problem import Problem, TaskData
from fco_cli.problem.regularizers import all_regularizers

LEVEL = 0.95
NONZERO = 5
CORRELATION = 0.5  # of neighboring features


@dataclass(frozen=True)
class Case:
    """Kind of federation: loss, size, and the strength of the l1 penalty; None: no penalty."""

    loss: str
    rows: int
    features: int
    clients: int
    effect: float
    strength: float | None = None
    kind: str = "model"

    @property
    def name(self) -> str:
        return f"{'debiased ' if self.strength else ''}{self.loss}, {self.kind}"


def debiased(loss: str, scale: float, effect: float) -> Case:
    """Return a case of the debiased lasso; `scale` is the standard deviation of the slopes of the loss."""
    return Case(loss, 1000, 200, 5, effect, scale * float(np.sqrt(np.log(200) / 1000)) / 2)


CASES = (
    Case("squared", 200, 6, 5, 0.5),
    Case("logistic", 500, 6, 5, 0.5),
    Case("logistic", 500, 6, 5, 0.5, kind="hc1"),
    Case("poisson", 200, 6, 5, 0.3),
    Case("cox", 300, 6, 5, 0.5),
    Case("logistic", 2000, 6, 50, 0.5, kind="cluster"),
    debiased("squared", 2.0, 0.5),
    debiased("logistic", 0.5, 0.5),
)


def draw(case: Case, seed: int) -> tuple[Problem, np.ndarray]:
    """Return a simulated federation and its true coefficients."""
    random = np.random.default_rng([seed, case.rows, case.features])
    cuts = np.sort(random.choice(np.arange(1, case.rows // 10), case.clients - 1, replace=False)) * 10
    offsets = np.array([0, *cuts, case.rows])
    noise = random.standard_normal((case.rows, case.features))
    x = noise.copy()
    for k in range(1, case.features):
        x[:, k] = CORRELATION * x[:, k - 1] + np.sqrt(1 - CORRELATION**2) * noise[:, k]
    x += np.repeat(0.3 * random.standard_normal((case.clients, case.features)), np.diff(offsets), axis=0)
    truth = np.zeros(case.features)
    truth[: min(NONZERO, case.features - 1)] = case.effect * np.array([1, -1, 1, -0.5, 0.5])
    score = x @ truth
    y = LABELS[case.loss](random, score)
    task = TaskData(ClientData(x, y, offsets), Linear(case.features, 1), all_losses()[case.loss]())
    kinds = all_regularizers()
    psi = kinds["none"]() if case.strength is None else kinds["l1"](strength=case.strength)  # type: ignore[call-arg]
    return task.to_problem(psi, weighting="examples"), truth


def _times(random: np.random.Generator, score: np.ndarray) -> np.ndarray:
    """Return exponential times, negative if censored."""
    times, limits = random.exponential(np.exp(-score)), random.exponential(3.0, len(score))
    return np.where(times < limits, times, -limits)


LABELS: dict[str, Callable[[np.random.Generator, np.ndarray], np.ndarray]] = {
    "squared": lambda random, score: score + random.standard_normal(len(score)),
    "logistic": lambda random, score: (random.random(len(score)) < 1 / (1 + np.exp(-score))).astype(float),
    "poisson": lambda random, score: random.poisson(np.exp(score)).astype(float),
    "cox": _times,
}


def covers(case: Case, seed: int) -> np.ndarray:
    """Return a mask [p]: True where the interval contains the coefficient."""
    problem, truth = draw(case, seed)
    estimates = estimate(problem, with_tests=False)
    slopes = np.setdiff1d(np.arange(len(estimates.coefficients)), estimates.design.intercepts)
    degrees = estimates.degrees(case.kind)
    quantile = (stats.norm if degrees is None else stats.t(degrees)).ppf((1 + LEVEL) / 2)
    errors = np.sqrt(np.diag(estimates.covariance(case.kind)))
    return (
        np.abs(estimates.coefficients - np.pad(truth, (len(errors) - len(truth), 0)))[slopes]
        <= quantile * errors[slopes]
    )


def coverage(case: Case, federations: int, first: int = 0) -> tuple[float, float, float]:
    """Return the coverage of all coefficients, of the non-zero ones and of the others."""
    with limited_threads(1):
        covered = np.mean([covers(case, seed) for seed in range(first, first + federations)], axis=0)
    nonzero = min(NONZERO, case.features - 1)
    return float(covered.mean()), float(covered[:nonzero].mean()), float(covered[nonzero:].mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--federations", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first federation")
    options = parser.parse_args()
    print("| model, errors | rows | clients | features | all | non-zero | zero |\n|---|---|---|---|---|---|---|")
    for case in CASES:
        shares = " | ".join(f"{100 * share:.1f} %" for share in coverage(case, options.federations, options.first))
        print(f"| {case.name} | {case.rows} | {case.clients} | {case.features} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
