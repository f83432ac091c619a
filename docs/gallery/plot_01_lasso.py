"""
Sparse regression with four federated methods
=============================================

Clients draw their rows around different centers; eight of 64 weights are not zero. One call runs the four methods of
the paper at the same learning rates.
"""

from fco_cli.api import plot, sweep

results = sweep(
    "task=lasso",
    "task.dimension=64",
    "task.ones=8",
    "task.clients=32",
    "task.heterogeneity=0.3",
    "algo=feddualavg,feddualavg_osp,fedmid,fedmid_osp",
    "hparams.client_lr=0.003",
    "hparams.rounds=60",
)
axes = plot(results, y="objective")
axes.set_title("Objective by round, at the same learning rates")
