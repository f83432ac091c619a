"""The nuclear norm ball, by projecting the singular values onto the l1 ball."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.kernels.compiled import copy, kernel
from fco_cli.kernels.singular import singular_pairs, write_product
from fco_cli.kernels.tiles import to_tiles
from fco_cli.problem.regularizers.balls import l1_ball_threshold
from fco_cli.problem.regularizers.base import Ball
from fco_cli.problem.regularizers.nuclear import Nuclear

FEASIBILITY_TOLERANCE = 1e-12  # relative; exceeded if the radius is so small that the threshold loses digits


@dataclass(kw_only=True)
class NuclearBall(Ball):
    """Nuclear norm ball: the singular values of W sum to at most radius."""

    name: str = "nuclear_ball"
    bounds_two_norm = True

    check = Nuclear.check

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        a, norm = to_tiles(z, block)
        u, rows, squared = singular_pairs(a, min(block.rows, block.columns), 0.0)
        singular, total, radius = np.empty(squared.shape[0]), 0.0, psi.radius / norm if norm != 0 else np.inf
        for i in range(squared.shape[0]):
            singular[i] = np.sqrt(squared[i])
            total += singular[i]
        if total <= radius:
            copy(z, out)
            return
        threshold = l1_ball_threshold(singular, total, radius)
        share, total = np.empty(squared.shape[0]), 0.0
        for i in range(squared.shape[0]):
            share[i] = 0.0 if singular[i] <= threshold else 1 - threshold / singular[i]  # NaN stays NaN
            total += share[i] * singular[i]
        factor = norm * (radius / total if total > radius * (1 + FEASIBILITY_TOLERANCE) else 1.0)
        for i in range(squared.shape[0]):
            share[i] *= factor
        write_product(u, share, rows, block, out)

    @staticmethod
    @kernel
    def lmo(g, psi, block, out):
        """Write -radius u v^T to out, with the singular vectors of the largest singular value."""
        a, _norm = to_tiles(g, block)
        u, rows, squared = singular_pairs(a, min(block.rows, block.columns), 0.0)
        top, weights = 0, np.zeros(squared.shape[0])
        for i in range(squared.shape[0]):
            if squared[i] > squared[top]:
                top = i
        weights[top] = 0.0 if squared[top] == 0 else -psi.radius / np.sqrt(squared[top])
        write_product(u, weights, rows, block, out)
