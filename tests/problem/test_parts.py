"""Compilation time is most of the tests' own: what saves a third of it should not go unnoticed when it is gone."""

from __future__ import annotations

import pytest
from numba.core.codegen import CPUCodeLibrary

from fco_cli.problem.compiled import kernel
from fco_cli.problem.parts import PART


@kernel
def doubled(x):
    return 2 * x


@kernel
def doubled_twice(x):
    return doubled(doubled(x))


@pytest.mark.machine_code
def test_parts_are_optimized_in_their_kernel_only(monkeypatch):
    names, optimize = [], CPUCodeLibrary._optimize_final_module

    def watched(library):
        names.append(library.name)
        optimize(library)

    monkeypatch.setattr(CPUCodeLibrary, "_optimize_final_module", watched)
    compiled = doubled_twice._compile()
    assert compiled(3) == 12
    (whole,) = (name for name in names if "doubled" in name)
    assert whole.startswith("doubled_twice")
    (part,) = doubled._inlined.overloads.values()
    assert part.library.name.startswith(PART)
