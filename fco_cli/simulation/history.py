"""A run's metrics at every evaluated round."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(eq=False)  # equal to whatever maps the same names to the same columns
class History(Mapping[str, list[float]]):
    """By name the column of a metric. Kept row by row: an evaluation then adds one thing to a job, and not twenty."""

    names: tuple[str, ...] = ()
    rows: list[tuple[float, ...]] = field(default_factory=list)

    @classmethod
    def of(cls, columns: Mapping[str, Iterable[float]]) -> History:
        """Of columns that are equally long; a ValueError if they are not."""
        return cls(tuple(columns), list(zip(*columns.values(), strict=True)))

    def __getitem__(self, name: str) -> list[float]:
        if name not in self.names:
            raise KeyError(name)
        place = self.names.index(name)
        return [row[place] for row in self.rows]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)
