"""Kernels: functions over arrays that Numba compiles on first use and caches on disk.

Kernels are plain Python with explicit loops: Numba takes seconds to compile an array expression or an assignment to a
slice (use `copy` instead). `specialize` binds the names that a kernel calls to other kernels. One source text of an
algorithm thus serves every loss and regularizer and still runs as a single compiled loop. A name can also be bound to a
float, which becomes a compile-time constant. If a part is an ordinary Python function, the whole kernel runs as Python.
With NUMBA_DISABLE_JIT=1 every kernel runs as Python, for debugging and testing.
"""

from __future__ import annotations

import functools
import hashlib
import math
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fco_cli.code_digest import content_of

# Reassociation allows vectorized sums. NaN and infinity keep their meaning: they indicate divergence.
FASTMATH = {"reassoc", "contract", "nsz", "arcp"}
# Only `prange` loops are parallel; searching array expressions for parallelism multiplies the compile time.
PARALLEL = {"prange": True} | dict.fromkeys(
    ("comprehension", "reduction", "inplace_binop", "setitem", "numpy", "stencil", "fusion"), False
)

# Numba's workqueue threading layer, the only one always available, aborts the process on concurrent access.
_PARALLEL_LOCK = threading.Lock()


class Kernel:
    """A function over arrays that is compiled on its first call."""

    def __init__(
        self,
        python: Callable[..., Any],
        parts: dict[str, Any] | None = None,
        parallel: bool = False,
        in_order: bool = False,  # forbid reassociation: sums keep their source order
    ) -> None:
        self.python = python
        self.parallel = parallel
        self.in_order = in_order
        bound = {name: value for name, value in python.__globals__.items() if isinstance(value, Kernel)}
        bound |= parts or {}
        self.parts = {name: bound[name] for name in sorted(bound) if name in python.__code__.co_names}
        functools.update_wrapper(self, python)

    @property
    def _threaded(self) -> bool:
        """True if loops run in threads; with NUMBA_NUM_THREADS=1, plain loops compile in a third of the time."""
        return self.parallel and _numba().config.NUMBA_NUM_THREADS > 1

    @functools.cached_property
    def _content(self) -> str:
        """Digest of the function and of the globals that it reads, without the parts."""
        return content_of(self.python, set(self.parts))

    @property
    def identity(self) -> str:
        """Digest of this kernel and all its parts: the key of its machine code in the cache."""
        inner = ",".join(f"{name}={getattr(part, 'identity', part)!s}" for name, part in self.parts.items())
        text = f"{self.python.__name__} {self._content} {self._threaded} {self.in_order} [{inner}]"
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def is_compilable(self) -> bool:
        return all(
            part.is_compilable if isinstance(part, Kernel) else isinstance(part, float) for part in self.parts.values()
        )

    @functools.cached_property
    def function(self) -> Callable[..., Any]:
        """The function to call: compiled, or Python if a part is an ordinary Python function."""
        if not self.is_compilable:
            return self.as_python
        from fco_cli.kernels.library import KERNEL

        compiled = self._compile(KERNEL)
        if (folder := _cache_folder()) is not None:
            from fco_cli.kernels.cache import enable_cache

            enable_cache(compiled, folder)
        return compiled

    @functools.cached_property
    def as_python(self) -> Callable[..., Any]:
        """The kernel as an ordinary Python function that calls its (compiled) parts."""
        return self._bind(self.parts)

    @functools.cached_property
    def _uncompiled(self) -> Callable[..., Any]:
        """The kernel and all its parts as ordinary Python functions."""
        parts = {name: part._uncompiled if isinstance(part, Kernel) else part for name, part in self.parts.items()}
        return self._bind(parts)

    @functools.cached_property
    def _inlined(self) -> Callable[..., Any]:
        """The function as a part of another kernel: always inlined, never cached separately.

        A kernel's machine code is then one unit that does not depend on the contents of the cache at compile time, and
        results are reproducible to the last bit.
        """
        from fco_cli.kernels.library import PART

        return self._compile(PART, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)

    def _compile(self, prefix: str, **options: Any) -> Any:
        numba = _numba()
        parts = {name: part._inlined if isinstance(part, Kernel) else part for name, part in self.parts.items()}
        function = self._bind(parts | _intrinsics() | ({"prange": numba.prange} if self._threaded else {}))
        function.__qualname__ = f"{prefix}{self.python.__name__}_{self.identity}"  # file name in the cache
        parallel = PARALLEL if self._threaded else False
        fastmath = FASTMATH - {"reassoc"} if self.in_order else FASTMATH
        options |= {"nogil": True, "error_model": "numpy", "fastmath": fastmath, "parallel": parallel}
        return numba.njit(**options)(function)

    def _bind(self, parts: dict[str, Any]) -> Any:
        python = self.python
        function = types.FunctionType(python.__code__, {**python.__globals__, **parts}, python.__name__)
        function.__module__ = python.__module__
        return function

    def __call__(self, *arguments: Any) -> Any:
        if _numba().config.DISABLE_JIT:
            with np.errstate(all="ignore"):  # compiled code does not warn either
                return self._uncompiled(*arguments)
        if self.parallel:
            with _PARALLEL_LOCK:
                return self.function(*arguments)
        return self.function(*arguments)


def kernel(python: Callable[..., Any]) -> Kernel:
    """Turn a function into a kernel (decorator)."""
    return Kernel(python)


def kernel_in_order(python: Callable[..., Any]) -> Kernel:
    """Turn a function into a kernel without reassociation: equal sums in two kernels are equal to the last bit."""
    return Kernel(python, in_order=True)


@kernel
def copy(source, out):
    """Copy a vector: out[:] = source."""
    for i in range(source.shape[0]):
        out[i] = source[i]


@kernel
def is_finite(number):
    """Return True if a number is finite.

    Numba's np.isfinite evaluates x - x == 0, which reassociation may simplify to True.
    """
    return abs(number) < math.inf


@functools.cache
def _specialized(template: Kernel, parallel: bool, parts: tuple[tuple[str, Any], ...]) -> Kernel:
    return Kernel(template.python, {**template.parts, **dict(parts)}, parallel, template.in_order)


def specialize(template: Kernel, *, parallel: bool = False, **parts: Any) -> Kernel:
    """Return `template` with the names it calls bound to `parts`."""
    return _specialized(template, parallel, tuple(sorted(parts.items())))


@functools.cache
def _numba() -> Any:
    """Return the configured numba module; imported late because the import is slow."""
    import numba

    from fco_cli.kernels.library import check_numba, optimize_only_whole_kernels

    check_numba(numba.__version__)
    optimize_only_whole_kernels()
    return numba


@functools.cache
def _intrinsics() -> dict[str, Any]:
    """Return the names in products.py that have another definition in compiled code."""
    from fco_cli.kernels import vector

    functions = {"dots": vector.dots, "add_multiples": vector.add_multiples}
    return functions | {"many_registers": vector.has_many_registers()}


@functools.cache
def _cache_folder() -> Path | None:
    """Return the folder of cached machine code; None if kernels are compiled for this process only."""
    from fco_cli.kernels.cache import kernel_folder

    return kernel_folder()


def set_threads(count: int) -> None:
    """Set the number of threads of parallel kernels, at most NUMBA_NUM_THREADS."""
    numba = _numba()
    numba.set_num_threads(max(1, min(count, numba.config.NUMBA_NUM_THREADS)))
