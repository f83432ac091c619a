"""Measurements of the algorithms, step by step.

`trace` calls the `local_steps` kernel of an algorithm with one batch at a time and stores the states of the clients
after each step. No part of an algorithm is implemented a second time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.algorithms import Cohort, Varying, all_algorithms
from fco_cli.algorithms.arrays import names, picker
from fco_cli.algorithms.numba_backend import ClientKernels
from fco_cli.algorithms.protocol import Federated
from fco_cli.kernels.compiled import Kernel, declared, kernel, specialize
from fco_cli.kernels.named import named
from fco_cli.problem.descent import Batches
from fco_cli.problem.layout import Array
from fco_cli.problem.problem import Problem
from fco_cli.theory.instance import Instance

Primal, Dual = named(("w",)), named(("z", "t"))  # broadcasts of fedmid and of feddualavg


@kernel
def receive_primal(vector, t):
    return Primal(vector)


@kernel
def receive_dual(vector, t):
    return Dual(vector, t)


receive = receive_primal  # or receive_dual, bound by `specialize`
client: ClientKernels = declared(ClientKernels)


@kernel
def trace(broadcast, t, rate, options, x, y, offsets, order, edges, first, widths, geometry, states):
    """Write the broadcast and the state of each client after each of K local steps to states [S, K + 1, J, P].

    Each step runs as that of a client that received the previous state as the broadcast, with t advanced by k steps.
    """
    time, message = np.empty_like(t), np.empty((1, 1, *broadcast.shape))
    no_memory = np.empty((1, 0, *broadcast.shape))
    for i in range(states.shape[0]):
        states[i, 0] = broadcast
        for k in range(states.shape[1] - 1):
            for j in range(t.shape[0]):
                time[j] = t[j] + k * rate[j]
            low, high, at = offsets[i], offsets[i + 1], first[i] + k
            batch = Batches(x[low:high], y[low:high], order, edges[at : at + 2], widths, 1)
            received = receive(states[i, k], time)
            own, sent = client.memory(no_memory, 0), client.message(message, 0)
            client.local_steps(received, own, sent, rate, options, batch, geometry)
            states[i, k + 1] = states[i, k] + message[0, 0]


def tracer(algorithm: Federated) -> Kernel:
    """Return `trace` for an algorithm that broadcasts one vector and, if it is dual, the time t."""
    size = algorithm.problem.layout.size
    kernels = {
        "local_steps": algorithm.client_steps,
        "memory": picker((), size),
        "message": picker(algorithm.sent, size),
    }
    return specialize(trace, client=kernels, receive=receive_dual if is_dual(algorithm) else receive_primal)


def is_dual(algorithm: Federated) -> bool:
    """Return True if the algorithm broadcasts a dual state and its time t."""
    return "t" in names(algorithm.broadcast)


@dataclass(frozen=True)
class Measurements:
    """Measurements of one run, for each eta_c (J) and each requested number of rounds."""

    gaps: Array  # [R's, J], Phi(hat w) - Phi* of the averaged shadow sequence
    drift: Array  # [R, K + 1, J], mean over the clients of |z_m - zbar|^2, Euclidean
    drift_dual: Array  # drift in the dual norm of assumption 3
    identity: Array  # [R, J], if requested: relative error of the key identity


def full_cohort(clients: int, steps: int, first_row: int) -> Cohort:
    """Return a cohort of all clients, each with `steps` new rows in batches of one."""
    order = np.tile(np.arange(steps) + first_row, clients)
    return Cohort(
        np.arange(clients), order, np.arange(len(order) + 1), np.arange(clients + 1) * steps,
        weights=np.ones(clients), total_weight=float(clients), mean_steps=float(steps),
    )  # fmt: skip


def bind_algorithm(name: str, problem: Problem, client_lr: Array, server_lr: Array) -> Federated:
    """Return the algorithm bound to the problem, with one job per pair of learning rates."""
    algorithm = all_algorithms()[name]()  # type: ignore[call-arg]
    assert isinstance(algorithm, Federated)
    return algorithm.bind(problem, Varying.from_rates(algorithm, problem.regularizer, client_lr, server_lr))


def measure(
    instance: Instance,
    rates: Array,
    steps: int,
    rounds: list[int],
    seed: int,
    name: str = "feddualavg",
    identity: bool = False,
) -> Measurements:
    """Run the algorithm `name` with eta_s = 1 and measure each step; `rounds` are the R at which gaps are evaluated."""
    problem = instance.problem(steps * rounds[-1], seed)
    algorithm = bind_algorithm(name, problem, rates, np.ones(len(rates)))
    state = algorithm.initial_state(problem.initial_models(algorithm.varying.psi))
    vector = algorithm.broadcast[0].name
    trace_round, data = tracer(algorithm), problem.data
    jobs, size = state[vector].shape
    geometry = problem.geometry(np.tile(algorithm.varying.psi, steps))  # K points per job
    states = np.empty((instance.clients, steps + 1, jobs, size))
    total, gaps, drifts, drifts_dual, identities = np.zeros((jobs, size)), [], [], [], []
    for r in range(rounds[-1]):
        cohort, t = full_cohort(instance.clients, steps, r * steps), state.get("t", np.zeros(jobs))
        trace_round(
            state[vector], t, rates, algorithm.varying.options, data.x, data.y, data.offsets, cohort.order,
            cohort.edges, cohort.first, problem.model.widths, algorithm.geometry, states,
        )  # fmt: skip
        times = t + np.arange(steps + 1)[:, None] * rates  # [K + 1, J]
        mean = states.mean(axis=0)  # [K + 1, J, P]
        shadow = mean[1:].copy()
        if is_dual(algorithm):  # the states of a primal method are primal points already
            problem.to_primal(mean[1:].reshape(-1, size), times[1:].ravel(), geometry, shadow.reshape(-1, size))
        total += shadow.sum(axis=0)
        deviations = (states - mean) ** 2
        drifts.append(deviations.sum(axis=-1).mean(axis=0))
        drifts_dual.append((deviations * instance.metric).sum(axis=-1).mean(axis=0))
        aggregates, _ = algorithm.aggregates((states[:, -1] - state[vector])[:, None], cohort)
        new = algorithm.server_step(state, aggregates)
        if identity:
            rows = data.x.reshape(instance.clients, -1, 2 * size)[:, r * steps : (r + 1) * steps, None, :size]
            identities.append(_identity_error(instance, name, states, times, rates, rows, new[vector]))
        state = new
        if r + 1 in rounds:
            gaps.append(instance.gap(total / (steps * (r + 1))))
    return Measurements(np.array(gaps), np.array(drifts), np.array(drifts_dual), np.array(identities))


def _identity_error(
    instance: Instance, name: str, states: Array, times: Array, rates: Array, centers: Array, server: Array
) -> Array:
    """Return the largest relative distance over a round between the mean state and one step along the mean gradient.

    In the shadow sequence of the proof, the mean dual state of feddualavg moves by -eta_c times the mean gradient, also
    through the server step. For fedmid, the corresponding step is prox(mean - eta_c mean gradient). Gradients and prox
    are recomputed from their formulas, independently of the kernels.
    """
    is_dual = name == "feddualavg"
    before, mean = states[:, :-1], states.mean(axis=0)
    query = _prox(instance, before, times[:-1]) if is_dual else before
    gradient = (instance.curvature * (query - centers)).mean(axis=0)  # [K, J, P]
    step = mean[:-1] - rates[:, None] * gradient
    expected = step if is_dual else _prox(instance, step, np.broadcast_to(rates, step.shape[:2]))
    observed = np.concatenate([mean[1:-1], server[None]])  # the last step of a round includes the server step
    return np.linalg.norm(observed - expected, axis=2).max(axis=0) / np.linalg.norm(expected, axis=2).max(axis=0)


def _prox(instance: Instance, z: Array, t: Array) -> Array:
    """Return the prox of t psi at z [..., P] for t [...]."""
    psi = instance.regularizer.numbers[0]
    if instance.regularizer.constraint:
        return np.clip(z, -psi.radius, psi.radius)
    return np.sign(z) * np.maximum(np.abs(z) - t[..., None] * psi.strength, 0)


def gaps_with_small_client_lr(
    instance: Instance, rates: Array, steps: int, rounds: list[int], seed: int, name: str, ratio: float = 1e-3
) -> Array:
    """Return the gaps [R's, J] of the mean of the server models w_1 ... w_R; rates are eta = eta_s eta_c.

    The client learning rate is eta_c = ratio * eta.
    """
    problem = instance.problem(steps * rounds[-1], seed)
    algorithm = bind_algorithm(name, problem, ratio * rates, np.full(len(rates), 1 / ratio))
    state = algorithm.initial_state(problem.initial_models(algorithm.varying.psi))
    total, gaps = np.zeros((len(rates), problem.layout.size)), []
    for r in range(rounds[-1]):
        state = algorithm.round(state, full_cohort(instance.clients, steps, r * steps)).state
        total += algorithm.output(state)
        if r + 1 in rounds:
            gaps.append(instance.gap(total / (r + 1)))
    return np.array(gaps)
