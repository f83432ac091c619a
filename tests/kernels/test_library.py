"""Kernels are self-contained units of machine code that are optimized once."""

from __future__ import annotations

import gc
import tomllib
from pathlib import Path

import numba
import numpy as np
import pytest
from llvmlite.binding import Linkage
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
    KernelLibrary,
    check_numba,
    optimize_only_whole_kernels,
)


@kernel
def copied(x):
    """Return a copy of x: its memory is managed by functions that Numba shares between kernels."""
    out = np.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i]
    return out


@kernel
def doubled(x):
    return 2 * x


@kernel
def doubled_twice(x):
    return doubled(doubled(x))


def double_all(x):
    for i in numba.prange(x.shape[0]):
        x[i] = 2 * x[i]


def record_calls(monkeypatch, method):
    """Return a list that collects the names of the libraries whose method is called."""
    names, original = [], getattr(CPUCodeLibrary, method)

    def recording(library):
        names.append(library.name)
        original(library)

    monkeypatch.setattr(CPUCodeLibrary, method, recording)
    return names


@pytest.mark.machine_code
def test_parts_are_optimized_in_their_kernel_only(monkeypatch):
    names = record_calls(monkeypatch, "_optimize_final_module")
    compiled = doubled_twice._compile(KERNEL)
    assert compiled(3) == 12
    (whole,) = (name for name in names if "doubled" in name)
    assert whole.startswith(f"{KERNEL}doubled_twice")
    (part,) = doubled._inlined.overloads.values()
    assert part.library.name.startswith(PART)
    engine = part.library.codegen._engine
    (kernel_code,) = compiled.overloads.values()
    assert engine.is_symbol_defined(kernel_code.fndesc.llvm_func_name)
    assert not engine.is_symbol_defined(part.fndesc.llvm_func_name)  # no machine code is generated for it


@pytest.mark.machine_code
def test_wrappers_of_parallel_loops_are_optimized_in_their_kernel_only(monkeypatch):
    optimize_only_whole_kernels()
    optimized, finalized = (record_calls(monkeypatch, method) for method in ("_optimize_final_module", "finalize"))
    x = np.ones(3)
    numba.njit(parallel=PARALLEL)(double_all)(x)  # not as a kernel, because tests run with one thread
    assert x.tolist() == [2, 2, 2]
    assert sum(name.startswith(PARALLEL_LOOP) for name in finalized) == len(PARALLEL_LOOP)
    assert not [name for name in optimized if name.startswith(PARALLEL_LOOP)]
    assert [name for name in optimized if name.startswith("double_all")]


@pytest.mark.machine_code
def test_a_kernel_shares_no_function_with_other_kernels():
    """The loader resolves a shared function to the first definition in the process, which may be unoptimized."""
    compiled = copied._compile(KERNEL)
    assert compiled(np.ones(3)).tolist() == [1, 1, 1]
    (whole,) = compiled.overloads.values()
    defined = list(whole.library.get_defined_functions())
    assert any(function.name.startswith("NRT_") for function in defined)  # functions that are not inlined
    assert not [function.name for function in defined if function.linkage in SHARED]


@pytest.mark.machine_code
def test_a_part_is_linked_without_a_copy():
    """No machine code is generated from a part, so its module may be changed: its functions are defined repeatedly."""
    assert doubled_twice._compile(KERNEL)(3) == 12
    (part,) = doubled._inlined.overloads.values()
    module = part.library._get_module_for_linking()
    assert module is part.library._final_module
    external = [f.name for f in module.functions if not f.is_declaration and f.linkage == Linkage.external]
    assert not external


@pytest.mark.machine_code
@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_collected_while_a_kernel_is_compiled(monkeypatch, enabled):
    states = []
    monkeypatch.setattr(KernelLibrary, "_is_part", property(lambda library: states.append(gc.isenabled()) or False))
    was_enabled = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        assert doubled_twice._compile(KERNEL)(3) == 12
        assert gc.isenabled() == enabled
        assert states
        assert not any(states)
    finally:
        (gc.enable if was_enabled else gc.disable)()


@pytest.mark.machine_code
def test_collection_resumes_after_a_kernel_that_does_not_compile():
    assert gc.isenabled()
    with pytest.raises(numba.TypingError):
        doubled_twice._compile(KERNEL)(None)
    assert gc.isenabled()


@pytest.mark.parametrize("version", ["0.59.1", "0.62.1", "0.69.0", "1.0.0", "nightly"])
def test_unsupported_versions_of_numba_are_rejected(version):
    with pytest.raises(UserError, match=rf"^numba {version} is not supported; install one of 0.63 to 0.68: [^\n]+$"):
        check_numba(version)


def test_the_supported_versions_are_those_of_pyproject():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (numba_requirement,) = (name for name in project["dependencies"] if name.startswith("numba"))
    next_version = (NEWEST_NUMBA[0], NEWEST_NUMBA[1] + 1)
    low, high = (".".join(map(str, numbers)) for numbers in (OLDEST_NUMBA, next_version))
    assert numba_requirement == f"numba>={low},<{high}"
    check_numba(numba.__version__)
