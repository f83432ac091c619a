"""Files: written whole or not at all, locks between processes, the cache's place, and YAML, fast."""

from __future__ import annotations

import csv
import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from fco_cli.errors import UserError

LARGEST_TABLE = 64 << 20  # bytes
PART = ".part-"  # in the name of a file that is being written; one that a killed process left is no use to anyone


def write_atomically(path: Path, content: bytes, flush: bool = True) -> None:
    """Replace a regular file as a whole or not at all; write through any other kind of file.

    The content reaches the disk before the name does, and the name before we return: a file that refers to another
    (result.json to all others, a checkpoint to the clients' memory) is written after it and so never outlives it.
    Without `flush` a power failure may leave an unreadable file (a process that dies cannot): enough for checkpoints,
    whose damage is detected, and which are written often.

    A link stays, and the file that it refers to is replaced. Devices, pipes and the files that standard output and
    error have open (/dev/stdout) are written in place: a rename would turn them into regular files.
    """
    status = file_status(path)
    if status is None or (stat.S_ISREG(status.st_mode) and _standard_stream(status) is None):
        _replace(Path(os.path.realpath(path)) if path.is_symlink() else path, content, flush)
    else:
        _write_in_place(path, status, content)


def file_status(path: Path) -> os.stat_result | None:
    """Return the status of a file to be written, None if there is none yet; raise UserError if it cannot be one."""
    if not path.name or "\0" in str(path):
        raise UserError(f"{str(path)!r}: must be the name of a file")
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise UserError(f"{path}: cannot be written: {problem.strerror}") from problem
    if stat.S_ISDIR(status.st_mode):
        raise UserError(f"{path}: is a folder, must be the name of a file")
    return status


def _replace(path: Path, content: bytes, flush: bool) -> None:
    """Write a new file beside the old one and rename it."""
    temporary = path.with_name(f".{path.name}{PART}{os.getpid()}")
    try:
        with temporary.open("wb", buffering=0) as file:
            write_all(file, content)
            if flush:
                os.fsync(file.fileno())
        temporary.replace(path)
        if flush:
            _flush_folder(path.parent)
    except OSError as problem:
        with suppress(OSError):  # a disk that has become read-only does not let us tidy up either
            temporary.unlink(missing_ok=True)
        raise UserError(f"{path}: cannot be written: {problem.strerror}") from problem


def _standard_stream(status: os.stat_result) -> int | None:
    """Return the descriptor of standard output or error if it has this file open."""
    for descriptor in (1, 2):
        with suppress(OSError):  # closed
            if os.path.samestat(os.fstat(descriptor), status):
                return descriptor
    return None


def _write_in_place(path: Path, status: os.stat_result, content: bytes) -> None:
    """Write to a device or a pipe, or after what a standard stream has written."""
    descriptor = _standard_stream(status)
    try:
        if descriptor is None:
            with path.open("wb", buffering=0) as file:
                write_all(file, content)
        else:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            with io.FileIO(descriptor, "wb", closefd=False) as file:
                write_all(file, content)
    except BrokenPipeError:  # the reader has left, as `head` does
        raise
    except OSError as problem:
        raise UserError(f"{path}: cannot be written: {problem.strerror}") from problem


def write_all(file: io.FileIO, content: bytes) -> None:
    """All of it: a raw file may take less at a time, and the rest is where a full disk shows."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def _flush_folder(folder: Path) -> None:
    """The names in it, where the system can."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def pairs_from(path: Path, key: str, header: str) -> dict[str, str]:
    """A small table of two columns, CSV with the given header, as a mapping from the first to the second."""
    try:
        if not path.is_file() or path.stat().st_size > LARGEST_TABLE:
            raise UserError(f"{key}: {path} is no CSV file of at most {LARGEST_TABLE >> 20} MiB")
        rows = list(csv.reader(path.read_text("utf-8-sig").splitlines(), strict=True))
    except OSError as problem:
        raise UserError(f"{key}: {path} cannot be read: {problem.strerror}") from problem
    except (UnicodeDecodeError, csv.Error) as problem:
        raise UserError(f"{key}: {path} is no CSV file in UTF-8: {problem}") from problem
    if not rows or ",".join(rows[0]) != header:
        raise UserError(f"{key}: {path} must begin with the line {header}")
    pairs: dict[str, str] = {}
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != 2 or row[0] in pairs:
            fault = "has no two columns" if len(row) != 2 else f"names {row[0]!r} again"
            raise UserError(f"{key}: {path}, line {number} {fault}")
        pairs[row[0]] = row[1]
    return pairs


def remove_parts(folder: Path) -> None:
    """Forget what killed processes were writing there; only for who has locked the folder."""
    for path in folder.glob(f".*{PART}*"):
        path.unlink(missing_ok=True)


@contextmanager
def lock(path: Path, wait: bool) -> Iterator[bool]:
    """Hold a lock file for this process; False if another one holds it. A lock ends with its process, in any case."""
    from filelock import FileLock, Timeout

    held = FileLock(path)
    try:
        held.acquire(timeout=-1 if wait else 0)
    except Timeout:
        pass
    except OSError as problem:
        raise UserError(f"{path.parent}: cannot be written: {problem.strerror}") from problem
    try:
        yield held.is_locked
    finally:
        held.release()


def cache_folder(name: str) -> Path:
    """Where this system keeps what can be made again: ~/.cache/fco/<name> on Linux, or below $XDG_CACHE_HOME."""
    from platformdirs import user_cache_path

    return user_cache_path("fco", appauthor=False) / name


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Be the only process at work in a cache folder; the others wait."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise UserError(f"{folder}: cannot be written: {problem.strerror} (XDG_CACHE_HOME moves it)") from problem
    with lock(folder / ".lock", wait=True):
        yield


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # libyaml, where PyYAML has it
    """Quotes text that OmegaConf would read back as a number, such as 1e-3."""

    def represent_text(self, text: str) -> Any:
        try:
            float(text)
            style = "'"
        except ValueError:
            style = None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


class _Item:
    """An item of a mapping; it equals every other one that reads the same."""

    def __init__(self, key: Any, value: Any) -> None:
        self.content = {key: value}
        self.text = repr(self.content)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Item) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


@lru_cache(maxsize=256)
def _item_as_yaml(item: _Item) -> str:
    return _as_yaml(item.content)


def _as_yaml(content: Any) -> str:
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def as_yaml(content: Any) -> str:
    """Plain content as YAML; a sweep writes hundreds of configurations, which have most of their groups in common."""
    if not isinstance(content, dict) or not content:
        return _as_yaml(content)
    return "".join(_item_as_yaml(_Item(key, value)) for key, value in content.items())
