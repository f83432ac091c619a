"""Rounds of FedAvg in federated simulators and in the engine, each of those that are installed: `python -m
benchmarks.simulators` (benchmarks/README.md has their versions).

The rows, cohorts, batches and local steps of lasso I, without psi, which these simulators do not know, and without
evaluations: 10 of 64 clients a round, 13 batches of 10 and 8 rows, 1,025 parameters, one run, float32.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks.cases import RATE, composed, rows_of
from benchmarks.measure import engine_rounds, interleaved
from benchmarks.results import Cell, format_cell, save
from fco_cli.problem.problem import Problem
from fco_cli.simulation.problems import problem_of

CLIENTS, BATCH, ROUNDS = 10, 10, 100
Rounds = tuple[Callable[[], int], Callable[[], np.ndarray]]  # to do some, and the model after them [P]


def fedjax_rounds(problem: Problem, clients: int, batch: int, rounds: int) -> Rounds:
    """FedJAX's own federated averaging; NumPy draws the clients."""
    import fedjax
    import jax

    def loss(w, batch, key):
        return ((batch["x"] @ w[:-1] + w[-1] - batch["y"]) ** 2).mean()

    datasets = [fedjax.ClientDataset({"x": x, "y": y}) for x, y in rows_of(problem.data)]
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss), fedjax.optimizers.sgd(RATE), fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=batch, num_epochs=1),
    )  # fmt: skip
    state = [algorithm.init(jax.numpy.zeros(problem.layout.size, problem.dtype))]
    draw, keys = np.random.default_rng(0), jax.random.split(jax.random.key(0), clients)

    def work() -> int:
        for _ in range(rounds):
            cohort = draw.choice(len(datasets), clients, replace=False)
            state[0], _ = algorithm.apply(
                state[0], [(m, datasets[m], key) for m, key in zip(cohort, keys, strict=True)]
            )
        jax.block_until_ready(state[0].params)
        return rounds

    return work, lambda: np.asarray(state[0].params)


def pfl_rounds(problem: Problem, clients: int, batch: int, rounds: int) -> Rounds:
    """pfl-research's federated averaging of a Keras model."""
    os.environ["TF_USE_LEGACY_KERAS"] = "1"  # it was written for that one
    import tensorflow as tf
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.data.tensorflow import TFTensorDataset
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.model.tensorflow import TFModel

    rows = {str(m): [tf.constant(one) for one in client] for m, client in enumerate(rows_of(problem.data))}
    layer = tf.keras.layers.Dense(1, kernel_initializer="zeros")
    keras = tf.keras.Sequential([tf.keras.Input((problem.data.x.shape[1],)), layer, tf.keras.layers.Reshape(())])
    keras.compile(optimizer=tf.keras.optimizers.SGD(RATE), loss=tf.keras.losses.MeanSquaredError())
    model = TFModel(keras, {}, tf.keras.optimizers.SGD(1.0))
    data = FederatedDataset(lambda user: TFTensorDataset(*rows[user]), get_user_sampler("random", list(rows)))
    backend = SimulatedBackend(data, data)
    training = NNTrainHyperParams(local_learning_rate=RATE, local_num_epochs=1, local_batch_size=batch)

    def work() -> int:
        settings = NNAlgorithmParams(
            central_num_iterations=rounds, evaluation_frequency=10**9, train_cohort_size=clients, val_cohort_size=0
        )
        FederatedAveraging().run(  # one that has come to its end stays there
            settings, backend, model, training, NNEvalHyperParams(local_batch_size=None), callbacks=[],
            send_metrics_to_platform=False,
        )  # fmt: skip
        return rounds

    return work, lambda: np.concatenate([np.ravel(variable) for variable in layer.get_weights()])


SIMULATORS: dict[str, tuple[str, Callable[..., Rounds]]] = {
    "FedJAX": ("fedjax", fedjax_rounds),
    "pfl-research": ("pfl", pfl_rounds),
}


def check(rounds_of: Callable[..., Rounds], problem: Problem) -> None:
    """A round with one client, drawn by the simulator, whose rows make one batch: a gradient step on them."""
    work, model = rounds_of(problem, 1, int(problem.data.sizes.max()), 1)
    work()
    steps = [-2 * RATE * np.append(y @ -x, -y.sum()) / len(y) for x, y in rows_of(problem.data)]
    assert min(np.abs(model() - step).max() / np.abs(step).max() for step in steps) < 1e-4


def main() -> None:
    run: Any = composed("task=lasso", "algo=fedavg", "regularizer=none", "hparams.dtype=float32")
    problem = problem_of(run)
    ours = engine_rounds(run.task, problem, 1, ROUNDS, CLIENTS, BATCH, evaluated=False, name="fedavg")
    rows: list[list[Cell]] = []
    for name, (package, rounds_of) in SIMULATORS.items():
        if find_spec(package):
            check(rounds_of, problem)
            timing = interleaved(rounds_of(problem, CLIENTS, BATCH, ROUNDS)[0], ours, 3)
            rows.append([f"{name} {version(package)}", timing.baseline, timing.engine, timing.ratio])
            print(" | ".join(map(format_cell, rows[-1])), flush=True)
    columns = ["a round of FedAvg", "ms", "the engine, ms", "ratio"]
    save("simulators", "python -m benchmarks.simulators", columns, rows, only_some=True)


if __name__ == "__main__":
    main()
