"""Memory of the clients between rounds, for all clients and all jobs of a stack.

A small memory is kept in this process and saved with every checkpoint. A large one is kept in a file per run,
`checkpoint_memory.bin`, with two slots per client: the slot that the last checkpoint refers to is never overwritten,
so the checkpoint stays valid if the process is killed at any moment. The file is sparse: unused slots take no disk
space.
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

LARGE = 16 * 2**20  # bytes; a job's memory of this size or more is kept in a file
FILE = "checkpoint_memory.bin"
SavedMemory = dict[str, Array]  # part of a checkpoint that describes one job's memory


class DamagedMemory(Exception):
    """A client memory that does not match its checkpoint."""


def bytes_of_job(clients: int, remembered: int, size: int, itemsize: int) -> int:
    """Return the bytes of one job's memory in this process; 0 if it is kept in a file."""
    total = clients * remembered * size * itemsize
    return total if total < LARGE else 0


def client_memory(initial: Array, clients: int, folders: list[Path] | None) -> ClientMemory:
    """Return the memory for initial rows [remembered, J, P]; a large one uses the jobs' folders, if given."""
    remembered, _, size = initial.shape
    is_large = bytes_of_job(clients, remembered, size, initial.itemsize) == 0
    return FileMemory(initial, clients, folders) if is_large and folders is not None else ProcessMemory(initial)


class ClientMemory(ABC):
    """Rows [remembered, J, P] of every client, equal to the initial rows until the client's first participation."""

    def __init__(self, initial: Array) -> None:
        self.initial = initial

    @abstractmethod
    def of_clients(self, clients: Array) -> list[Array]:
        """Return the rows of some clients, each [remembered, J, P]; the caller must not modify them."""

    def read(self, clients: Array) -> Array:
        """Return a copy of the rows of some clients: [S, remembered, J, P]."""
        return np.stack(self.of_clients(clients))

    @abstractmethod
    def of_job(self, j: int, clients: Array) -> Array:
        """Return a copy of the rows of some clients in job j: [S, remembered, P]."""

    @abstractmethod
    def write(self, clients: Array, rows: Array, arrived: Array) -> None:
        """Replace the rows of some clients in the jobs in which their message arrived, a mask [S, J]."""

    @abstractmethod
    def keep(self, jobs: Array) -> None:
        """Restrict the stack to the jobs of a mask [J]."""

    @abstractmethod
    def save(self, j: int) -> SavedMemory:
        """Return the part of job j's checkpoint that describes its memory."""

    @abstractmethod
    def load(self, j: int, saved: SavedMemory) -> None:
        """Restore job j from a checkpoint; raise DamagedMemory if it does not match."""

    def confirm_saved(self, j: int) -> None:  # noqa: B027 - only files have something to do
        """Confirm that the checkpoint of job j is on disk."""


class ProcessMemory(ClientMemory):
    """Client memory in this process."""

    def __init__(self, initial: Array) -> None:
        super().__init__(initial)
        self.rows: dict[int, Array] = {}

    def of_clients(self, clients: Array) -> list[Array]:
        return [self.rows.get(m, self.initial) for m in clients.tolist()]

    def of_job(self, j: int, clients: Array) -> Array:
        return np.stack([self.rows.get(m, self.initial)[:, j] for m in clients.tolist()])

    def write(self, clients: Array, rows: Array, arrived: Array) -> None:
        for m, row, mask in zip(clients.tolist(), rows, arrived, strict=True):
            if m not in self.rows:
                self.rows[m] = self.initial.copy()
            jobs = slice(None) if mask.all() else mask  # indexing by a slice avoids a temporary copy
            self.rows[m][:, jobs] = row[:, jobs]

    def keep(self, jobs: Array) -> None:
        self.initial = self.initial[:, jobs]
        self.rows = {m: row[:, jobs] for m, row in self.rows.items()}

    def save(self, j: int) -> SavedMemory:
        shape = (0, len(self.initial), self.initial.shape[2])
        rows = [row[:, j] for row in self.rows.values()] or np.empty(shape, self.initial.dtype)
        return {"clients": np.array(list(self.rows), dtype=np.int64), "rows": np.array(rows)}

    def load(self, j: int, saved: SavedMemory) -> None:
        clients, rows = saved.get("clients"), saved.get("rows")
        if clients is None or rows is None or clients.ndim != 1 or clients.dtype.kind != "i":
            raise DamagedMemory("the checkpoint has no client memory")
        if rows.shape != (len(clients), *self.initial[:, j].shape) or rows.dtype != self.initial.dtype:
            raise DamagedMemory("the checkpoint's client memory has another shape or precision")
        for m, row in zip(clients.tolist(), rows, strict=True):
            self.rows.setdefault(m, self.initial.copy())[:, j] = row


class FileMemory(ClientMemory):
    """Client memory in one file per job: [clients, 2 slots, remembered, P].

    The file is not memory-mapped: on a full disk a write raises an error, while a mapped page would kill the process.
    """

    def __init__(self, initial: Array, clients: int, folders: list[Path]) -> None:
        super().__init__(initial)
        remembered, jobs, size = initial.shape
        self.paths = [folder / FILE for folder in folders]
        self.row_bytes = remembered * size * initial.itemsize
        self.slots = np.full((jobs, clients), -1, dtype=np.int8)  # slot of each client's row; -1: not written yet
        self.saved_slots = self.slots.copy()  # slots that the last checkpoint refers to

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
        slots = self.slots[j, clients]
        if (slots >= 0).any():
            with self._open(j) as file:
                for i in np.flatnonzero(slots >= 0):
                    rows[i] = self._read_row(file, clients[i], slots[i])
        return rows

    def _read_row(self, file: io.FileIO, client: int, slot: int) -> Array:
        file.seek(self._offset(client, slot))
        content = file.read(self.row_bytes)
        if len(content) != self.row_bytes:
            raise UserError(f"{file.name}: was truncated while in use")
        return np.frombuffer(content, self.initial.dtype).reshape(len(self.initial), -1)

    def _offset(self, client: int, slot: int) -> int:
        return (2 * int(client) + int(slot)) * self.row_bytes

    def write(self, clients: Array, rows: Array, arrived: Array) -> None:
        for j in range(len(self.paths)):
            with self._open(j) as file:
                for i in np.flatnonzero(arrived[:, j]):
                    m = clients[i]
                    slot = 1 - self.saved_slots[j, m] if self.saved_slots[j, m] >= 0 else 0
                    file.seek(self._offset(m, slot))
                    write_all(file, rows[i, :, j].tobytes())
                    self.slots[j, m] = slot

    def keep(self, jobs: Array) -> None:
        self.initial, self.slots, self.saved_slots = self.initial[:, jobs], self.slots[jobs], self.saved_slots[jobs]
        self.paths = [path for path, kept in zip(self.paths, jobs, strict=True) if kept]

    def save(self, j: int) -> SavedMemory:
        """Flush the rows to disk before the checkpoint that refers to them is written."""
        if (self.slots[j] >= 0).any():
            with self._open(j) as file:
                os.fsync(file.fileno())
        return {"place": self.slots[j].copy(), "row": self._row_format()}

    def _row_format(self) -> Array:
        """Return the number of arrays in a row, their length and the bytes per number."""
        remembered, _, size = self.initial.shape
        return np.array([remembered, size, self.initial.itemsize])

    def load(self, j: int, saved: SavedMemory) -> None:
        slots = saved.get("place")
        if slots is None or slots.shape != self.slots[j].shape or not np.isin(slots, (-1, 0, 1)).all():
            raise DamagedMemory("the checkpoint has no valid index of the client memory")
        if not np.array_equal(saved.get("row", ()), self._row_format()):
            raise DamagedMemory("the checkpoint's client memory has another shape or precision")
        used = np.flatnonzero(slots >= 0)
        end = max((self._offset(int(m), slots[m]) + self.row_bytes for m in used), default=0)
        if len(used) and not (self.paths[j].exists() and self.paths[j].stat().st_size >= end):
            raise DamagedMemory(f"{self.paths[j].name} is missing or too short")
        self.slots[j] = self.saved_slots[j] = slots

    def confirm_saved(self, j: int) -> None:
        self.saved_slots[j] = self.slots[j]
