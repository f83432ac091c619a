"""Mirror maps: distance-generating functions h, selected by the config group `mirror`.

A mirror map defines grad h and, for the regularizers that allow it, grad (h + t psi)* in closed form. Its kernels
process one regularized block of one job; `h` contains the numeric fields of the mirror map by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fco_cli.errors import UserError, require
from fco_cli.kernels.compiled import Kernel, copy, declared, kernel, specialize
from fco_cli.problem.layout import Array, Numbers, numbers_of
from fco_cli.problem.registry import Registry
from fco_cli.problem.regularizers import Regularizer
from fco_cli.problem.regularizers.penalties import soft_threshold_each
from fco_cli.problem.regularizers.sets import clip

regularizer: Regularizer = declared(Regularizer)


@kernel
def prox_of_psi(z, t, psi, h, block, out):
    regularizer.prox(z, t, psi, block, out)


@kernel
def prox_on_orthant(z, t, psi, h, block, out):
    """Compute the prox of psi on the positive orthant, for a psi that only shrinks toward 0: clip, then prox."""
    clipped = np.empty_like(z)
    clip(z, 0.0, np.inf, clipped)
    regularizer.prox(clipped, t, psi, block, out)


@dataclass(kw_only=True)
class Mirror:
    """Mirror map h; subclasses add its parameters as fields."""

    name: str
    dual: ClassVar[Kernel]  # dual(w, h, out): out = grad h(w)
    # primal(z, t, psi, h, block, out): out = grad (h + t psi)*(z)
    closed_forms: ClassVar[dict[str, Kernel]]  # by the name of psi
    free_primal: ClassVar[Kernel]  # without psi

    @property
    def numbers(self) -> Numbers:
        """Parameters that kernels receive as `h`: [1]."""
        return numbers_of(self)

    def primal(self, regularizer: Regularizer) -> Kernel:
        """Return the kernel of grad (h + t psi)*; raise UserError if there is no closed form."""
        if regularizer.name not in self.closed_forms:
            raise UserError(
                f"mirror={self.name} has no closed form with regularizer={regularizer.name}; "
                f"it has one with {', '.join(self.closed_forms)} (mirror=euclidean supports every regularizer)"
            )
        return self.closed_forms[regularizer.name]

    def prox(self, regularizer: Regularizer) -> Kernel:
        """Return the kernel of the Euclidean prox of psi plus the domain of h, for optimality conditions."""
        return specialize(prox_of_psi, regularizer={"prox": regularizer.prox})

    def inside(self, w: Array) -> Array:
        """Return one block of initial weights, moved into the interior of h's domain."""
        return w

    def divergence(self, w: Array, start: Array) -> float:
        """Return D_h(w, start) = h(w) - h(start) - <grad h(start), w - start>, on one block."""
        raise NotImplementedError


@dataclass(kw_only=True)
class Euclidean(Mirror):
    """Euclidean mirror map h(w) = |w|^2 / 2: the dual is the primal, and to_primal is the prox."""

    name: str = "euclidean"

    @staticmethod
    @kernel
    def dual(w, h, out):
        copy(w, out)

    @staticmethod
    @kernel
    def free_primal(z, t, psi, h, block, out):
        copy(z, out)

    def primal(self, regularizer: Regularizer) -> Kernel:
        return specialize(prox_of_psi, regularizer={"prox": regularizer.prox})

    def divergence(self, w: Array, start: Array) -> float:
        return float(((w - start) ** 2).sum() / 2)


LOG_OF_TINY = float(np.log(np.finfo(float).tiny))


@kernel
def exponential(z, t, psi, h, block, out):
    for i in range(z.shape[0]):
        out[i] = np.exp(z[i])


@kernel
def exponential_with_l1(z, t, psi, h, block, out):
    """Compute exp(z_i - t strength factor_i): psi is linear on the positive orthant."""
    for i in range(z.shape[0]):
        out[i] = np.exp(z[i] - t * psi.strength * block.per_weight[i])


@kernel
def scaled_softmax(z, total, out):
    """Compute total * e^z / sum e^z, with z shifted by its largest entry."""
    top = z[0]
    for i in range(z.shape[0]):
        top = max(top, z[i])
    weight = 0.0
    for i in range(z.shape[0]):
        out[i] = np.exp(z[i] - top)
        weight += out[i]
    for i in range(z.shape[0]):
        out[i] = out[i] * (total / weight)


@kernel
def softmax(z, t, psi, h, block, out):
    scaled_softmax(z, psi.total, out)


@kernel
def exponential_in_ball(z, t, psi, h, block, out):
    """Compute e^z, scaled to sum to the radius if the sum is larger: |w|_1 <= radius on the positive orthant."""
    weight = 0.0
    for i in range(z.shape[0]):
        weight += np.exp(z[i])
    if weight <= psi.radius:
        exponential(z, t, psi, h, block, out)
    else:
        scaled_softmax(z, psi.radius, out)


@dataclass(kw_only=True)
class Entropy(Mirror):
    """Entropy h(w) = sum_i (w_i log w_i - w_i) on the positive orthant: multiplicative steps keep w positive."""

    name: str = "entropy"
    free_primal: ClassVar[Kernel] = exponential
    closed_forms: ClassVar[dict[str, Kernel]] = {
        "none": exponential,
        "non_negative": exponential,
        "l1": exponential_with_l1,
        "l1_ball": exponential_in_ball,
        "simplex": softmax,
    }

    @staticmethod
    @kernel
    def dual(w, h, out):
        for i in range(w.shape[0]):
            out[i] = np.log(w[i]) if w[i] != 0 else LOG_OF_TINY  # a weight that underflowed can grow again

    def prox(self, regularizer: Regularizer) -> Kernel:
        if regularizer.name in ("simplex", "non_negative"):  # subsets of the orthant
            return super().prox(regularizer)
        return specialize(prox_on_orthant, regularizer={"prox": regularizer.prox})

    def inside(self, w: Array) -> Array:
        """Replace entries that are not positive by 1/n."""
        return np.where(w > 0, w, 1 / w.size)

    def divergence(self, w: Array, start: Array) -> float:
        """Return the (generalized) Kullback-Leibler divergence, with 0 log 0 = 0."""
        logarithm = np.log(np.where(w > 0, w, 1.0)) - np.log(start)
        return float((np.where(w > 0, w * logarithm, 0.0) - w + start).sum())


@kernel
def power_gradient(v, power, out):
    """Compute the gradient of |v|_power^2 / 2, scaled by the largest entry to avoid overflow."""
    top = 0.0
    for i in range(v.shape[0]):
        top = max(top, abs(v[i]))
    if top == 0:
        copy(v, out)
        return
    total = 0.0
    for i in range(v.shape[0]):
        total += (abs(v[i]) / top) ** power
    factor = top * total ** ((2 - power) / power)
    for i in range(v.shape[0]):
        out[i] = np.sign(v[i]) * factor * (abs(v[i]) / top) ** (power - 1)


@kernel
def inverse_power(z, t, psi, h, block, out):
    power_gradient(z, h.power / (h.power - 1), out)  # h* = |z|_q^2 / 2 with 1/p + 1/q = 1


@kernel
def inverse_power_with_l1(z, t, psi, h, block, out):
    """Compute grad h* of the soft-thresholded z: grad h has the signs of w, like a subgradient of |w|_1."""
    thresholded = np.empty_like(z)
    soft_threshold_each(z, z.dtype.type(t * psi.strength), block.per_weight, thresholded)
    inverse_power(thresholded, t, psi, h, block, out)


@kernel
def inverse_power_on_orthant(z, t, psi, h, block, out):
    clipped = np.empty_like(z)
    clip(z, 0.0, np.inf, clipped)
    inverse_power(clipped, t, psi, h, block, out)


@dataclass(kw_only=True)
class PNorm(Mirror):
    """Mirror map h(w) = |w|_power^2 / 2 with 1 < power <= 2, between Euclidean and l1 geometry."""

    power: float
    name: str = "p_norm"
    free_primal: ClassVar[Kernel] = inverse_power
    closed_forms: ClassVar[dict[str, Kernel]] = {
        "none": inverse_power,
        "l1": inverse_power_with_l1,
        "non_negative": inverse_power_on_orthant,
    }

    def __post_init__(self) -> None:
        require(1 < self.power <= 2, "mirror.power", self.power, "a number > 1 and <= 2")

    @staticmethod
    @kernel
    def dual(w, h, out):
        power_gradient(w, h.power, out)

    def divergence(self, w: Array, start: Array) -> float:
        gradient = np.empty_like(start)
        self.dual(start, self.numbers[0], gradient)
        h = [float(np.linalg.norm(v, self.power) ** 2 / 2) for v in (w, start)]
        return h[0] - h[1] - float(gradient @ (w - start))


all_mirrors: Registry[Mirror] = Registry("mirror", Mirror)
