"""Noise on what sites tell of a model, so that an evaluation too has its price in (epsilon, delta).

A site's answer, all its numbers together, is shortened to a norm, and every site adds its share of Gaussian noise, from
randomness that nobody else knows. An evaluation is then one more message of every client, as `clip_noise` counts them.
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
    """`multiplier` is the standard deviation of the sum's noise in units of `norm`, before clients are weighted."""

    norm: float
    multiplier: float

    def __post_init__(self) -> None:
        require(0 < self.norm < math.inf, "federation.evaluation_norm", self.norm, "a number > 0")
        sound = 1e-6 <= self.multiplier <= 1e6
        require(sound, "federation.evaluation_noise", self.multiplier, "null or a number from 1e-6 to 1e6")

    def told(self, weights: Array, sizes: Array) -> dict[str, float]:
        """What sites with these weights and numbers of rows must know: the largest norm, each one's share of the noise,
        and of how many rows hits are a share."""
        rows = float(sizes.sum())
        most = self.norm * max(float(weights.max()), float(sizes.max()) / rows)
        return {"most": most, "deviation": self.multiplier * most / math.sqrt(len(sizes)), "rows": rows}


def with_noise(arrays: dict[str, Array], noise: Noise) -> dict[str, Array]:
    """A site's answer [J] or [J, P] by name, the value first: shortened, and with this site's share of the noise."""
    most, deviation, rows = noise.most, noise.deviation, noise.rows
    units = {name: rows if name == "hits" else 1.0 for name in arrays}
    answer = np.column_stack([values / units[name] for name, values in arrays.items()])  # [J, numbers]
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.linalg.norm(answer, axis=1)
    beyond = ~np.isfinite(norms)
    answer[beyond], norms[beyond] = (
        np.append(most, np.zeros(answer.shape[1] - 1)),
        most,
    )  # a loss as large as can be told
    answer *= (most / np.maximum(norms, most))[:, None]
    random = np.random.default_rng(secrets.randbits(128))
    answer += deviation * random.standard_normal(answer.shape)
    ends = np.cumsum([values[0].size for values in arrays.values()])
    parts = np.split(answer, ends[:-1], axis=1)
    return {
        name: part.reshape(values.shape) * units[name]
        for (name, values), part in zip(arrays.items(), parts, strict=True)
    }
