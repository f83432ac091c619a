"""The space of a search: the keys that a command line sweeps over, with intervals or values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from hydra.core.override_parser.types import Glob, IntervalSweep, Override

from fco_cli.errors import UserError, require
from fco_cli.help import GROUPS

DIGITS = 6  # significant digits of a number from an interval
RATES = ("hparams.client_lr", "hparams.server_lr")  # a run that diverges also diverges with larger ones
TAGS = frozenset(("log",))
EXAMPLES = "a list of values, range(...) or an interval such as tag(log,interval(1e-4,1))"

Point = tuple[str, ...]  # values of the dimensions, as text


@dataclass(frozen=True)
class Dimension:
    """Key of a search with its values in a fixed order, or with an interval."""

    key: str
    values: tuple[str, ...] = ()  # empty for an interval
    is_ordered: bool = False  # True if the values are numbers, in increasing order
    low: float = math.nan
    high: float = math.nan
    is_log: bool = False
    is_whole: bool = False

    @property
    def size(self) -> float:
        """Number of values; infinite for an interval."""
        return len(self.values) or (self.high - self.low + 1 if self.is_whole else math.inf)

    @property
    def is_rate(self) -> bool:
        """True for a learning rate whose values are numbers."""
        return self.key in RATES and (self.is_ordered or not self.values)

    def at(self, share: float) -> float:
        """Return the parameter at a share, from 0 to below 1, of the dimension: the index of a value, or a number."""
        if self.values:
            return int(share * len(self.values))
        if self.is_whole and not self.is_log:
            return int(self.low + share * self.size)
        if self.is_log:
            number = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        else:
            number = self.low + share * (self.high - self.low)
        return min(max(round(number) if self.is_whole else number, self.low), self.high)

    def text(self, parameter: float) -> str:
        """Return the value of a parameter as text of an override."""
        if self.values:
            return self.values[int(parameter)]
        if self.is_whole:
            return str(int(parameter))
        return repr(min(max(float(f"{parameter:.{DIGITS}g}"), self.low), self.high))


@dataclass(frozen=True)
class Space:
    """Keys that one search varies, and the overrides that all of its runs share."""

    dimensions: tuple[Dimension, ...]
    shared: tuple[str, ...]

    @property
    def size(self) -> float:
        """Number of points, possibly infinite."""
        return math.prod(dimension.size for dimension in self.dimensions)

    def points(self) -> Iterable[tuple[float, ...]]:
        """Yield the parameters of every point; the space must have a finite size."""
        axes = [
            range(len(one.values)) if one.values else range(int(one.low), int(one.high) + 1) for one in self.dimensions
        ]
        for index in np.ndindex(*map(len, axes)):
            yield tuple(axis[i] for axis, i in zip(axes, index, strict=True))

    def point(self, parameters: Sequence[float]) -> Point:
        return tuple(one.text(value) for one, value in zip(self.dimensions, parameters, strict=True))

    def overrides(self, point: Point) -> list[str]:
        """Return the overrides of a run."""
        return [*self.shared, *(f"{one.key}={value}" for one, value in zip(self.dimensions, point, strict=True))]


def is_searched(override: Override) -> bool:
    """Return True if a search varies the key: a swept key that is neither the seed nor a configuration group."""
    return override.is_sweep_override() and override.key_or_group != "seed" and override.key_or_group not in GROUPS


def dimension_of(override: Override) -> Dimension:
    """Return the dimension of a swept key."""
    key, sweep = override.key_or_group, override.value()
    text = (override.input_line or "").partition("=")[2]
    if unknown := set(getattr(sweep, "tags", ())) - TAGS:
        raise UserError(f"{key}: got the tag {min(unknown)}, must be log or none")
    is_log = "log" in getattr(sweep, "tags", ())
    if isinstance(sweep, IntervalSweep):
        low, high = (math.nan if end is None else end for end in (sweep.start, sweep.end))
        is_valid = math.isfinite(low) and math.isfinite(high) and low < high
        require(is_valid, key, text, "an interval with two finite ends, the smaller one first")
        require(not is_log or low > 0, key, text, "an interval above 0 with the tag log")
        return Dimension(
            key, low=low, high=high, is_log=is_log, is_whole=isinstance(low, int) and isinstance(high, int)
        )
    require(override.is_discrete_sweep() and not isinstance(sweep, Glob), key, text, EXAMPLES)
    require(not is_log, key, text, f"{EXAMPLES}; the tag log is for intervals, a list has its own order")
    values = list(dict.fromkeys(override.sweep_string_iterator()))
    require(bool(values), key, text, EXAMPLES)
    numbers = [_number(value) for value in values]
    if None in numbers:
        return Dimension(key, tuple(values))
    return Dimension(key, tuple(sorted(values, key=float)), is_ordered=True)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
