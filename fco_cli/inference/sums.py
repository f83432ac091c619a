"""Sums over clients at models, for the estimated weights: in floating point, in fixed point, or from remote sites.

Remote sites send the same sums; with masks, they are those of fixed-point numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fco_cli.algorithms.rounds import from_fixed_point, to_fixed_point
from fco_cli.path.round import Request, client_arrays, evaluator
from fco_cli.problem.curvature import Quadratic, unpack
from fco_cli.problem.data import QuadraticQuestion, RemoteRows
from fco_cli.problem.layout import Array
from fco_cli.problem.problem import Problem
from fco_cli.problem.score_products import ScoreProducts, exponent_for, score_products_of

T = TypeVar("T")


class Sums(NamedTuple):
    """Sums over clients at one model, for the estimated weights."""

    value: float
    gradient: Array  # [A]
    hessian: Array  # [A, A]
    rows: Array | None  # [A, A], outer products of the gradients of rows; None if not requested
    clients: Array | None  # [A, A], outer products of the gradients of clients; None if not requested


def call(work: Callable[[], T]) -> T:
    return work()


@dataclass(frozen=True)
class SumOptions:
    """Options of the sums over clients."""

    bits: int | None = None  # fraction bits of fixed-point numbers, as with masks; None: floating point
    with_rows: bool = True  # outer products of the gradients of rows
    with_clients: bool = True  # the same of clients; only together with those of rows
    retry: Callable[[Callable[[], Any]], Any] = call  # calls a function again if connections to clients were lost


class ClientSums:
    """Sums over the clients of a problem; matrices are restricted to `columns`, the estimated weights."""

    def __init__(self, problem: Problem, columns: Array, options: SumOptions) -> None:
        self.problem, self.columns, self.options = problem, columns, options
        self.round = evaluator(options.bits)

    def evaluate(self, requests: Sequence[Request]) -> list[Quadratic]:
        """Return the sums at models of several fits of the problem; equal models are evaluated once."""
        places: dict[bytes, int] = {}
        used = [[places.setdefault(w.tobytes(), len(places)) for w in one.models] for one in requests]
        models = np.stack([np.frombuffer(content) for content in places])
        answer = self._quadratic(models)
        answers = []
        for one, own in zip(requests, used, strict=True):
            columns = (
                np.arange(len(self.columns)) if one.columns is None else np.searchsorted(self.columns, one.columns)
            )
            curved = np.array(own)[one.curved]
            hessian = answer.hessian[np.ix_(curved, columns, columns)]
            answers.append(Quadratic(answer.value[own], answer.gradient[own], hessian))
        return answers

    def quadratic(self, w: Array) -> Quadratic:
        """Return the sums at a model w [P]."""
        return self._quadratic(w[None])

    def _quadratic(self, models: Array) -> Quadratic:
        request = Request(self.problem, models, np.ones(len(models), bool), self.columns)
        return self.options.retry(lambda: self.round([request]))[0]

    def at(self, w: Array) -> Sums:
        """Return everything that covariance matrices need at a model w [P]."""
        columns, products = self.columns, None
        if not self.options.with_rows:
            own = self.quadratic(w)
        else:
            own, products = self.options.retry(lambda: self._with_products(w))
        rows, clients = (None, None) if products is None else products.unpacked()
        return Sums(float(own.value[0]), own.gradient[0, columns], own.hessian[0], rows, clients)

    def _with_products(self, w: Array) -> tuple[Quadratic, ScoreProducts]:
        problem, with_clients = self.problem, self.options.with_clients
        if isinstance(problem.data, RemoteRows):
            question = QuadraticQuestion(problem.data, problem.weights, w[None], 1, self.columns)
            return problem.data.score_products(question, with_clients)
        if self.options.bits is not None:
            return self._in_fixed_point(w, self.options.bits)
        products = score_products_of(problem.data, problem.weights, problem.model, problem.loss, w, self.columns)
        return self.quadratic(w), products if with_clients else products._replace(clients=None)

    def _in_fixed_point(self, w: Array, bits: int) -> tuple[Quadratic, ScoreProducts]:
        """Return the sums of the clients' fixed-point numbers; NaN if one is out of range."""
        problem, fits = self.problem, np.ones(1, bool)
        total: dict[str, Array] = {}
        exponent = exponent_for(int(problem.data.sizes.sum()))
        for m in range(problem.data.clients):
            data, weight = problem.data.client(m), problem.weights[m : m + 1]
            products = score_products_of(data, weight, problem.model, problem.loss, w, self.columns)
            arrays = client_arrays(problem, m, w[None], 1, self.columns)
            arrays |= products.to_arrays(exponent, self.options.with_clients)
            integers, in_range = to_fixed_point(arrays, bits, problem.data.clients)
            total = {name: values + total.get(name, 0) for name, values in integers.items()}
            fits &= in_range
        sums = {name: np.where(fits.all(), from_fixed_point(values, bits), np.nan) for name, values in total.items()}
        quadratic = Quadratic(sums["value"], sums["gradient"], unpack(sums["hessian"]))
        return quadratic, ScoreProducts.of_arrays(sums, exponent)
