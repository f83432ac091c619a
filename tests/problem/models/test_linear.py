from __future__ import annotations

import numpy as np
import pytest

from fco_cli.kernels.aligned import READERS, gathered, where_they_are
from fco_cli.kernels.products import CHUNK
from fco_cli.problem.models.linear import Linear


@pytest.mark.parametrize(
    ("features", "outputs", "count"),
    [(3, 1, 1), (4, 3, 5), (7, 2, 13), (CHUNK, 1, 4), (CHUNK + 1, 2, 6), (2 * CHUNK + 3, 1, 10)],
)
def test_forward_and_backward_are_matrix_products(features, outputs, count):
    """Sizes on both sides of the chunks of columns and of the five rows that dot products take at a time."""
    random, model = np.random.default_rng(0), Linear(features, outputs)
    x, rows = random.standard_normal((15, features)), random.permutation(15)[:count]
    w = random.standard_normal((2, model.layout.size))
    weights, bias = model.layout.view(w, "weights").reshape(2, outputs, features), model.layout.view(w, "bias")

    scores = model.forward(w, where_they_are(x, rows), model.widths)
    np.testing.assert_allclose(scores, np.einsum("jcd,bd->jcb", weights, x[rows]) + bias[:, :, None], atol=1e-11)

    slopes = random.standard_normal(scores.shape)
    start = random.standard_normal(w.shape)
    gradient = start.copy()
    model.backward(gradient, w, where_they_are(x, rows), model.widths, slopes)
    by_weights = np.einsum("jcb,bd->jcd", slopes, x[rows]).reshape(2, -1)
    np.testing.assert_allclose(gradient - start, np.hstack([by_weights, slopes.sum(axis=2)]), atol=1e-11)


@pytest.mark.machine_code
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_bits_do_not_depend_on_the_stack(dtype):
    """Seven vectors: those that are multiplied four or two at a time, and those that are left over."""
    random, model = np.random.default_rng(0), Linear(2 * CHUNK + 9)
    x, rows = random.standard_normal((15, 2 * CHUNK + 9)).astype(dtype), np.arange(13)
    w = random.standard_normal((7, model.layout.size)).astype(dtype)
    batch = where_they_are(x, rows)
    scores, gradient = model.forward(w, batch, model.widths), np.zeros_like(w)
    model.backward(gradient, w, batch, model.widths, scores)
    np.testing.assert_allclose(
        scores[:, 0], w[:, :-1] @ x[rows].T + w[:, -1:], atol=1e-11 if dtype == "float64" else 1e-3
    )
    for j in range(7):
        job = w[j : j + 1]
        alone, own = model.forward(job, batch, model.widths), np.zeros_like(job)
        model.backward(own, job, batch, model.widths, alone)
        np.testing.assert_array_equal(scores[j : j + 1], alone)
        np.testing.assert_array_equal(gradient[j : j + 1], own)


@pytest.mark.machine_code
@pytest.mark.parametrize("vectors", [2, READERS])
def test_bits_do_not_depend_on_rows_that_come_next(vectors):
    """Two of them are asked for with every five rows that two or four vectors are multiplied with."""
    random, model = np.random.default_rng(0), Linear(21)
    x, rows, coming = random.standard_normal((30, 21)), np.arange(11), np.array([29, 12, 17, 13, 21])
    w = random.standard_normal((vectors, model.layout.size))
    with_more, alone = gathered(x, rows, coming, vectors), gathered(x, rows, coming[:0], vectors)
    np.testing.assert_array_equal(*(model.forward(w, batch, model.widths) for batch in (with_more, alone)))
    assert with_more.prefetched.tolist() == [4]
    assert alone.prefetched.tolist() == [0]


def test_layout_and_start():
    model = Linear(6, weights_shape=(2, 3))
    assert [block.shape for block in model.layout.blocks] == [(2, 3), (1,)]
    assert [block.regularized for block in model.layout.blocks] == [True, False]
    assert [block.shape for block in Linear(6, outputs=4).layout.blocks] == [(4, 6), (4,)]
    np.testing.assert_array_equal(model.initial(), np.zeros(7))
