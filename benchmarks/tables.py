"""Clients' tables without tuning, against scikit-learn on pooled rows: `python -m benchmarks.tables [FOLDER]`.

FOLDER has the published files of task=heart, task=crime and task=eicu in heart_disease, communities_crime and
eicu_demo; what is not there is left out.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from sklearn.linear_model import Lasso, LogisticRegression

from benchmarks.cases import REAL_DATA, composed
from fco_cli.config import PathRun, Run
from fco_cli.config.compose import compose
from fco_cli.estimators import FederatedLasso
from fco_cli.path.method import solve
from fco_cli.path.select import select
from fco_cli.path.solve import problem_for, with_value
from fco_cli.problem.layout import Array
from fco_cli.problem.problem import Problem

TASKS = {
    "heart": ("heart_disease", [0.05]),
    "crime": ("communities_crime", [0.1, 0.02, 0.005]),
    "eicu": ("eicu_demo", [0.02, 0.01, 0.003]),
}
T = TypeVar("T")


@dataclass(frozen=True)
class Compared:
    """Our model at one strength and the pooled one; on the rows that neither has seen, their AUC, or R^2 and RMSE."""

    strength: float
    model: Array
    pooled: Array
    unseen: dict[str, float]
    unseen_pooled: dict[str, float]

    @property
    def difference(self) -> float:
        return float(np.abs(self.model - self.pooled).max())

    @property
    def same_support(self) -> bool:
        return bool(((self.model != 0) == (self.pooled != 0)).all())


def compare(run: Run, strengths: list[float]) -> list[Compared]:
    """For every strength, from the same prepared rows."""
    data = run.task.cross_validated().data(0, "float64")
    problem = problem_for(run, data)
    models = solve(run, data, [with_value(run.regularizer, one) for one in strengths], 1e-8).models
    found = []
    for strength, model in zip(strengths, models, strict=True):
        best = pooled(problem, strength)
        found.append(Compared(strength, model, best, unseen(problem, model), unseen(problem, best)))
    return found


def pooled(problem: Problem, strength: float) -> Array:
    """Weights and bias on all rows together, every row with the weight that it has in F."""
    data = problem.data
    weights = np.repeat(problem.weights / data.sizes, data.sizes) * len(data.y)
    if problem.loss.name == "logistic":
        model = LogisticRegression(
            l1_ratio=1, C=1 / (strength * len(data.y)), solver="saga", tol=1e-12, max_iter=100_000
        )
    else:
        model = Lasso(alpha=strength / 2, tol=1e-14, max_iter=1_000_000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the tolerance is out of reach
        model.fit(data.x, data.y, sample_weight=weights)
    return np.append(model.coef_, model.intercept_)


def unseen(problem: Problem, w: Array) -> dict[str, float]:
    assert problem.test is not None
    scores = problem.test.x @ w[:-1] + w[-1]
    return problem.loss.metrics(scores, problem.test.y, problem.test.offsets)


def timed(work: Callable[[], T]) -> tuple[T, str]:
    clock, processor = time.perf_counter(), time.process_time()
    found = work()
    return found, f"{time.process_time() - processor:.2f} s of processor time, {time.perf_counter() - clock:.2f} s"


def lasso() -> None:
    """Measure 100 clients of 100 rows with 1,000 features, ten of them relevant; the first call may compile."""
    random = np.random.default_rng(0)
    x = random.standard_normal((10_000, 1_000))
    y = x[:, :10].sum(axis=1) + random.standard_normal(10_000)
    clients = np.repeat(np.arange(100), 100)
    for call in ("first", "second"):
        model, took = timed(lambda: FederatedLasso(0.1).fit(x, y, groups=clients))
        print(f"FederatedLasso(0.1).fit, {call} call: {took}, KKT residual {model.kkt_:.1e} of the strength")


def published(name: str, folder: Path, strengths: list[float]) -> None:
    """Compare both weightings with the pooled solution, then measure the whole path."""
    words = ["experiment=path", f"task={name}", f"task.data_dir={folder}"]
    for weighting in ("uniform", "examples"):
        for one in compare(composed(*words, f"hparams.weighting={weighting}", "task.test=rows"), strengths):
            apart = max(abs(one.unseen[key] - one.unseen_pooled[key]) for key in one.unseen)
            print(
                f"{name}, {weighting}, strength {one.strength}: {np.count_nonzero(one.model[:-1])} non-zero weights, "
                f"largest difference {one.difference:.1e}, support {'the same' if one.same_support else 'differs'}, "
                f"metrics of unseen rows differ by {apart:.1e}"
            )
    run = PathRun.of(compose(words))
    _, took = timed(lambda: select(run, run.path, lambda: None))
    print(f"{name}: {run.path.strengths} strengths, {run.path.folds} folds: {took}")


def main(folder: Path) -> None:
    lasso()
    for name, (place, strengths) in TASKS.items():
        if (folder / place).is_dir():
            published(name, folder / place, strengths)
        else:
            print(f"{name}: {folder / place} is not here")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else REAL_DATA)
