"""
Gossip without a server
=======================

Twelve clients exchange models with their neighbors only. PG-EXTRA is exact on every connected graph; the better the
graph is connected, the sooner the clients agree.
"""

from fco_cli.api import plot, sweep

results = sweep(
    "task=lasso",
    "task.dimension=32",
    "task.ones=6",
    "task.clients=12",
    "task.heterogeneity=0.3",
    "algo=pg_extra",
    "algo.topology=ring,grid,complete",
    "hparams.client_lr=auto",
    "hparams.rounds=100",
)
axes = plot(results, y="consensus_error", by="algo.topology")
axes.set_title("Distance between the clients' models")
