"""Sums over the sites of losses, gradients and Hessians at models of several fits, requested in one message.

At one model, sums of outer products of gradients can be added, for robust covariance matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fco_cli.errors import UserError
from fco_cli.federation.coordinator.exchange import exchange
from fco_cli.federation.coordinator.remote_rows import Question, SiteRows
from fco_cli.federation.coordinator.responses import AnyResponses, SumOfResponses, report_invalid_sum
from fco_cli.federation.coordinator.sites import MAX_MESSAGE_BYTES, report_invalid_response
from fco_cli.federation.message import ArraySpec, BadMessage
from fco_cli.problem.curvature import Quadratic, packed_size, unpack
from fco_cli.problem.data import QuadraticQuestion
from fco_cli.problem.layout import Array
from fco_cli.problem.risk import Evaluation, ordered_sum
from fco_cli.problem.score_products import ScoreProducts, exponent_for

ROUNDING = 1e-9  # largest magnitude of a negative eigenvalue of a Hessian, relative to its trace


@dataclass(frozen=True)
class HessianQuestion(Question):
    """Models of one fit, the Hessian at the first `hessians` of them, restricted to `columns` (QuadraticQuestion)."""

    hessians: int
    columns: Array | None
    is_narrow: bool = False

    @classmethod
    def of(cls, asked: QuadraticQuestion) -> HessianQuestion:
        assert isinstance(asked.data, SiteRows)
        return cls(asked.data, asked.w, asked.weights, asked.hessians, asked.columns, asked.is_narrow)

    def head(self) -> dict[str, Any]:
        columns = None if self.columns is None else self.columns.tolist()
        return super().head() | {"hessians": self.hessians, "columns": columns, "narrow": self.is_narrow}

    @property
    def key(self) -> tuple[bytes, bytes, bool]:
        """Key of the answer about a single model."""
        columns = b"" if self.columns is None else self.columns.astype(np.int64).tobytes()
        return self.w.tobytes(), columns, self.is_narrow

    @property
    def width(self) -> int:
        """Number of entries of a gradient."""
        return len(self.columns) if self.is_narrow and self.columns is not None else self.w.shape[1]

    @property
    def packed(self) -> int:
        """Number of distinct entries of a Hessian."""
        return packed_size(self.w.shape[1] if self.columns is None else len(self.columns))

    def specs(self, name: str | None) -> dict[str, ArraySpec]:
        """Return the specs of a response; `value` is infinite for a model that has overflowed."""
        specs = {
            "value": ArraySpec((len(self.w),), low=0, finite=False),
            "gradient": ArraySpec((len(self.w), self.width), finite=False),
        }
        return specs | {array: ArraySpec((self.hessians, self.packed), finite=False) for array in self.symmetric}

    @property
    def symmetric(self) -> list[str]:
        """Names of the arrays of packed symmetric matrices."""
        return ["hessian"] if self.hessians else []

    @property
    def matrices(self) -> int:
        """Number of packed matrices in a response."""
        return self.hessians * len(self.symmetric)


@dataclass(frozen=True)
class ScoreQuestion(HessianQuestion):
    """One model with its Hessian and sums of outer products of gradients (`score_products.py`)."""

    with_clients: bool = False

    @property
    def exponent(self) -> int:
        return exponent_for(int(self.rows.sizes.sum()))

    @property
    def products(self) -> list[str]:
        return ["rows", "clients"] if self.with_clients else ["rows"]

    @property
    def symmetric(self) -> list[str]:
        return [*super().symmetric, *self.products]

    def head(self) -> dict[str, Any]:
        return super().head() | {"scores": {"clients": self.with_clients, "exponent": self.exponent}}


def request_quadratics(asked: Sequence[QuadraticQuestion]) -> list[Quadratic]:
    """Return F, its gradient and the Hessians at the first models of every fit, as sums of the sites' responses.

    The answer about a single model is kept and not requested again.
    """
    questions = [HessianQuestion.of(one) for one in asked]
    answers = [one.rows.quadratics.get(one.key) for one in questions]
    new = [k for k, answer in enumerate(answers) if answer is None]
    if new:
        for k, response in zip(new, _request([questions[k] for k in new]), strict=True):
            one = questions[k]
            answers[k] = quadratic = _sum(one, response)
            if len(one.w) == 1:
                one.rows.quadratics[one.key] = quadratic
                if not one.is_narrow:
                    one.rows.gradients[one.w.tobytes()] = Evaluation(quadratic.value, quadratic.gradient, None)
    return [answer for answer in answers if answer is not None]


def _request(questions: Sequence[HessianQuestion]) -> list[AnyResponses]:
    """Return the sites' responses, checked one by one if they are not masked."""
    numbers = sum(len(one.w) * (1 + one.width) + one.matrices * one.packed for one in questions)
    sites = max(len(one.rows.names) for one in questions)
    if 8 * numbers * sites > MAX_MESSAGE_BYTES:
        limit = f"the limit of a message is {MAX_MESSAGE_BYTES / 1e9:.1f} GB"
        raise UserError(f"federation: Hessians of {sites} sites are {8 * numbers * sites / 1e9:.1f} GB; {limit}")
    heads = [one.head() for one in questions]
    responses = exchange("hessian", {"fits": heads}, questions, lambda one, name: one.specs(name))
    for one, answer in zip(questions, responses, strict=True):
        if isinstance(answer, SumOfResponses):
            one.rows.warn_about_overflow(None, answer.masked.fits)
            one.rows.warn_about_missing(answer.present)
            continue
        for name, response in answer.by_site.items():
            with report_invalid_response(name, "hessian"):
                one.rows.check_evaluation(name, response, one.rows.rows_of(name))
                finite = np.isfinite(response.arrays["value"][: one.hessians])
                for array in one.symmetric:
                    _check_semidefinite(array, unpack(response.arrays[array][finite]))
    return responses


def _sum(question: HessianQuestion, answer: AnyResponses) -> Quadratic:
    """Return the sums of the sites' responses in the order of the sites, as in the simulation.

    A model with an infinite loss has a Hessian that is not a number.
    """
    rows, size = question.rows, question.w.shape[1] if question.columns is None else len(question.columns)
    hessian = np.empty((0, size, size))
    with np.errstate(over="ignore", invalid="ignore"):
        evaluation = rows.evaluation(answer, question, gradient=True, dtype=rows.x.dtype)
        if question.hessians:
            packed = rows.share(answer, question.weights) * ordered_sum(answer.array("hessian"))
            hessian = unpack(packed)
            finite = np.isfinite(evaluation.value[: question.hessians]) & np.isfinite(packed).all(axis=1)
            hessian[~finite] = np.nan
            if isinstance(answer, SumOfResponses):
                with report_invalid_sum(answer.present, "hessian"):
                    _check_semidefinite("hessian", hessian[finite], size * len(rows.names) * 2.0**-answer.bits)
    return Quadratic(evaluation.value, evaluation.gradient, hessian)


def request_score_products(asked: QuadraticQuestion, with_clients: bool) -> tuple[Quadratic, ScoreProducts]:
    """Return F, its gradient and Hessian at one model, and sums over the sites of outer products of gradients."""
    assert isinstance(asked.data, SiteRows)
    question = ScoreQuestion(asked.data, asked.w, asked.weights, 1, asked.columns, with_clients=with_clients)
    (answer,) = _request([question])
    with np.errstate(over="ignore", invalid="ignore"):
        sums = {name: ordered_sum(answer.array(name)) for name in question.products}
    return _sum(question, answer), ScoreProducts.of_arrays(sums, question.exponent)


def _check_semidefinite(name: str, matrices: Array, rounding: float = 0.0) -> None:
    """Raise BadMessage if a matrix [K, A, A] has a negative eigenvalue beyond rounding errors."""
    size = matrices.shape[1]
    slack = ROUNDING * np.abs(np.trace(matrices, axis1=1, axis2=2)) + rounding + np.finfo(float).tiny
    try:
        np.linalg.cholesky(matrices + slack[:, None, None] * np.eye(size))
    except np.linalg.LinAlgError:
        raise BadMessage(f"the array {name} must have positive semidefinite matrices") from None
