"""
A method of your own
====================

A federated method is one class. This one is FedMiD with a pull towards the server's model after every local step.
``plugins=[pull.py]`` does the same for a file on the command line.
"""

from dataclasses import dataclass

from fco_cli.algorithms import ops
from fco_cli.algorithms.fedmid import FedMid
from fco_cli.algorithms.protocol import Style, kernel
from fco_cli.api import plot, sweep


@dataclass(kw_only=True)
class FedMidPull(FedMid):
    """FedMiD; every local step ends with w <- w + client_lr x pull x (the server's model - w)."""

    name: str = "fedmid_pull"
    style = Style("FedMiD with pull", "#117733", "v")
    pull: float = 30.0

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        w, z = ops.copy(received.w), ops.buffer_like(received.w)
        for k in range(batches.steps):
            ops.to_dual(z, w, geometry)
            ops.gradient_step(z, w, batches, k, rate)
            ops.to_primal(w, z, rate, geometry)
            ops.add_scaled_difference(w, rate * options.pull, received.w, w)
        ops.assign_difference(message.w, w, received.w)


data = ("task=lasso", "task.dimension=64", "task.ones=8", "task.clients=16")
results = sweep(*data, "algo=fedmid,fedmid_pull", "hparams.rounds=60", "hydra.launcher.n_jobs=1")
axes = plot(results, y="objective")
