from __future__ import annotations

import numpy as np
import pytest

from fco_cli.problem.support import compared

TRUTH = np.array([1.0, 1.0, 0.0, 0.0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_counts_and_distance(dtype):
    """Of the weights that the truth has, not of the bias; what is at the threshold, or no number, is not found."""
    w = np.array([[1, 1, 0, 0, 9], [0.5, 0, -2, 0.25, 9], [0, np.nan, 0, 0, 9]], dtype)
    found = compared(w, TRUTH, 0.25)
    assert found.found.tolist() == [2, 2, 0]
    assert found.hits.tolist() == [2, 1, 0]
    np.testing.assert_allclose(found.distance, np.linalg.norm(w[:, :-1] - TRUTH, axis=1), rtol=1e-14)
