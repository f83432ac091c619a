"""Where compiled kernels are kept on disk: in a folder that only we can write, in files that carry a checksum.

Numba's cache files are pickles, and reading a pickle executes it: a folder in which somebody else may have put files
is refused, and kernels are then compiled in memory, for this process alone. A power failure leaves files empty, half
or full of zeros: such a file counts as absent, and its kernel is compiled again.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from numba import config
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, UserProvidedCacheLocator
from numba.core.runtime import rtsys

from fco_cli.files import cache_folder
from fco_cli.private_folder import why_unsafe

log = logging.getLogger(__name__)

SHA256_BYTES = 32


def kernel_folder(version: str) -> Path | None:
    """The folder for the machine code of a version of the sources; None where there is no safe and writable one."""
    home = cache_folder("kernels")
    try:
        for place in (home.parent, home):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = Path(os.path.realpath(home)) / version  # no link on the way can be changed under our hands
        if not folder.exists():
            _forget_old_versions(folder.parent)
            folder.mkdir(mode=0o700, exist_ok=True)
        if reason := why_unsafe(folder):
            log.warning("%s is not used, and kernels are compiled at every start: %s", folder, reason)
            return None
        return folder if os.access(folder, os.W_OK) else None
    except OSError:  # a home that cannot be written
        return None


def _forget_old_versions(home: Path, days: float = 30) -> None:
    for folder in home.glob("*"):
        if time.time() - folder.stat().st_mtime > days * 86400:
            shutil.rmtree(folder, ignore_errors=True)


def keep(compiled: Any, folder: Path) -> None:
    """Let a Numba function load its machine code from the folder and save it there, as cache=True does elsewhere."""
    config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]
    compiled._compilation_chain_init_hook = _nothing
    with suppress(RuntimeError):  # the folder has gone or the disk is full: Numba found no place for its files
        compiled._cache = _Cache(compiled.py_func)


def _nothing() -> None:
    """In the place of Numba's search through all that is installed for types of other packages: kernels have none."""


class _OurFolderOnly(CompileResultCacheImpl):
    """Numba would go on to other folders where ours fails, and those nobody has looked at."""

    _locator_classes = [UserProvidedCacheLocator]  # noqa: RUF012 - Numba's own word for it


class _Cache(FunctionCache):
    """Numba's cache of one function, in files with a checksum; a full disk is no obstacle."""

    _impl_class = _OurFolderOnly

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        stamp = self._impl.locator.get_source_stamp()
        self._cache_file = _CheckedFiles(self._cache_path, self._impl.filename_base, stamp)

    def load_overload(self, signature: Any, target: Any) -> Any:
        """As Numba does it, but without all that only compiling needs, whose import takes as long as a short run."""
        rtsys.initialize(target)  # what machine code calls to have memory
        with self._guard_against_spurious_io_errors():
            return self._load_overload(signature, target)

    def save_overload(self, signature: Any, compiled: Any) -> None:
        with suppress(OSError):
            super().save_overload(signature, compiled)


class _CheckedFiles(IndexDataCacheFile):
    """The checksum stands at a file's end, where unpickling does not look."""

    def _load_index(self) -> dict[Any, str]:
        return super()._load_index() if _is_whole(Path(self._index_path)) else {}

    def _load_data(self, name: str) -> Any:
        if not _is_whole(Path(self._data_path(name))):
            raise FileNotFoundError(name)  # Numba then compiles and writes the file anew
        return super()._load_data(name)

    @contextmanager
    def _open_for_write(self, path: str) -> Iterator[io.BytesIO]:
        with super()._open_for_write(path) as file:
            content = io.BytesIO()
            yield content
            file.write(content.getvalue() + hashlib.sha256(content.getvalue()).digest())


def _is_whole(path: Path) -> bool:
    try:
        content = path.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(content[:-SHA256_BYTES]).digest() == content[-SHA256_BYTES:]
