"""One round of a second-order path: sums over clients of losses, gradients and Hessians at models of several fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from fco_cli.algorithms.rounds import from_fixed_point, to_fixed_point
from fco_cli.problem.curvature import Quadratic, quadratic_of, unpack
from fco_cli.problem.data import QuadraticQuestion, RemoteRows
from fco_cli.problem.layout import Array
from fco_cli.problem.narrow import narrow
from fco_cli.problem.problem import Problem
from fco_cli.problem.risk import DataRisk


class Request(NamedTuple):
    """Models of one fit that a round evaluates: F and its gradient at all, the Hessian at those of `curved`."""

    problem: Problem
    models: Array  # [J, P]
    curved: Array  # [J], mask
    columns: Array | None  # of the Hessians; None: all
    narrow: bool = False  # all other weights are 0, and the gradient is restricted to the columns as well


Evaluate = Callable[[Sequence[Request]], list[Quadratic]]  # one round


def evaluate_round(requests: Sequence[Request]) -> list[Quadratic]:
    """Return value [J], gradient [J, P], or [J, A] if narrow, and Hessians [K, A, A], for every request."""
    if isinstance(requests[0].problem.data, RemoteRows):
        return _evaluate_remotely(requests[0].problem.data, requests)
    answers = []
    for problem, models, curved, columns, is_narrow in requests:
        data, model, risk = problem.data, problem.model, problem.risk
        if is_narrow:
            assert columns is not None
            (data, model), models, columns = narrow(data, model, columns), models[:, columns], None
            risk = DataRisk(data, problem.weights, model, problem.loss)
        value, gradient = np.empty(len(models)), np.empty(models.shape)
        hessians = np.empty((0, 0, 0))
        if curved.any():
            quadratic = quadratic_of(data, problem.weights, model, problem.loss, models[curved], columns)
            value[curved], gradient[curved], hessians = quadratic.unpacked()
        if not curved.all():
            others = risk(models[~curved])
            value[~curved], gradient[~curved] = others.value, others.gradient
        answers.append(Quadratic(value, gradient, hessians))
    return answers


def evaluator(bits: int | None) -> Evaluate:
    """Return the evaluation of a round; `bits`: sums over clients are those of fixed-point numbers, as with masks."""
    return evaluate_round if bits is None else partial(_evaluate_in_fixed_point, bits)


def _evaluate_in_fixed_point(bits: int, requests: Sequence[Request]) -> list[Quadratic]:
    """Return the answers from fixed-point sums over the clients; NaN for models with a number out of range."""
    if isinstance(requests[0].problem.data, RemoteRows):
        return evaluate_round(requests)
    answers = []
    for problem, models, curved, columns, is_narrow in requests:
        order, count = np.argsort(~curved, kind="stable"), int(curved.sum())
        total: dict[str, Array] = {}
        fits = np.ones(len(models), bool)
        for m in range(problem.data.clients):
            own = client_arrays(problem, m, models[order], count, columns, is_narrow)
            integers, in_range = to_fixed_point(own, bits, problem.data.clients)
            total = {name: values + total.get(name, 0) for name, values in integers.items()}
            fits &= in_range
        sums = {name: from_fixed_point(values, bits) for name, values in total.items()}
        for values in sums.values():
            values[~fits[: len(values)]] = np.nan
        value, gradient = np.empty_like(sums["value"]), np.empty_like(sums["gradient"])
        value[order], gradient[order] = sums["value"], sums["gradient"]
        hessians = unpack(sums["hessian"]) if count else np.empty((0, 0, 0))
        answers.append(Quadratic(value, gradient, hessians))
    return answers


def client_arrays(
    problem: Problem, m: int, models: Array, count: int, columns: Array | None, is_narrow: bool = False
) -> dict[str, Array]:
    """Return weighted value, gradient and, for the first `count` models, packed Hessian of client m."""
    data, model, weight = problem.data.client(m), problem.model, problem.weights[m : m + 1]
    if is_narrow:
        assert columns is not None
        (data, model), models, columns = narrow(data, model, columns), models[:, columns], None
    others = DataRisk(data, weight, model, problem.loss)(models[count:], gradient=True)
    if not count:
        return {"value": np.maximum(others.value, 0), "gradient": others.gradient}
    own = quadratic_of(data, weight, model, problem.loss, models[:count], columns)
    return {
        "value": np.maximum(np.concatenate([own.value, others.value]), 0),
        "gradient": np.concatenate([own.gradient, others.gradient]),
        "hessian": own.hessian,
    }


def _evaluate_remotely(data: RemoteRows, requests: Sequence[Request]) -> list[Quadratic]:
    """Return the answers of remote clients to all requests, which are sent together, curved models first."""
    orders = [np.argsort(~one.curved, kind="stable") for one in requests]
    answers = data.curvature([
        QuadraticQuestion(problem.data, problem.weights, models[order], int(curved.sum()), columns, is_narrow)  # type: ignore[arg-type]
        for (problem, models, curved, columns, is_narrow), order in zip(requests, orders, strict=True)
    ])  # fmt: skip
    in_order = []
    for answer, order in zip(answers, orders, strict=True):
        value, gradient = np.empty_like(answer.value), np.empty_like(answer.gradient)
        value[order], gradient[order] = answer.value, answer.gradient
        in_order.append(Quadratic(value, gradient, answer.hessian))
    return in_order
