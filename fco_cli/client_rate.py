"""Parsing of client learning rates: numbers, or multiples of 1/L with the L of the run's data."""

from __future__ import annotations

import math

from fco_cli.errors import require

AUTO = "auto"


def relative(rate: object) -> float | None:
    """Return the multiple of 1/L of a client rate: 1 for `auto`, 0.3 for `0.3/L`; None for a plain number."""
    if rate == AUTO:
        return 1.0
    times = str(rate).removesuffix("/L")
    if times == rate or not isinstance(rate, str):
        return None
    return positive("hparams.client_lr", times, "auto or a multiple of 1/L such as 0.3/L")


def positive(key: str, given: float | str, allowed: str) -> float:
    """Return a value as a float; raise UserError unless it is finite and positive."""
    try:
        number = float(given)
    except ValueError:
        number = math.nan
    require(math.isfinite(number) and number > 0, key, given if math.isnan(number) else number, allowed)
    return number
