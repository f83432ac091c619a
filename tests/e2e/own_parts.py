"""A plug-in of a user: an algorithm, a penalty, a loss and a task in one file (test_plugins.py)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.algorithms.fedavg import FedAvg
from fco_cli.kernels.compiled import kernel
from fco_cli.problem.data import ClientData
from fco_cli.problem.losses import Loss
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.problem import TaskData
from fco_cli.problem.regularizers import Regularizer
from fco_cli.tasks import Task


@dataclass(kw_only=True)
class OwnMethod(FedAvg):
    """FedAvg whose server step is damped."""

    name: str = "own_method"
    damping: float = 1.0

    def server_step(self, state, aggregates):
        w = super().server_step(state, aggregates)["w"]
        return {"w": state["w"] + np.reshape(self.damping, (-1, 1)) * (w - state["w"])}


@dataclass(kw_only=True)
class HalfL1(Regularizer):
    """Half of the l1 norm."""

    strength: float
    name: str = "half_l1"
    separable = True

    @staticmethod
    @kernel
    def value(w, psi, block):
        total = 0.0
        for i in range(w.shape[0]):
            total += abs(w[i])
        return psi.strength / 2 * total

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        for i in range(z.shape[0]):
            out[i] = np.sign(z[i]) * max(abs(z[i]) - t * psi.strength / 2, 0.0) + 0 * z[i]

    @staticmethod
    @kernel
    def subgradient(w, psi, block, out):
        for i in range(w.shape[0]):
            out[i] = psi.strength / 2 * np.sign(w[i])


sharpness = np.nan


@dataclass(frozen=True)
class LogCosh(Loss):
    """log cosh of the error times sharpness."""

    name = "log_cosh"
    sharpness: float = 1.0

    @staticmethod
    @kernel
    def value(scores, y):
        error = abs(scores[0] - y) * sharpness
        return error + np.log1p(np.exp(-2 * error)) - np.log(2.0)

    @staticmethod
    @kernel
    def slope(scores, y):
        scores[0] = sharpness * np.tanh(sharpness * (scores[0] - y))


@dataclass(kw_only=True)
class OwnTask(Task):
    name: str = "own_task"
    strength: float = 0.1
    radius: float = 1.0
    clients: int = 4

    def build(self, seed, dtype):
        random = np.random.default_rng(seed)
        x = random.standard_normal((self.clients, 8, 5)).astype(dtype)
        y = x.sum(axis=2)
        return TaskData(ClientData.of_equal_clients(x, y), Linear(5), LogCosh())
