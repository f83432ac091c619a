"""
A penalty of your own
=====================

A regularizer is one class with its formula: here a box, all weights between -side and side. ``plugins=[cube.py]`` does
the same for a file on the command line.
"""

from dataclasses import dataclass

import matplotlib.pyplot as plt

from fco_cli.api import run
from fco_cli.kernels.compiled import kernel
from fco_cli.problem.regularizers.base import Constraint


@dataclass(kw_only=True)
class Cube(Constraint):
    """|w_i| <= side for every i."""

    side: float = 1.0
    name: str = "cube"

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        for i in range(z.shape[0]):
            out[i] = min(max(z[i], -psi.side), psi.side) + 0 * z[i]


record = run("task=lasso", "task.dimension=40", "task.ones=10", "regularizer=cube", "regularizer.side=0.5")
plt.stem(record.model["weights"].ravel())
plt.title("Weights in a box of side 0.5")
