"""Federated Newton learning: FedNL (Safaryan, Islamov, Qian and Richtarik, ICML 2022, Algorithm 1, option 2).

Clients learn their Hessians by compressed differences. Extended with psi, which is derived here: the server minimizes
the quadratic model plus psi, as in prox_newton.py. Compared with the authors' code, whose compressor also acts on the
upper triangle; it measures the distance l in the spectral norm, which is at most the Frobenius norm used here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.algorithms import ops
from fco_cli.algorithms.protocol import (
    Aggregates,
    Array,
    Federated,
    Proxes,
    Scalar,
    State,
    Style,
    Symmetric,
    Vector,
    kernel,
)
from fco_cli.algorithms.transforms.compression import entry_count
from fco_cli.errors import require
from fco_cli.memory_limit import require_memory
from fco_cli.problem.curvature import has_curvature, packed_size, unpack
from fco_cli.problem.mirror_maps import Mirror
from fco_cli.problem.quadratic_solver import minimize_quadratic
from fco_cli.problem.regularizers import Regularizer

MOST_WEIGHTS = 1000


@dataclass(kw_only=True)
class FedNl(Federated):
    """Newton steps with H + l I, where H_m + C(Hessian_m - H_m) is the next H_m, and l = sum_m p_m |H_m - Hessian_m|.

    C keeps the entries of largest magnitude, `share` of them; H_m starts at 0. In the Frobenius norm, H + l I exceeds
    the Hessian of F, so that steps are short until the H_m are known.
    """

    name: str = "fednl"
    style = Style("FedNL", "#004488", "o", (1, 1), family="few rounds")
    share: float = 0.1  # share of the entries of the upper triangle that are sent
    broadcast = (Vector("w"),)
    remembered = (Symmetric("hessian"),)
    sent = (Vector("gradient"), Scalar("distance"), Symmetric("change", difference=True))
    accumulates_messages = True
    normalized = False
    full_participation = True
    proxes = Proxes(server=1)

    def __post_init__(self) -> None:
        require(
            0 < self.share <= 1, "algo.share", self.share, "above 0, at most 1: a share of the entries of a Hessian"
        )

    def check_pair(self, psi: Regularizer, mirror: Mirror) -> None:
        require(mirror.name == "euclidean", "mirror", mirror.name, "euclidean: fednl supports no other mirror map")
        require(psi.convex, "regularizer", psi.name, "convex: fednl solves convex problems only")

    def check_transform(self, weighting: str) -> None:
        super().check_transform(weighting)
        name = self.transform.name
        require(name == "none", "transform", name, "none: fednl compresses its Hessians itself (algo.share)")

    def check(self) -> None:
        problem, size = self.problem, self.problem.layout.size
        allowed = "another: fednl needs a linear model and a loss with second derivatives"
        require(has_curvature(problem.model, problem.loss), "algo", self.name, allowed)
        allowed = (
            f"quasi_newton or fista for {size:,} weights; fednl stores a Hessian of at most 1,000 weights per client"
        )
        require(size <= MOST_WEIGHTS, "algo", self.name, allowed)
        numbers = (2 * problem.data.clients + 1) * packed_size(size) + 3 * size**2
        require_memory(f"algo: fednl: the Hessians of {size:,} weights", numbers * len(self.varying) * 8)

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        # `distance` is a buffer for the mean loss
        ops.assign_curvature(message.change, message.gradient, message.distance, received.w, batches)
        ops.subtract_triangle(message.change, memory.hessian)
        ops.assign_triangle_norm(message.distance, message.change)
        ops.keep_largest_of_triangle(message.change, options.share)

    @staticmethod
    @kernel
    def remember(received, memory, message, rate, options, steps):
        ops.add_triangle(memory.hessian, message.change)

    def initial_state(self, w: Array) -> State:
        jobs, size = w.shape
        slots = Symmetric("hessian").slots(size)
        return {"w": w, "hessian": np.zeros((jobs, slots, size))}

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        """Minimize the model of this round; the changes of the H_m enter the next one."""
        hessians = unpack(Symmetric("hessian").triangles(state["hessian"]))
        new = [self._minimizer(j, state["w"][j], hessians[j], aggregates) for j in range(len(self.varying))]
        hessian = state["hessian"] + aggregates.sum("change").astype(float)
        return {"w": np.array(new, state["w"].dtype), "hessian": hessian}

    def _minimizer(self, j: int, w: Array, hessian: Array, aggregates: Aggregates) -> Array:
        """Return argmin_u g'(u - w) + (u - w)'(H + l I)(u - w) / 2 + psi(u) of one job; NaN without messages."""
        gradient, distance = aggregates.mean["gradient"][j].astype(float), float(aggregates.mean["distance"][j])
        if not (np.isfinite(gradient).all() and np.isfinite(distance)):
            return np.full_like(w, np.nan)
        metric = hessian + distance * np.eye(len(w))
        psi = self.varying.psi[j : j + 1]
        return minimize_quadratic(self.problem, psi, metric[None], gradient[None], w[None].astype(float))[0]

    def output(self, state: State) -> Array:
        return state["w"]

    @property
    def bytes_saved(self) -> int | Array:
        """Bytes of the entries that are not sent, less those of the indices of the others [J]."""
        size, itemsize = self.problem.layout.size, self.problem.dtype.itemsize
        count = packed_size(size)
        kept = np.array([entry_count.python(share, count) for share in self.varying.options["share"]])
        return (count - kept) * itemsize - np.where(kept < count, -(-kept * (count - 1).bit_length() // 8), 0)
