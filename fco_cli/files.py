"""Files of this software: atomic writing, locks between processes, YAML, CSV and private cache folders.

Numbers in CSV files can be read back exactly, and spreadsheets do not interpret text as formulas.
"""

from __future__ import annotations

import csv
import io
import os
import stat
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from fco_cli.errors import UserError

PART = ".part-"  # in the names of temporary files
FLUSH_SECONDS = 1.0
FORMULA_MARKS = ("=", "+", "-", "@")


def write_atomically(path: Path, content: bytes, flush: bool = True) -> None:
    """Replace a regular file atomically; write to any other kind of file in place.

    The content is flushed to disk before the file is renamed, and the name before the function returns. A file that
    refers to another (result.json to all others, a checkpoint to the clients' memory) is therefore written after it.
    Without `flush` a power failure, but not the death of the process, may leave an unreadable file. This is enough for
    checkpoints, which are written often and checked when they are read.

    The target of a symbolic link is replaced, not the link. Devices, pipes and the files of standard output and error
    (/dev/stdout) are written in place, since a rename would turn them into regular files.
    """
    status = file_status(path)
    if status is None or (stat.S_ISREG(status.st_mode) and _standard_stream(status) is None):
        _replace(Path(os.path.realpath(path)) if path.is_symlink() else path, content, flush)
    else:
        _write_in_place(path, status, content)


def file_status(path: Path) -> os.stat_result | None:
    """Return the status of a file to be written, None if it does not exist; raise UserError for an invalid path."""
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
    """Write a temporary file in the same folder and rename it."""
    temporary = path.with_name(f".{path.name}{PART}{os.getpid()}")
    try:
        with temporary.open("wb", buffering=0) as file:
            write_all(file, content)
            if flush:
                os.fsync(file.fileno())
        temporary.replace(path)
        if flush:
            flush_folder(path.parent)
    except OSError as problem:
        with suppress(OSError):  # fails if the disk has become read-only
            temporary.unlink(missing_ok=True)
        raise UserError(f"{path}: cannot be written: {problem.strerror}") from problem


def _standard_stream(status: os.stat_result) -> int | None:
    """Return the descriptor of standard output or error if it refers to this file."""
    for descriptor in (1, 2):
        with suppress(OSError):  # closed
            if os.path.samestat(os.fstat(descriptor), status):
                return descriptor
    return None


def _write_in_place(path: Path, status: os.stat_result, content: bytes) -> None:
    """Write to a device or a pipe, or append to a standard stream."""
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
    except BrokenPipeError:  # the reader has closed the pipe, as `head` does
        raise
    except OSError as problem:
        raise UserError(f"{path}: cannot be written: {problem.strerror}") from problem


def write_all(file: io.FileIO, content: bytes) -> None:
    """Write the whole content; a single write to a raw file may be partial, for example on a full disk."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def flush_file(file: int, new_in: Path | None = None) -> None:
    """Flush an open file to disk, and its name if it is new in a folder."""
    getattr(os, "fdatasync", os.fsync)(file)  # macOS has no fdatasync
    if new_in is not None:
        flush_folder(new_in)


class DelayedFlush:
    """Flush of files to disk within FLUSH_SECONDS of `start`, in a thread."""

    def __init__(self, *paths: Path) -> None:
        self.paths, self.lock, self.is_pending = paths, threading.Lock(), False

    def start(self) -> None:
        if self.is_pending:
            return
        with self.lock:
            self.is_pending = True
        timer = threading.Timer(FLUSH_SECONDS, self.flush)
        timer.daemon = True
        timer.start()

    def flush(self) -> None:
        """Flush now."""
        with self.lock:
            self.is_pending = False  # a file that is written from here on is flushed next time
        for path in self.paths:
            with suppress(FileNotFoundError):  # not written yet, or removed
                file = os.open(path, os.O_RDONLY)
                try:
                    flush_file(file)
                finally:
                    os.close(file)


def flush_folder(folder: Path) -> None:
    """Flush the names in a folder to disk, if the system supports it."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_parts(folder: Path) -> None:
    """Remove the temporary files of killed processes; the caller must have locked the folder."""
    for path in folder.glob(f".*{PART}*"):
        path.unlink(missing_ok=True)


def lock_file(handle: int) -> None:
    """Wait for an exclusive lock of an open file, which closing it releases; on Unix only."""
    import fcntl

    fcntl.flock(handle, fcntl.LOCK_EX)


@contextmanager
def lock(path: Path, wait: bool) -> Iterator[bool]:
    """Lock a file for this process; yield False if another process holds it. A lock ends with its process."""
    from filelock import FileLock, Timeout

    file_lock = FileLock(path)
    try:
        file_lock.acquire(timeout=-1 if wait else 0)
    except Timeout:
        pass
    except OSError as problem:
        raise UserError(f"{path.parent}: cannot be written: {problem.strerror}") from problem
    try:
        yield file_lock.is_locked
    finally:
        file_lock.release()


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # libyaml, where PyYAML has it
    """YAML dumper that quotes text that OmegaConf would read back as a number, such as 1e-3."""

    def represent_text(self, text: str) -> Any:
        try:
            float(text)
            style = "'"
        except ValueError:
            style = None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


def as_yaml(content: Any) -> str:
    """Return plain content as YAML."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def as_csv(header: Iterable[object], rows: Iterable[Iterable[object]], number_format: str = "") -> str:
    """Return a table as CSV; without a number format, floats have enough digits to be read back exactly."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_cell(name, "") for name in header])
    writer.writerows([_cell(value, number_format) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: object, number_format: str) -> Any:
    if isinstance(value, str):
        return as_text_cell(value)
    return format(value, number_format) if number_format and isinstance(value, float) else value


def as_text_cell(text: str) -> str:
    """Return printable text, with an apostrophe in front if it begins like a formula."""
    text = escape_unprintable(text)
    return f"'{text}" if text.lstrip().startswith(FORMULA_MARKS) else text


def escape_unprintable(text: str) -> str:
    """Return the text with control characters and lone surrogates escaped as in \\x1b."""
    return text if text.isprintable() else "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def cache_folder(name: str) -> Path:
    """Return a folder of the user's cache: ~/.cache/fco/<name> on Linux, or below $XDG_CACHE_HOME."""
    from platformdirs import user_cache_path

    return user_cache_path("fco", appauthor=False) / name


@contextmanager
def exclusive_access(folder: Path) -> Iterator[None]:
    """Create and lock a cache folder; other processes wait."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise UserError(f"{folder}: cannot be written: {problem.strerror} (XDG_CACHE_HOME moves it)") from problem
    with lock(folder / ".lock", wait=True):
        yield


def private_cache(name: str) -> Path:
    """Return the cache folder of that name, created if necessary; raise UserError if another user can write to it."""
    home = cache_folder(name)
    try:
        for folder in (home.parent, home):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        raise UserError(f"{home}: cannot be written: {problem.strerror} (XDG_CACHE_HOME moves it)") from problem
    return require_private(Path(os.path.realpath(home)))  # resolve links, so that they cannot be changed later


def require_private(folder: Path) -> Path:
    """Return the folder if no other user can write to it, with read access removed; otherwise raise UserError."""
    try:
        status = folder.lstat()
        is_own = not hasattr(os, "getuid") or status.st_uid == os.getuid()
        if is_own and stat.S_ISDIR(status.st_mode) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            folder.chmod(0o700)
        reason = unsafe_reason(folder) if folder.is_dir() and not folder.is_symlink() else "it is not a folder"
    except OSError as problem:
        raise UserError(f"{folder}: cannot be used: {problem.strerror} (XDG_CACHE_HOME moves it)") from problem
    if reason:
        raise UserError(
            f"{folder}: is not used because another user may have written to it: {reason}; "
            "remove it, or move the cache with XDG_CACHE_HOME"
        )
    return folder


def unsafe_reason(folder: Path) -> str | None:
    """Return the reason why another user could write to the folder or replace it; None if no one can."""
    if not hasattr(os, "getuid"):  # on Windows the user's profile is private
        return None
    if folder.lstat().st_uid != os.getuid() or stat.S_IMODE(folder.lstat().st_mode) != 0o700:
        return "it is not private (owner and mode 700)"
    for parent in folder.parents:
        status = parent.lstat()
        if status.st_uid not in (os.getuid(), 0):
            return f"{parent} belongs to another user"
        by_others = status.st_mode & stat.S_IWOTH
        by_group = status.st_mode & stat.S_IWGRP and not _is_private_group(status.st_gid)
        is_sticky = status.st_mode & stat.S_ISVTX  # as /tmp: users can rename only their own files
        if (by_others or by_group) and not is_sticky:
            return f"others can write to {parent}"
    return None


def _is_private_group(group: int) -> bool:
    """Return True for a group with the user as its only member, which many systems create for each user."""
    import grp
    import pwd

    try:
        user, entry = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(group)
    except KeyError:
        return False
    return entry.gr_name == user and set(entry.gr_mem) <= {user}
