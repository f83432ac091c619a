"""Kernels as self-contained units of machine code: optimized once, as a whole, with no symbol shared between kernels.

Numba optimizes every function that it compiles, and again each function that inlines it: the innermost loop of a
kernel ten times. Functions that are only ever inlined into a kernel, and the functions that Numba generates around a
parallel loop, are therefore left unoptimized until the kernel is optimized as a whole.

Numba links shared functions as weak symbols, which the loader resolves to the first definition in the process: in the
process that compiles, an unoptimized one; later, that of the kernel that was loaded first. A kernel would then run
other instructions, and give other last bits, than the same kernel from the cache. Here every function inside a kernel
is internal to it, so that a kernel executes the same instructions whatever else the process has compiled or loaded.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding
from numba.core.codegen import JITCodeLibrary
from numba.core.registry import cpu_target

from fco_cli.errors import UserError

OLDEST_NUMBA, NEWEST_NUMBA = (0, 63), (0, 68)  # as in pyproject.toml; both ends are tested
KERNEL = "fco_kernel_"  # prefix of a whole kernel's name
PART = "fco_part_"  # prefix of the name of a function that is inlined into kernels
PARALLEL_LOOP = ("__numba_parfor_gufunc", "<numba.np.ufunc.wrappers._GufuncWrapper", "parallelgufuncwrapper")
SHARED = (
    binding.Linkage.linkonce_odr,
    binding.Linkage.linkonce_any,
    binding.Linkage.weak_odr,
    binding.Linkage.weak_any,
)


class KernelLibrary(JITCodeLibrary):
    """The code of one function and of everything that it calls."""

    def _optimize_final_module(self) -> None:
        if self.name.startswith((PART, *PARALLEL_LOOP)):
            return
        if self.name.startswith(KERNEL):
            for function in self._final_module.functions:
                if not function.is_declaration and function.linkage in SHARED:
                    function.linkage = binding.Linkage.internal
        super()._optimize_final_module()


def check_numba(version: str) -> None:
    """Raise UserError for a Numba whose internals, on which this module depends, are not known to fit."""
    try:
        minor = tuple(int(number) for number in version.split(".")[:2])
    except ValueError:
        minor = (0, 0)
    if not OLDEST_NUMBA <= minor <= NEWEST_NUMBA:
        oldest, newest = (".".join(map(str, numbers)) for numbers in (OLDEST_NUMBA, NEWEST_NUMBA))
        allowed = f"{oldest} to {newest}"
        raise UserError(f"numba {version} is not supported; install one of {allowed}: pip install 'numba=={newest}.*'")


def optimize_only_whole_kernels() -> None:
    """Make Numba use `KernelLibrary` in this process."""
    codegen: Any = cpu_target.target_context.codegen()
    codegen._library_class = KernelLibrary
