"""Kernels as self-contained units of machine code, optimized once."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numba
import numpy as np
import pytest
from numba.core.codegen import CPUCodeLibrary

from fco_cli.errors import UserError
from fco_cli.kernels.compiled import PARALLEL, kernel
from fco_cli.kernels.library import (
    KERNEL,
    NEWEST_NUMBA,
    OLDEST_NUMBA,
    PARALLEL_LOOP,
    PART,
    SHARED,
    check_numba,
    optimize_only_whole_kernels,
)


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
    compiled = doubled_twice._compile(KERNEL)
    assert compiled(3) == 12
    (whole,) = (name for name in names if "doubled" in name)
    assert whole.startswith(f"{KERNEL}doubled_twice")
    (part,) = doubled._inlined.overloads.values()
    assert part.library.name.startswith(PART)


@pytest.mark.machine_code
def test_what_is_around_a_loop_is_not_optimized_but_in_its_kernel(monkeypatch):
    optimize_only_whole_kernels()
    optimized, made = watched(monkeypatch, "_optimize_final_module"), watched(monkeypatch, "finalize")
    x = np.ones(3)
    numba.njit(parallel=PARALLEL)(double_all)(x)  # not as a kernel: tests have one thread
    assert x.tolist() == [2, 2, 2]
    assert sum(name.startswith(PARALLEL_LOOP) for name in made) == len(PARALLEL_LOOP)
    assert not [name for name in optimized if name.startswith(PARALLEL_LOOP)]
    assert [name for name in optimized if name.startswith("double_all")]


@pytest.mark.machine_code
def test_a_kernel_shares_no_function_with_other_kernels():
    """The loader would resolve a shared function to the first one in the process, perhaps an unoptimized part."""
    compiled = doubled_twice._compile(KERNEL)
    compiled(np.float32(3))
    (whole,) = compiled.overloads.values()
    defined = list(whole.library.get_defined_functions())
    assert any("doubled_twice" in function.name for function in defined)
    assert not [function.name for function in defined if function.linkage in SHARED]


@pytest.mark.parametrize("version", ["0.59.1", "0.62.1", "0.69.0", "1.0.0", "nightly"])
def test_other_versions_of_numba_are_refused_in_one_line(version):
    with pytest.raises(UserError, match=rf"^numba {version} is not supported; install one of 0.63 to 0.68: [^\n]+$"):
        check_numba(version)


def test_the_supported_versions_are_those_of_pyproject():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (numba_requirement,) = (each for each in project["dependencies"] if each.startswith("numba"))
    following = (NEWEST_NUMBA[0], NEWEST_NUMBA[1] + 1)
    low, high = (".".join(map(str, numbers)) for numbers in (OLDEST_NUMBA, following))
    assert numba_requirement == f"numba>={low},<{high}"
    check_numba(numba.__version__)
