"""Tests of the messages for kernels of users that do not compile."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from numba.core.errors import TypingError

from fco_cli.errors import UserError
from fco_cli.kernels.compiled import kernel, specialize
from fco_cli.kernels.diagnostics import PACKAGE, explain

pytestmark = pytest.mark.machine_code

SOURCE = """\
from fco_cli.kernels.compiled import kernel

@kernel
def inner(v):
    {inner}

@kernel
def outer(v):
    {outer}
"""


@kernel
def double(v):
    return 2.0 * v


@pytest.fixture
def load(tmp_path):
    """Return the kernel `outer` of a file with these lines."""

    def execute(inner="return v", outer="return inner(v[0])"):
        path = tmp_path / "mine.py"
        path.write_text(SOURCE.format(inner=inner, outer=outer))
        spec = importlib.util.spec_from_file_location("mine_of_a_user", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.outer

    return execute


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ({"inner": "return w"}, r"5: name 'w' is not defined"),
        ({"outer": "return v.lenth"}, r"9: Unknown attribute 'lenth'"),
        ({"outer": "return inner(v, 1)"}, r"9: wrong arguments: too many positional arguments"),
        ({"outer": "return inner()"}, r"9: wrong arguments: missing a required argument: 'v'"),
        ({"inner": "return v + 'a'"}, r"5: no such operation: add\(float64, Literal\[str\]\(a\)\)"),
    ],
)
def test_errors_name_the_file_the_line_and_the_reason(lines, line, load, tmp_path):
    with pytest.raises(UserError, match=rf"^{tmp_path}/mine\.py line {line}; kernels are compiled by Numba [^\n]*$"):
        load(**lines)(np.ones(3))


def test_a_missing_operation_is_found_in_the_text(load, tmp_path):
    outer = specialize(load(outer="return ops.triple(ops.double(v[0]))"), ops={"double": double})
    with pytest.raises(UserError, match=rf"^{tmp_path}/mine\.py line 9: ops has no 'triple'; [^\n]*$"):
        outer(np.ones(3))


def test_other_errors_are_unchanged():
    assert explain(double, ZeroDivisionError("division by zero")) is None
    in_the_package = f"Unknown attribute 'shape' of type int64\nDuring: typing at {PACKAGE}/kernels/compiled.py (5)"
    assert explain(double, TypingError(in_the_package)) is None
    assert explain(double, AttributeError("'Named' object has no attribute 'z'")) is None
