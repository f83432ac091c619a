"""
A low-rank matrix
=================

The true 16 x 16 matrix has rank 3, and the nuclear norm is the penalty: a proximal step sets small singular values to
zero. A mean of low-rank matrices can have a higher rank than each of them.
"""

from fco_cli.api import plot, sweep

results = sweep(
    "task=nuclear",
    "task.dimension=16",
    "task.rank=3",
    "task.clients=16",
    "task.samples=64",
    "algo=feddualavg,fedmid",
    "hparams.client_lr=0.003",
    "hparams.rounds=60",
)
axes = plot(results, y="rank")
axes.axhline(3, color="0.6", linewidth=0.8)
axes.set_title("Rank of the model (gray: the truth)")
