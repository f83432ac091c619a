"""Servers with momentum, after FedAvgM (Hsu, Qi and Brown, 2019).

The server adds up what it hears, v <- momentum v + Delta, and moves by v in place of Delta. For FedMiD-OSP and
FedDualAvg this is ours: v holds momentum^s times the gradients of s rounds ago, so psi must act for that many
gradients, and the number of steps gets the same momentum, K <- momentum K + K of this round. In the long run both are
1 / (1 - momentum) times what they were, and a fixed point stays where it is; with a plain K psi would count
(1 - momentum) times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fco_cli.algorithms.aggregate import Aggregates
from fco_cli.algorithms.fedavg import FedAvg
from fco_cli.algorithms.feddualavg import FedDualAvg
from fco_cli.algorithms.fedmid import FedMidOsp
from fco_cli.algorithms.protocol import Federated
from fco_cli.algorithms.rounds import State
from fco_cli.errors import require
from fco_cli.problem.layout import Array


@dataclass(kw_only=True)
class Momentum(Federated):
    """A method with one message, whose server step is a function of its mean and of the number of steps in that."""

    momentum: float = 0.9

    def __post_init__(self) -> None:
        require(0 <= self.momentum < 1, "algo.momentum", self.momentum, "at least 0, below 1")

    # Both `super()` are the method's beside this class.

    def initial_state(self, w: Array) -> State:
        own = {"v": np.zeros_like(w), "steps": np.zeros(len(w))}
        return super().initial_state(w) | own  # type: ignore[safe-super]

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        (name,) = self.sent
        v = self._column(self.momentum) * state["v"] + aggregates.mean[name]
        steps = self.momentum * state["steps"] + aggregates.steps
        heavy = replace(aggregates, mean={name: v}, steps=steps)
        return super().server_step(state, heavy) | {"v": v, "steps": steps}  # type: ignore[safe-super]


@dataclass(kw_only=True)
class FedAvgM(Momentum, FedAvg):
    """FedAvg whose server keeps going: w <- w + eta_s v."""

    name: str = "fedavgm"


@dataclass(kw_only=True)
class FedMidOspM(Momentum, FedMidOsp):
    """w <- to_primal(to_dual(w) + eta_s v, eta_s eta_c K)."""

    name: str = "fedmid_osp_m"


@dataclass(kw_only=True)
class FedDualAvgM(Momentum, FedDualAvg):
    """z <- z + eta_s v, t <- t + eta_s eta_c K."""

    name: str = "feddualavg_m"
