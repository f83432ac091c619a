"""A kernel is optimized as a whole, its parts not by themselves.

Numba optimizes every function that it compiles, and again all of it in each function that it is inlined in: the
innermost loop of a kernel ten times. A part of ours is never called but where it is inlined. Of a parallel loop Numba
makes a function for its body, which is called, and two around it that hand it to a thread: those do next to nothing.
"""

from __future__ import annotations

from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.registry import cpu_target

PART = "part_of_a_kernel_"  # how the names of such functions begin
AROUND_A_LOOP = ("<numba.np.ufunc.wrappers._GufuncWrapper", "parallelgufuncwrapper")


class OptimizedOnce(JITCodeLibrary):
    """The code of a function with all that it calls; of a part of a kernel, or around a loop, as Numba wrote it."""

    def _optimize_final_module(self) -> None:
        if not self.name.startswith((PART, *AROUND_A_LOOP)):
            super()._optimize_final_module()


def optimize_only_whole_kernels() -> None:
    """From now on, in this process. With a Numba whose inner workings are others it takes as long as it did."""
    codegen: Any = cpu_target.target_context.codegen()
    if getattr(codegen, "_library_class", None) is JITCodeLibrary:
        codegen._library_class = OptimizedOnce
