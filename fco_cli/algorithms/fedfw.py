"""Federated Frank-Wolfe (Dadras, Banerjee, Prakhya and Yurtsever, 2024): constraints without a projection.

After the authors' code, with the paper's clients, which keep their x_m: in the code they start every round at w, the
penalty never acts, and it stalls. What a sample of clients changes is the code's, and that of block-coordinate
Frank-Wolfe. Ours is what happens to parameters that no constraint bounds, such as a bias: they take a gradient step.
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
from fco_cli.problem.data import whole
from fco_cli.problem.layout import Array
from fco_cli.problem.mirror_maps import Mirror
from fco_cli.problem.regularizers import Regularizer


def farthest(g, geometry, out):  # bound by `specialize` to the problem's
    raise NotImplementedError


@dataclass(kw_only=True)
class FedFw(Federated):
    """Each client moves its x_m towards a vertex of the set; a growing penalty on |x_m - w|^2 brings them together.

    A round takes one gradient over all rows of a client. The clock n is 2 in the first round and grows by the share of
    the clients that take part. An oracle sees no factor, so that ours is the paper's penalty times the number of
    clients, and no client needs to know that or its weight.
    """

    name: str = "fedfw"
    penalty: float = 1.0  # lambda_0 M of the paper
    broadcast = ("w",)
    clocks = ("n",)
    remembered = ("x",)
    sent = ("x",)
    own_model = "x"
    normalized = False
    keeps_sum = True
    uses = Federated.uses - {"server_lr", "normalize_steps", "batch_size", "local_epochs", "last_batch"}

    def __post_init__(self) -> None:
        require(0 < self.penalty < math.inf, "algo.penalty", self.penalty, "a number > 0")

    def check_pair(self, psi: Regularizer, mirror: Mirror) -> None:
        sets = (
            "l1_ball, l2_ball, linf_ball, box, simplex or nuclear_ball: fedfw needs a bounded set with a linear oracle"
        )
        require(psi.lmo is not None, "regularizer", psi.name, sets)
        require(mirror.name == "euclidean", "mirror", mirror.name, "euclidean: fedfw has no mirror map")

    @cached_property
    def _parts(self) -> dict[str, Kernel]:
        return {**super()._parts, "farthest": self.problem.farthest}

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        x, w, n, change = memory.x, received.w, received.n, message.x
        d, upwards, vertex = np.zeros_like(x), np.empty_like(rate), np.empty_like(x)
        for j in range(x.shape[0]):
            upwards[j] = -1
        descend(d, x, whole(batches), 0, upwards)  # d = grad F_m(x_m)
        for j in range(x.shape[0]):
            penalty = options[j].penalty * np.sqrt(n[j])
            for i in range(x.shape[1]):
                d[j, i] += penalty * (x[j, i] - w[j, i])
                # Where there is no vertex: all the way to it would be n / 2 gradient steps.
                vertex[j, i] = x[j, i] - n[j] / 2 * d[j, i] / (1 / rate[j] + penalty)
        farthest(d, geometry, vertex)
        for j in range(x.shape[0]):
            for i in range(x.shape[1]):
                change[j, i] = 2 / n[j] * (vertex[j, i] - x[j, i])
                x[j, i] += change[j, i]

    def initial_memory(self, w: Array) -> Array:
        return w[None]

    def initial_state(self, w: Array) -> State:
        return {"w": w, "n": np.full(len(w), 2.0)}

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        """w stays sum_m p_m x_m over all clients."""
        return {"w": state["w"] + aggregates.sum("x"), "n": state["n"] + aggregates.share}

    def output(self, state: State) -> Array:
        return state["w"]

    def costs(self, cohort: Cohort | None) -> Costs:
        assert cohort is not None
        return super().costs(cohort)._replace(gradients=int(self.problem.data.sizes[cohort.clients].sum()))
