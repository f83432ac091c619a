"""Compiled kernels on disk: one file per kernel, signature and processor, named by a digest of all three.

A file's name contains the digest of the kernel's whole content (`Kernel.identity`): edited code is never found under
the old name, and an edit elsewhere discards nothing. Files are pickles, and reading a pickle executes it: a folder into
which another user could write is refused, and kernels are then compiled in memory, for this process alone. Files end
with a checksum: an empty or incomplete file, as a power failure leaves it, counts as absent.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import pickle
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core.caching import _Cache as CacheProtocol
from numba.core.compiler import CompileResult
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

from fco_cli.errors import UserError
from fco_cli.files import cache_folder, write_atomically
from fco_cli.private_folder import why_unsafe

log = logging.getLogger(__name__)

SHA256_BYTES = 32
SUFFIX = ".kernel"
DAYS_KEPT = 30  # since the last use
COMPILER = ("compiled.py", "library.py", "vector.py", "cache.py")  # how kernels become machine code


def kernel_folder() -> Path | None:
    """Return the folder of cached machine code; None where there is no safe and writable one."""
    home = cache_folder("kernels")
    try:
        for place in (home.parent, home):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = Path(os.path.realpath(home))  # resolved once: no link on the way can be exchanged later
        if reason := why_unsafe(folder):
            log.warning("%s is not used, and kernels are compiled at every start: %s", folder, reason)
            return None
        return folder if os.access(folder, os.W_OK) else None
    except OSError:  # a home that cannot be written
        return None


@functools.cache
def _compiler_version() -> str:
    """Return a digest of what turns a kernel into machine code, apart from the kernel."""
    sources = [(Path(__file__).parent / name).read_bytes() for name in COMPILER]
    versions = f"{sys.version} {numba.__version__} {llvmlite.__version__}"
    return hashlib.sha256(b"".join([versions.encode(), *sources])).hexdigest()


def _remove_unused(folder: Path) -> None:
    for path in folder.iterdir():
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > DAYS_KEPT * 86400:
                path.unlink()


def keep(compiled: Any, folder: Path) -> None:
    """Let a Numba function load its machine code from the folder and save it there."""
    compiled._compilation_chain_init_hook = _skip_entry_points
    compiled._cache = KernelCache(compiled.py_func.__qualname__, folder)


def _skip_entry_points() -> None:
    """Replace Numba's search for extensions among all installed packages: kernels use none."""


class KernelCache(CacheProtocol):
    """The cached machine code of one kernel, as Numba's dispatcher expects it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder

    @property
    def cache_path(self) -> str:
        return str(self.folder)

    def enable(self) -> None:
        """Nothing to do: the cache is always enabled."""

    def disable(self) -> None:
        """Nothing to do: the cache is always enabled."""

    def flush(self) -> None:
        """Nothing to do: a file that does not fit is never found."""

    def _path(self, signature: Any, codegen: Any) -> Path:
        key = f"{_compiler_version()} {signature} {codegen.magic_tuple()}"
        return self.folder / f"{self.name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}{SUFFIX}"

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Return the compiled function for a signature; None if it is not cached.

        `target.refresh()`, which Numba would call, imports what only compiling needs: as long as a short run takes.
        """
        rtsys.initialize(target)  # memory management for machine code
        path = self._path(signature, target.codegen())
        try:
            content = path.read_bytes()
            if time.time() - path.stat().st_mtime > 86400:
                os.utime(path)  # in use
        except OSError:
            return None
        body, checksum = content[:-SHA256_BYTES], content[-SHA256_BYTES:]
        if hashlib.sha256(body).digest() != checksum:
            return None
        return CompileResult._rebuild(target, *pickle.loads(body))

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Store a compiled function; a full disk or a missing folder costs time only."""
        if compiled.library.has_dynamic_globals:
            return  # refers to addresses of this process
        path = self._path(signature, compiled.codegen)
        body = dumps(compiled._reduce())
        with suppress(OSError, UserError):
            _remove_unused(self.folder)
            write_atomically(path, body + hashlib.sha256(body).digest(), flush=False)
