"""Compiled inner loops agree with their Python definitions, for all group sizes and for partial registers."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.kernels import products
from fco_cli.kernels.compiled import kernel
from fco_cli.kernels.products import add_multiples, dots


@kernel
def all_dots(w, vectors, x, rows, count, upcoming, out):
    values = dots(w, vectors, x, rows, count, upcoming)
    for k in range(len(values)):
        out[k] = values[k]


@kernel
def multiples(w, vectors, x, rows, low, count, slopes, first):
    add_multiples(w, vectors, x, rows, low, count, slopes, first)


def numbers(*shape, dtype):
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


@pytest.mark.machine_code
@pytest.mark.parametrize(("vectors", "rows", "count"), [((0,), (3,), 5), ((40, 2), (7, 1, 50), 37), ((0, 40), (9,), 0)])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_compiled_dot_products_agree_with_python(vectors, rows, count, dtype):
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
def test_compiled_sums_of_rows_agree_with_python(vectors, low, count, rows, dtype):
    """Columns are processed by several registers, one register and single columns: 149 = 64 + 64 + 16 + 5 in float32.

    A vector may have more slopes than there are rows.
    """
    tolerance, first = 1e-13 if dtype == "float64" else 1e-5, 2
    w, x, rows = numbers(5, 150, dtype=dtype), numbers(5, 160, dtype=dtype), np.array(rows, np.int64)
    slopes, expected = numbers(first + len(vectors), len(rows) + 3, dtype=dtype), w.copy()
    products.add_multiples(expected, vectors, x, rows, low, count, slopes, first)
    multiples(w, vectors, x, rows, low, count, slopes, first)
    np.testing.assert_allclose(w, expected, rtol=tolerance, atol=tolerance)
