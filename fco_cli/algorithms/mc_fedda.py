"""MC-FedDA (Bao, Crawshaw, Luo and Liu, 2022): C-FedDA in stages, each within an l1 ball around its start.

Written after the authors' scripts, whose prox is not that of the sum: they shrink and then project.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fco_cli.algorithms.aggregate import Aggregates
from fco_cli.algorithms.fedda import CFedDa
from fco_cli.algorithms.rounds import State
from fco_cli.errors import require
from fco_cli.kernels.compiled import Kernel, copy, kernel
from fco_cli.problem.layout import Array
from fco_cli.problem.mirror_maps import Mirror
from fco_cli.problem.regularizers import Regularizer


@kernel
def distance_of_shrunk(v, threshold, factors, multiplier, near, out):
    """out = argmin_w |w - v|^2 / 2 + threshold sum_i factors[i] |w_i| + multiplier |w - near|_1.

    Return |out - near|_1.
    """
    b, total = multiplier, 0.0
    for i in range(v.shape[0]):
        a = factors[i] * threshold
        low, high = min(near[i], 0), max(near[i], 0)
        between = v[i] - (a - b if near[i] > 0 else b - a)  # there the two slopes are opposite
        out[i] = min(max(between, low), high)
        if v[i] + a + b < low:
            out[i] = v[i] + a + b
        elif v[i] - a - b > high:
            out[i] = v[i] - a - b
        out[i] += 0 * v[i]  # NaN and infinity stay visible
        total += abs(out[i] - near[i])
    return total


@kernel
def shrink_near(v, threshold, factors, near, radius, out):
    """out = argmin of |w - v|^2 / 2 + threshold sum_i factors[i] |w_i| over |w - near|_1 <= radius.

    By bisection on the ball's multiplier.
    """
    if distance_of_shrunk(v, threshold, factors, 0.0, near, out) <= radius:
        return
    low, high = 0.0, 0.0
    for i in range(v.shape[0]):
        high = max(high, factors[i] * threshold + abs(v[i] - near[i]))  # with this multiplier `near` itself comes out
    while True:
        middle = low + (high - low) / 2
        if not low < middle < high:  # no number lies between them, or one of them is none
            break
        if distance_of_shrunk(v, threshold, factors, middle, near, out) > radius:
            low = middle
        else:
            high = middle
    distance_of_shrunk(v, threshold, factors, high, near, out)


@kernel
def penalized_near(z, t, received, options, geometry, out):
    """out = argmin_w t factor psi(w) + (1 + t mu / 2) |w|^2 / 2 - <z, w> over |w - start|_1 <= factor rho."""
    for j in range(z.shape[0]):
        weight = 1 + t[j] * options[j].mu / 2
        threshold = t[j] / weight * received.factor[j] * geometry.psi[j].strength
        for b in range(geometry.table.shape[0]):
            low, high, _rows, _columns, regularized, _piece = geometry.table[b]
            center, near, w = np.empty_like(z[j, low:high]), received.start[j, low:high], out[j, low:high]
            for i in range(center.shape[0]):
                center[i] = z[j, low + i] / weight
            if regularized:
                radius = received.factor[j] * options[j].rho
                shrink_near(center, threshold, geometry.each[low:high], near, radius, w)
            else:
                copy(center, w)


@dataclass(kw_only=True)
class McFedDa(CFedDa):
    """C-FedDA in stages. Each starts anew where the last one ended and stays within an l1 ball around that; strength
    and radius are halved from stage to stage, and those of the last one are psi's own and rho."""

    name: str = "mc_fedda"
    rho: float = 1250.0  # as in the authors' last stage
    stages: int = 3
    stage_rounds: int = 50  # of all but the last stage, which goes on to the end; the authors': an eighth of all
    broadcast = ("z", "start")
    clocks = ("t", "factor")  # type: ignore[assignment]

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.rho < math.inf, "algo.rho", self.rho, "a number > 0")
        require(1 <= self.stages <= 60, "algo.stages", self.stages, "a whole number from 1 to 60")
        require(self.stage_rounds >= 1, "algo.stage_rounds", self.stage_rounds, "a whole number >= 1")

    def check_pair(self, psi: Regularizer, mirror: Mirror) -> None:
        super().check_pair(psi, mirror)
        require(psi.name == "l1", "regularizer", psi.name, "l1: mc_fedda has the prox within its ball for no other")

    @cached_property
    def _parts(self) -> dict[str, Kernel]:
        return {**super()._parts, "primal": penalized_near}

    def initial_state(self, w: Array) -> State:
        return self._stage(w, 0, np.zeros(len(w)))

    def _stage(self, w: Array, stage: int, rounds: Array) -> State:
        """The first state of a stage; `rounds` [J] were made before it."""
        factor = np.full(len(w), 2.0 ** (self.stages - 1 - stage))
        return {"z": w, "t": np.zeros(len(w)), "start": w, "factor": factor, "rounds": rounds}

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        state = super().server_step(state, aggregates) | {"rounds": state["rounds"] + 1}
        stage, under_way = divmod(int(state["rounds"][0]), self.stage_rounds)
        if under_way or stage >= self.stages:
            return state
        return self._stage(self.output(state), stage, state["rounds"])
