"""Sums in fixed point: to the nearest multiple, refused where they would not fit."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.algorithms.fixed_point import as_numbers, rounded


@pytest.mark.parametrize("bits", [0, 10, 40])
def test_a_number_becomes_its_nearest_multiple(bits):
    values = np.random.default_rng(0).standard_normal((3, 50))
    whole, fits = rounded({"z": values}, bits, clients=4)
    assert fits.all()
    error = as_numbers(whole["z"], bits) - values
    assert np.abs(error).max() <= 0.5**bits / 2
    assert error.min() < 0 < error.max()


def test_a_sum_over_all_clients_must_fit():
    """Below 2^62 for all of them together; a job that does not fit, or is not finite, is 0 and said so."""
    values = np.array([[2.0**20, 1], [2.0**22, 1], [np.nan, 1], [np.inf, 1]])
    whole, fits = rounded({"z": values}, 40, clients=2)
    assert fits.tolist() == [True, False, False, False]
    assert (whole["z"][1:] == 0).all()
    _, fits = rounded({"z": values}, 40, clients=8)
    assert not fits.any()
