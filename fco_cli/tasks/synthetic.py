"""Synthetic linear regressions of appendix B of the paper: clients differ in the means of their features.

Lasso: sparse weights (section 5.1). Nuclear: a low-rank matrix (section 5.2).
"""

from __future__ import annotations

from abc import abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from fco_cli.errors import require
from fco_cli.problem.data import ClientData
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Squared
from fco_cli.problem.models.linear import Linear, Model
from fco_cli.problem.problem import Problem, TaskData
from fco_cli.problem.streams import MEANS, TRAINING, TRUTH, VALIDATION, generator
from fco_cli.tasks.base import Task, require_own_layout
from fco_cli.tasks.metrics import rank, sparse_recovery

THRESHOLD = 1e-2  # smaller weights and singular values count as zero


@dataclass(kw_only=True)
class SyntheticRegression(Task):
    """Linear regression: x = heterogeneity * mu_m + N(0, I), y = <w_real, x> + b_real + N(0, 1), squared loss."""

    clients: int  # M
    samples: int  # rows per client
    heterogeneity: float = 1.0  # scales the client means; 1 is the text of the paper, see docs/paper.md, "Findings"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.clients >= 1, "task.clients", self.clients, "a whole number >= 1")
        require(self.samples >= 1, "task.samples", self.samples, "a whole number >= 1")
        require(0 <= self.heterogeneity <= 1e6, "task.heterogeneity", self.heterogeneity, "from 0 to 1e6")

    @property
    def clients_available(self) -> int:
        return self.clients

    @property
    @abstractmethod
    def features(self) -> int:
        """Number of weights d."""

    def bytes_needed(self, dtype: str) -> int:
        """Return the bytes of training and validation rows, which are drawn in float64."""
        return 2 * self.clients * self.samples * (self.features + 1) * 8

    @abstractmethod
    def true_weights(self) -> Array:
        """Return w_real in the shape of the regularizer's variable."""

    def check_model(self, own: Model, chosen: Model) -> None:
        require_own_layout(self, own, chosen)

    def build(self, seed: int, dtype: str) -> TaskData:
        weights = self.true_weights()
        truth = np.append(weights.ravel(), generator(seed, TRUTH).standard_normal())
        model = Linear(weights.size, weights_shape=weights.shape)
        held_out = self._draw(seed, VALIDATION, truth, dtype)
        training = self._draw(seed, TRAINING, truth, dtype)
        return TaskData(training, model, Squared(), replace(held_out, trained_as=np.arange(self.clients)), truth)

    def _draw(self, seed: int, stream: int, truth: Array, dtype: str) -> ClientData:
        """Draw the rows of all clients; training and validation streams share the client means."""
        features = len(truth) - 1
        x = np.empty((self.clients, self.samples, features))
        y = np.empty((self.clients, self.samples))

        def draw_client(m: int) -> None:
            random = generator(seed, stream, m)
            random.standard_normal(out=x[m])
            x[m] += self.heterogeneity * generator(seed, MEANS, m).standard_normal(features)
            # einsum, not BLAS: bitwise independent of the number of threads
            y[m] = np.einsum("nd,d->n", x[m], truth[:-1]) + truth[-1] + random.standard_normal(self.samples)

        with ThreadPoolExecutor() as pool:  # each client has its own generator; drawing releases the GIL
            list(pool.map(draw_client, range(self.clients)))
        return ClientData.of_equal_clients(x.astype(dtype, copy=False), y.astype(dtype, copy=False))


@dataclass(kw_only=True)
class Lasso(SyntheticRegression):
    """Lasso whose true weights are `ones` ones followed by zeros."""

    name: str = "lasso"
    dimension: int  # number of weights
    ones: int  # weights that are 1 in the truth; the others are 0

    main_metric = "f1"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.dimension >= 1, "task.dimension", self.dimension, "a whole number >= 1")
        require(0 <= self.ones <= self.dimension, "task.ones", self.ones, f"from 0 to the dimension, {self.dimension}")

    @property
    def features(self) -> int:
        return self.dimension

    def true_weights(self) -> Array:
        return np.repeat([1.0, 0.0], [self.ones, self.dimension - self.ones])

    def metrics(self, problem: Problem, w: Array) -> dict[str, Array]:
        assert problem.truth is not None
        return sparse_recovery(w, problem.truth[:-1], THRESHOLD)


@dataclass(kw_only=True)
class Nuclear(SyntheticRegression):
    """Matrix estimation whose true matrix is diagonal, with `rank` ones followed by zeros."""

    name: str = "nuclear"
    dimension: int  # of the square matrix
    rank: int  # rank of the true matrix

    main_metric = "rank"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.dimension >= 1, "task.dimension", self.dimension, "a whole number >= 1")
        require(0 <= self.rank <= self.dimension, "task.rank", self.rank, f"from 0 to the dimension, {self.dimension}")

    @property
    def features(self) -> int:
        return self.dimension**2

    def true_weights(self) -> Array:
        return np.diag(np.repeat([1.0, 0.0], [self.rank, self.dimension - self.rank]))

    def metrics(self, problem: Problem, w: Array) -> dict[str, Array]:
        assert problem.truth is not None
        matrices = problem.layout.view(w, "weights")
        return {
            "rank": rank(matrices, THRESHOLD),
            "recovery_error": np.linalg.norm(w[:, :-1] - problem.truth[:-1], axis=1),
        }
