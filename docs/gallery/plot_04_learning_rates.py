"""
Learning rates
==============

One stack simulates all learning rates together. The objective after 40 rounds, by client rate: small rates are slow,
and rates above 2/L diverge.
"""

from fco_cli.api import plot, sweep

results = sweep(
    "task=lasso",
    "task.dimension=64",
    "task.ones=8",
    "task.clients=16",
    "algo=feddualavg,zhj",
    "hparams.client_lr=0.0001,0.0003,0.001,0.003,0.01",
    "hparams.server_lr=1",
    "hparams.rounds=40",
)
axes = plot(results, x="hparams.client_lr", y="objective")
axes.set_title("Objective after 40 rounds")
