from __future__ import annotations

import numpy as np
import pytest

from fco_cli.problem.support import compare_support

TRUTH = np.array([1.0, 1.0, 0.0, 0.0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_counts_and_distance(dtype):
    """The bias is ignored; weights at the threshold and NaN do not count as found."""
    w = np.array([[1, 1, 0, 0, 9], [0.5, 0, -2, 0.25, 9], [0, np.nan, 0, 0, 9]], dtype)
    comparison = compare_support(w, TRUTH, 0.25)
    assert comparison.found.tolist() == [2, 2, 0]
    assert comparison.hits.tolist() == [2, 1, 0]
    np.testing.assert_allclose(comparison.distance, np.linalg.norm(w[:, :-1] - TRUTH, axis=1), rtol=1e-14)
