"""Sparse solutions of problems with a squared loss and many weights, by block coordinate descent on a working set.

All blocks of weights outside the working set are 0. The set grows by the blocks that violate the optimality conditions
most, at most as many as two times the non-zero ones. The products of its columns are computed once, so that descent
itself reads no rows. Every stage ends with the complete gradient of F.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import scipy.sparse

from fco_cli.kernels.compiled import kernel, specialize
from fco_cli.problem.data import ClientData, RemoteRows, SparseRows
from fco_cli.problem.layout import Array, Numbers
from fco_cli.problem.mirror_maps import Euclidean
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.problem import Problem
from fco_cli.problem.quadratic_solver import scalar_forms
from fco_cli.problem.risk import DataRisk

FEWEST_WEIGHTS = 2048  # with fewer, evaluations of F and certificates use matrices
FIRST_WEIGHTS, MOST_WEIGHTS = 100, 4096  # of the working set; the products of 4,096 columns take 128 MB
STAGES, SWEEPS = 50, 1000  # of descent in a stage
INNER = 0.1  # tolerance of a stage, relative to that of the solution
SLOW = 0.5  # factor on the residual of a stage that adds no block, above which descent ends


@kernel
def descend_blocks(hessian, slopes, starts, factors, ridges, curvatures, tolerance, sweeps, steps, w):
    """Minimize slopes'd + d'Hd / 2 + sum_g (factors[g] |w_g| + ridges[g] |w_g|^2 / 2) over w + d, block by block.

    Block g has the weights starts[g] to starts[g + 1] and at most the curvature curvatures[g]. Descent ends when no
    weight changes by more than the tolerance, relative to the curvature. w and slopes are overwritten.
    """
    for _ in range(sweeps):
        largest = 0.0
        for g in range(factors.shape[0]):
            low, high, curvature = starts[g], starts[g + 1], curvatures[g]
            if curvature <= 0:
                continue
            squares = 0.0
            for k in range(low, high):
                target = curvature * w[k] - slopes[k]
                squares += target * target
            norm = np.sqrt(squares)
            factor = 0.0
            if norm > factors[g]:
                factor = (1 - factors[g] / norm) / (curvature + ridges[g])
            for k in range(low, high):
                steps[k] = factor * (curvature * w[k] - slopes[k]) - w[k]
            for k in range(low, high):
                step = steps[k]
                if step != 0:
                    largest = max(largest, abs(step) * curvature)
                    w[k] += step
                    for i in range(slopes.shape[0]):
                        slopes[i] += hessian[k, i] * step
        if largest <= tolerance:
            return


class CenteredProducts:
    """Hessian of F over the columns of a working set, minimized over the bias."""

    def __init__(self, data: ClientData, weights: Array):
        share = np.repeat(weights / data.sizes, data.sizes)
        if data.relative_weights is not None:
            share = share * data.relative_weights
        self.x, self.root, self.total = data.x, np.sqrt(share), float(share.sum())
        empty = scipy.sparse.csr_array((0, len(share)))
        self.columns = empty if isinstance(data.x, SparseRows) else empty.toarray()  # [A, N], times the root of weights
        self.sums, self.hessian = np.empty(0), np.empty((0, 0))

    @cached_property
    def _by_column(self) -> scipy.sparse.csr_array:
        assert isinstance(self.x, SparseRows)
        values = self.x.values * np.repeat(self.root, np.diff(self.x.starts))
        return scipy.sparse.csr_array((values, self.x.columns, self.x.starts), shape=self.x.shape).T.tocsr()

    def add(self, features: Array) -> None:
        """Append columns to the working set."""
        if isinstance(self.x, SparseRows):
            added = self._by_column[features]
            self.columns = scipy.sparse.vstack([self.columns, added], format="csr")
            products = (added @ self.columns.T).toarray()
        else:
            added = (self.x[:, features] * self.root[:, None]).T
            self.columns = np.concatenate([self.columns, added])
            products = added @ self.columns.T
        sums = added @ self.root
        self.sums = np.append(self.sums, sums)
        products = 2 * (products - np.outer(sums, self.sums / self.total))
        before = len(self.hessian)
        hessian = np.empty((len(self.sums), len(self.sums)))
        hessian[:before, :before], hessian[before:], hessian[:before, before:] = (
            self.hessian,
            products,
            products[:, :before].T,
        )
        self.hessian = hessian


def can_descend(problem: Problem) -> bool:
    """Return True for a squared loss of local rows, one score, many weights and a psi that is a sum over blocks."""
    model, data = problem.model, problem.data
    is_linear = isinstance(model, Linear) and model.outputs == 1 and not model.site_bias
    is_plain = is_linear and problem.loss.quadratic and isinstance(problem.mirror, Euclidean)
    is_local = isinstance(problem.risk, DataRisk) and not isinstance(data, RemoteRows) and data.x.dtype == np.float64
    is_large = problem.layout.size > FEWEST_WEIGHTS
    return is_plain and is_local and is_large and _blocks_of(problem, problem.regularizer.numbers) is not None


class Blocks(NamedTuple):
    """Numbers of weights [G] of the blocks of a working set, and the factors of their norms and half squared norms."""

    sizes: Array
    factors: Array
    ridges: Array


def _blocks_of(problem: Problem, numbers: Numbers) -> tuple[Array, Array, Array] | None:
    """Return the block [d] of every feature, and the factors of norms and of half squared norms [G] of blocks."""
    features = problem.layout.size - 1
    forms = scalar_forms(problem, numbers, np.arange(features))
    if forms is not None:
        is_unbounded = np.isinf(forms[2:]).all()
        return (np.arange(features), forms[0, 0], forms[1, 0]) if is_unbounded and forms[0].any() else None
    form = problem.regularizer.block_form(numbers, problem.geometry(numbers).per_weight[:features])
    return None if form is None else (*form, np.zeros(len(form[1])))


def descend(problem: Problem, numbers: Numbers, start: Array, gradient: Array, threshold: float) -> tuple[Array, float]:
    """Return a model [P] and its KKT residual, which is at most the threshold unless descent ends before.

    `gradient` [P] is that of F at the first model, `start` [P].
    """
    blocks = _blocks_of(problem, numbers)
    assert blocks is not None
    labels, factors, ridges = blocks
    sizes, order = np.bincount(labels), np.argsort(labels, kind="stable")
    ends = np.cumsum(sizes)
    products, w = CenteredProducts(problem.data, problem.weights), start.astype(float)
    chosen, features = np.empty(0, int), np.empty(0, int)
    tolerance, last = INNER * threshold / np.sqrt(len(factors)), np.inf
    residual = float(problem.kkt_residual(w[None], gradient[None], numbers)[0])
    for _ in range(STAGES):
        nonzero = np.bincount(labels, w[:-1] != 0) > 0
        excess = np.sqrt(np.bincount(labels, gradient[:-1] ** 2)) - factors
        excess[nonzero], excess[chosen] = np.inf, 0
        added = _largest(excess, max(1, FIRST_WEIGHTS * len(factors) // len(labels), 2 * int(nonzero.sum())))
        if residual <= threshold or not (len(added) or residual <= SLOW * last):
            break
        if len(features) + sizes[added].sum() > MOST_WEIGHTS:
            break
        if len(added):
            columns = np.concatenate([order[ends[g] - sizes[g] : ends[g]] for g in added])
            chosen, features = np.append(chosen, added), np.append(features, columns)
            products.add(columns)
        w = _minimize(
            products, w, gradient, features, Blocks(sizes[chosen], factors[chosen], ridges[chosen]), tolerance
        )
        gradient, last = problem.risk(w[None]).gradient[0], residual
        residual = float(problem.kkt_residual(w[None], gradient[None], numbers)[0])
    return w, residual


def _minimize(
    products: CenteredProducts, w: Array, gradient: Array, features: Array, blocks: Blocks, tolerance: float
) -> Array:
    """Return the model after descent over the working set, with the best bias."""
    starts, hessian = np.append(0, np.cumsum(blocks.sizes)), products.hessian
    if len(blocks.sizes) == len(features):
        curvatures = hessian.diagonal().copy()
    else:
        curvatures = np.array([np.linalg.eigvalsh(hessian[a:b, a:b])[-1] for a, b in pairwise(starts)])
    shift = -gradient[-1] / (2 * products.total)
    slopes, own, steps = gradient[features] + 2 * shift * products.sums, w[features], np.empty(len(features))
    minimize = specialize(descend_blocks)
    minimize(hessian, slopes, starts, blocks.factors, blocks.ridges, curvatures, tolerance, SWEEPS, steps, own)
    new = w.copy()
    new[features] = own
    new[-1] += shift - products.sums @ (own - w[features]) / products.total
    return new


def _largest(excess: Array, most: int) -> Array:
    """Return the indices of the largest positive numbers, at most `most`."""
    count = min(int((excess > 0).sum()), most)
    return np.argpartition(-excess, count - 1)[:count] if count else np.empty(0, int)
