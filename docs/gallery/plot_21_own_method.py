"""
A method of your own
====================

A federated method is one class: FedMiD-OSP with a pull towards the server's model after every local step.
"""

from dataclasses import dataclass

from fco_cli.algorithms import ops
from fco_cli.algorithms.fedmid import FedMidOsp
from fco_cli.algorithms.protocol import kernel
from fco_cli.api import plot, sweep


@dataclass(kw_only=True)
class FedMidPull(FedMidOsp):
    name: str = "fedmid_pull"
    pull: float = 1000.0

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        w, z, a = ops.copy(received.w), ops.buffer_like(received.w), rate * options.pull
        for k in range(batches.steps):
            ops.to_dual(z, w, geometry)
            ops.gradient_step(z, w, batches, k, rate)
            ops.to_primal(w, z, rate, geometry)
            ops.add_scaled_difference(w, a / (1 + a), received.w, w)  # w <- (w + a x the server's w) / (1 + a)
        ops.assign_difference(message.w, w, received.w)

    def effective_steps(self, steps):
        kept = 1 / (1 + self.varying.client_lr * self.pull)
        return sum((k <= steps[:, None]) * kept**k for k in range(1, int(steps.max()) + 1))


task = "task=lasso", "task.dimension=64", "task.ones=8", "task.clients=16", "hparams.rounds=300"
rates = "hparams.client_lr=auto", "hparams.server_lr=10", "hparams.batch_size=128", "hparams.local_epochs=5"
plot(sweep(*task, *rates, "algo=fedmid_osp,fedmid_pull", "hydra.launcher.n_jobs=1"), y="objective")
