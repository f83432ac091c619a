"""Code generation of kernels: each is optimized once, as a whole, and shares no symbols with other kernels.

Numba optimizes every function that it compiles, and again every function that inlines it, so that the innermost loop of
a kernel is optimized about ten times; and it generates machine code for each of them. Functions that are only inlined
into kernels, and the functions that Numba generates around a parallel loop, are therefore left unoptimized and without
machine code until the whole kernel is optimized.

Numba links shared functions as weak symbols, which the loader resolves to the first definition in the process: an
unoptimized one in the process that compiles, and that of the first loaded kernel in later processes. A compiled kernel
and the same kernel from the cache could then differ in the last bits of their results. Here every function inside a
kernel has internal linkage, so that a kernel executes the same instructions in every process.
"""

from __future__ import annotations

import ctypes
import functools
import gc
from typing import Any

from llvmlite import binding
from numba.core import event as events
from numba.core.codegen import JITCodeLibrary
from numba.core.registry import cpu_target

from fco_cli.errors import UserError

OLDEST_NUMBA, NEWEST_NUMBA = (0, 63), (0, 68)  # as in pyproject.toml; both ends are tested
KERNEL = "fco_kernel_"  # prefix of a whole kernel's name
PART = "fco_part_"  # prefix of a function that is inlined into kernels
PARALLEL_LOOP = ("__numba_parfor_gufunc", "<numba.np.ufunc.wrappers._GufuncWrapper", "parallelgufuncwrapper")
ENVIRONMENT = "_ZN08NumbaEnv"  # prefix of the name of a function's environment
ENVIRONMENTS: list[ctypes.c_void_p] = []  # of parts; they must live as long as the process
SHARED = (
    binding.Linkage.linkonce_odr,
    binding.Linkage.linkonce_any,
    binding.Linkage.weak_odr,
    binding.Linkage.weak_any,
)


class KernelLibrary(JITCodeLibrary):
    """Code of one function and of everything that it calls."""

    @property
    def _is_part(self) -> bool:
        """True if this code is never called by its address, but only linked into kernels."""
        return self.name.startswith((PART, *PARALLEL_LOOP))

    def _finalize_final_module(self) -> None:
        """Make the code callable; a part stays in LLVM's intermediate form, and machine code is generated once."""
        if not self._is_part:
            super()._finalize_final_module()
            return
        self._finalize_dynamic_globals()
        engine = self._codegen._engine
        for variable in self._final_module.global_variables:
            # Numba stores the address of a function's environment here.
            if variable.name.startswith(ENVIRONMENT) and not engine.is_symbol_defined(variable.name):
                cell = ctypes.c_void_p()
                ENVIRONMENTS.append(cell)
                engine.add_global_mapping(variable, ctypes.addressof(cell))
        self._finalized = True

    def _get_module_for_linking(self) -> Any:
        """Return the code that is linked into other code: of a part, its own module and not a copy."""
        if not self._is_part:
            return super()._get_module_for_linking()
        self._ensure_finalized()
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == binding.Linkage.external:
                function.linkage = binding.Linkage.linkonce_odr  # defined again wherever it is linked in
        return self._final_module

    def _optimize_final_module(self) -> None:
        if self._is_part:
            return
        if self.name.startswith(KERNEL):
            for function in self._final_module.functions:
                if not function.is_declaration and function.linkage in SHARED:
                    function.linkage = binding.Linkage.internal
        super()._optimize_final_module()


def check_numba(version: str) -> None:
    """Raise UserError for an unsupported Numba version: this module depends on Numba's internals."""
    try:
        minor = tuple(int(number) for number in version.split(".")[:2])
    except ValueError:
        minor = (0, 0)
    if not OLDEST_NUMBA <= minor <= NEWEST_NUMBA:
        oldest, newest = (".".join(map(str, numbers)) for numbers in (OLDEST_NUMBA, NEWEST_NUMBA))
        allowed = f"{oldest} to {newest}"
        raise UserError(f"numba {version} is not supported; install one of {allowed}: pip install 'numba=={newest}.*'")


class CollectionPause(events.Listener):
    """Pause of the garbage collector while Numba compiles, which creates many objects and little garbage."""

    def __init__(self) -> None:
        self.depth, self.was_enabled = 0, False  # functions that are being compiled, each within the previous one

    def on_start(self, event: Any) -> None:
        if self.depth == 0:
            self.was_enabled = gc.isenabled()
            gc.disable()
        self.depth += 1

    def on_end(self, event: Any) -> None:
        self.depth -= 1
        if self.depth == 0 and self.was_enabled:
            gc.enable()


def optimize_only_whole_kernels() -> None:
    """Make Numba use `KernelLibrary` in this process."""
    codegen: Any = cpu_target.target_context.codegen()
    codegen._library_class = KernelLibrary


@functools.cache
def pause_collection_while_compiling() -> None:
    """Register `CollectionPause` in this process, once."""
    events.register("numba:compile", CollectionPause())
