"""The innermost loops' machine code says what their Python says, for tiles of every size and lengths with a rest."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.kernels import products
from fco_cli.kernels.compiled import kernel
from fco_cli.kernels.products import add_multiples, dots


@kernel
def all_dots(w, vectors, x, rows, count, soon, out):
    found = dots(w, vectors, x, rows, count, soon)
    for place in range(len(found)):
        out[place] = found[place]


@kernel
def multiples(w, vectors, x, rows, low, count, slopes, first):
    add_multiples(w, vectors, x, rows, low, count, slopes, first)


def numbers(*shape, dtype):
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


@pytest.mark.machine_code
@pytest.mark.parametrize(("vectors", "rows", "count"), [((0,), (3,), 5), ((40, 2), (7, 1, 50), 37), ((0, 40), (9,), 0)])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_dot_products_in_machine_code_are_those_in_python(vectors, rows, count, dtype):
    tolerance = 1e-13 if dtype == "float64" else 1e-5
    w, x, out = numbers(2, 40, dtype=dtype), numbers(3, 30, dtype=dtype), np.empty(len(vectors) * len(rows), dtype)
    all_dots(w, vectors, x, rows, count, (), out)
    np.testing.assert_allclose(out, products.dots(w, vectors, x, rows, count, ()), rtol=tolerance, atol=tolerance)


@pytest.mark.machine_code
@pytest.mark.parametrize(
    ("vectors", "low", "count"),
    [((3,), 0, 1), ((0,), 2, 149), ((150, 2), 5, 131), ((0, 150, 300, 450), 1, 61), ((7,), 0, 0)],
)
@pytest.mark.parametrize("rows", [[2], [0, 4, 4, 1, 3, 2, 0], []])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_sums_of_rows_in_machine_code_are_those_in_python(vectors, low, count, rows, dtype):
    """Some registers of columns at a time, then one, and single columns: 149 are 64 + 64 + 16 + 5 in float32.

    There may be more slopes of a vector than rows."""
    tolerance, first = 1e-13 if dtype == "float64" else 1e-5, 2
    w, x, rows = numbers(5, 150, dtype=dtype), numbers(5, 160, dtype=dtype), np.array(rows, np.int64)
    slopes, expected = numbers(first + len(vectors), len(rows) + 3, dtype=dtype), w.copy()
    products.add_multiples(expected, vectors, x, rows, low, count, slopes, first)
    multiples(w, vectors, x, rows, low, count, slopes, first)
    np.testing.assert_allclose(w, expected, rtol=tolerance, atol=tolerance)
