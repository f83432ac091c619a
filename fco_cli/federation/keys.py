"""Secret keys in files, created once and readable by their owner only."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from fco_cli.errors import UserError
from fco_cli.files import PART

KEY_BYTES = 32


def read_or_create_key(path: Path) -> bytes:
    """Return the key in a file; create it if it does not exist.

    The file gets its name after the key is on disk, so a process that is killed leaves a whole key or none. If two
    processes create the key at the same time, both use that of the first.
    """
    if not path.exists():
        _create(path, secrets.token_bytes(KEY_BYTES))
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        raise UserError(f"{path}: has {len(key)} bytes, must have {KEY_BYTES}; delete it to create another key")
    return key


def _create(path: Path, key: bytes) -> None:
    temporary = path.with_name(f".{path.name}{PART}{os.getpid()}")
    temporary.unlink(missing_ok=True)  # of a killed process with the same id
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):  # another process was faster
            os.link(temporary, path)
    finally:
        temporary.unlink()
