"""Kernels: functions over arrays that Numba compiles on first use and caches on disk.

A kernel is written as plain Python, with loops: Numba takes seconds to compile an array expression or an assignment
to a slice (there is `copy` for that). The names it calls may be bound to other kernels with `specialize`, which is how
one text of an algorithm serves every loss and regularizer and still runs as a single compiled loop; a name may also be
bound to a float, which is then a constant. If a part is an ordinary Python function, the whole runs as ordinary Python:
slower, the same text. With Numba's own switch NUMBA_DISABLE_JIT=1 every kernel does: for debuggers, and for tests of
what a text says.
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

# Reassociation lets sums vectorize; NaN and infinity keep their meaning, divergence is detected by them.
FASTMATH = {"reassoc", "contract", "nsz", "arcp"}
# Only `prange` makes threads; looking for more in array expressions multiplies the time to compile.
PARALLEL = {"prange": True} | dict.fromkeys(
    ("comprehension", "reduction", "inplace_binop", "setitem", "numpy", "stencil", "fusion"), False
)


# Numba's simplest thread pool, the only one that is always there, ends the process when two threads enter it at once.
_ONE_AT_A_TIME = threading.Lock()


class Kernel:
    """A compiled function, made when it is first called."""

    def __init__(
        self,
        python: Callable[..., Any],
        parts: dict[str, Any] | None = None,
        parallel: bool = False,
        in_order: bool = False,  # sums keep the order in which they are written
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
        """Where there is one thread only (NUMBA_NUM_THREADS), plain loops: they compile in a third of the time."""
        return self.parallel and _numba().config.NUMBA_NUM_THREADS > 1

    @functools.cached_property
    def _content(self) -> str:
        """A digest of the function and of the globals that it reads; the parts have their own."""
        return content_of(self.python, set(self.parts))

    @property
    def identity(self) -> str:
        """A digest of this kernel and of all that it is made of: the key under which its machine code is cached."""
        inner = ",".join(f"{name}={getattr(part, 'identity', part)!s}" for name, part in self.parts.items())
        text = f"{self.python.__name__} {self._content} {self._threaded} {self.in_order} [{inner}]"
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def compilable(self) -> bool:
        return all(
            part.compilable if isinstance(part, Kernel) else isinstance(part, float) for part in self.parts.values()
        )

    @functools.cached_property
    def function(self) -> Callable[..., Any]:
        """The function to call: machine code from the cache, or Python where a part is Python."""
        if not self.compilable:
            return self.as_python
        from fco_cli.kernels.library import KERNEL

        compiled = self._compile(KERNEL)
        if (folder := _cache_folder()) is not None:
            from fco_cli.kernels.cache import keep

            keep(compiled, folder)
        return compiled

    @functools.cached_property
    def as_python(self) -> Callable[..., Any]:
        """The same text as an ordinary Python function: the parts are called as they are."""
        return self._bind(self.parts)

    @functools.cached_property
    def _uncompiled(self) -> Callable[..., Any]:
        """Python all the way down."""
        parts = {name: part._uncompiled if isinstance(part, Kernel) else part for name, part in self.parts.items()}
        return self._bind(parts)

    @functools.cached_property
    def _inlined(self) -> Callable[..., Any]:
        """The function as a part of another: always inlined, never cached on its own.

        Only so is a kernel's machine code one unit that does not depend on what happened to be in the cache when it
        was compiled, and the same numbers come out to the last bit.
        """
        from fco_cli.kernels.library import PART

        return self._compile(PART, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)

    def _compile(self, prefix: str, **options: Any) -> Any:
        numba = _numba()
        parts = {name: part._inlined if isinstance(part, Kernel) else part for name, part in self.parts.items()}
        text = self._bind(parts | _of_the_machine() | ({"prange": numba.prange} if self._threaded else {}))
        text.__qualname__ = f"{prefix}{self.python.__name__}_{self.identity}"  # names the file in the cache
        parallel = PARALLEL if self._threaded else False
        fastmath = FASTMATH - {"reassoc"} if self.in_order else FASTMATH
        options |= {"nogil": True, "error_model": "numpy", "fastmath": fastmath, "parallel": parallel}
        return numba.njit(**options)(text)

    def _bind(self, parts: dict[str, Any]) -> Any:
        python = self.python
        text = types.FunctionType(python.__code__, {**python.__globals__, **parts}, python.__name__)
        text.__module__ = python.__module__
        return text

    def __call__(self, *arguments: Any) -> Any:
        if _numba().config.DISABLE_JIT:
            with np.errstate(all="ignore"):  # machine code does not warn either
                return self._uncompiled(*arguments)
        if self.parallel:
            with _ONE_AT_A_TIME:
                return self.function(*arguments)
        return self.function(*arguments)


def kernel(python: Callable[..., Any]) -> Kernel:
    """Mark a function as a kernel (a decorator)."""
    return Kernel(python)


def kernel_in_order(python: Callable[..., Any]) -> Kernel:
    """A kernel whose sums keep the order in which they are written: two texts of one sum then give the same bits."""
    return Kernel(python, in_order=True)


@kernel
def copy(source, out):
    """out[:] = source, for vectors."""
    for i in range(source.shape[0]):
        out[i] = source[i]


@kernel
def is_finite(number):
    """Use this in kernels: Numba's np.isfinite is x - x == 0, which reassociation may cancel to True for any sum."""
    return abs(number) < math.inf


@functools.cache
def _specialized(template: Kernel, parallel: bool, parts: tuple[tuple[str, Any], ...]) -> Kernel:
    return Kernel(template.python, {**template.parts, **dict(parts)}, parallel, template.in_order)


def specialize(template: Kernel, *, parallel: bool = False, **parts: Any) -> Kernel:
    """`template` with the names it calls bound to `parts`."""
    return _specialized(template, parallel, tuple(sorted(parts.items())))


@functools.cache
def _numba() -> Any:
    """Numba, imported late because it is slow to import."""
    import numba

    from fco_cli.kernels.library import check_numba, optimize_only_whole_kernels

    check_numba(numba.__version__)
    optimize_only_whole_kernels()
    return numba


@functools.cache
def _of_the_machine() -> dict[str, Any]:
    """The words of kernels that mean more in machine code than in Python."""
    from fco_cli.kernels import vector

    words = {"dots": vector.dots, "add_multiples": vector.add_multiples}
    return words | {"many_registers": vector.many_registers()}


@functools.cache
def _cache_folder() -> Path | None:
    """Return the folder of cached machine code; None if there is none: code is compiled for this process only."""
    from fco_cli.kernels.cache import kernel_folder

    return kernel_folder()


def set_threads(count: int) -> None:
    """Let parallel kernels use `count` threads (at most as many as the machine has)."""
    numba = _numba()
    numba.set_num_threads(max(1, min(count, numba.config.NUMBA_NUM_THREADS)))
