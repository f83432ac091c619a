"""Compilation time is most of the tests' own: what saves a third of it should not go unnoticed when it is gone."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from numba.core.codegen import CPUCodeLibrary

from fco_cli.problem.compiled import PARALLEL, kernel
from fco_cli.problem.parts import AROUND_A_LOOP, PART, optimize_only_whole_kernels


@kernel
def doubled(x):
    return 2 * x


@kernel
def doubled_twice(x):
    return doubled(doubled(x))


def double_all(x):
    for i in numba.prange(x.shape[0]):
        x[i] = 2 * x[i]


def watched(monkeypatch, method):
    """The names of the libraries whose method is called from now on."""
    names, original = [], getattr(CPUCodeLibrary, method)

    def noted(library):
        names.append(library.name)
        original(library)

    monkeypatch.setattr(CPUCodeLibrary, method, noted)
    return names


@pytest.mark.machine_code
def test_parts_are_optimized_in_their_kernel_only(monkeypatch):
    names = watched(monkeypatch, "_optimize_final_module")
    compiled = doubled_twice._compile()
    assert compiled(3) == 12
    (whole,) = (name for name in names if "doubled" in name)
    assert whole.startswith("doubled_twice")
    (part,) = doubled._inlined.overloads.values()
    assert part.library.name.startswith(PART)


@pytest.mark.machine_code
def test_what_is_around_a_loop_is_not_optimized_but_in_its_kernel(monkeypatch):
    optimize_only_whole_kernels()
    optimized, made = watched(monkeypatch, "_optimize_final_module"), watched(monkeypatch, "finalize")
    x = np.ones(3)
    numba.njit(parallel=PARALLEL)(double_all)(x)  # not as a kernel: tests have one thread
    assert x.tolist() == [2, 2, 2]
    assert sum(name.startswith(AROUND_A_LOOP) for name in made) == len(AROUND_A_LOOP)
    assert not [name for name in optimized if name.startswith(AROUND_A_LOOP)]
    assert [name for name in optimized if name.startswith("double_all")]
