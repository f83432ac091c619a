"""Expansion of numbers per feature name to numbers per weight of a linear model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fco_cli.errors import UserError, did_you_mean
from fco_cli.problem.layout import Array, Layout

MAX_LISTED = 10  # feature names in an error message


def expand_by_feature(
    key: str, given: Mapping[str, float], layout: Layout, features: Sequence[str] | None, other: float
) -> Array:
    """Return one number per weight [P]: that of its feature, or `other` if `given` has none; equal for all classes.

    A categorical column that was expanded to several features, such as `color=red` and `color=blue`, is given either by
    its column name, `color`, or feature by feature.
    """
    numbers = np.full(layout.size, other)
    if not given:
        return numbers
    if "weights" not in layout.slices:
        raise UserError(f"{key}: needs a linear model; other models have no weight per feature")
    weights = layout.slices["weights"]
    bias = layout.slices.get("bias", slice(0, 1))  # one entry per class
    count = (weights.stop - weights.start) // (bias.stop - bias.start)
    names = list(features) if features is not None else [f"x{k}" for k in range(count)]
    columns = [name.partition("=")[0] for name in names]
    for name in given:
        if name not in names and name not in columns:
            listed = ", ".join(names[:MAX_LISTED]) + (", ..." if len(names) > MAX_LISTED else "")
            raise UserError(f"{key}.{name}: feature not found; features are {listed}{did_you_mean(name, names)}")
    row = np.array([given.get(name, given.get(column, other)) for name, column in zip(names, columns, strict=True)])
    numbers[weights] = np.resize(row, weights.stop - weights.start)
    return numbers
