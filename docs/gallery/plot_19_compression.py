"""
Fewer bytes
===========

The largest tenth of a message's entries with error feedback, and eight-bit numbers, against full messages.
"""

from fco_cli.api import plot, sweep

problem = ("task=lasso", "task.dimension=256", "task.ones=16", "hparams.client_lr=0.003", "hparams.rounds=80")
results = sweep(*problem, "transform=none,topk,quantize")
axes = plot(results, x="megabytes", y="objective", by="transform.name")
axes.set_title("Objective against megabytes sent")
