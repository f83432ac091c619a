"""
Weights with a shape
====================

Monotone, piecewise constant, and in groups: three regularizers on problems whose true weights have this shape.
"""

import matplotlib.pyplot as plt

from fco_cli.api import run

figure, axes = plt.subplots(1, 3, figsize=(9, 2.6), layout="constrained")
for axis, task in zip(axes, ("monotone", "piecewise", "group_sparse"), strict=True):
    record = run(f"task={task}", "hparams.rounds=100")
    axis.plot(record.model["weights"], ".", markersize=3)
    axis.set_title(f"{task}: {record.config['regularizer']['name']}")
