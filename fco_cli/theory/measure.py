"""Measurements: the algorithms as they are, watched step by step.

`trace` calls an algorithm's own `local_steps` with one batch at a time and keeps the clients' states in between;
nothing of an algorithm is written a second time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.algorithms import Cohort, Varying, all_algorithms
from fco_cli.algorithms.protocol import Federated
from fco_cli.algorithms.visit import local_steps, memory_of, message_of
from fco_cli.kernels.compiled import Kernel, kernel, specialize
from fco_cli.kernels.named import named, pick
from fco_cli.problem.data import Batches
from fco_cli.problem.layout import Array
from fco_cli.problem.problem import Problem
from fco_cli.theory.instance import Instance

Primal, Dual = named(("w",)), named(("z", "t"))  # what the clients of fedmid and of feddualavg receive


@kernel
def receive_primal(vector, t):
    return Primal(vector)


@kernel
def receive_dual(vector, t):
    return Dual(vector, t)


def receive(vector, t):  # bound by `specialize` to one of the two above
    raise NotImplementedError


@kernel
def trace(broadcast, t, rate, options, x, y, offsets, order, edges, first, widths, geometry, states):
    """The states [S, K + 1, J, P] that the clients pass through from the broadcast on, K steps each.

    After k steps a client goes on as one that has received its state, with the clock k steps further.
    """
    time, message = np.empty_like(t), np.empty((1, 1, *broadcast.shape))
    nothing = np.empty((1, 0, *broadcast.shape))
    for i in range(states.shape[0]):
        states[i, 0] = broadcast
        for k in range(states.shape[1] - 1):
            for j in range(t.shape[0]):
                time[j] = t[j] + k * rate[j]
            low, high, at = offsets[i], offsets[i + 1], first[i] + k
            batch = Batches(x[low:high], y[low:high], order, edges[at : at + 2], widths)
            received = receive(states[i, k], time)
            local_steps(received, memory_of(nothing, 0), message_of(message, 0), rate, options, batch, geometry)
            states[i, k + 1] = states[i, k] + message[0, 0]


def tracer(algorithm: Federated) -> Kernel:
    """`trace` for a method that broadcasts one vector, and a clock if it is dual."""
    return specialize(
        trace, local_steps=algorithm.client_steps, memory_of=pick(()), message_of=pick(algorithm.sent),
        receive=receive_dual if algorithm.clocks else receive_primal,
    )  # fmt: skip


@dataclass(frozen=True)
class Watched:
    """What one run shows, for every eta_c (J) and every number of rounds asked for."""

    gaps: Array  # [R's, J], Phi(hat w) - Phi* of the averaged shadow sequence
    drift: Array  # [R, K + 1, J], mean over the clients of |z_m - zbar|^2, Euclidean
    drift_dual: Array  # the same in the dual norm of assumption 3
    identity: Array  # [R, J], if asked for: how far the mean state is from one step of the method on the mean gradient


def cohort_of(clients: int, steps: int, first_row: int) -> Cohort:
    """All clients, each with `steps` fresh rows of its own in batches of one."""
    order = np.tile(np.arange(steps) + first_row, clients)
    return Cohort(
        np.arange(clients), order, np.arange(len(order) + 1), np.arange(clients + 1) * steps,
        weights=np.ones(clients), all_weights=float(clients), mean_steps=float(steps),
    )  # fmt: skip


def method(name: str, problem: Problem, client_lr: Array, server_lr: Array) -> Federated:
    algorithm = all_algorithms()[name]()  # type: ignore[call-arg]
    assert isinstance(algorithm, Federated)
    return algorithm.bind(problem, Varying.in_rates(algorithm, problem.regularizer, client_lr, server_lr))


def watch(
    instance: Instance,
    rates: Array,
    steps: int,
    rounds: list[int],
    seed: int,
    name: str = "feddualavg",
    identity: bool = False,
) -> Watched:
    """Run with eta_s = 1 and record every step; `rounds` are the R at which the average is evaluated."""
    problem = instance.problem(steps * rounds[-1], seed)
    algorithm = method(name, problem, rates, np.ones(len(rates)))
    state = algorithm.initial_state(problem.initial_models(algorithm.varying.psi))
    (vector,) = algorithm.broadcast
    follow, data = tracer(algorithm), problem.data
    jobs, size = state[vector].shape
    geometry = problem.geometry(np.tile(algorithm.varying.psi, steps))  # of [K, J] stacked
    states = np.empty((instance.clients, steps + 1, jobs, size))
    total, gaps, drifts, drifts_dual, identities = np.zeros((jobs, size)), [], [], [], []
    for r in range(rounds[-1]):
        cohort, t = cohort_of(instance.clients, steps, r * steps), state.get("t", np.zeros(jobs))
        follow(
            state[vector], t, rates, algorithm.varying.options, data.x, data.y, data.offsets, cohort.order,
            cohort.edges, cohort.first, problem.model.widths, algorithm.geometry, states,
        )  # fmt: skip
        times = t + np.arange(steps + 1)[:, None] * rates  # [K + 1, J]
        mean = states.mean(axis=0)  # [K + 1, J, P]
        shadow = mean[1:].copy()
        if algorithm.clocks:  # a primal method's states are their own primal image
            problem.to_primal(mean[1:].reshape(-1, size), times[1:].ravel(), geometry, shadow.reshape(-1, size))
        total += shadow.sum(axis=0)
        apart = (states - mean) ** 2
        drifts.append(apart.sum(axis=-1).mean(axis=0))
        drifts_dual.append((apart * instance.metric).sum(axis=-1).mean(axis=0))
        aggregates, _ = algorithm.aggregates((states[:, -1] - state[vector])[:, None], cohort)
        new = algorithm.server_step(state, aggregates)
        if identity:
            rows = data.x.reshape(instance.clients, -1, 2 * size)[:, r * steps : (r + 1) * steps, None, :size]
            identities.append(_identity(instance, name, states, times, rates, rows, new[vector]))
        state = new
        if r + 1 in rounds:
            gaps.append(instance.gap(total / (steps * (r + 1))))
    return Watched(np.array(gaps), np.array(drifts), np.array(drifts_dual), np.array(identities))


def _identity(
    instance: Instance, name: str, states: Array, times: Array, rates: Array, centres: Array, server: Array
) -> Array:
    """The largest relative distance, over a round, between the mean state and one step on the mean gradient.

    The shadow sequence of the proof: feddualavg's mean dual state moves by -eta_c times the clients' mean gradient,
    through the server too. The same is asked of fedmid's mean state, whose one step would be
    prox(mean - eta_c mean gradient). Gradients and prox are recomputed here by their formulas, not by the kernels.
    """
    dual = name == "feddualavg"
    before, mean = states[:, :-1], states.mean(axis=0)
    query = _prox(instance, before, times[:-1]) if dual else before
    gradient = (instance.curvature * (query - centres)).mean(axis=0)  # [K, J, P]
    step = mean[:-1] - rates[:, None] * gradient
    expected = step if dual else _prox(instance, step, np.broadcast_to(rates, step.shape[:2]))
    observed = np.concatenate([mean[1:-1], server[None]])  # the last step of a round goes through the server
    return np.linalg.norm(observed - expected, axis=2).max(axis=0) / np.linalg.norm(expected, axis=2).max(axis=0)


def _prox(instance: Instance, z: Array, t: Array) -> Array:
    psi = instance.regularizer.numbers[0]
    if instance.regularizer.constraint:
        return np.clip(z, -psi.radius, psi.radius)
    return np.sign(z) * np.maximum(np.abs(z) - t[..., None] * psi.strength, 0)


def small_client_lr(
    instance: Instance, rates: Array, steps: int, rounds: list[int], seed: int, name: str, ratio: float = 1e-3
) -> Array:
    """Gaps [R's, J] of the mean of the server's models w_1 ... w_R, for eta = eta_s eta_c and eta_c = ratio * eta."""
    problem = instance.problem(steps * rounds[-1], seed)
    algorithm = method(name, problem, ratio * rates, np.full(len(rates), 1 / ratio))
    state = algorithm.initial_state(problem.initial_models(algorithm.varying.psi))
    total, gaps = np.zeros((len(rates), problem.layout.size)), []
    for r in range(rounds[-1]):
        state = algorithm.round(state, cohort_of(instance.clients, steps, r * steps)).state
        total += algorithm.output(state)
        if r + 1 in rounds:
            gaps.append(instance.gap(total / (r + 1)))
    return np.array(gaps)
