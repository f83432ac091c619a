"""Tests of top-k sparsification with error feedback."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fco_cli.algorithms import all_algorithms
from fco_cli.algorithms.transforms.topk import TopK

FEDERATED = [name for name, kind in all_algorithms().items() if kind.federated]
ENTRIES = st.floats(-100, 100) | st.sampled_from([0.0, 1.0, -1.0])


def encoded(vector, share, residual=None):
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
    own = len(all_algorithms()[name].remembered)
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
    sent, left = encoded(vector, share)
    k = max(1, int(share * len(vector) + 0.5))
    np.testing.assert_array_equal(sent + left, vector)
    assert ((sent == 0) | (left == 0)).all()
    assert np.count_nonzero(sent) <= k
    np.testing.assert_array_equal(np.sort(np.abs(sent))[::-1][:k], np.sort(np.abs(vector))[::-1][:k])


def test_of_equal_entries_the_first_are_sent_first():
    sent, left = encoded([1, -1, 1, 1], 0.5)
    np.testing.assert_array_equal(sent, [1, -1, 0, 0])
    sent, left = encoded([0.1, 0.1, 0.1, 0.1], 0.5, left)
    np.testing.assert_array_equal(sent, [0, 0, 1.1, 1.1])
    np.testing.assert_array_equal(left, [0.1, 0.1, 0, 0])


@pytest.mark.parametrize("size", [1, 2, 7, 256, 257, 1000])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bytes_are_those_of_a_packed_message(size, dtype):
    """Pack the values and their indices, and read them back."""
    random = np.random.default_rng(size)
    raw, transform = random.standard_normal(size).astype(dtype), TopK(share=0.2)
    sent, _ = encoded(raw, transform.share)
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
