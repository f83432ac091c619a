"""
Sparse regression with four federated methods
=============================================

Twelve of 64 weights are not zero. Clients draw their rows around different centers and take many local steps. At the
same learning rates, the models of FedDualAvg (dual averaging) are sparser than those of FedMiD (averaging of models).
"""

from fco_cli.api import plot, sweep

results = sweep(
    "task=lasso_ii", "task.dimension=64", "task.ones=12", "task.clients=16", "task.samples=64",
    "task.heterogeneity=0.3", "task.start=zeros", "regularizer.strength=0.5",
    "algo=feddualavg,feddualavg_osp,fedmid,fedmid_osp", "hparams.client_lr=0.01", "hparams.clients_per_round=8",
    "hparams.batch_size=64", "hparams.local_epochs=20", "hparams.rounds=40",
)  # fmt: skip
axes = plot(results, y="density")
axes.axhline(12 / 64, color="0.6", linewidth=0.8)
axes.set_title("Share of weights that are not zero (gray: the truth)")
