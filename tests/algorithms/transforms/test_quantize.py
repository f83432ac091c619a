"""Tests of stochastic quantization."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fco_cli.algorithms.transforms.quantize import Quantize
from fco_cli.problem.streams import message_keys

BITS = (1, 2, 3, 8, 16, 32)


def encoded(vectors, bits, key=0):
    """Return the transformed vectors [sent, P] of one job."""
    message = np.array(vectors, dtype=float)[:, None]
    Quantize.encode.as_python(message, message[:0], Quantize(bits=bits).numbers, np.uint64(key))
    return message[:, 0]


def levels_of(sent, scale, bits):
    """Return the level indices of the entries."""
    steps = max(1, 2**bits - 2)
    return (sent / scale + 1) * steps / 2


@pytest.mark.parametrize("bits", BITS)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), st.integers(0, 2**64 - 1))
def test_entries_are_rounded_to_an_adjacent_level(bits, vector, key):
    with np.errstate(all="ignore"):
        (sent,) = encoded([vector], bits, key)
    scale = np.abs(vector).max()
    step = 2 * scale / max(1, 2**bits - 2)
    assert (np.abs(sent - vector) <= step * (1 + 1e-12) + 1e-9 * scale).all()
    assert (np.abs(sent) <= scale).all()
    if scale > 1e-300:
        levels = levels_of(sent, scale, bits)
        np.testing.assert_allclose(levels, np.round(levels), atol=1e-6 * max(1, 2.0 ** (bits - 20)))
        assert ((levels > -0.5) & (levels < 2**bits - 0.5)).all()  # representable in `bits` bits
    if bits > 1:
        assert (sent[np.array(vector) == 0] == 0).all()


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_rounding_is_unbiased(bits):
    vector, draws = np.array([0.9, -0.31, 0.0, 0.02, -1.0, 0.5]), 4000
    sent = np.array([encoded([vector], bits, key)[0] for key in message_keys(0, 0, np.arange(draws))])
    step = 2 / max(1, 2**bits - 2)
    place = (vector + 1) / step
    deviation = step * np.sqrt((place - np.floor(place)) * (1 - place + np.floor(place)))
    np.testing.assert_allclose(sent.mean(axis=0), vector, atol=5 * deviation.max() / np.sqrt(draws) + 1e-15)
    np.testing.assert_allclose(sent.std(axis=0), deviation, atol=0.05 * step)
    uncorrelated = np.corrcoef(sent[:, [1, 3]].T)[0, 1]
    assert abs(uncorrelated) < 5 / np.sqrt(draws)


@pytest.mark.parametrize(("bits", "relative"), [(8, 1e-2), (16, 4e-5), (32, 1e-9)])
def test_many_bits_are_close_to_no_transform(bits, relative, suited, make_algorithm, cohorts_for, drive):
    problem = suited("feddualavg")
    cohorts = cohorts_for("feddualavg", problem)
    plain = np.array(drive(make_algorithm("feddualavg", problem, 0.05), cohorts)[0])
    few = np.array(drive(make_algorithm("feddualavg", problem, 0.05, transform=Quantize(bits=bits)), cohorts)[0])
    assert np.abs(few - plain).max() < relative * np.abs(plain).max()


def test_random_numbers_depend_on_seed_round_client_and_array():
    vector = np.linspace(-1, 1, 50)
    keys = [message_keys(*place, np.array([client]))[0] for place in ((0, 0), (0, 1), (1, 0)) for client in (0, 1)]
    draws = [encoded([vector, vector], 2, key) for key in keys]
    rows = [row for draw in draws for row in draw]
    assert len({row.tobytes() for row in rows}) == len(rows) == 12
    np.testing.assert_array_equal(encoded([vector, vector], 2, keys[0]), draws[0])
    np.testing.assert_array_equal(message_keys(0, 1, np.array([5, 3])), message_keys(0, 1, np.array([3, 5]))[::-1])


@pytest.mark.parametrize("bits", [1, 3, 8, 13])
@pytest.mark.parametrize("size", [1, 7, 100])
def test_bytes_are_those_of_a_packed_message(bits, size):
    """Pack the level indices and s, and read them back."""
    vector = np.random.default_rng(size).standard_normal(size)
    (sent,) = encoded([vector], bits)
    scale, steps = np.abs(vector).max(), max(1, 2**bits - 2)
    levels = np.round(levels_of(sent, scale, bits)).astype(int)
    packed = np.packbits(((levels[:, None] >> np.arange(bits)) & 1).astype(np.uint8).ravel()).tobytes()
    packed += np.array(scale).tobytes()
    transform = Quantize(bits=bits)
    assert [len(packed)] == transform.bytes_of(size, 8, transform.numbers).tolist()
    read = np.unpackbits(np.frombuffer(packed[:-8], np.uint8), count=size * bits).reshape(size, bits)
    back = (read.astype(int) << np.arange(bits)).sum(axis=1)
    s = np.frombuffer(packed[-8:])[0]
    np.testing.assert_array_equal(s * ((2.0 * back - steps) / steps), sent)


def test_a_message_of_zeros_is_unchanged(make_algorithm):
    assert (encoded([np.zeros(5)], 1) == 0).all()
