"""Tests of conversions to and from fixed point."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.algorithms.rounds import from_fixed_point, to_fixed_point


@pytest.mark.parametrize("bits", [0, 10, 40])
def test_a_number_becomes_its_nearest_multiple(bits):
    values = np.random.default_rng(0).standard_normal((3, 50))
    whole, fits = to_fixed_point({"z": values}, bits, clients=4)
    assert fits.all()
    error = from_fixed_point(whole["z"], bits) - values
    assert np.abs(error).max() <= 0.5**bits / 2
    assert error.min() < 0 < error.max()


def test_values_out_of_range_are_reported():
    """The limit is 2^62 for the sum over all clients. Jobs out of range or not finite are 0."""
    values = np.array([[2.0**20, 1], [2.0**22, 1], [np.nan, 1], [np.inf, 1]])
    whole, fits = to_fixed_point({"z": values}, 40, clients=2)
    assert fits.tolist() == [True, False, False, False]
    assert (whole["z"][1:] == 0).all()
    _, fits = to_fixed_point({"z": values}, 40, clients=8)
    assert not fits.any()
