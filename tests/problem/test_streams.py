from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fco_cli.problem import streams

purposes = st.integers(0, 8)
indices = st.integers(0, 2**40)
keys = st.tuples(st.integers(0, 2**63 - 1), purposes, indices)


@given(keys, keys)
def test_numbers_are_a_function_of_the_key(one, other):
    first = streams.generator(*one).standard_normal(4)
    np.testing.assert_array_equal(first, streams.generator(*one).standard_normal(4))
    assert np.array_equal(first, streams.generator(*other).standard_normal(4)) == (one == other)


def test_purposes_are_distinct():
    names = ("TRUTH", "MEANS", "TRAINING", "VALIDATION", "MODEL", "COHORTS", "PROBES", "SHUFFLES", "COIN")
    assert len({getattr(streams, name) for name in names}) == len(names)
