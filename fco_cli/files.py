"""Files: written whole or not at all, locks between processes, the cache's place, and YAML, fast."""

from __future__ import annotations

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


def as_yaml(content: Any) -> str:
    """Plain content as YAML; a sweep writes hundreds of configurations, and OmegaConf takes its time for each."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
