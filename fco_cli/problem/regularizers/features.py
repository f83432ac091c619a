"""Numbers that are given for features by their names, as one for every weight of a linear model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fco_cli.errors import UserError, did_you_mean
from fco_cli.problem.layout import Array, Layout

SHOWN = 10  # names in a message


def by_feature(
    key: str, given: Mapping[str, float], layout: Layout, features: Sequence[str] | None, other: float
) -> Array:
    """The number of every weight [P]; `other` for features that are not named. A class's weights are alike.

    A column that has become several features, such as `color=red` and `color=blue`, is named by what stands before the
    equals sign, or each of them by itself.
    """
    numbers = np.full(layout.size, other)
    if not given:
        return numbers
    if "weights" not in layout.slices:
        raise UserError(f"{key}: only a linear model has a weight for every feature")
    weights = layout.slices["weights"]
    bias = layout.slices.get("bias", slice(0, 1))  # an entry for every class
    count = (weights.stop - weights.start) // (bias.stop - bias.start)
    names = list(features) if features is not None else [f"x{k}" for k in range(count)]
    columns = [name.partition("=")[0] for name in names]
    for name in given:
        if name not in names and name not in columns:
            known = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
            raise UserError(f"{key}.{name}: no such feature; there are {known}{did_you_mean(name, names)}")
    row = np.array([given.get(name, given.get(column, other)) for name, column in zip(names, columns, strict=True)])
    numbers[weights] = np.resize(row, weights.stop - weights.start)
    return numbers
