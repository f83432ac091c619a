"""On-disk cache of compiled kernels: one file per kernel, signature and processor, named by a digest of all three.

A file name contains the digest of the kernel and all its parts (`Kernel.identity`): editing a kernel changes its file
name, and editing unrelated code invalidates nothing. Files are pickles, and loading a pickle executes code: a folder
that another user could write to is rejected, and kernels are then compiled for this process only. Each file ends with a
checksum; an empty or truncated file, for example after a power failure, is ignored.

A process locks a kernel while it compiles it: others wait for the file, and no two processes compile the same kernel.
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
from fco_cli.files import cache_folder, unsafe_reason, write_atomically

log = logging.getLogger(__name__)

SHA256_BYTES = 32
SUFFIX = ".kernel"
DAYS_KEPT = 30  # since the last use
MAX_WAIT = 120.0  # seconds for a kernel that another process compiles; it may have been stopped
POLL_SECONDS = 0.02
COMPILER = ("compiled.py", "library.py", "vector.py", "cache.py")  # modules that compile kernels


def kernel_folder() -> Path | None:
    """Return the folder of cached machine code; None if there is no safe and writable folder."""
    path = cache_folder("kernels")
    try:
        for directory in (path.parent, path):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = Path(os.path.realpath(path))  # resolve once, so that no symbolic link can be replaced later
        if reason := unsafe_reason(folder):
            log.warning("Cache folder %s is not used; kernels are compiled at every start: %s", folder, reason)
            return None
        return folder if os.access(folder, os.W_OK) else None
    except OSError:  # the home directory is not writable
        return None


@functools.cache
def _compiler_version() -> str:
    """Return a digest of the versions and sources that compile kernels."""
    sources = [(Path(__file__).parent / name).read_bytes() for name in COMPILER]
    versions = f"{sys.version} {numba.__version__} {llvmlite.__version__}"
    return hashlib.sha256(b"".join([versions.encode(), *sources])).hexdigest()


def _remove_unused(folder: Path) -> None:
    for path in folder.iterdir():
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > DAYS_KEPT * 86400:
                path.unlink()


def _read(path: Path) -> bytes | None:
    """Return the content of a file without its checksum; None if it is missing or damaged."""
    try:
        content = path.read_bytes()
        if time.time() - path.stat().st_mtime > 86400:
            os.utime(path)  # mark as used
    except OSError:
        return None
    body, checksum = content[:-SHA256_BYTES], content[-SHA256_BYTES:]
    return body if hashlib.sha256(body).digest() == checksum else None


_locks: dict[Path, Any] = {}  # of the kernels that this process compiles; also of one that did not compile


def _lock(path: Path) -> None:
    """Wait until no other process compiles the kernel, up to `MAX_WAIT` seconds, and lock it."""
    from filelock import FileLock, Timeout

    if path not in _locks:
        file_lock = FileLock(path.with_suffix(".lock"))
        with suppress(OSError, Timeout):  # the folder may be read-only or full
            file_lock.acquire(timeout=MAX_WAIT, poll_interval=POLL_SECONDS)
            _locks[path] = file_lock


def _unlock(path: Path) -> None:
    """Unlock a kernel, which is in the cache if it can be: a process that locks it afterwards loads it."""
    if file_lock := _locks.pop(path, None):
        with suppress(OSError):
            path.with_suffix(".lock").unlink(missing_ok=True)
            file_lock.release()


def enable_cache(compiled: Any, folder: Path) -> None:
    """Make a Numba function load its machine code from the folder and save it there."""
    compiled._compilation_chain_init_hook = _skip_entry_points
    compiled._cache = KernelCache(compiled.py_func.__qualname__, folder)


def _skip_entry_points() -> None:
    """Replace Numba's slow search for extensions in all installed packages; kernels use none."""


class KernelCache(CacheProtocol):
    """Cached machine code of one kernel, with the interface that Numba's dispatcher expects."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder

    @property
    def cache_path(self) -> str:
        return str(self.folder)

    def enable(self) -> None:
        """Do nothing: the cache is always enabled."""

    def disable(self) -> None:
        """Do nothing: the cache is always enabled."""

    def flush(self) -> None:
        """Do nothing: outdated files are never loaded, because their names differ."""

    def _path(self, signature: Any, codegen: Any) -> Path:
        key = f"{_compiler_version()} {signature} {codegen.magic_tuple()}"
        return self.folder / f"{self.name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}{SUFFIX}"

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Return the compiled function for a signature; None if it is not cached.

        Skips Numba's `target.refresh()`, which imports modules needed only for compiling and takes as long as a short
        run.
        """
        rtsys.initialize(target)  # memory management of compiled code
        path = self._path(signature, target.codegen())
        body = _read(path)
        if body is None:
            _lock(path)
            body = _read(path)  # another process may have compiled it meanwhile
            if body is not None:
                _unlock(path)
        return None if body is None else CompileResult._rebuild(target, *pickle.loads(body))

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Store a compiled function; ignore a full disk or a missing folder."""
        path = self._path(signature, compiled.codegen)
        try:
            if compiled.library.has_dynamic_globals:
                return  # contains addresses of this process
            body = dumps(compiled._reduce())
            with suppress(OSError, UserError):
                _remove_unused(self.folder)
                write_atomically(path, body + hashlib.sha256(body).digest(), flush=False)
        finally:
            _unlock(path)
