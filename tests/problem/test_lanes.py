"""The innermost loops' machine code says what their Python says, for tiles of every size and lengths with a rest."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.problem import products
from fco_cli.problem.compiled import kernel
from fco_cli.problem.products import add_multiples, dots


@kernel
def both(w, vectors, x, rows, count, slopes, out):
    found = dots(w, vectors, x, rows, count)
    for place in range(len(found)):
        out[place] = found[place]
    add_multiples(w, vectors, x, rows, count, slopes)


@pytest.mark.machine_code
@pytest.mark.parametrize(("vectors", "rows", "count"), [((0,), (3,), 5), ((40, 2), (7, 1, 50), 37), ((0, 40), (9,), 0)])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_machine_code_says_what_python_says(vectors, rows, count, dtype):
    random, tolerance = np.random.default_rng(0), 1e-13 if dtype == "float64" else 1e-5
    w, x = random.standard_normal((2, 40)).astype(dtype), random.standard_normal((3, 30)).astype(dtype)
    slopes = tuple(random.standard_normal(len(vectors) * len(rows)).astype(dtype))
    out, expected = np.empty(len(slopes), dtype), w.copy()
    found = products.dots(w, vectors, x, rows, count)
    products.add_multiples(expected, vectors, x, rows, count, slopes)
    both(w, vectors, x, rows, count, slopes, out)
    np.testing.assert_allclose(out, found, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(w, expected, rtol=tolerance, atol=tolerance)
