"""Quadratic problems on which every constant of the theorems is known exactly.

F_m(w) = sum_i q_i (w_i - c_mi)^2 / 2, with a curvature q that the clients share and centres c_m of their own. A
stochastic gradient is that of F_m plus noise xi; it is the exact gradient of the same quadratic with its centre
moved by -xi / q, so that a row of data holds a moved centre, and the algorithms run as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from fco_cli.kernels.aligned import in_place
from fco_cli.kernels.compiled import Kernel, kernel
from fco_cli.problem.data import ClientData
from fco_cli.problem.layout import Array, Block, Layout
from fco_cli.problem.losses import Loss
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers import Regularizer
from fco_cli.problem.regularizers.boxes import LinfBall
from fco_cli.problem.regularizers.penalties import L1


@kernel
def distances(w, batch, widths):
    """Scores [J, d, B]: sqrt(q_i) (w_i - centre_i). A row holds the centre and then sqrt(q)."""
    x, rows, size = batch.x, batch.rows, widths[-1]
    scores = np.empty((w.shape[0], size, rows.shape[0]), w.dtype)
    for j in range(w.shape[0]):
        for b in range(rows.shape[0]):
            for i in range(size):
                scores[j, i, b] = x[rows[b], size + i] * (w[j, i] - x[rows[b], i])
    return scores


@kernel
def distances_back(gradient, w, batch, widths, slopes):
    x, rows, size = batch.x, batch.rows, widths[-1]
    for j in range(w.shape[0]):
        for b in range(rows.shape[0]):
            for i in range(size):
                gradient[j, i] += x[rows[b], size + i] * slopes[j, i, b]


class HalfSquares(Loss):
    """The sum of s^2 / 2 over a row's scores. It has no name: no data of a user's are meant for it."""

    @staticmethod
    @kernel
    def value(scores, y):
        total = 0.0
        for i in range(scores.shape[0]):
            total += scores[i] ** 2 / 2
        return total

    @staticmethod
    @kernel
    def slope(scores, y):
        """The derivative of s^2 / 2 is s: the scores as they are."""


@dataclass(frozen=True)
class Distance:
    """A model whose scores are scaled distances to a row's centre."""

    size: int

    gather: ClassVar[Kernel] = in_place
    forward: ClassVar[Kernel] = distances
    forward_from_dual: ClassVar[Kernel | None] = None
    backward: ClassVar[Kernel] = distances_back
    convex: ClassVar[bool] = True
    site_bias: ClassVar[bool] = False

    @property
    def widths(self) -> Array:
        return np.array([2 * self.size, self.size])

    @property
    def layout(self) -> Layout:
        return Layout((Block("weights", (self.size,)),))

    def initial(self) -> Array:
        return np.zeros(self.size)


@dataclass(frozen=True)
class Instance:
    """A federated quadratic with psi either strength * |w|_1 or the box |w_i| <= radius."""

    curvature: Array  # q, [d]
    centres: Array  # c_m, [M, d]
    noise: float  # the Euclidean sigma: the root of the noise's mean squared length
    regularizer: Regularizer
    bounded: bool = False  # noise of constant length, uniform in direction, in place of Gaussian noise

    @classmethod
    def with_clients(cls, clients: int, size: int, spread: float, bounded: bool = False, **options: Any) -> Instance:
        """Clients in pairs c +- offset, so that their mean centre c is the same whatever their number.

        All offsets have the same length `spread` in the norm in which zeta is measured (see `zeta`).
        """
        curvature = np.geomspace(1.0, 0.1, size)
        random = np.random.default_rng(size)  # the instance is fixed; only the noise depends on the seed
        centre = 2 * random.standard_normal(size)
        offsets = random.standard_normal((64, size))[: (clients + 1) // 2]
        offsets *= spread / np.sqrt((curvature * offsets**2).sum(axis=1, keepdims=True))
        centres = centre + np.concatenate([offsets, -offsets])[:clients] * (clients > 1)
        return cls(curvature, centres, bounded=bounded, **options)

    @property
    def clients(self) -> int:
        return len(self.centres)

    @cached_property
    def centre(self) -> Array:
        return self.centres.mean(axis=0)

    # The constants.

    @property
    def smoothness(self) -> float:
        """L, in the Euclidean norm and in the norm sqrt(w'Qw / L) of assumption 3 alike."""
        return float(self.curvature.max())

    @property
    def metric(self) -> Array:
        """The dual norm of assumption 3: |g|_*^2 = sum_i metric_i g_i^2 = L g'Q^-1 g."""
        return self.smoothness / self.curvature

    @property
    def sigma_dual(self) -> float:
        """sigma in the dual norm of assumption 3; the noise has the same variance along every axis."""
        return self.noise * float(np.sqrt(self.metric.mean()))

    @property
    def zeta(self) -> float:
        """The largest |grad F_m - grad F|_*: both are Q times a distance of centres, wherever w is.

        (The paper's assumption 3 prints the bound as zeta^2; its proofs use zeta.)
        """
        gradients = self.curvature * (self.centres - self.centre)
        return float(np.sqrt((self.metric * gradients**2).sum(axis=1).max()))

    @property
    def gradient_bound(self) -> float:
        """G: the longest stochastic gradient in the box, for bounded noise."""
        assert isinstance(self.regularizer, LinfBall)
        assert self.bounded
        farthest = self.curvature * (self.regularizer.radius + np.abs(self.centres))
        return float(np.sqrt((farthest**2).sum(axis=1).max())) + self.noise

    @cached_property
    def optimum(self) -> Array:
        """w*: the coordinates separate."""
        if isinstance(self.regularizer, L1):
            shrunk = np.abs(self.centre) - self.regularizer.strength / self.curvature
            return np.sign(self.centre) * np.maximum(shrunk, 0)
        assert isinstance(self.regularizer, LinfBall)
        return np.clip(self.centre, -self.regularizer.radius, self.regularizer.radius)

    @property
    def divergence(self) -> float:
        """B = D_h(w*, w_0) with w_0 = 0 and the Euclidean h."""
        return float((self.optimum**2).sum() / 2)

    # What is measured.

    def gap(self, w: Array) -> Array:
        """Phi(w) - Phi(w*) for w [..., d]; F up to its constant."""
        return self._objective(w) - self._objective(self.optimum)

    def _objective(self, w: Array) -> Array:
        psi = self.regularizer.strength * np.abs(w).sum(axis=-1) if isinstance(self.regularizer, L1) else 0.0
        return (self.curvature * (w - self.centre) ** 2).sum(axis=-1) / 2 + psi

    def problem(self, rows: int, seed: int) -> Problem:
        """The data of one realization of the noise: `rows` moved centres for every client."""
        size = len(self.curvature)
        random = np.random.default_rng([seed, self.clients])
        noise = random.standard_normal((self.clients, rows, size))
        if self.bounded:
            noise *= self.noise / np.linalg.norm(noise, axis=2, keepdims=True)
        else:
            noise *= self.noise / np.sqrt(size)
        x = np.empty((self.clients, rows, 2 * size))
        x[..., :size] = self.centres[:, None] - noise / self.curvature
        x[..., size:] = np.sqrt(self.curvature)
        data = ClientData.of_equal_clients(x, np.zeros(x.shape[:2]))
        return Problem(data, Distance(size), HalfSquares(), self.regularizer)
