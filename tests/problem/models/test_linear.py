"""Linear models against matrix products, and their bits in stacks of jobs."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.kernels.products import CHUNK, MIN_READERS, batch_in_place, gather_rows
from fco_cli.problem.models.linear import Linear


@pytest.mark.parametrize(
    ("features", "outputs", "count"),
    [(3, 1, 1), (4, 3, 5), (7, 2, 13), (CHUNK, 1, 4), (CHUNK + 1, 2, 6), (2 * CHUNK + 3, 1, 10)],
)
def test_forward_and_backward_are_matrix_products(features, outputs, count):
    """The sizes are below and above the chunk of columns and the five rows that a dot product processes at a time."""
    random, model = np.random.default_rng(0), Linear(features, outputs)
    x, rows = random.standard_normal((15, features)), random.permutation(15)[:count]
    w = random.standard_normal((2, model.layout.size))
    weights, bias = model.layout.view(w, "weights").reshape(2, outputs, features), model.layout.view(w, "bias")

    scores = model.forward(w, batch_in_place(x, rows), model.widths)
    np.testing.assert_allclose(scores, np.einsum("jcd,bd->jcb", weights, x[rows]) + bias[:, :, None], atol=1e-11)

    slopes = random.standard_normal(scores.shape)
    start = random.standard_normal(w.shape)
    gradient = start.copy()
    model.backward(gradient, w, batch_in_place(x, rows), model.widths, slopes)
    by_weights = np.einsum("jcb,bd->jcd", slopes, x[rows]).reshape(2, -1)
    np.testing.assert_allclose(gradient - start, np.hstack([by_weights, slopes.sum(axis=2)]), atol=1e-11)


@pytest.mark.machine_code
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.ci)])
def test_bits_do_not_depend_on_the_stack(dtype):
    """Seven vectors are multiplied in groups of four and two, with one left over."""
    random, model = np.random.default_rng(0), Linear(2 * CHUNK + 9)
    x, rows = random.standard_normal((15, 2 * CHUNK + 9)).astype(dtype), np.arange(13)
    w = random.standard_normal((7, model.layout.size)).astype(dtype)
    batch = batch_in_place(x, rows)
    scores, gradient = model.forward(w, batch, model.widths), np.zeros_like(w)
    model.backward(gradient, w, batch, model.widths, scores)
    np.testing.assert_allclose(
        scores[:, 0], w[:, :-1] @ x[rows].T + w[:, -1:], atol=1e-11 if dtype == "float64" else 1e-3
    )
    for j in range(7):
        job = w[j : j + 1]
        alone, gradient_alone = model.forward(job, batch, model.widths), np.zeros_like(job)
        model.backward(gradient_alone, job, batch, model.widths, alone)
        np.testing.assert_array_equal(scores[j : j + 1], alone)
        np.testing.assert_array_equal(gradient[j : j + 1], gradient_alone)


@pytest.mark.machine_code
@pytest.mark.parametrize("vectors", [2, MIN_READERS])
def test_bits_do_not_depend_on_prefetched_rows(vectors):
    """Two rows are prefetched for every five rows that are multiplied with two or four vectors."""
    random, model = np.random.default_rng(0), Linear(21)
    x, rows, coming = random.standard_normal((30, 21)), np.arange(11), np.array([29, 12, 17, 13, 21])
    w = random.standard_normal((vectors, model.layout.size))
    prefetching, alone = gather_rows(x, rows, coming, vectors), gather_rows(x, rows, coming[:0], vectors)
    np.testing.assert_array_equal(*(model.forward(w, batch, model.widths) for batch in (prefetching, alone)))
    assert prefetching.prefetched.tolist() == [4]
    assert alone.prefetched.tolist() == [0]


def test_layout_and_initial_parameters():
    model = Linear(6, weights_shape=(2, 3))
    assert [block.shape for block in model.layout.blocks] == [(2, 3), (1,)]
    assert [block.regularized for block in model.layout.blocks] == [True, False]
    assert [block.shape for block in Linear(6, outputs=4).layout.blocks] == [(4, 6), (4,)]
    np.testing.assert_array_equal(model.initial(), np.zeros(7))
