from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fco_cli.problem.data import ClientData
from fco_cli.problem.losses import all_losses
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.problem import Problem, TaskData
from fco_cli.problem.regularizers import Regularizer, all_regularizers


def labels(random: np.random.Generator, loss: str, score: np.ndarray) -> np.ndarray:
    if loss == "logistic":
        return (random.random(len(score)) < 1 / (1 + np.exp(-score))).astype(float)
    if loss == "poisson":
        return random.poisson(np.exp(score)).astype(float)
    if loss == "softmax":
        return (
            np.argmax(np.stack([0 * score, score, 0.5 - score]).T + random.gumbel(size=(len(score), 3)), axis=1) * 1.0
        )
    if loss == "cox":
        times, limits = random.exponential(np.exp(-score)), random.exponential(2, len(score))
        return np.where(times < limits, times, -limits)
    return score + 0.7 * random.standard_normal(len(score))


@pytest.fixture
def problem_of() -> Callable[..., Problem]:
    """Return a function that makes an unpenalized problem of four clients with different numbers of rows."""

    def make(
        loss: str, rows: int = 90, features: int = 3, seed: int = 0, psi: Regularizer | None = None,
        weights: bool = False, site_bias: bool = False,
    ) -> Problem:  # fmt: skip
        random = np.random.default_rng(seed)
        x = random.standard_normal((rows, features)) + 0.3 * random.standard_normal((rows, 1))
        effects = np.array([0.6, -0.4, 0.0, 0.3, 0.0])[:features]
        y = labels(random, loss, x @ effects + 0.2)
        offsets = np.array([0, rows // 6, rows // 2, 2 * rows // 3, rows])
        data = ClientData(x, y, offsets, 0.5 + random.random(rows) if weights else None)
        model = Linear(features, 3 if loss == "softmax" else 1, site_bias=site_bias)
        task = TaskData(data, model, all_losses()[loss](), clients=list("abcd"))
        return task.to_problem(psi or all_regularizers()["none"](), weighting="examples")

    return make
