"""Metrics of a run at its evaluated rounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(eq=False)  # Mapping.__eq__ compares the columns
class History(Mapping[str, list[float]]):
    """Mapping from the name of a metric to its column, stored by rows so that an evaluation is a single append."""

    names: tuple[str, ...] = ()
    rows: list[tuple[float, ...]] = field(default_factory=list)

    @classmethod
    def of(cls, columns: Mapping[str, Iterable[float]]) -> History:
        """Return the history with the given columns; raise ValueError if their lengths differ."""
        return cls(tuple(columns), list(zip(*columns.values(), strict=True)))

    def __getitem__(self, name: str) -> list[float]:
        if name not in self.names:
            raise KeyError(name)
        index = self.names.index(name)
        return [row[index] for row in self.rows]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)
