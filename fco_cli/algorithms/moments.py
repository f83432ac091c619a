"""One release of moments: clients send sums over their rows once, and the server minimizes a quadratic model.

For the squared loss the quadratic is the loss itself. For the logistic loss it is the Taylor polynomial at score 0,
log 2 + (1/2 - y) s + s^2 / 8, which also bounds the loss from above (Böhning and Lindsay, 1988). With
`transform=row_clip_noise` the sums have noise that hides single rows (as in Vu and Slavkovic, 2009, and Sheffet, 2017);
one release needs no composition over rounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fco_cli.algorithms import ops
from fco_cli.algorithms.protocol import Aggregates, Array, Federated, Matrix, Proxes, State, Style, Vector, kernel
from fco_cli.errors import require
from fco_cli.problem.data import SparseRows
from fco_cli.problem.mirror_maps import Mirror
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.regularizers import Regularizer

CURVATURES = {"squared": 2.0, "logistic": 0.25}  # of the losses at score 0
ITERATIONS, TOLERANCE = 20_000, 1e-13  # of the server's solver


@dataclass(kw_only=True)
class Moments(Federated):
    """Clients send the mean of a a' and of c a, where a = (x, 1) and c is the slope of the loss at score 0."""

    name: str = "moments"
    style = Style("moments", "#999933", "p", (2, 1))
    broadcast = (Vector("w"),)
    sent = (Vector("linear"), Matrix("quadratic"))
    accumulates_messages = False
    normalized = False
    full_participation = True
    one_shot = True
    proxes = Proxes(server=1)

    def check_pair(self, psi: Regularizer, mirror: Mirror) -> None:
        require(mirror.name == "euclidean", "mirror", mirror.name, "euclidean: moments supports no other mirror map")

    def check(self) -> None:
        problem = self.problem
        allowed = f"squared or logistic for algo=moments: other losses have no quadratic model ({problem.loss.name})"
        require(problem.loss.name in CURVATURES, "task.loss", problem.loss.name, allowed)
        is_plain = isinstance(problem.model, Linear) and not problem.model.site_bias
        is_dense = not isinstance(problem.data.x, SparseRows)
        allowed = "another: moments needs a linear model of dense rows without site intercepts"
        require(is_plain and is_dense, "algo", self.name, allowed)

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        ops.assign_moments(message.quadratic, message.linear, batches)

    def initial_state(self, w: Array) -> State:
        return {"w": w}

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        """Minimize g'w + w'Hw / 2 + psi(w), with the eigenvalues of H raised to the size of the noise."""
        quadratic, linear = (aggregates.mean[name].astype(float) for name in ("quadratic", "linear"))
        finite = np.isfinite(linear).all(axis=1) & np.isfinite(quadratic).all(axis=(1, 2))
        quadratic[~finite], linear[~finite] = 0, 0
        floors = self._noise_level()
        hessians = [_raised(self._curvature * matrix, floor) for matrix, floor in zip(quadratic, floors, strict=True)]
        w = self._minimized(np.stack(hessians), linear, state["w"])
        return {"w": np.where(finite[:, None], w, np.nan).astype(w.dtype)}

    def output(self, state: State) -> Array:
        return state["w"]

    @property
    def _curvature(self) -> float:
        return CURVATURES[self.problem.loss.name]

    def _noise_level(self) -> Array:
        """Return the expected spectral norm [J] of the noise on H, twice its deviation times sqrt(P)."""
        if not self.has_noise:
            return np.zeros(len(self.varying))
        numbers, data = self._transform_numbers, self.problem.data
        deviation = numbers["noise_multiplier"] * numbers["clip_norm"] ** 2
        mean = math.sqrt(float(((self.problem.weights / data.sizes) ** 2).sum()))
        return 2 * math.sqrt(self.problem.layout.size) * self._curvature * mean * deviation

    def _minimized(self, hessians: Array, linear: Array, start: Array) -> Array:
        """Return the minimizers [J, P] by FISTA with restarts; every job stops on its own."""
        rate = 1 / np.array([max(float(np.linalg.eigvalsh(matrix)[-1]), 1e-300) for matrix in hessians])
        w = query = start.copy()
        momentum, active = np.ones(len(w)), np.ones(len(w), bool)
        for _ in range(ITERATIONS):
            slopes = np.stack([matrix @ point for matrix, point in zip(hessians, query, strict=True)]) + linear
            step = self._to_primal((query - rate[:, None] * slopes).astype(w.dtype), rate) - w
            size, length = np.linalg.norm(step, axis=1), np.linalg.norm(w + step, axis=1)
            momentum = np.where(((query - w - step) * step).sum(axis=1) > 0, 1.0, momentum)
            new_momentum = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
            w = np.where(active[:, None], w + step, w)
            query = w + ((momentum - 1) / new_momentum)[:, None] * step
            momentum = new_momentum
            active &= size > TOLERANCE * np.maximum(length, 1e-300)
            if not active.any():
                break
        return w


def _raised(matrix: Array, floor: float) -> Array:
    """Return a symmetric matrix with eigenvalues of at least `floor`."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    if values[0] >= floor:
        return matrix
    return (vectors * np.maximum(values, floor)) @ vectors.T
