"""
A method of your own
====================

A federated method is one class. This one is FedMiD-OSP with a pull towards the server's model after every local step,
which reduces client drift.
``plugins=[pull.py]`` does the same for a file on the command line.
"""

from dataclasses import dataclass

from fco_cli.algorithms import ops
from fco_cli.algorithms.fedmid import FedMidOsp
from fco_cli.algorithms.protocol import Style, kernel
from fco_cli.api import plot, sweep


@dataclass(kw_only=True)
class FedMidPull(FedMidOsp):
    """FedMiD-OSP; local steps end with w <- (w + a x the server's model) / (1 + a), where a = client_lr x pull."""

    name: str = "fedmid_pull"
    style = Style("FedMiD-OSP with pull", "#117733", "v", family="mirror descent and dual averaging")
    pull: float = 1000.0

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        w, z = ops.copy(received.w), ops.buffer_like(received.w)
        share = rate * options.pull / (1 + rate * options.pull)
        for k in range(batches.steps):
            ops.to_dual(z, w, geometry)
            ops.gradient_step(z, w, batches, k, rate)
            ops.to_primal(w, z, rate, geometry)
            ops.add_scaled_difference(w, share, received.w, w)
        ops.assign_difference(message.w, w, received.w)

    def effective_steps(self, steps):
        kept = 1 / (1 + self.varying.client_lr * self.pull)
        return sum((k <= steps[:, None]) * kept**k for k in range(1, int(steps.max()) + 1))


data = ("task=lasso", "task.dimension=64", "task.ones=8", "task.clients=16")
steps = ("hparams.client_lr=auto", "hparams.server_lr=10", "hparams.batch_size=128", "hparams.local_epochs=5")
results = sweep(*data, *steps, "algo=fedmid_osp,fedmid_pull", "hparams.rounds=300", "hydra.launcher.n_jobs=1")
axes = plot(results, y="objective")
