"""The nuclear-norm ball: singular values projected on an l1 ball."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.problem.compiled import copy, kernel
from fco_cli.problem.regularizers.balls import l1_ball_threshold
from fco_cli.problem.regularizers.base import Ball
from fco_cli.problem.regularizers.nuclear import Nuclear, orthogonal_rows, spectral, wide


@dataclass(kw_only=True)
class NuclearBall(Ball):
    """The singular values of W sum to at most radius."""

    name: str = "nuclear_ball"

    check = Nuclear.check

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        a, norm = wide(z, block)
        rows = a.copy()
        squared = orthogonal_rows(rows, rows, 0.0)
        singular, total, radius = np.empty(squared.shape[0]), 0.0, psi.radius / norm if norm != 0 else np.inf
        for i in range(squared.shape[0]):
            singular[i] = np.sqrt(squared[i])
            total += singular[i]
        if total <= radius:
            copy(z, out)
            return
        threshold = l1_ball_threshold(singular, total, radius)
        for i in range(squared.shape[0]):
            gone = singular[i] <= threshold  # False for NaN
            squared[i] = 0.0 if gone else norm * (1 - threshold / singular[i]) / squared[i]
        spectral(a, rows, squared, block, out)
