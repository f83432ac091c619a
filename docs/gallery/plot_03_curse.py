"""
The clients' models and their average
=====================================

``record_clients=true`` records the clients' models of the last round. Dots are the weights of eight clients, bars their
average, as the server computes it.
"""

import matplotlib.pyplot as plt
import numpy as np

from fco_cli.api import run
from fco_cli.reporting import algorithm_style

figure, axes = plt.subplots(1, 2, figsize=(8, 3.4), sharey=True, layout="constrained")
for axis, algo in zip(axes, ("fedmid", "feddualavg"), strict=True):
    record = run(
        "task=lasso_ii", "task.dimension=64", "task.ones=12", "task.clients=16", "task.samples=64",
        "task.heterogeneity=0.3", "task.start=zeros", "regularizer.strength=0.5", f"algo={algo}",
        "hparams.client_lr=0.01", "hparams.clients_per_round=8", "hparams.batch_size=64",
        "hparams.local_epochs=20", "hparams.rounds=5", "record_clients=true",
    )  # fmt: skip
    *clients, average = np.load(record.folder / "clients.npz")["weights"]
    for client in clients:
        axis.plot(np.flatnonzero(client), client[client != 0], ".", color="0.5", markersize=3)
    axis.bar(np.arange(64), average)
    axis.set_title(f"{algorithm_style(algo).label}: average has {np.count_nonzero(average)} of 64 weights")
    axis.set_xlabel("weight")
axes[0].set_ylabel("value")
