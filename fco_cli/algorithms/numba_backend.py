"""Numba backend: kernels of the operations in ops.py, the parallel loop over the clients of a cohort, and its
buffers.

Arrays made by `copy`, `buffer_like` and `zeros_like` have cache-aligned rows, which are longer than P. Kernels of two
arrays therefore loop over the columns that both have.
"""

from __future__ import annotations

import importlib

import numpy as np

from fco_cli.kernels.compiled import Kernel, Namespace, declared, kernel, specialize
from fco_cli.kernels.products import aligned_rows
from fco_cli.problem.client_curvature import operations as curvature_operations
from fco_cli.problem.descent import Batches, full_batch, gradient_step
from fco_cli.problem.layout import Array
from fco_cli.problem.moments import moments_kernel
from fco_cli.problem.private_descent import private_full_batch
from fco_cli.problem.problem import Problem

prange = range  # Numba's parallel range in the compiled kernel
problem: Problem = declared(Problem)
Buffers = tuple[Array, Array]  # messages [S, slots, J, P] and client memory [S, slots, J, P]


class BufferPool(dict[int, Buffers]):
    """Message and memory buffers by number of clients, reused in all rounds.

    Allocation in every round would take as long as the local steps. `shape` is (J, P).
    """

    def __init__(self, sent: int, kept: int, shape: tuple[int, int], dtype: np.dtype) -> None:
        super().__init__()
        self.counts, self.shape, self.dtype = (sent, kept), shape, dtype

    def new(self, clients: int) -> Buffers:
        """Return new buffers that are not shared with other rounds."""
        messages, memory = (np.zeros((clients, count, *self.shape), self.dtype) for count in self.counts)
        return messages, memory

    def __missing__(self, clients: int) -> Buffers:
        self[clients] = self.new(clients)
        return self[clients]


@kernel
def copy(source):
    target = aligned_rows(source.shape[0], source)
    assign(target, source)
    return target


@kernel
def buffer_like(source):
    return aligned_rows(source.shape[0], source)


@kernel
def zeros_like(source):
    zeros = aligned_rows(source.shape[0], source)
    for j in range(zeros.shape[0]):
        for i in range(zeros.shape[1]):
            zeros[j, i] = 0
    return zeros


@kernel
def common_columns(a, b):
    """Return the number of columns that both arrays have; rows may be padded."""
    return min(a.shape[1], b.shape[1])


@kernel
def assign(target, source):
    for j in range(target.shape[0]):
        for i in range(common_columns(target, source)):
            target[j, i] = source[j, i]


@kernel
def assign_difference(target, a, b):
    for j in range(target.shape[0]):
        for i in range(common_columns(target, b)):
            target[j, i] = a[j, i] - b[j, i]


@kernel
def assign_scaled_difference(target, coefficient, a, b):
    for j in range(target.shape[0]):
        for i in range(min(common_columns(target, a), b.shape[1])):
            target[j, i] = coefficient[j] * (a[j, i] - b[j, i])


@kernel
def assign_quotient(target, a, divisor):
    for j in range(target.shape[0]):
        for i in range(common_columns(target, a)):
            target[j, i] = a[j, i] / divisor[j]


@kernel
def add(target, source):
    for j in range(target.shape[0]):
        for i in range(common_columns(target, source)):
            target[j, i] += source[j, i]


@kernel
def subtract(target, source):
    for j in range(target.shape[0]):
        for i in range(common_columns(target, source)):
            target[j, i] -= source[j, i]


@kernel
def add_multiple(target, coefficient, source):
    for j in range(target.shape[0]):
        for i in range(common_columns(target, source)):
            target[j, i] += coefficient[j] * source[j, i]


@kernel
def subtract_multiple(target, coefficient, source):
    for j in range(target.shape[0]):
        for i in range(common_columns(target, source)):
            target[j, i] -= coefficient[j] * source[j, i]


@kernel
def add_scaled_difference(target, coefficient, a, b):
    for j in range(target.shape[0]):
        for i in range(min(common_columns(target, a), b.shape[1])):
            target[j, i] += coefficient[j] * (a[j, i] - b[j, i])


@kernel
def reflection(x, y):
    reflected = aligned_rows(x.shape[0], x)
    for j in range(x.shape[0]):
        for i in range(common_columns(x, y)):
            reflected[j, i] = 2 * x[j, i] - y[j, i]
    return reflected


@kernel
def corrected_dual_step(z, total, previous, dual, rate, correction):
    for j in range(z.shape[0]):
        for i in range(common_columns(z, dual)):
            z[j, i] = dual[j, i] + (total[j, i] - previous[j, i]) - rate[j] * correction[j, i]
            previous[j, i] = total[j, i]


@kernel
def is_zero(t):
    count = 0
    for j in range(t.shape[0]):
        count += t[j] != 0
    return count == 0


@kernel
def assign_gradient(target, query, batches):
    minus_one = np.full(target.shape[0], -1.0)
    for j in range(target.shape[0]):
        for i in range(target.shape[1]):
            target[j, i] = 0
    problem.descend(target, query, problem.full_batch(batches), 0, minus_one)


@kernel
def assign_moments(matrix, vector, batches):
    problem.moments(matrix, vector, batches)


@kernel
def assign_curvature(triangle, gradient, value, query, batches):
    problem.curvature(value, gradient, triangle, query, batches)


@kernel
def assign_curvature_of(triangle, gradient, value, query, columns, batches):
    problem.curvature_of_columns(value, gradient, triangle, query, columns, batches)


@kernel
def assign_loss(value, w, fraction, step, batches):
    problem.mean_loss(value, w, fraction, step, batches)


@kernel
def to_dual(target, w, geometry):
    problem.to_dual(w, geometry, target)


@kernel
def to_primal(target, z, t, geometry):
    problem.to_primal(z, t, geometry, target)


@kernel
def to_free_primal(target, z, geometry):
    problem.free_primal(z, np.zeros(z.shape[0]), geometry, target)


@kernel
def to_primal_in_ball(target, z, t, geometry, center, radius):
    problem.primal_in_l1_ball(z, t, geometry, center, radius, target)


@kernel
def assign_subgradient(target, w, geometry):
    problem.psi_subgradient(w, geometry, target)


@kernel
def assign_linear_minimizer(target, g, geometry):
    problem.linear_minimization_oracle(g, geometry, target)


def bound_operations(problem: Problem, psi_in_steps: bool, private_step: Kernel | None = None) -> Namespace:
    """Return the operations of ops.py as kernels of a problem; `to_primal` ignores psi if `psi_in_steps` is False.

    `private_step` replaces the gradient step on batches by one on `PrivateBatches`.
    """
    step = private_step or gradient_step
    descend = problem.descend_by(step)
    maps = {
        "descend": descend,
        "full_batch": full_batch if private_step is None else private_full_batch,
        "to_dual": problem.to_dual,
        "to_primal": problem.to_primal if psi_in_steps else problem.free_primal,
        "free_primal": problem.free_primal,
        "primal_in_l1_ball": problem.primal_in_l1_ball,
        "psi_subgradient": problem.psi_subgradient,
        "linear_minimization_oracle": problem.linear_minimization_oracle,
    }
    if problem.loss.client_loss is None:
        maps["moments"] = moments_kernel(problem.data, problem.loss, private_step is not None)
    maps |= curvature_operations(problem.data, problem.model, problem.loss)
    # Imported by its name: a static reference would make every operation part of every run's identity.
    reference = importlib.import_module("fco_cli.algorithms.ops")
    templates = {name: getattr(item, "kernel", None) for name, item in vars(reference).items()}
    own = {name: specialize(item, problem=maps) for name, item in templates.items() if isinstance(item, Kernel)}
    of_problem = {
        "gradient_step": descend,
        "dual_gradient_step": problem.descend_dual(psi_in_steps, step),
        "as_dual": problem.as_dual,
    }
    return Namespace("ops", own | of_problem)


class ClientKernels:
    """Kernels of one client in one round."""

    local_steps: Kernel  # Federated.local_steps
    encode: Kernel  # Transform.encode
    remember: Kernel  # Federated.remember
    rows: Kernel  # rows(x, low, high): rows low to high of x
    batches: Kernel  # batches(x, y, order, edges, widths, noise, numbers, i): batches of client i
    memory: Kernel  # memory(buffers, i): remembered arrays of client i, by name
    message: Kernel  # message(buffers, i): sent arrays of client i, by name


client: ClientKernels = declared(ClientKernels)


@kernel
def keep_memory(received, memory, message, rate, options, steps):
    """Default `remember`: no memory update after the transform."""


@kernel
def keep_message(message, residual, numbers, key):
    """Default `encode`: the message is sent unchanged."""


@kernel
def plain_batches(x, y, order, edges, widths, noise, numbers, i):
    """Return the batches of client i, without noise."""
    return Batches(x, y, order, edges, widths, edges.shape[0] - 1)


@kernel
def run_clients(
    received, memory, messages, rate, options, x, y, offsets, clients, order, edges, first, widths, geometry,
    numbers, keys, noise, remembered,
):  # fmt: skip
    """Run the local steps, the transform and the memory update of every client of the cohort.

    Fills messages [S, slots, J, P] and updates memory [S, slots, J, P] in place. In a client's memory the first
    `remembered` slots belong to the algorithm, the others to the transform. `noise` is a `CohortNoise` or None.
    """
    for i in prange(clients.shape[0]):
        low, high = offsets[clients[i]], offsets[clients[i] + 1]
        own_edges = edges[first[i] : first[i + 1] + 1]
        rows = client.rows(x, low, high)
        batches = client.batches(rows, y[low:high], order, own_edges, widths, noise, numbers, i)
        own, message = client.memory(memory, i), client.message(messages, i)
        client.local_steps(received, own, message, rate, options, batches, geometry)
        client.encode(messages[i], memory[i, remembered:], numbers, keys[i])
        client.remember(received, own, message, rate, options, batches.steps)
