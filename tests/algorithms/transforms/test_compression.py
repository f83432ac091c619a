"""Tests of quantization and top-k sparsification."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fco_cli.algorithms import all_algorithms
from fco_cli.algorithms.arrays import slot_count
from fco_cli.algorithms.transforms.compression import Quantize, TopK
from fco_cli.problem.streams import message_keys

BITS = (1, 2, 3, 8, 16, 32)
FEDERATED = [name for name, kind in all_algorithms().items() if kind.federated]
ENTRIES = st.floats(-100, 100) | st.sampled_from([0.0, 1.0, -1.0])


def quantized(vectors, bits, key=0):
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
        (sent,) = quantized([vector], bits, key)
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
    sent = np.array([quantized([vector], bits, key)[0] for key in message_keys(0, 0, np.arange(draws))])
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
    draws = [quantized([vector, vector], 2, key) for key in keys]
    rows = [row for draw in draws for row in draw]
    assert len({row.tobytes() for row in rows}) == len(rows) == 12
    np.testing.assert_array_equal(quantized([vector, vector], 2, keys[0]), draws[0])
    np.testing.assert_array_equal(message_keys(0, 1, np.array([5, 3])), message_keys(0, 1, np.array([3, 5]))[::-1])


@pytest.mark.parametrize("bits", [1, 3, 8, 13])
@pytest.mark.parametrize("size", [1, 7, 100])
def test_bytes_are_those_of_packed_levels(bits, size):
    """Pack the level indices and s, and read them back."""
    vector = np.random.default_rng(size).standard_normal(size)
    (sent,) = quantized([vector], bits)
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
    assert (quantized([np.zeros(5)], 1) == 0).all()


def sparsified(vector, share, residual=None):
    """Return the transformed vector and the residual."""
    message = np.array(vector, dtype=float)[None, None]
    left = np.zeros_like(message) if residual is None else np.array(residual, dtype=float)[None, None]
    TopK.encode.as_python(message, left, TopK(share=share).numbers, np.uint64(0))
    return message[0, 0], left[0, 0]


@pytest.mark.parametrize("name", FEDERATED)
def test_share_1_is_no_transform(name, suited, make_algorithm, cohorts_for, drive):
    problem = suited(name)
    cohorts = cohorts_for(name, problem)
    everything, memory = drive(make_algorithm(name, problem, 0.01, transform=TopK(share=1)), cohorts)[::2]
    np.testing.assert_array_equal(everything, drive(make_algorithm(name, problem, 0.01), cohorts)[0])
    own = slot_count(all_algorithms()[name].remembered, problem.layout.size)
    assert (memory.read(np.arange(3))[:, own:] == 0).all()


@pytest.mark.parametrize("name", ["fedavg", "feddualavg", "scaffold_prox"])
def test_sent_entries_and_residuals_add_up_to_the_messages(name, suited, make_algorithm, cohorts_for):
    """For every client and array, summed over all rounds: sent + residual = raw."""
    problem = suited(name)
    algorithm, plain = (make_algorithm(name, problem, 0.01, transform=one) for one in (TopK(share=0.3), None))
    own, size = len(algorithm.remembered), problem.layout.size
    state = algorithm.initial_state(np.zeros((1, size)))
    memory = np.repeat(algorithm.initial_client_arrays(np.zeros((1, size)))[None], problem.data.clients, axis=0)
    arrays = len(algorithm.client_arrays) - own
    raw, sent = (np.zeros((problem.data.clients, arrays, 1, size)) for _ in range(2))
    for cohort in cohorts_for(name, problem, 10):
        clients = cohort.clients
        raw[clients] += plain.round(state, cohort, memory[clients][:, :own]).messages[:, :arrays]
        made = algorithm.round(state, cohort, memory[clients])
        sent[clients] += made.messages[:, :arrays]
        assert (np.count_nonzero(made.messages, axis=-1) <= 2).all()
        memory[clients], state = made.memory, made.state
    residuals = memory[:, own:]
    assert np.abs(residuals).max() > 1e-3 * np.abs(sent).max()
    np.testing.assert_allclose(sent + residuals, raw, rtol=1e-12, atol=1e-13 * np.abs(raw).max())


@given(st.lists(ENTRIES, min_size=1, max_size=30), st.floats(0.001, 1))
def test_the_largest_entries_are_sent(vector, share):
    sent, left = sparsified(vector, share)
    k = max(1, int(share * len(vector) + 0.5))
    np.testing.assert_array_equal(sent + left, vector)
    assert ((sent == 0) | (left == 0)).all()
    assert np.count_nonzero(sent) <= k
    np.testing.assert_array_equal(np.sort(np.abs(sent))[::-1][:k], np.sort(np.abs(vector))[::-1][:k])


def test_of_equal_entries_the_first_are_sent_first():
    sent, left = sparsified([1, -1, 1, 1], 0.5)
    np.testing.assert_array_equal(sent, [1, -1, 0, 0])
    sent, left = sparsified([0.1, 0.1, 0.1, 0.1], 0.5, left)
    np.testing.assert_array_equal(sent, [0, 0, 1.1, 1.1])
    np.testing.assert_array_equal(left, [0.1, 0.1, 0, 0])


@pytest.mark.parametrize("size", [1, 2, 7, 256, 257, 1000])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bytes_are_those_of_a_packed_sparse_message(size, dtype):
    """Pack the values and their indices, and read them back."""
    random = np.random.default_rng(size)
    raw, transform = random.standard_normal(size).astype(dtype), TopK(share=0.2)
    sent, _ = sparsified(raw, transform.share)
    chosen, width = np.flatnonzero(sent), (size - 1).bit_length()
    bits = (chosen[:, None] >> np.arange(width)) & 1
    packed = sent[chosen].astype(dtype).tobytes() + np.packbits(bits.astype(np.uint8).ravel()).tobytes()
    assert [len(packed)] == transform.bytes_of(size, raw.itemsize, transform.numbers).tolist()
    k = len(chosen)
    values = np.frombuffer(packed[: k * raw.itemsize], dtype)
    read = np.unpackbits(np.frombuffer(packed[k * raw.itemsize :], np.uint8), count=k * width).reshape(k, width)
    back = np.zeros(size, dtype)
    back[(read.astype(int) << np.arange(width)).sum(axis=1)] = values
    np.testing.assert_array_equal(back, sent)


EXACT = ("scaffold_prox", "zhj", "feddualavg_cv", "scaffnew", "feddr")


@pytest.mark.parametrize("name", EXACT)
def test_exact_methods_stay_exact(
    name, make_problem, regularizer, make_algorithm, whole_steps, drive, solution, l1_prox
):
    """One of seven entries per round.

    With residuals for delta arrays the sums would diverge; without error feedback small entries would never be sent.
    """
    problem = make_problem(regularizer("l1", strength=0.1))
    best, _ = solution(problem, l1_prox(0.1))
    algorithm = make_algorithm(name, problem, 0.03, transform=TopK(share=0.15))
    cohort = whole_steps(problem, [3, 3, 3])
    models = drive(algorithm, [cohort] * 300)[0]
    first, last = np.abs(models[20][0] - best).max(), np.abs(models[-1][0] - best).max()
    assert last < 0.05 * first
