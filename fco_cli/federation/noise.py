"""Gaussian noise on evaluations, so that they are covered by (epsilon, delta) differential privacy.

The vector of all numbers of a site's response is clipped to a norm, and every site adds its share of Gaussian noise
from a secret seed. The accountant of `clip_noise` counts an evaluation as one more message of every client.
If a transform hides single rows, the vector of every row is clipped instead, and every site adds the whole noise to
its sum, or a share of it if the transform's noise is shared (site/row_noise.py).
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass

import numpy as np

from fco_cli.errors import require
from fco_cli.federation.schema import Noise
from fco_cli.problem.layout import Array


@dataclass(frozen=True)
class EvaluationNoise:
    """Clipping norm and noise multiplier: the standard deviation of the sum's noise, before weighting, over `norm`."""

    norm: float
    multiplier: float
    by_row: bool = False  # True: single rows are hidden; False: whole sites
    shares: int = 1  # sites that share the noise that hides single rows

    def __post_init__(self) -> None:
        require(0 < self.norm < math.inf, "federation.evaluation_norm", self.norm, "a number > 0")
        in_range = 1e-6 <= self.multiplier <= 1e6
        require(in_range, "federation.evaluation_noise", self.multiplier, "null or a number from 1e-6 to 1e6")

    def site_parameters(self, weights: Array, sizes: Array, sites: int) -> dict[str, float]:
        """Return the parameters for the sites (`schema.Noise`) from their weights and numbers of rows.

        The noise of any `sites` of them together has the required standard deviation.
        """
        rows = float(sizes.sum())
        if self.by_row:
            deviation = self.multiplier * self.norm
            return {"most": self.norm, "deviation": deviation, "rows": rows, "by_row": True, "shares": self.shares}
        most = self.norm * max(float(weights.max()), float(sizes.max()) / rows)
        return {"most": most, "deviation": self.multiplier * most / math.sqrt(sites), "rows": rows}


def clip_and_add_noise(arrays: dict[str, Array], noise: Noise) -> dict[str, Array]:
    """Return a site's arrays [J] or [J, P], `value` first, clipped and with this site's share of the noise."""
    most, deviation, rows = noise.most, noise.deviation, noise.rows
    units = {name: rows if name == "hits" else 1.0 for name in arrays}
    response = np.column_stack([values / units[name] for name, values in arrays.items()])  # [J, numbers]
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.linalg.norm(response, axis=1)
    overflow = ~np.isfinite(norms)
    response[overflow] = np.append(most, np.zeros(response.shape[1] - 1))  # the largest loss within the norm
    norms[overflow] = most
    response *= (most / np.maximum(norms, most))[:, None]
    random = np.random.default_rng(secrets.randbits(128))
    response += deviation * random.standard_normal(response.shape)
    ends = np.cumsum([values[0].size for values in arrays.values()])
    parts = np.split(response, ends[:-1], axis=1)
    return {
        name: part.reshape(values.shape) * units[name]
        for (name, values), part in zip(arrays.items(), parts, strict=True)
    }
