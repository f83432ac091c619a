"""CSV files that describe clients: availability, probabilities of dropping out, speeds."""

from __future__ import annotations

import csv
import hashlib
import io
import math
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fco_cli.errors import UserError
from fco_cli.memory_limit import require_memory
from fco_cli.problem.layout import Array
from fco_cli.typed_files import BadRecord, Missing, read_bounded

LARGEST = 64 * 2**20  # bytes of a file
LARGEST_ROUND = 10**6


def _read(path: Path, key: str) -> bytes:
    if not os.path.isfile(path):
        raise UserError(f"{key}: {path}: no such file; paths are relative to {os.getcwd()}")
    try:
        return read_bounded(path, LARGEST)
    except (BadRecord, Missing) as problem:
        raise UserError(f"{key}: {path}: {problem}") from problem


def digest(path: Path, key: str) -> str:
    """Return the SHA-256 digest of a file's content."""
    return hashlib.sha256(_read(path, key)).hexdigest()


class Rows:
    """Rows of a CSV file with a header; messages name the file and the line."""

    def __init__(self, path: Path, key: str, columns: tuple[tuple[str, ...], ...]) -> None:
        """Read a file whose header is one of `columns`, in any order."""
        self.path, self.key = path, key
        try:
            text = _read(path, key).decode("utf-8-sig")
        except UnicodeDecodeError as problem:
            raise UserError(f"{key}: {path}: is not UTF-8 text") from problem
        reader = csv.reader(io.StringIO(text))
        self.header = [name.strip() for name in next(reader, [])]
        if not any(sorted(self.header) == sorted(names) for names in columns):
            allowed = " or ".join(", ".join(names) for names in columns)
            raise UserError(f"{key}: {path}: the columns are {', '.join(self.header)}, must be {allowed}")
        self.lines = [(reader.line_num, row) for row in reader if row]
        if not self.lines:
            raise UserError(f"{key}: {path}: has no rows")

    def fail(self, line: int, reason: str) -> UserError:
        return UserError(f"{self.key}: {self.path}, line {line}: {reason}")

    def __iter__(self) -> Iterator[tuple[int, dict[str, str]]]:
        for line, row in self.lines:
            if len(row) != len(self.header):
                raise self.fail(line, f"has {len(row)} cells, must have {len(self.header)}")
            yield line, {name: cell.strip() for name, cell in zip(self.header, row, strict=True)}

    def whole(self, line: int, name: str, cell: str, low: int, high: int, what: str) -> int:
        """Return a cell as a whole number from low to high."""
        if not cell.isascii() or not cell.isdigit() or len(cell) > 18 or not low <= int(cell) <= high:
            raise self.fail(line, f"{name} is {cell!r}, must be a whole number from {low} to {high}{what}")
        return int(cell)

    def number(self, line: int, name: str, cell: str, low: float, high: float = math.inf) -> float:
        """Return a cell as a number from low to below high."""
        try:
            number = float(cell)
        except ValueError:
            number = math.nan
        if not low <= number < high:
            limit = "" if high == math.inf else f" and below {high:g}"
            raise self.fail(line, f"{name} is {cell!r}, must be a number >= {low:g}{limit}")
        return number

    def client(self, line: int, cell: str, clients: int) -> int:
        return self.whole(line, "client", cell, 0, clients - 1, f" (the task has {clients} clients)")


def read_trace(path: Path, clients: int, key: str) -> Array:
    """Return the availability [rounds, M] of all clients; rounds in the file are numbered from 1, as in metrics.csv."""
    rows = Rows(path, key, (("client", "start", "end"), ("client", "rounds")))
    spans: list[tuple[int, int, int]] = []
    for line, cells in rows:
        client = rows.client(line, cells["client"], clients)
        texts = [(cells["start"], cells["end"])] if "start" in cells else _spans(cells["rounds"])
        for start, end in texts:
            first = rows.whole(line, "start", start, 1, LARGEST_ROUND, "")
            last = rows.whole(line, "end", end, first, LARGEST_ROUND, "")
            spans.append((client, first - 1, last))
    if not spans:
        raise UserError(f"{key}: {path}: no client is available in any round")
    rounds = max(after for *_, after in spans)
    require_memory(f"{key}: {path}", rounds * clients)
    mask = np.zeros((rounds, clients), dtype=bool)
    for client, before, after in spans:
        mask[before:after, client] = True
    return mask


def _spans(text: str) -> Iterator[tuple[str, str]]:
    """Yield the first and last round of every part of a list such as "1 4 7-9"."""
    for part in text.split():
        first, dash, last = part.partition("-")
        yield first, last if dash else first


def read_probabilities(path: Path, clients: int, key: str) -> Array:
    """Return the probability [M] of every client from a file with the columns client, probability."""
    rows = Rows(path, key, (("client", "probability"),))
    return _one_row_per_client(rows, clients, {"probability": (0.0, 1.0)})["probability"]


def _one_row_per_client(rows: Rows, clients: int, bounds: dict[str, tuple[float, float]]) -> dict[str, Array]:
    """Return columns of numbers [M] of a file with one row for every client."""
    columns = {name: np.full(clients, np.nan) for name in bounds}
    seen = np.zeros(clients, dtype=bool)
    for line, cells in rows:
        client = rows.client(line, cells["client"], clients)
        if seen[client]:
            raise rows.fail(line, f"client {client} has two rows")
        seen[client] = True
        for name, (low, high) in bounds.items():
            columns[name][client] = rows.number(line, name, cells[name], low, high)
    if not seen.all():
        raise UserError(f"{rows.key}: {rows.path}: has no row for client {int(np.argmin(seen))}")
    return columns


SPEEDS = ("gradient_seconds", "up_bandwidth", "down_bandwidth", "latency")


def read_speeds(path: Path, clients: int, key: str) -> dict[str, Array]:
    """Return the speeds of every client from a file with the columns client and those of SPEEDS."""
    rows = Rows(path, key, (("client", *SPEEDS),))
    smallest = {name: (0.0 if name in ("gradient_seconds", "latency") else 1e-300, math.inf) for name in SPEEDS}
    return _one_row_per_client(rows, clients, smallest)
