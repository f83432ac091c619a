"""One release of moments: clients send sums over their rows once, and the server minimizes a quadratic model.

For the squared loss the quadratic is the loss itself. For the logistic loss it is the Taylor polynomial at score 0,
log 2 + (1/2 - y) s + s^2 / 8, which also bounds the loss from above (Böhning and Lindsay, 1988). With
`transform=row_clip_noise` the sums have noise that hides single rows (as in Vu and Slavkovic, 2009, and Sheffet, 2017);
one release needs no composition over rounds.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import numpy as np

from fco_cli.algorithms import ops
from fco_cli.algorithms.protocol import Aggregates, Array, Federated, Proxes, State, Style, Symmetric, Vector, kernel
from fco_cli.errors import require
from fco_cli.problem.curvature import unpack
from fco_cli.problem.data import SparseRows
from fco_cli.problem.mirror_maps import Mirror
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.moments import log_condition, warn_of_lost_digits
from fco_cli.problem.quadratic_solver import minimize_quadratic
from fco_cli.problem.regularizers import Regularizer

log = logging.getLogger(__name__)

INDEFINITE = 1e4  # eigenvalues below minus this multiple of the machine epsilon times the trace are invalid


@dataclass(kw_only=True)
class Moments(Federated):
    """Clients send the mean of a a' and of c a, where a = (x, 1) and c is the slope of the loss at score 0."""

    name: str = "moments"
    style = Style("moments", "#999933", "p", (2, 1), family="few rounds")
    broadcast = (Vector("w"),)
    sent = (Vector("linear"), Symmetric("quadratic"))
    accumulates_messages = False
    normalized = False
    full_participation = True
    one_shot = True
    proxes = Proxes(server=1)

    def check_pair(self, psi: Regularizer, mirror: Mirror) -> None:
        require(mirror.name == "euclidean", "mirror", mirror.name, "euclidean: moments supports no other mirror map")

    def check_transform(self, weighting: str) -> None:
        super().check_transform(weighting)
        name = self.transform.name
        is_supported = name == "none" or self.transform.protects_rows
        require(is_supported, "transform", name, "none or row_clip_noise: a transformed matrix is not one of moments")

    def check(self) -> None:
        problem = self.problem
        allowed = "squared or logistic for algo=moments: other losses have no quadratic model"
        require(problem.loss.curvature_at_zero is not None, "task.loss", problem.loss.name, allowed)
        is_plain = isinstance(problem.model, Linear) and not problem.model.site_bias
        is_dense = not isinstance(problem.data.x, SparseRows)
        allowed = "another: moments needs a linear model of dense rows without site intercepts"
        require(is_plain and is_dense, "algo", self.name, allowed)

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        ops.assign_moments(message.quadratic, message.linear, batches)

    @property
    def minimizes_objective(self) -> bool:
        return self.problem.loss.quadratic and not self.transform.protects_rows

    def initial_state(self, w: Array) -> State:
        return {"w": w}

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        """Minimize g'w + w'Hw / 2 + psi(w), with the eigenvalues of H raised to the size of the noise."""
        linear = aggregates.mean["linear"].astype(float)
        quadratic = unpack(Symmetric("quadratic").triangles(aggregates.mean["quadratic"]).astype(float))
        finite = np.isfinite(linear).all(axis=1) & np.isfinite(quadratic).all(axis=(1, 2))
        quadratic[~finite], linear[~finite] = 0, 0
        finite &= [self._is_valid(matrix) for matrix in quadratic]
        floors = self._noise_level()
        hessians = [_raised(self._curvature * matrix, floor) for matrix, floor in zip(quadratic, floors, strict=True)]
        matrices, origin = np.stack(hessians), np.zeros(linear.shape)
        log_condition(hessians)
        warn_of_lost_digits(hessians)
        w = minimize_quadratic(self.problem, self.varying.psi, matrices, linear, origin, start=state["w"])
        return {"w": np.where(finite[:, None], w, np.nan).astype(state["w"].dtype)}

    def output(self, state: State) -> Array:
        return state["w"]

    @property
    def _curvature(self) -> float:
        curvature = self.problem.loss.curvature_at_zero
        assert curvature is not None
        return curvature

    def _noise_level(self) -> Array:
        """Return the expected spectral norm [J] of the noise on H, twice its deviation times sqrt(P)."""
        if not self.has_noise:
            return np.zeros(len(self.varying))
        numbers, data = self._transform_numbers, self.problem.data
        deviation = numbers["noise_multiplier"] * numbers["clip_norm"] ** 2
        scales = self.noise_scales(self.problem.weights, data.sizes, 0, np.ones_like(data.sizes))
        mean = math.sqrt(float(((scales * self.problem.weights / data.sizes) ** 2).sum()))
        return 2 * math.sqrt(self.problem.layout.size) * self._curvature * mean * deviation

    def _is_valid(self, matrix: Array) -> bool:
        """Return False, with a warning, if a sum without noise has a clearly negative eigenvalue."""
        rounding = INDEFINITE * float(np.finfo(self.problem.dtype).eps) * float(np.abs(matrix.diagonal()).sum())
        lowest = float(np.linalg.eigvalsh(matrix)[0])
        if self.transform.protects_rows or lowest >= -rounding:
            return True
        log.warning(
            "algo: %s: the sum of the clients' second moments has the eigenvalue %.3g, must be >= 0: a client's "
            "message is invalid; the run ends. Compare the clients' versions and rows",
            self.name, lowest,
        )  # fmt: skip
        return False


def _raised(matrix: Array, floor: float) -> Array:
    """Return a symmetric matrix with eigenvalues of at least `floor`."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    if values[0] >= floor:
        return matrix
    return (vectors * np.maximum(values, floor)) @ vectors.T
