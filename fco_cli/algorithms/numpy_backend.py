"""NumPy backend: the text of an algorithm on the reference definitions of ops.py, without compiled code.

`numpy_clients(algorithm)` replaces the compiled loop over the clients of a bound algorithm. It is slow and simple: the
tests compare every algorithm on both backends.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fco_cli.algorithms.arrays import views
from fco_cli.algorithms.round import FederatedRound
from fco_cli.kernels.named import named
from fco_cli.problem.client_curvature import columns_in, operations
from fco_cli.problem.descent import Batches, slice_kernel
from fco_cli.problem.layout import Array
from fco_cli.problem.mirror import Geometry
from fco_cli.problem.models.linear import Linear, SparseLinear
from fco_cli.problem.private_descent import CohortNoise, PrivateBatches, private_batches
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers.base import BlockInfo


@dataclass
class NumpyGeometry:
    """The maps of h and psi, for all jobs and blocks."""

    problem: Problem
    geometry: Geometry
    psi_in_steps: bool
    prox_calls: list[int] = field(default_factory=lambda: [0])

    def _on_blocks(self, kernel: Any, out: Array, *vectors: Array, before: Any = None, after: tuple = ()) -> Array:
        """Call kernel(vectors..., before[j], psi, after..., block, out) for every job and regularized block."""
        geometry = self.geometry
        for j in range(len(out)):
            for start, stop, rows, columns, regularized, piece in geometry.table:
                if regularized:
                    block = BlockInfo(piece, rows, columns, geometry.per_weight[start:stop])
                    own = [vector[j, start:stop] for vector in vectors] + ([] if before is None else [before[j]])
                    with np.errstate(all="ignore"):
                        kernel.uncompiled(*own, geometry.psi[j], *after, block, out[j, start:stop])
        return out

    def to_dual(self, w: Array) -> Array:
        dual = w.copy()
        for j in range(len(w)):
            for start, stop, *_, regularized, _piece in self.geometry.table:
                if regularized:
                    self.problem.mirror.dual.uncompiled(w[j, start:stop], self.geometry.h[0], dual[j, start:stop])
        return dual

    def to_primal(self, z: Array, t: Array) -> Array:
        if not self.psi_in_steps:
            return self.to_free_primal(z)
        self.prox_calls[0] += 1
        primal = self.problem.mirror.primal(self.problem.regularizer)
        return self._on_blocks(primal, z.copy(), z, before=t, after=(self.geometry.h[0],))

    def to_free_primal(self, z: Array) -> Array:
        free = self.problem.mirror.free_primal
        return self._on_blocks(free, z.copy(), z, before=np.zeros(len(z)), after=(self.geometry.h[0],))

    def to_primal_in_ball(self, z: Array, t: Array, center: Array, radius: Array) -> Array:
        self.prox_calls[0] += 1
        out = z.copy()
        self.problem.primal_in_l1_ball.uncompiled(z, t, self.geometry, center, radius, out)
        return out

    def assign_subgradient(self, target: Array, w: Array) -> None:
        self._on_blocks(self.problem.regularizer.subgradient, target, w)

    def assign_linear_minimizer(self, target: Array, g: Array) -> None:
        self._on_blocks(self.problem.regularizer.lmo, target, g)


@dataclass
class NumpyBatches:
    """Batches of one client, with gradients of the mean loss over a batch."""

    problem: Problem
    batches: Batches
    private: PrivateBatches | None = None  # the same batches with noise

    @property
    def steps(self) -> int:
        return self.batches.steps

    def gradient(self, w: Array, k: int) -> Array:
        """Return the gradients [J, P] at w [J, P] of the mean loss over batch k."""
        rows = self.batches.order[self.batches.edges[k] : self.batches.edges[k + 1]]
        if self.private is not None:
            return self._private_gradient(w, rows, self.private.noise[k], self.private.batch_size or len(rows))
        return self._gradient(w, rows)

    def full_gradient(self, w: Array) -> Array:
        """Return the gradients [J, P] of the mean loss over all rows."""
        rows = np.arange(len(self.batches.y))
        if self.private is not None:
            return self._private_gradient(w, rows, self.private.noise[0], len(rows))
        return self._gradient(w, rows)

    def assign_moments(self, matrix: Array, vector: Array) -> None:
        """Assign the moments of all rows: the triangle matrix [slots, J, P] and vector [J, P]."""
        x, slopes = np.column_stack([self.batches.x, np.ones(len(self.batches.x))]), np.zeros((len(self.batches.y), 1))
        for slope, label in zip(slopes, self.batches.y, strict=True):
            self.problem.loss.bound_kernel("slope").uncompiled(slope, label)
        u = np.column_stack([x, slopes])
        for j in range(len(vector)):
            clipped, noise = u, np.zeros((u.shape[1], x.shape[1]))
            if self.private is not None:
                numbers = self.private.numbers[j]
                clipped = u * np.minimum(1, numbers.clip_norm / np.linalg.norm(u, axis=1))[:, None]
                if numbers.noise_multiplier > 0:
                    upper = np.triu(self.private.noise[:-1, min(j, self.private.noise.shape[1] - 1)])
                    last = self.private.noise[-1:, min(j, self.private.noise.shape[1] - 1)]
                    noise = np.vstack([upper + np.triu(upper, 1).T, last])
                    noise = numbers.noise_multiplier * numbers.clip_norm**2 * noise
            total = clipped.T @ clipped[:, :-1] + noise  # [P + 1, P]; the last row belongs to the slopes
            upper = np.zeros(matrix.shape[0] * matrix.shape[2])
            triangle = total[:-1][np.triu_indices(x.shape[1])] / len(u)
            upper[: len(triangle)] = triangle
            matrix[:, j], vector[j] = upper.reshape(-1, matrix.shape[2]), total[-1] / len(u)
        if self.private is not None:
            self.private.noise[:] = np.nan

    def assign_curvature(self, value: Array, gradient: Array, triangle: Array, w: Array, columns: Array | None) -> None:
        """Assign the mean loss of all rows [J], its gradient [J, P] and its packed Hessian [slots, J, P]."""
        if not self._is_plain:
            own = operations(self.problem.data, self.problem.model, self.problem.loss)
            name, restricted = ("curvature", []) if columns is None else ("curvature_of_columns", [columns])
            with np.errstate(all="ignore"):
                own[name].uncompiled(value, gradient, triangle, w, *restricted, self.batches)
            return
        size = w.shape[1]
        value[:], gradient[:] = self.loss(w), self._gradient(w, np.arange(len(self.batches.y)))
        entries = np.zeros((len(w), triangle.shape[0] * size))
        count = columns_in.as_python(triangle.shape[0], size)
        for j, model in enumerate(w):
            chosen = np.arange(size) if columns is None else columns[j, :count].astype(int)
            upper = self._hessian(model)[np.ix_(chosen, chosen)][np.triu_indices(len(chosen))]
            entries[j, : len(upper)] = upper
        triangle[:] = entries.reshape(len(w), -1, size).swapaxes(0, 1)

    def loss(self, w: Array) -> Array:
        """Return the mean loss of all rows [J]."""
        losses = np.empty(len(w))
        if not self._is_plain:
            own = operations(self.problem.data, self.problem.model, self.problem.loss)
            with np.errstate(all="ignore"):
                own["mean_loss"].uncompiled(losses, w, 0.0, w, self.batches)
            return losses
        value = self.problem.loss.bound_kernel("value").uncompiled
        for j, model in enumerate(w):
            with np.errstate(all="ignore"):
                losses[j] = np.mean([value(*row) for row in zip(self._scores(model), self.batches.y, strict=True)])
        return losses

    @property
    def _is_plain(self) -> bool:
        """True for a dense linear model and an unweighted sum over rows."""
        model, data = self.problem.model, self.problem.data
        is_linear = isinstance(model, Linear) and not isinstance(model, SparseLinear) and not model.site_bias
        return is_linear and self.problem.loss.client_loss is None and data.row_weights is None

    def _scores(self, model: Array) -> Array:
        """Return the scores of all rows [n, C] of a plain model [P]."""
        features, outputs = self.batches.widths[0], self.batches.widths[-1]
        return self.batches.x @ model[: outputs * features].reshape(outputs, features).T + model[outputs * features :]

    def _hessian(self, model: Array) -> Array:
        """Return the Hessian [P, P] of the mean loss of all rows of a plain model."""
        outputs, x = self.batches.widths[-1], self.batches.x
        second = np.empty((len(x), outputs, outputs))
        with np.errstate(all="ignore"):
            for own, scores, label in zip(second, self._scores(model), self.batches.y, strict=True):
                upper = np.empty(outputs * (outputs + 1) // 2)
                self.problem.loss.bound_kernel("curvature").uncompiled(scores, label, upper)
                own[np.triu_indices(outputs)] = upper
                own.T[np.triu_indices(outputs)] = upper
        derivatives = np.zeros((len(x), outputs, len(model)))  # of the scores by the weights
        for c in range(outputs):
            derivatives[:, c, c * x.shape[1] : (c + 1) * x.shape[1]] = x
            derivatives[:, c, outputs * x.shape[1] + c] = 1
        return np.einsum("ncp,ncd,ndq->pq", derivatives, second, derivatives) / len(x)

    def _private_gradient(self, w: Array, rows: Array, noise: Array, count: int) -> Array:
        """Return the sums of clipped row gradients and of noise, divided by `count`: [J, P]; discard the noise."""
        assert self.private is not None
        numbers, total = self.private.numbers, np.zeros(w.shape)
        for row in rows:
            gradients = self._gradient(w, np.array([row]))
            norms = np.linalg.norm(gradients, axis=1)
            total += gradients * np.minimum(1, numbers["clip_norm"] / np.maximum(norms, 1e-300))[:, None]
        if (numbers["noise_multiplier"] > 0).any():
            total += (numbers["noise_multiplier"] * numbers["clip_norm"])[:, None] * noise
        noise[:] = np.nan
        return (total / count).astype(w.dtype)

    def _gradient(self, w: Array, rows: Array) -> Array:
        problem, batches = self.problem, self.batches
        model = problem.model
        if not self._is_plain:
            one = Batches(batches.x, batches.y, rows, np.array([0, len(rows)]), batches.widths, 1)
            gradient = np.zeros_like(w)
            with np.errstate(all="ignore"):
                problem.descend.uncompiled(gradient, w, one, 0, -np.ones(len(w)))
            return gradient
        features, outputs = model.widths[0], model.widths[-1]
        x, gradient = batches.x[rows], np.empty_like(w)
        for j in range(len(w)):
            weights, bias = w[j, : outputs * features].reshape(outputs, features), w[j, outputs * features :]
            scores = x @ weights.T + bias  # [rows, outputs]
            with np.errstate(all="ignore"):
                for row, label in zip(scores, batches.y[rows], strict=True):
                    problem.loss.bound_kernel("slope").uncompiled(row, label)  # overwrites the scores
            slopes = scores / len(rows)
            gradient[j] = np.concatenate([(slopes.T @ x).ravel(), slopes.sum(axis=0)])
        return gradient


def numpy_clients(algorithm: FederatedRound) -> FederatedRound:
    """Return a copy of a bound algorithm that runs its clients with NumPy; `prox_calls` counts its local prox calls."""
    bound = copy.copy(algorithm)
    problem = bound.problem
    geometry = NumpyGeometry(problem, bound.geometry, bound.psi_in_steps)

    def run_clients(
        received: Any, memory: Array, messages: Array, rate: Array, options: Any, x: Any, y: Array, offsets: Array,
        clients: Array, order: Array, edges: Array, first: Array, widths: Array, _: Any, numbers: Any, keys: Array,
        noise: CohortNoise | None, remembered: int,
    ) -> None:  # fmt: skip
        for i, m in enumerate(clients):
            low, high = offsets[m], offsets[m + 1]
            own_edges = edges[first[i] : first[i + 1] + 1]
            rows = slice_kernel(x).as_python(x, low, high)
            batches = Batches(rows, y[low:high], order, own_edges, widths, len(own_edges) - 1)
            own, message = views(bound.remembered, memory[i]), views(bound.sent, messages[i])
            own, message = named(tuple(own))(**own), named(tuple(message))(**message)
            local = received, own, message, rate, options
            private = None if noise is None else private_batches.as_python(*batches[:5], noise, numbers, i)
            bound.steps_kernel.uncompiled(*local, NumpyBatches(problem, batches, private), geometry)
            with np.errstate(all="ignore"):
                bound.transform.encode.uncompiled(messages[i], memory[i, remembered:], numbers, keys[i])
            bound.remember.uncompiled(*local, batches.steps)

    bound.__dict__ |= {"_run_clients": run_clients, "prox_calls": geometry.prox_calls}
    return bound
