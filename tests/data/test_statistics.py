"""Merged moments of the clients equal the moments of the pooled rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fco_cli.data.statistics import aggregated_moments
from fco_cli.problem.data import ClientData


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.floats(-1e6, 1e6), st.integers(0, 2**32 - 1))
def test_aggregated_moments_are_the_pooled_ones(sizes, offset, seed):
    x = np.random.default_rng(seed).standard_normal((sum(sizes), 3)) * [1, 10, 0.1] + offset
    moments = aggregated_moments(ClientData(x, np.zeros(len(x)), np.concatenate([[0], np.cumsum(sizes)])))
    np.testing.assert_allclose(moments.mean, x.mean(axis=0), rtol=1e-12, atol=1e-12)
    if len(x) > 1:
        np.testing.assert_allclose(moments.scale, x.std(axis=0), rtol=1e-6)


def test_a_constant_feature_keeps_its_scale():
    x = np.column_stack([np.full(6, 0.1), np.arange(6.0)])
    moments = aggregated_moments(ClientData(x, np.zeros(6), np.array([0, 2, 6])))
    assert moments.scale[0] == 1
    assert moments.scale[1] == np.std(np.arange(6))
