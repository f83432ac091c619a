"""One-shot methods for comparison, in simulation only: clients solve problems on their own rows.

None of them is exact. `dlsa` and `debiased_average` take one round. `csl` repeats its round, and converges to the
optimum only if the Hessian of the leading client resembles that of F.
"""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fco_cli.algorithms.baselines import Baseline
from fco_cli.algorithms.protocol import Array, Cohort, Costs, Style
from fco_cli.errors import require
from fco_cli.problem.curvature import curvature_kernel, packed_size
from fco_cli.problem.layout import Numbers
from fco_cli.problem.mirror_maps import Mirror
from fco_cli.problem.nodewise import nodewise_inverse
from fco_cli.problem.problem import Problem
from fco_cli.problem.quadratic_solver import minimize_quadratic
from fco_cli.problem.regularizers import Regularizer
from fco_cli.problem.regularizers.penalties import NoRegularizer

log = logging.getLogger(__name__)

NEWTON_STEPS, SMALLEST_STEP = 60, 2.0**-30  # of a client's solver, and of its line search
RESIDUAL = 1e-9  # KKT residual of a client's solution, relative to max(1, |gradient at the start|)
LAST_STEP = 1e-5  # length of its last Newton step relative to max(1, |w|): without a minimum, steps do not shrink
USES = frozenset(("weighting", "dtype"))


def minimize_locally(client: Problem, numbers: Numbers, linear: Array, start: Array) -> Array:
    """Return argmin_w F(w) - linear'w + psi(w) for the problem of one client [P], by proximal Newton steps.

    Return NaN if the steps do not converge: the minimum is not attained, or psi leaves it undetermined.
    """

    def value(w: Array) -> float:
        return float(
            (client.risk(w[None], gradient=False).value + client.psi(w[None], numbers))[0] - (linear * w).sum()
        )

    w, scale = start.astype(float), 0.0
    for _ in range(NEWTON_STEPS):
        quadratic = client.curvature(w[None])
        gradient = quadratic.gradient - linear
        scale = scale or max(1.0, float(np.linalg.norm(gradient)))
        residual = client.kkt_residual(w[None], gradient, numbers)[0]
        step = minimize_quadratic(client, numbers, quadratic.hessian, gradient, w[None])[0] - w
        is_small = np.linalg.norm(step) <= LAST_STEP * max(1.0, float(np.linalg.norm(w)))
        if is_small and residual <= RESIDUAL * scale:
            return w
        length, objective = 1.0, value(w)
        psi = float(client.psi((w + step)[None], numbers)[0] - client.psi(w[None], numbers)[0])
        slope = float((gradient[0] * step).sum()) + psi
        while length > SMALLEST_STEP and not value(w + length * step) <= objective + 1e-4 * length * slope:
            length /= 2
        w = w + (length if length > SMALLEST_STEP else 1.0) * step  # differences of values are rounding errors
        if not np.isfinite(w).all():
            break
    return np.full(len(start), np.nan)


@dataclass(kw_only=True)
class OneShot(Baseline):
    """Base class of methods whose clients solve problems on their own rows."""

    def check_pair(self, psi: Regularizer, mirror: Mirror) -> None:
        allowed = f"euclidean: {self.name} supports no other mirror map"
        require(mirror.name == "euclidean", "mirror", mirror.name, allowed)
        require(psi.convex, "regularizer", psi.name, f"convex: {self.name} solves convex problems at the clients")

    def check(self) -> None:
        problem = self.problem
        curvature_kernel(problem.data, problem.model, problem.loss)  # raises UserError if there is no Hessian
        allowed = f"another: {self.name} does not support site intercepts"
        require(not problem.model.site_bias, "algo", self.name, allowed)

    @cached_property
    def _clients(self) -> list[Problem]:
        """Problem of every client, with its own rows."""
        return [replace(self.problem, training=self.problem.data.client(m)) for m in range(self.problem.data.clients)]

    def _name_of(self, m: int) -> str:
        names = self.problem.clients
        return str(m) if names is None else names[m]

    def step(self, w: Array, cohort: Cohort | None) -> Array:
        return np.array([self.new_model(j, w[j].astype(float)) for j in range(len(w))], w.dtype)

    @abstractmethod
    def new_model(self, j: int, w: Array) -> Array:
        """Return the model [P] of job j after a round; w [P] is the one before."""

    def _psi(self, j: int) -> Numbers:
        return self.varying.psi[j : j + 1]

    def _costs(self, vectors_up: int, vectors_down: int, scalars_up: int = 0) -> Costs:
        size, itemsize, clients = self.problem.layout.size, self.problem.dtype.itemsize, self.problem.data.clients
        return Costs(
            vectors_up,
            vectors_down,
            (vectors_up * size + scalars_up) * itemsize,
            vectors_down * size * itemsize,
            prox_calls=1,
            gradients=len(self.problem.data.y),
            queries=clients,
        )


@dataclass(kw_only=True)
class Csl(OneShot):
    """Surrogate likelihood (Jordan, Lee and Yang, 2019), led by the client with the most rows.

    All clients send their gradients at w; the leading client minimizes F_1(u) - (grad F_1(w) - grad F(w))'u + psi(u).
    """

    name: str = "csl"
    style = Style("CSL", "#44AA99", "D", (3, 1), family="few rounds")
    uses = USES | {"rounds", "eval_every"}

    def new_model(self, j: int, w: Array) -> Array:
        leader = self._clients[int(np.argmax(self.problem.data.sizes))]
        surplus = leader.risk(w[None]).gradient[0] - self.problem.risk(w[None]).gradient[0]
        new = minimize_locally(leader, self._psi(j), surplus, w)
        if not np.isfinite(new).all():
            log.warning("csl: the surrogate of the leading client has no unique minimum")
        return new

    def costs(self, cohort: Cohort | None) -> Costs:
        messages = self.problem.data.clients + 1  # the leading client receives the mean gradient and sends the model
        return self._costs(messages, messages)._replace(queries=messages)


@dataclass(kw_only=True)
class Dlsa(OneShot):
    """Distributed least-squares approximation (Zhu, Li and Wang, 2021).

    Clients send their unregularized estimates w_m and their Hessians H_m there; the server minimizes
    sum_m p_m (w - w_m)'H_m(w - w_m) / 2 + psi(w).
    """

    name: str = "dlsa"
    style = Style("DLSA", "#44AA99", "v", (1, 1), family="few rounds")
    one_shot = True
    uses = USES

    @property
    def minimizes_objective(self) -> bool:
        return self.problem.loss.quadratic

    def check(self) -> None:
        super().check()
        data, size = self.problem.data, self.problem.layout.size
        m = int(np.argmin(data.sizes))
        allowed = (
            f"another: dlsa needs more rows than parameters, {size}, at every client; client {self._name_of(m)} has "
            f"{data.sizes[m]}"
        )
        require(data.sizes[m] > size, "algo", self.name, allowed)

    @cached_property
    def _moments(self) -> tuple[Array, Array]:
        """Weighted sums over the clients of H_m w_m [P] and of H_m [P, P]."""
        size = self.problem.layout.size
        linear, quadratic = np.zeros(size), np.zeros((size, size))
        for m, (weight, client) in enumerate(zip(self.problem.weights, self._clients, strict=True)):
            free = replace(client, regularizer=NoRegularizer())
            own = minimize_locally(free, free.regularizer.numbers, np.zeros(size), np.zeros(size))
            if not np.isfinite(own).all():
                log.warning("dlsa: client %s has no finite unregularized estimate", self._name_of(m))
                return np.full(size, np.nan), np.eye(size)
            hessian = free.curvature(own[None]).hessian[0]
            linear += weight * np.einsum("ij,j->i", hessian, own)
            quadratic += weight * hessian
        return linear, quadratic

    def new_model(self, j: int, w: Array) -> Array:
        linear, quadratic = self._moments
        if not np.isfinite(linear).all():
            return linear
        return minimize_quadratic(self.problem, self._psi(j), quadratic[None], -linear[None], np.zeros((1, len(w))))[0]

    def costs(self, cohort: Cohort | None) -> Costs:
        clients = self.problem.data.clients
        return self._costs(clients, 0, clients * packed_size(self.problem.layout.size))


@dataclass(kw_only=True)
class DebiasedAverage(OneShot):
    """Averaged debiased estimates (Lee, Liu, Sun and Taylor, 2017).

    Client m minimizes F_m + psi, adds -Theta_m grad F_m, with an approximate inverse Theta_m of its Hessian from the
    nodewise lasso, and sends the result and the diagonal of its Hessian. The server applies the prox of psi to the mean
    in the metric of the mean diagonal; the paper thresholds at a fixed level.
    """

    name: str = "debiased_average"
    style = Style("debiased average", "#44AA99", "^", (2, 2), family="few rounds")
    one_shot = True
    uses = USES
    nodewise: float = 1.0  # strength of the nodewise lasso, in units of sqrt(log(P) / n_m)

    def __post_init__(self) -> None:
        require(math.isfinite(self.nodewise) and self.nodewise > 0, "algo.nodewise", self.nodewise, "a number > 0")

    def check_pair(self, psi: Regularizer, mirror: Mirror) -> None:
        super().check_pair(psi, mirror)
        require(
            psi.separable, "regularizer", psi.name, "separable: debiased_average thresholds every weight separately"
        )

    def new_model(self, j: int, w: Array) -> Array:
        size, penalized = len(w), self.problem.layout.regularized
        mean, diagonal = np.zeros((2, 1, size))
        for m, (weight, client) in enumerate(zip(self.problem.weights, self._clients, strict=True)):
            own = minimize_locally(client, self._psi(j), np.zeros(size), w)
            if not np.isfinite(own).all():
                log.warning("debiased_average: the problem of client %s has no unique solution", self._name_of(m))
                return own
            at = client.curvature(own[None])
            strength = float(np.atleast_1d(self.nodewise)[j]) * math.sqrt(math.log(size) / len(client.data.y))
            inverse = nodewise_inverse(at.hessian[0], ~penalized, strength)
            mean += weight * (own - np.einsum("ij,j->i", inverse, at.gradient[0]))
            diagonal += weight * at.hessian[0].diagonal()
        out, step_sizes = np.empty_like(mean), 1 / np.maximum(diagonal, np.finfo(float).tiny)
        self.problem.prox_of_each(mean, step_sizes, self.problem.geometry(self._psi(j)), out)
        return out[0]

    def costs(self, cohort: Cohort | None) -> Costs:
        return self._costs(2 * self.problem.data.clients, 0)
