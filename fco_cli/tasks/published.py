"""Task on public tables: heart disease (4 hospitals), intensive care (185 hospitals), crime (46 states)."""

from __future__ import annotations

from dataclasses import dataclass

from fco_cli.data.format import FederatedData
from fco_cli.data.published import PUBLICATIONS, Publication
from fco_cli.data.readers.source import Columns
from fco_cli.errors import require
from fco_cli.tasks.tabular import Tabular


@dataclass(kw_only=True)
class Published(Tabular):
    """Task on one of PUBLICATIONS."""

    name: str = "published"
    publication: str
    data_dir: str | None  # folder with the files; null: download
    min_samples: int  # clients with fewer samples are dropped

    def __post_init__(self) -> None:
        super().__post_init__()
        known = "one of " + ", ".join(PUBLICATIONS)
        require(self.publication in PUBLICATIONS, "task.publication", self.publication, known)
        require(self.min_samples >= 0, "task.min_samples", self.min_samples, "a whole number >= 0")

    @property
    def _published(self) -> Publication:
        return PUBLICATIONS[self.publication]

    @property
    def columns(self) -> Columns:
        return self._published.columns

    def missing_data(self) -> str | None:
        if self.data_dir is not None or self._published.is_downloaded:
            return None
        return f"{self._published.name} is not on this machine (task.data_dir, docs/data.md)"

    def contents(self) -> dict[str, str]:
        return {"data_dir": self._published.content(self.data_dir)}

    def read(self, seed: int) -> FederatedData:
        return self._published.read(self.data_dir, self.min_samples)
