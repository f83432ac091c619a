"""Federated Frank-Wolfe (Dadras, Banerjee, Prakhya and Yurtsever, 2024): projection-free constrained optimization.

Based on the authors' code, but clients store x_m as in the paper. In the code they start every round at w; the penalty
is then always 0 and the method stalls. Client sampling follows the code, as in block-coordinate Frank-Wolfe. An
extension: unconstrained parameters, such as a bias, take gradient steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fco_cli.algorithms import ops
from fco_cli.algorithms.protocol import Aggregates, Array, Federated, Scalar, State, Style, Vector, kernel
from fco_cli.errors import require
from fco_cli.problem.mirror_maps import Mirror
from fco_cli.problem.regularizers import Regularizer


@dataclass(kw_only=True)
class FedFw(Federated):
    """Frank-Wolfe steps on F_m(x_m) plus an increasing penalty on |x_m - w|^2, which enforces consensus.

    A round takes one full gradient per client. The round counter n is 2 in the first round and grows by the share of
    participating clients. The linear minimization oracle is invariant to the scale of its argument. The penalty is
    therefore the paper's times the number of clients, which makes it independent of that number and of the weights.
    """

    name: str = "fedfw"
    style = Style("FedFW", "#661100", "h")
    penalty: float = 1.0  # lambda_0 M in the paper
    broadcast = (Vector("w"), Scalar("n"))
    remembered = (Vector("x", model=True),)
    sent = (Vector("x"),)
    accumulates_messages = True
    normalized = False

    def __post_init__(self) -> None:
        require(0 < self.penalty < math.inf, "algo.penalty", self.penalty, "a number > 0")

    def check_pair(self, psi: Regularizer, mirror: Mirror) -> None:
        sets = "l1_ball, l2_ball, linf_ball, box, simplex or nuclear_ball: fedfw needs a linear minimization oracle"
        require(psi.lmo is not None, "regularizer", psi.name, sets)
        require(mirror.name == "euclidean", "mirror", mirror.name, "euclidean: fedfw supports no other mirror map")

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        x, d = memory.x, ops.buffer_like(memory.x)
        penalty = options.penalty * received.n**0.5
        ops.assign_gradient(d, x, batches)
        ops.add_scaled_difference(d, penalty, x, received.w)  # d = grad F_m(x_m) + penalty (x_m - w)
        vertex = ops.copy(x)
        # Target of unconstrained parameters; the factor 2 / n below makes it one gradient step.
        ops.subtract_multiple(vertex, received.n / 2 / (1 / rate + penalty), d)
        ops.assign_linear_minimizer(vertex, d, geometry)
        ops.assign_scaled_difference(message.x, 2 / received.n, vertex, x)
        ops.add(x, message.x)

    def initial_memory(self, w: Array) -> State:
        return {"x": w}

    def initial_state(self, w: Array) -> State:
        return {"w": w, "n": np.full(len(w), 2.0)}

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        """Maintain w = sum_m p_m x_m over all clients."""
        return {"w": state["w"] + aggregates.sum("x"), "n": state["n"] + aggregates.share}

    def output(self, state: State) -> Array:
        return state["w"]
