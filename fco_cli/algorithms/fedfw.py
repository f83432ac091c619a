"""Federated Frank-Wolfe (Dadras, Banerjee, Prakhya and Yurtsever, 2024): projection-free constrained optimization.

Based on the authors' code, but clients store x_m as in the paper. In the code they start every round at w; the penalty
is then always 0 and the method stalls. Client sampling follows the code, as in block-coordinate Frank-Wolfe. An
extension: unconstrained parameters, such as a bias, take gradient steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fco_cli.algorithms.aggregate import Aggregates
from fco_cli.algorithms.primitives import descend
from fco_cli.algorithms.protocol import Federated
from fco_cli.algorithms.rounds import Cohort, Costs, State
from fco_cli.errors import require
from fco_cli.kernels.compiled import Kernel, kernel
from fco_cli.problem.data import full_batch
from fco_cli.problem.layout import Array
from fco_cli.problem.mirror_maps import Mirror
from fco_cli.problem.regularizers import Regularizer


def linear_minimization_oracle(g, geometry, out):  # placeholder, bound to the problem
    raise NotImplementedError


@dataclass(kw_only=True)
class FedFw(Federated):
    """Frank-Wolfe steps on F_m(x_m) plus an increasing penalty on |x_m - w|^2, which enforces consensus.

    A round takes one full gradient per client. The round counter n is 2 in the first round and grows by the share of
    participating clients. The linear minimization oracle is invariant to the scale of its argument. The penalty is
    therefore the paper's times the number of clients, which makes it independent of that number and of the weights.
    """

    name: str = "fedfw"
    penalty: float = 1.0  # lambda_0 M in the paper
    broadcast = ("w",)
    broadcast_scalars = ("n",)
    remembered = ("x",)
    sent = ("x",)
    model_in_memory = "x"
    normalized = False
    accumulates_messages = True
    uses = Federated.uses - {"server_lr", "normalize_steps", "batch_size", "local_epochs", "last_batch"}

    def __post_init__(self) -> None:
        require(0 < self.penalty < math.inf, "algo.penalty", self.penalty, "a number > 0")

    def check_pair(self, psi: Regularizer, mirror: Mirror) -> None:
        sets = "l1_ball, l2_ball, linf_ball, box, simplex or nuclear_ball: fedfw needs a linear minimization oracle"
        require(psi.lmo is not None, "regularizer", psi.name, sets)
        require(mirror.name == "euclidean", "mirror", mirror.name, "euclidean: fedfw supports no other mirror map")

    @cached_property
    def _parts(self) -> dict[str, Kernel]:
        return {**super()._parts, "linear_minimization_oracle": self.problem.linear_minimization_oracle}

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        x, w, n, change = memory.x, received.w, received.n, message.x
        d, minus_one, vertex = np.zeros_like(x), np.empty_like(rate), np.empty_like(x)
        for j in range(x.shape[0]):
            minus_one[j] = -1
        descend(d, x, full_batch(batches), 0, minus_one)  # d = grad F_m(x_m)
        for j in range(x.shape[0]):
            penalty = options[j].penalty * np.sqrt(n[j])
            for i in range(x.shape[1]):
                d[j, i] += penalty * (x[j, i] - w[j, i])
                # Target of unconstrained parameters; the factor 2 / n below makes it one gradient step.
                vertex[j, i] = x[j, i] - n[j] / 2 * d[j, i] / (1 / rate[j] + penalty)
        linear_minimization_oracle(d, geometry, vertex)
        for j in range(x.shape[0]):
            for i in range(x.shape[1]):
                change[j, i] = 2 / n[j] * (vertex[j, i] - x[j, i])
                x[j, i] += change[j, i]

    def initial_memory(self, w: Array) -> Array:
        return w[None]

    def initial_state(self, w: Array) -> State:
        return {"w": w, "n": np.full(len(w), 2.0)}

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        """Maintain w = sum_m p_m x_m over all clients."""
        return {"w": state["w"] + aggregates.sum("x"), "n": state["n"] + aggregates.share}

    def output(self, state: State) -> Array:
        return state["w"]

    def costs(self, cohort: Cohort | None) -> Costs:
        assert cohort is not None
        return super().costs(cohort)._replace(gradients=int(self.problem.data.sizes[cohort.clients].sum()))
