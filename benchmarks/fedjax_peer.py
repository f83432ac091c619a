"""An optional peer: FedAvg on lasso I's data without its penalty, by FedJAX and by the engine: `pip install fedjax`,
then `python -m benchmarks.fedjax_peer`.

FedJAX has no proximal methods. Both have 10 of 64 clients a round, each one pass of 13 batches over its 128 rows of
1,024 features, and no evaluation; each shuffles by its own generator, so that only the losses can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import fedjax
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.cases import composed
from benchmarks.measure import engine_rounds, interleaved
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers import all_regularizers
from fco_cli.sweeps.problems import problem_of

jax.config.update("jax_enable_x64", True)
jax.tree_map = jax.tree_util.tree_map  # FedJAX 0.0.17 calls it by the name that it had until JAX 0.4.26
CLIENTS, BATCH, RATE = 10, 10, 1e-5


def rounds_of(problem: Problem, rounds: int) -> Callable[[], int]:
    """FedAvg as FedJAX ships it, with the clients of every round drawn by NumPy."""
    data, dtype = problem.data, problem.dtype
    clients = [
        (m, fedjax.ClientDataset({"x": one.x, "y": one.y}), jax.random.PRNGKey(m))
        for m, one in enumerate(map(data.client, range(data.clients)))
    ]

    def loss(w, batch, _):
        return jnp.mean((batch["x"] @ w[:-1] + w[-1] - batch["y"]) ** 2)

    batches = fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=1, drop_remainder=False)
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss), fedjax.optimizers.sgd(RATE), fedjax.optimizers.sgd(1.0), batches
    )
    state = [algorithm.init(jnp.zeros(data.x.shape[1] + 1, dtype))]
    random = np.random.default_rng(0)

    def work() -> int:
        for _ in range(rounds):
            cohort = [clients[m] for m in random.choice(data.clients, CLIENTS, replace=False)]
            state[0], _ = algorithm.apply(state[0], cohort)
            jax.block_until_ready(state[0].params)
        return rounds

    work.state = state  # type: ignore[attr-defined]  # for those who want to see what came out
    return work


def main() -> None:
    for dtype in ("float64", "float32"):
        run = composed("task=lasso", f"hparams.dtype={dtype}")
        problem = replace(problem_of(run), regularizer=all_regularizers()["none"]())
        theirs = rounds_of(problem, 20)
        ours = engine_rounds(
            run.task, problem, 1, 20, clients=CLIENTS, batch=BATCH, rate=RATE, evaluated=False, name="fedavg"
        )
        timing = interleaved(theirs, ours, repeats=3)
        w = np.asarray(theirs.state[0].params)  # type: ignore[attr-defined]
        ends = float(problem.risk(w[None], gradient=False).value[0])
        starts = float(problem.risk(0 * w[None], gradient=False).value[0])
        print(f"{dtype}: FedJAX {timing.baseline:.2f} ms a round, engine {timing.engine:.3f}: {timing.ratio:.0f} times")
        print(f"  FedJAX's training loss went from {starts:.1f} to {ends:.1f}")


if __name__ == "__main__":
    main()
