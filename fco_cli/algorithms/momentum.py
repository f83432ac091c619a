"""Servers with momentum, after FedAvgM (Hsu, Qi and Brown, 2019).

The server accumulates the mean change, v <- momentum v + Delta, and uses v in place of Delta. The extension to
FedMiD-OSP and FedDualAvg applies the same recursion to the number of steps, k <- momentum k + K, which scales the prox.
Asymptotically v and k both grow by 1 / (1 - momentum), so the fixed points do not change. With K in place of k the
method would minimize F + (1 - momentum) psi.
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
    """Mixin that adds momentum to an algorithm whose clients send one array."""

    momentum: float = 0.9

    def __post_init__(self) -> None:
        require(0 <= self.momentum < 1, "algo.momentum", self.momentum, "at least 0, below 1")

    # Both `super()` calls resolve to the algorithm that this class is combined with.

    def initial_state(self, w: Array) -> State:
        accumulators = {"v": np.zeros_like(w), "steps": np.zeros(len(w))}
        return super().initial_state(w) | accumulators  # type: ignore[safe-super]

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        (name,) = self.sent
        v = self._column(self.momentum) * state["v"] + aggregates.mean[name]
        steps = self.momentum * state["steps"] + aggregates.steps
        accumulated = replace(aggregates, mean={name: v}, steps=steps)
        return super().server_step(state, accumulated) | {"v": v, "steps": steps}  # type: ignore[safe-super]


@dataclass(kw_only=True)
class FedAvgM(Momentum, FedAvg):
    """FedAvgM: w <- w + eta_s v."""

    name: str = "fedavgm"


@dataclass(kw_only=True)
class FedMidOspM(Momentum, FedMidOsp):
    """FedMiD-OSP with momentum: w <- to_primal(to_dual(w) + eta_s v, eta_s eta_c k)."""

    name: str = "fedmid_osp_m"


@dataclass(kw_only=True)
class FedDualAvgM(Momentum, FedDualAvg):
    """FedDualAvg with momentum: z <- z + eta_s v, t <- t + eta_s eta_c k."""

    name: str = "feddualavg_m"
