"""Task on a user's own data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fco_cli.data.format import FederatedData
from fco_cli.data.preparation import prepared
from fco_cli.data.readers import fingerprint, read
from fco_cli.data.readers.source import Columns
from fco_cli.data.sparse import is_sparse
from fco_cli.data.splits import Partition
from fco_cli.errors import require
from fco_cli.problem.losses import all_losses
from fco_cli.problem.losses.survival import Cox
from fco_cli.tasks.tabular import Tabular


@dataclass(kw_only=True)
class Custom(Tabular):
    """Task on a table, a folder with one table per client, or any other file that `fco-data` reads."""

    name: str = "custom"
    path: str
    label: str  # a column, or a condition on one: num>0
    event: str | None  # a column or condition: 1 for an event, 0 for censoring; the label is then a time
    client: str  # the column with the client of each row
    split: str  # the column with train, val and test; optional
    weights: str | None  # the column with sample weights
    drop: list[str]  # columns to ignore
    categorical: list[str]  # columns with categories that are written as numbers
    missing: list[str]  # additional missing-value markers
    names: list[str]  # column names, for a table without header
    min_samples: int  # clients with fewer samples are dropped
    partition: str | None  # assignment of rows to simulated clients
    partition_clients: int
    partition_concentration: float

    def __post_init__(self) -> None:
        if self.event is not None and self.loss == "auto":
            self.loss = Cox.name
        super().__post_init__()
        has_events = self.loss != "auto" and all_losses()[self.loss].censored_labels
        require(self.event is None or has_events, "task.event", self.event, f"null unless task.loss={Cox.name}")
        require(self.min_samples >= 0, "task.min_samples", self.min_samples, "a whole number >= 0")
        _ = self._partition

    @property
    def _partition(self) -> Partition | None:
        if self.partition is None:
            return None
        return Partition(self.partition, self.partition_clients, self.partition_concentration)

    @property
    def columns(self) -> Columns:
        lists = (tuple(self.drop), tuple(self.categorical), tuple(self.missing), tuple(self.names))
        dealt = self.partition is not None
        return Columns(self.label, self.client, self.split, self.weights, *lists, dealt=dealt, event=self.event)

    def missing_data(self) -> str | None:
        return None if Path(self.path).exists() else f"task.path: {self.path} not found"

    def contents(self) -> dict[str, str]:
        return {"path": fingerprint(Path(self.path), self.columns)}

    def read(self, seed: int) -> FederatedData:
        if self._partition is None:
            return read(Path(self.path), self.columns, self.min_samples)
        data = read(Path(self.path), self.columns, min_clients=1)
        x = data.x if is_sparse(data.x) else prepared(data, self.recipe).apply(data.raw)
        return self._partition.assign(data, x, seed)
