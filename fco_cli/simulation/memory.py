"""What clients remember between rounds, for all clients and all jobs of a stack.

Small memories live in this process and are saved whole with every checkpoint. A large one lives in a file per run,
`checkpoint_memory.bin`, with two places for every client: a row is never written over the place that the last
checkpoint refers to, so that a process may die at any moment and the checkpoint still finds what it knew. Places that
no client has used take no disk.
"""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fco_cli.errors import UserError
from fco_cli.files import write_all
from fco_cli.problem.layout import Array

LARGE = 16 * 2**20  # bytes of one job's memory, from which on it lives in a file
FILE = "checkpoint_memory.bin"
Saved = dict[str, Array]  # what a checkpoint holds of one job's memory


class DamagedMemory(Exception):
    """A checkpoint and its memory do not fit together."""


def bytes_of_job(clients: int, remembered: int, size: int, itemsize: int) -> int:
    """What the memory of one job takes in this process; nothing if it lives in a file."""
    total = clients * remembered * size * itemsize
    return total if total < LARGE else 0


def client_memory(initial: Array, clients: int, folders: list[Path] | None) -> ClientMemory:
    """The memory for initial rows [remembered, J, P]; large ones go to the jobs' folders, if there are any."""
    remembered, _, size = initial.shape
    large = bytes_of_job(clients, remembered, size, initial.itemsize) == 0
    return FileMemory(initial, clients, folders) if large and folders is not None else ProcessMemory(initial)


class ClientMemory(ABC):
    """Rows [remembered, J, P], one for every client; those of a client that has had no turn are the initial ones."""

    def __init__(self, initial: Array) -> None:
        self.initial = initial

    @abstractmethod
    def of_clients(self, clients: Array) -> list[Array]:
        """The rows of some clients, each [remembered, J, P]: to be looked at, not to be changed."""

    def read(self, clients: Array) -> Array:
        """A copy of them: [S, remembered, J, P]."""
        return np.stack(self.of_clients(clients))

    @abstractmethod
    def of_job(self, j: int, clients: Array) -> Array:
        """The same of one job: [S, remembered, P]."""

    @abstractmethod
    def write(self, clients: Array, rows: Array, arrived: Array) -> None:
        """Replace rows, for the jobs in which a client's message arrived [S, J]."""

    @abstractmethod
    def keep(self, jobs: Array) -> None:
        """The stack goes on with these jobs only, a mask [J]."""

    @abstractmethod
    def save(self, j: int) -> Saved:
        """What a checkpoint of job j must hold."""

    @abstractmethod
    def load(self, j: int, saved: Saved) -> None:
        """Continue job j from a checkpoint."""

    def saved(self, j: int) -> None:  # noqa: B027 - only files must know
        """The checkpoint of job j is on disk."""


class ProcessMemory(ClientMemory):
    """In this process."""

    def __init__(self, initial: Array) -> None:
        super().__init__(initial)
        self.rows: dict[int, Array] = {}

    def of_clients(self, clients: Array) -> list[Array]:
        return [self.rows.get(m, self.initial) for m in clients.tolist()]

    def of_job(self, j: int, clients: Array) -> Array:
        return np.stack([self.rows.get(m, self.initial)[:, j] for m in clients.tolist()])

    def write(self, clients: Array, rows: Array, arrived: Array) -> None:
        for m, row, here in zip(clients.tolist(), rows, arrived, strict=True):
            if m not in self.rows:
                self.rows[m] = self.initial.copy()
            jobs = slice(None) if here.all() else here  # a slice: NumPy would make a copy of its own otherwise
            self.rows[m][:, jobs] = row[:, jobs]

    def keep(self, jobs: Array) -> None:
        self.initial = self.initial[:, jobs]
        self.rows = {m: row[:, jobs] for m, row in self.rows.items()}

    def save(self, j: int) -> Saved:
        shape = (0, len(self.initial), self.initial.shape[2])
        rows = [row[:, j] for row in self.rows.values()] or np.empty(shape, self.initial.dtype)
        return {"clients": np.array(list(self.rows), dtype=np.int64), "rows": np.array(rows)}

    def load(self, j: int, saved: Saved) -> None:
        clients, rows = saved.get("clients"), saved.get("rows")
        if clients is None or rows is None or clients.ndim != 1 or clients.dtype.kind != "i":
            raise DamagedMemory("the checkpoint does not say what its clients remember")
        if rows.shape != (len(clients), *self.initial[:, j].shape) or rows.dtype != self.initial.dtype:
            raise DamagedMemory("the checkpoint's clients remember arrays of another shape or precision")
        for m, row in zip(clients.tolist(), rows, strict=True):
            self.rows.setdefault(m, self.initial.copy())[:, j] = row


class FileMemory(ClientMemory):
    """In a file for every job: [clients, 2 places, remembered, P].

    Read and written, not mapped: where the disk is full, a write says so; a mapped page would end the process.
    """

    def __init__(self, initial: Array, clients: int, folders: list[Path]) -> None:
        super().__init__(initial)
        remembered, jobs, size = initial.shape
        self.paths = [folder / FILE for folder in folders]
        self.row_bytes = remembered * size * initial.itemsize
        self.place = np.full((jobs, clients), -1, dtype=np.int8)  # where a client's row is; -1: nowhere yet
        self.safe = self.place.copy()  # where the last checkpoint says it is

    @contextmanager
    def _open(self, j: int) -> Iterator[io.FileIO]:
        path = self.paths[j]
        try:
            with open(path, "r+b" if path.exists() else "w+b", buffering=0) as file:
                yield file
        except OSError as problem:
            raise UserError(f"{path}: cannot be written: {problem.strerror}") from problem

    def of_clients(self, clients: Array) -> list[Array]:
        return list(np.stack([self.of_job(j, clients) for j in range(len(self.paths))], axis=2))

    def of_job(self, j: int, clients: Array) -> Array:
        rows = np.repeat(self.initial[None, :, j], len(clients), axis=0)
        places = self.place[j, clients]
        if (places >= 0).any():
            with self._open(j) as file:
                for i in np.flatnonzero(places >= 0):
                    rows[i] = self._row(file, clients[i], places[i])
        return rows

    def _row(self, file: io.FileIO, client: int, place: int) -> Array:
        file.seek(self._offset(client, place))
        content = file.read(self.row_bytes)
        if len(content) != self.row_bytes:
            raise UserError(f"{file.name}: became shorter while in use")
        return np.frombuffer(content, self.initial.dtype).reshape(len(self.initial), -1)

    def _offset(self, client: int, place: int) -> int:
        return (2 * int(client) + int(place)) * self.row_bytes

    def write(self, clients: Array, rows: Array, arrived: Array) -> None:
        for j in range(len(self.paths)):
            with self._open(j) as file:
                for i in np.flatnonzero(arrived[:, j]):
                    m = clients[i]
                    place = 1 - self.safe[j, m] if self.safe[j, m] >= 0 else 0
                    file.seek(self._offset(m, place))
                    write_all(file, rows[i, :, j].tobytes())
                    self.place[j, m] = place

    def keep(self, jobs: Array) -> None:
        self.initial, self.place, self.safe = self.initial[:, jobs], self.place[jobs], self.safe[jobs]
        self.paths = [path for path, kept in zip(self.paths, jobs, strict=True) if kept]

    def save(self, j: int) -> Saved:
        """The rows reach the disk before the checkpoint that refers to them."""
        if (self.place[j] >= 0).any():
            with self._open(j) as file:
                os.fsync(file.fileno())
        return {"place": self.place[j].copy(), "row": self._kind_of_row()}

    def _kind_of_row(self) -> Array:
        """How many arrays of how many numbers of how many bytes."""
        remembered, _, size = self.initial.shape
        return np.array([remembered, size, self.initial.itemsize])

    def load(self, j: int, saved: Saved) -> None:
        place = saved.get("place")
        if place is None or place.shape != self.place[j].shape or not np.isin(place, (-1, 0, 1)).all():
            raise DamagedMemory("the checkpoint does not say where the clients' rows are")
        if not np.array_equal(saved.get("row", ()), self._kind_of_row()):
            raise DamagedMemory("the checkpoint's clients remember arrays of another shape or precision")
        used = np.flatnonzero(place >= 0)
        end = max((self._offset(int(m), place[m]) + self.row_bytes for m in used), default=0)
        if len(used) and not (self.paths[j].exists() and self.paths[j].stat().st_size >= end):
            raise DamagedMemory(f"{self.paths[j].name} is not there or too short")
        self.place[j] = self.safe[j] = place

    def saved(self, j: int) -> None:
        self.safe[j] = self.place[j]
