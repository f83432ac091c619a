"""tracking=csv: a table with a row per run and a table with a row per round, for all sweeps together."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fco_cli.files import as_csv, lock, write_atomically
from fco_cli.tracking.base import Sender, Sweep, TrackedRun, Tracking

RUN = "run_id"


@dataclass(kw_only=True)
class CsvTracking(Tracking):
    """Two CSV files: runs.csv and rounds.csv."""

    name: str = "csv"
    path: str = "tracking"  # folder of the files

    @property
    def destination(self) -> str:  # type: ignore[override]
        return f"csv tables in {self.path}"

    def open(self, sweep: Sweep) -> Sender:
        return CsvSender(self, sweep)


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    header = list(dict.fromkeys(name for row in rows for name in row))
    write_atomically(path, as_csv(header, ([row.get(name, "") for name in header] for row in rows)).encode())


class CsvSender(Sender):
    """Sender to the tables, which `close` writes once for all runs."""

    def __init__(self, settings: CsvTracking, sweep: Sweep) -> None:
        self.settings, self.sweep, self.folder = settings, sweep, Path(settings.path)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.runs: list[dict[str, Any]] = []
        self.rounds: list[dict[str, Any]] = []

    def sent(self) -> Collection[str]:
        return {row[RUN] for row in _read(self.folder / "runs.csv")}

    def send(self, run: TrackedRun) -> None:
        first = {RUN: run.run_id, "sweep": self.sweep.name, "sweep_id": self.sweep.sweep_id or "", "algo": run.algo}
        self.runs.append({**first, "status": run.status, "folder": str(run.folder), **run.final, **run.settings})
        for step, values in run.points(self.settings.points):
            self.rounds.append({RUN: run.run_id, "round": step, **values})

    def close(self) -> None:
        """Add the rows; runs.csv is written last and lists the runs that are complete."""
        with lock(self.folder / ".lock", wait=True):
            done = self.sent()
            new = [row for row in self.runs if row[RUN] not in done]
            ids = {row[RUN] for row in new}
            if new:
                rounds = [row for row in _read(self.folder / "rounds.csv") if row[RUN] in done]
                _write(self.folder / "rounds.csv", rounds + [row for row in self.rounds if row[RUN] in ids])
                _write(self.folder / "runs.csv", _read(self.folder / "runs.csv") + new)
