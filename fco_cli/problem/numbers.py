"""Named parameters as record arrays, one record per job; kernels and Python read fields as in `psi.strength`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any, Protocol, TypeAlias

import numpy as np

Numbers: TypeAlias = np.ndarray  # a record array [J] with float64 fields, or nested records if psi has several pieces


def record(values: dict[str, Any]) -> Numbers:
    """Return a record array [1] of numbers and nested records; an empty record gets an unused field."""
    values = values or {"unused": 0.0}  # Numba does not support empty records
    kinds = {name: value.dtype if isinstance(value, np.recarray) else np.dtype(float) for name, value in values.items()}
    array = np.recarray(1, np.dtype(list(kinds.items())))
    for name, value in values.items():
        array[name] = value
    return array


def numbers_of(owner: Any) -> Numbers:
    """Return the numeric fields of a dataclass as a record array [1]."""
    values = {field.name: getattr(owner, field.name) for field in fields(owner)}
    return record({name: value for name, value in values.items() if isinstance(value, int | float)})


class HasNumbers(Protocol):
    @property
    def numbers(self) -> Numbers: ...


def stack_numbers(owners: Iterable[HasNumbers]) -> Numbers:
    """Return the numbers of all jobs [J]; the owners have the same type."""
    return np.concatenate([owner.numbers for owner in owners]).view(np.recarray)
