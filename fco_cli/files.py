"""Writing files so that a reader sees the old content or the new, never half of it."""

from __future__ import annotations

import os
from pathlib import Path

from fco_cli.errors import UserError


def write_atomically(path: Path, content: bytes) -> None:
    """Write the whole file or nothing."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as problem:
        temporary.unlink(missing_ok=True)
        raise UserError(f"{path}: cannot be written: {problem.strerror}") from problem
