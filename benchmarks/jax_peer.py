"""An optional peer: the same rounds in JAX, jit over the round and vmap over clients and jobs (`pip install jax`)."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from fco_cli.problem.problem import Problem
from fco_cli.simulation.clients import Sampler
from fco_cli.simulation.hparams import Hparams

jax.config.update("jax_enable_x64", True)
STRENGTH, CLIENTS, BATCH = 0.5, 10, 10


def soft_threshold(z, t):
    return jnp.append(jnp.sign(z[:-1]) * jnp.maximum(jnp.abs(z[:-1]) - STRENGTH * t, 0), z[-1])


def singular_threshold(z, t):
    u, s, v = jnp.linalg.svd(z[:-1].reshape(32, 32), full_matrices=False)
    return jnp.append(((u * jnp.maximum(s - STRENGTH * t, 0)) @ v).reshape(-1), z[-1])


def rounds_of(problem: Problem, nuclear: bool, jobs: int, rounds: int) -> Callable[[], int]:
    """FedDualAvg on lasso I or nuclear I, both losses on all data every round; the units are jobs times rounds."""
    prox, dtype = singular_threshold if nuclear else soft_threshold, problem.dtype
    x, y = jnp.asarray(problem.data.x), jnp.asarray(problem.data.y)
    rates = jnp.asarray(1e-5 * np.geomspace(0.1, 1, jobs), dtype)
    hparams = Hparams(1.0, 1.0, 1, CLIENTS, BATCH, local_epochs=1, dtype=str(dtype))
    sampler = Sampler(problem.data.sizes, hparams, 0)

    def local(z, time, rate, rows, real):
        def step(z, batch):
            k, rows, real = batch
            features, w = x[rows], prox(z, time + k * rate)
            slopes = 2 * (features @ w[:-1] + w[-1] - y[rows]) * real / real.sum()
            return z - rate * jnp.append(slopes @ features, slopes.sum()), None

        return jax.lax.scan(step, z, (jnp.arange(len(rows), dtype=dtype), rows, real))[0]

    def one_round(z, time, rate, rows, real):
        states = jax.vmap(local, (None, None, None, 0, 0))(z, time, rate, rows, real)
        z, time = states.mean(axis=0), time + rate * rows.shape[1]
        w = prox(z, time)
        training, validation = (((x @ w[:-1] + w[-1] - y) ** 2).mean() for _ in range(2))
        return z, time, (training, validation, jnp.abs(w[:-1]).sum(), (jnp.abs(w[:-1]) > 1e-2).mean())

    advance = jax.jit(jax.vmap(one_round, (0, 0, 0, None, None)))
    state = [jnp.zeros((jobs, x.shape[1] + 1), dtype), jnp.zeros(jobs, dtype)]
    done = [0]

    def work() -> int:
        for _ in range(rounds):
            cohort = sampler.cohort(done[0])
            steps = -(-problem.data.sizes[0] // BATCH)
            rows = np.zeros((CLIENTS, steps * BATCH), dtype=np.int64)
            rows[:, : problem.data.sizes[0]] = cohort.order.reshape(CLIENTS, -1)
            rows += problem.data.offsets[cohort.clients][:, None]
            real = np.arange(steps * BATCH) < problem.data.sizes[0]  # the last batch is shorter
            real = np.tile(real, (CLIENTS, 1)).reshape(CLIENTS, steps, BATCH).astype(dtype)
            state[0], state[1], metrics = advance(*state, rates, rows.reshape(CLIENTS, steps, BATCH), real)
            jax.block_until_ready(metrics)
            done[0] += 1
        return jobs * rounds

    work.state = state  # for those who want to see what came out
    return work
