"""MC-FedDA (Bao, Crawshaw, Luo and Liu, 2022): C-FedDA in stages, each constrained to an l1 ball around its start.

Based on the authors' scripts, which approximate the prox by soft thresholding followed by projection. The prox here is
exact.
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
def prox_l1_with_multiplier(v, threshold, factors, multiplier, near, out):
    """out = argmin_w |w - v|^2 / 2 + threshold sum_i factors[i] |w_i| + multiplier |w - near|_1.

    Return |out - near|_1.
    """
    b, total = multiplier, 0.0
    for i in range(v.shape[0]):
        a = factors[i] * threshold
        low, high = min(near[i], 0), max(near[i], 0)
        between = v[i] - (a - b if near[i] > 0 else b - a)  # between 0 and near[i] the two slopes have opposite signs
        out[i] = min(max(between, low), high)
        if v[i] + a + b < low:
            out[i] = v[i] + a + b
        elif v[i] - a - b > high:
            out[i] = v[i] - a - b
        out[i] += 0 * v[i]  # propagate NaN and infinity
        total += abs(out[i] - near[i])
    return total


@kernel
def prox_l1_in_l1_ball(v, threshold, factors, near, radius, out):
    """out = argmin_w |w - v|^2 / 2 + threshold sum_i factors[i] |w_i| subject to |w - near|_1 <= radius.

    Bisection on the multiplier of the constraint.
    """
    if prox_l1_with_multiplier(v, threshold, factors, 0.0, near, out) <= radius:
        return
    low, high = 0.0, 0.0
    for i in range(v.shape[0]):
        high = max(high, factors[i] * threshold + abs(v[i] - near[i]))  # with this multiplier the solution is `near`
    while True:
        middle = low + (high - low) / 2
        if not low < middle < high:  # adjacent floating-point numbers, or NaN
            break
        if prox_l1_with_multiplier(v, threshold, factors, middle, near, out) > radius:
            low = middle
        else:
            high = middle
    prox_l1_with_multiplier(v, threshold, factors, high, near, out)


@kernel
def stage_primal(z, t, received, options, geometry, out):
    """out = argmin_w t factor psi(w) + (1 + t mu / 2) |w|^2 / 2 - <z, w> subject to |w - start|_1 <= factor rho."""
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
                prox_l1_in_l1_ball(center, threshold, geometry.each[low:high], near, radius, w)
            else:
                copy(center, w)


@dataclass(kw_only=True)
class McFedDa(CFedDa):
    """C-FedDA in stages, each restarted at the last model and constrained to an l1 ball around it.

    The strength of psi and the radius are halved after each stage; in the last stage they are psi's own and rho.
    """

    name: str = "mc_fedda"
    rho: float = 1250.0  # the authors' value in the last stage
    stages: int = 3
    stage_rounds: int = 50  # length of all stages but the last; an eighth of all rounds in the authors' scripts
    broadcast = ("z", "start")
    broadcast_scalars = ("t", "factor")  # type: ignore[assignment]

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.rho < math.inf, "algo.rho", self.rho, "a number > 0")
        require(1 <= self.stages <= 60, "algo.stages", self.stages, "a whole number from 1 to 60")
        require(self.stage_rounds >= 1, "algo.stage_rounds", self.stage_rounds, "a whole number >= 1")

    def check_pair(self, psi: Regularizer, mirror: Mirror) -> None:
        super().check_pair(psi, mirror)
        require(psi.name == "l1", "regularizer", psi.name, "l1: mc_fedda supports no other")

    @cached_property
    def _parts(self) -> dict[str, Kernel]:
        return {**super()._parts, "primal": stage_primal}

    def initial_state(self, w: Array) -> State:
        return self._start_stage(w, 0, np.zeros(len(w)))

    def _start_stage(self, w: Array, stage: int, rounds: Array) -> State:
        """Return the initial state of a stage, after `rounds` [J] rounds."""
        factor = np.full(len(w), 2.0 ** (self.stages - 1 - stage))
        return {"z": w, "t": np.zeros(len(w)), "start": w, "factor": factor, "rounds": rounds}

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        state = super().server_step(state, aggregates) | {"rounds": state["rounds"] + 1}
        stage, rounds_in_stage = divmod(int(state["rounds"][0]), self.stage_rounds)
        if rounds_in_stage or stage >= self.stages:
            return state
        return self._start_stage(self.output(state), stage, state["rounds"])
