"""
Sparse regression with four federated methods
=============================================

Clients draw their rows around different centers; eight of 64 weights are not zero. At the same learning rates,
FedDualAvg (dual averaging) has sparser models than FedMiD (averaging of models).
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
axes = plot(results, y="density")
axes.set_title("Share of weights that are not zero")
