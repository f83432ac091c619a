"""The nuclear-norm ball: singular values projected on an l1 ball."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.problem.compiled import copy, kernel
from fco_cli.problem.regularizers.balls import l1_ball_threshold
from fco_cli.problem.regularizers.base import Ball
from fco_cli.problem.regularizers.nuclear import Nuclear
from fco_cli.problem.regularizers.singular import (
    TILE,
    left_entry,
    orthogonal_rows,
    singular_pairs,
    spectral,
    wide,
    write_row,
)

SLACK = 1e-12  # beyond rounding: the radius is so small a share of the norm that the threshold's digits do not suffice


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
        squared = orthogonal_rows(rows, rows.shape[0], min(block.rows, block.columns), 0.0)
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
        factor = norm * (radius / total if total > radius * (1 + SLACK) else 1.0)
        for i in range(squared.shape[0]):
            squared[i] = 0.0 if share[i] == 0 else factor * share[i] / squared[i]
        spectral(a, rows, squared, block, out)

    @staticmethod
    @kernel
    def lmo(g, psi, block, out):
        """-radius u v^T of the largest singular value."""
        a, _norm = wide(g, block)
        count, own = min(block.rows, block.columns), a.shape[0]
        turned, squared = singular_pairs(a, count)
        top = 0
        for i in range(count):
            if squared[i] > squared[top]:
                top = i
        factor = 0.0 if squared[top] == 0 else -psi.radius / np.sqrt(squared[top])
        weights, line = np.zeros((count + 7) // 8 * 8), np.empty(TILE)
        for r in range(count):
            weights[top] = factor * left_entry(turned, own, top, r)
            write_row(weights, turned, r, line, block, out)
