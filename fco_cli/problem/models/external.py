"""Models that another library evaluates, outside of kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fco_cli.problem.data import ClientData
from fco_cli.problem.layout import Array, Layout

if TYPE_CHECKING:
    from fco_cli.problem.losses import Loss
    from fco_cli.problem.risk import Risk


class ExternalModel(ABC):
    """Base class of such models. The loss of the scores is still that of kernels, on NumPy arrays.

    Subclasses also define the functions `gather`, `forward` and `backward` of `Model`, which kernels call as Python.
    """

    backend: ClassVar[str]  # module with `client_loop(algorithm)`, which runs the clients of a cohort
    forward_from_dual: ClassVar[None] = None
    row_norm: ClassVar[None] = None
    site_bias: ClassVar[bool] = False
    convex: bool = False
    is_random: bool = False  # True: the model draws random numbers in training, from the messages' keys
    layout: Layout
    features: int
    outputs: int

    @cached_property
    def widths(self) -> Array:
        """Numbers of features and of scores."""
        return np.array([self.features, self.outputs])

    @abstractmethod
    def initial(self) -> Array:
        """Return the initial parameters w_0 [P]."""

    @abstractmethod
    def risk(self, data: ClientData, weights: Array, loss: Loss) -> Risk:
        """Return F with client weights [M]."""

    @abstractmethod
    def own_losses(self, data: ClientData, loss: Loss, models: Array, clients: Array) -> tuple[Array, Array | None]:
        """Return mean losses and accuracies [n, J] of models[i] [J, P] on the rows of clients[i] only."""

    @abstractmethod
    def scores(self, data: ClientData, w: Array) -> Array:
        """Return the scores of all rows: [J, C, N]."""

    @abstractmethod
    def forward(self, w: Array, batch: Any, widths: Array) -> Array:
        """Return the scores [J, C, B] of a batch of `gather`."""
