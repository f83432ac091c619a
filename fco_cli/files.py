"""Files: written whole or not at all, a lock on a folder, and YAML, fast."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

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


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Be the only process at work in a cache folder; the others wait, and the lock ends with its process."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("w")
    except OSError as problem:
        raise UserError(f"{folder}: cannot be written: {problem.strerror} (XDG_CACHE_HOME moves it)") from problem
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
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


def as_yaml(content: Any) -> str:
    """Plain content as YAML; a sweep writes hundreds of configurations, and OmegaConf takes its time for each."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
