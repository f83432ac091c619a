"""How much a verdict hangs on thresholds that are ours: the same test at another share of its margin."""

from __future__ import annotations

from typing import Any

DISTANCES = ("margin", "within", "near_optimum")
SHARES = ("at_least", "stays", "of_its_way")  # of 1: their margin is what is missing to it


def at_margin(arguments: dict[str, Any], share: float) -> dict[str, Any] | None:
    """The arguments with their margins multiplied by `share`; None where no threshold is ours.

    A distance is multiplied, of a factor what exceeds 1, of a score or a share what it is below 1: half the margin
    of "F1 at least 0.95" is 0.975. Rounds, ranks and a perfect score are the paper's own.
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
