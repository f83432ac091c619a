"""Scaling of the margins of a claim's test, to measure how sensitive its verdict is to thresholds that we chose."""

from __future__ import annotations

from typing import Any

DISTANCES = ("margin", "within", "near_optimum")
SHARES = ("at_least", "stays", "of_its_way")  # at most 1; their margin is the distance to 1


def scale_margins(arguments: dict[str, Any], share: float) -> dict[str, Any] | None:
    """Return the arguments with their margins multiplied by `share`; None if no threshold is ours.

    The margin of a distance is the distance, of a factor its excess over 1, of a score or share its distance to 1:
    "F1 at least 0.95" at half the margin is "F1 at least 0.975". Rounds, ranks and a perfect score are given by the
    paper and do not change.
    """
    changed: dict[str, Any] = {}
    for name, value in arguments.items():
        if name in DISTANCES:
            changed[name] = value * share
        elif name == "factor":
            changed[name] = 1 + (value - 1) * share
        elif name in SHARES and 0 < value < 1:
            changed[name] = 1 - (1 - value) * share
    return {**arguments, **changed} if changed else None
