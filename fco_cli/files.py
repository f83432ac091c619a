"""Writing files so that a reader sees the old content or the new, never half of it."""

from __future__ import annotations

import os
from pathlib import Path

from fco_cli.errors import UserError


def write_atomically(path: Path, content: bytes, flush: bool = True) -> None:
    """Write the whole file or nothing.

    Without `flush` a power failure may leave an unreadable file (a process that dies cannot): enough for checkpoints,
    whose damage is detected, and which are written often.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            if flush:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as problem:
        temporary.unlink(missing_ok=True)
        raise UserError(f"{path}: cannot be written: {problem.strerror}") from problem
