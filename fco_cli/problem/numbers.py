"""Numbers by name: one record per job, whose fields a kernel and plain Python read alike, as in `psi.strength`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any, Protocol, TypeAlias

import numpy as np

Numbers: TypeAlias = np.ndarray  # a record array [J] of float64 fields, or of records where psi has pieces


def record(values: dict[str, Any]) -> Numbers:
    """A record array [1] of numbers and of other records; what has no numbers gets a field that nobody reads."""
    values = values or {"unused": 0.0}  # Numba knows no empty records
    kinds = {name: value.dtype if isinstance(value, np.recarray) else np.dtype(float) for name, value in values.items()}
    made = np.recarray(1, np.dtype(list(kinds.items())))
    for name, value in values.items():
        made[name] = value
    return made


def numbers_of(owner: Any) -> Numbers:
    """The numbers among the fields of a dataclass: [1]."""
    values = {field.name: getattr(owner, field.name) for field in fields(owner)}
    return record({name: value for name, value in values.items() if isinstance(value, int | float)})


class HasNumbers(Protocol):
    @property
    def numbers(self) -> Numbers: ...


def stack_numbers(owners: Iterable[HasNumbers]) -> Numbers:
    """The numbers of every job [J], of owners of one kind."""
    return np.concatenate([owner.numbers for owner in owners]).view(np.recarray)
