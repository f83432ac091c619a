"""Quadratic problems on which every constant of the theorems is known exactly.

F_m(w) = sum_i q_i (w_i - c_mi)^2 / 2, with a shared curvature q and one center c_m per client. A stochastic gradient is
the gradient of F_m plus noise xi, which equals the exact gradient of the quadratic with its center shifted by -xi / q.
A row of data therefore holds a shifted center, and the algorithms run unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from fco_cli.kernels.compiled import Kernel, kernel
from fco_cli.kernels.products import gather_in_place
from fco_cli.problem.data import ClientData
from fco_cli.problem.layout import Array, Block, Layout
from fco_cli.problem.losses import Loss
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers import Regularizer
from fco_cli.problem.regularizers.penalties import L1
from fco_cli.problem.regularizers.sets import LinfBall


@kernel
def distances(w, batch, widths):
    """Return the scores [J, d, B] sqrt(q_i) (w_i - center_i); a row holds the center, then sqrt(q)."""
    x, rows, size = batch.x, batch.rows, widths[-1]
    scores = np.empty((w.shape[0], size, rows.shape[0]), w.dtype)
    for j in range(w.shape[0]):
        for b in range(rows.shape[0]):
            for i in range(size):
                scores[j, i, b] = x[rows[b], size + i] * (w[j, i] - x[rows[b], i])
    return scores


@kernel
def distances_backward(gradient, w, batch, widths, slopes):
    """Add the sum over rows of slope times derivative of the score to `gradient` [J, d]."""
    x, rows, size = batch.x, batch.rows, widths[-1]
    for j in range(w.shape[0]):
        for b in range(rows.shape[0]):
            for i in range(size):
                gradient[j, i] += x[rows[b], size + i] * slopes[j, i, b]


class HalfSquares(Loss):
    """Sum of s^2 / 2 over the scores of a row; it has no name, so that configurations cannot select it."""

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
        """Leave the scores unchanged: the derivative of s^2 / 2 is s."""


@dataclass(frozen=True)
class Distance:
    """Model whose scores are the scaled differences between w and the center of a row."""

    size: int

    gather: ClassVar[Kernel] = gather_in_place
    forward: ClassVar[Kernel] = distances
    forward_from_dual: ClassVar[Kernel | None] = None
    backward: ClassVar[Kernel] = distances_backward
    row_norm: ClassVar[Kernel | None] = None
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
    """Federated quadratic problem with psi either strength * |w|_1 or the box |w_i| <= radius."""

    curvature: Array  # q, [d]
    centers: Array  # c_m, [M, d]
    noise: float  # sigma: root mean square of the Euclidean norm of the noise
    regularizer: Regularizer
    bounded: bool = False  # noise of constant norm and uniform direction instead of Gaussian noise

    @classmethod
    def with_clients(cls, clients: int, size: int, spread: float, bounded: bool = False, **options: Any) -> Instance:
        """Return an instance with clients in pairs c +- offset, whose mean center c does not depend on their number.

        All offsets have norm `spread` in the norm of `zeta`.
        """
        curvature = np.geomspace(1.0, 0.1, size)
        random = np.random.default_rng(size)  # a fixed instance; only the noise depends on the seed of a run
        center = 2 * random.standard_normal(size)
        offsets = random.standard_normal((64, size))[: (clients + 1) // 2]
        offsets *= spread / np.sqrt((curvature * offsets**2).sum(axis=1, keepdims=True))
        centers = center + np.concatenate([offsets, -offsets])[:clients] * (clients > 1)
        return cls(curvature, centers, bounded=bounded, **options)

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.centers)

    @cached_property
    def center(self) -> Array:
        """Mean of the centers."""
        return self.centers.mean(axis=0)

    # Constants of the theorems

    @property
    def smoothness(self) -> float:
        """Smoothness L, both in the Euclidean norm and in the norm sqrt(w'Qw / L) of assumption 3."""
        return float(self.curvature.max())

    @property
    def metric(self) -> Array:
        """Diagonal metric of the dual norm of assumption 3: |g|_*^2 = sum_i metric_i g_i^2 = L g'Q^-1 g."""
        return self.smoothness / self.curvature

    @property
    def sigma_dual(self) -> float:
        """Noise level sigma in the dual norm of assumption 3; the noise has the same variance along each axis."""
        return self.noise * float(np.sqrt(self.metric.mean()))

    @property
    def zeta(self) -> float:
        """Heterogeneity zeta: the largest |grad F_m - grad F|_*, which does not depend on w.

        (Assumption 3 of the paper states the bound as zeta^2; its proofs use zeta.)
        """
        gradients = self.curvature * (self.centers - self.center)
        return float(np.sqrt((self.metric * gradients**2).sum(axis=1).max()))

    @property
    def gradient_bound(self) -> float:
        """Gradient bound G: the largest norm of a stochastic gradient in the box, for bounded noise."""
        assert isinstance(self.regularizer, LinfBall)
        assert self.bounded
        largest = self.curvature * (self.regularizer.radius + np.abs(self.centers))
        return float(np.sqrt((largest**2).sum(axis=1).max())) + self.noise

    @cached_property
    def optimum(self) -> Array:
        """Minimizer w*, in closed form because the problem is coordinate-separable."""
        if isinstance(self.regularizer, L1):
            shrunk = np.abs(self.center) - self.regularizer.strength / self.curvature
            return np.sign(self.center) * np.maximum(shrunk, 0)
        assert isinstance(self.regularizer, LinfBall)
        return np.clip(self.center, -self.regularizer.radius, self.regularizer.radius)

    @property
    def divergence(self) -> float:
        """Bregman divergence B = D_h(w*, w_0) for w_0 = 0 and the Euclidean h."""
        return float((self.optimum**2).sum() / 2)

    # Measured quantities

    def gap(self, w: Array) -> Array:
        """Return Phi(w) - Phi(w*) for w [..., d]."""
        return self._objective(w) - self._objective(self.optimum)

    def _objective(self, w: Array) -> Array:
        """Return Phi(w) up to a constant."""
        psi = self.regularizer.strength * np.abs(w).sum(axis=-1) if isinstance(self.regularizer, L1) else 0.0
        return (self.curvature * (w - self.center) ** 2).sum(axis=-1) / 2 + psi

    def problem(self, rows: int, seed: int) -> Problem:
        """Return the problem for one realization of the noise, with `rows` shifted centers per client."""
        size = len(self.curvature)
        random = np.random.default_rng([seed, self.clients])
        noise = random.standard_normal((self.clients, rows, size))
        if self.bounded:
            noise *= self.noise / np.linalg.norm(noise, axis=2, keepdims=True)
        else:
            noise *= self.noise / np.sqrt(size)
        x = np.empty((self.clients, rows, 2 * size))
        x[..., :size] = self.centers[:, None] - noise / self.curvature
        x[..., size:] = np.sqrt(self.curvature)
        data = ClientData.of_equal_clients(x, np.zeros(x.shape[:2]))
        return Problem(data, Distance(size), HalfSquares(), regularizer=self.regularizer)
