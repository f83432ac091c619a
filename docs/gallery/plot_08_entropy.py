"""
Mixture weights in two geometries
=================================

Five of 400 sources contribute. The weights are on the simplex. Steps in the entropy geometry are multiplications,
Euclidean steps are projected. At an equal client rate the entropy steps are shorter: they are proportional to a
weight, and all weights start at 1/400.
"""

from fco_cli.api import plot, sweep

results = sweep("task=mixture", "mirror=entropy,euclidean", "hparams.client_lr=0.03", "hparams.rounds=100")
axes = plot(results, y="objective", by="mirror.name")
axes.set_title("FedDualAvg on the simplex")
