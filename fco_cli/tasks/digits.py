"""Handwritten digits of scikit-learn, partitioned into clients with label skew; no download."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.data.splits import by_labels
from fco_cli.errors import require
from fco_cli.problem.data import ClientData
from fco_cli.problem.problem import TaskData
from fco_cli.problem.streams import VALIDATION, generator
from fco_cli.tasks.images import ImageClassification

CLASSES = 10


@dataclass(kw_only=True)
class Digits(ImageClassification):
    """Classification of 8 x 8 images, assigned to clients by a Dirichlet draw per class (Hsu, Qi and Brown, 2019)."""

    name: str = "digits"
    clients: int
    concentration: float  # of the Dirichlet distribution; small values give skewed clients
    test_fraction: float

    def __post_init__(self) -> None:
        super().__post_init__()
        require(2 <= self.clients <= 500, "task.clients", self.clients, "from 2 to 500: there are 1797 images")
        require(0 < self.concentration < np.inf, "task.concentration", self.concentration, "a number > 0")
        require(0 < self.test_fraction < 0.9, "task.test_fraction", self.test_fraction, "above 0, below 0.9")

    @property
    def clients_available(self) -> int:
        return self.clients

    def build(self, seed: int, dtype: str) -> TaskData:
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        x, y = (x / 16).astype(dtype), y.astype(dtype)
        order = generator(seed, VALIDATION).permutation(len(y))
        held_out = round(self.test_fraction * len(y))
        test, rows = order[:held_out], order[held_out:]
        owner = by_labels(y[rows], self.clients, self.concentration, seed)
        rows = rows[np.argsort(owner, kind="stable")]
        offsets = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=self.clients))])
        training = ClientData(x[rows], y[rows], offsets)
        return self.with_own_model(training, ClientData(x[test], y[test], np.array([0, held_out])), CLASSES, seed)
