"""Sums over the sites of losses, gradients and Hessians at models of several fits, requested in one message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fco_cli.errors import UserError
from fco_cli.federation.coordinator.remote_rows import Question, SiteRows, exchange
from fco_cli.federation.coordinator.responses import AnyResponses, SumOfResponses, report_invalid_sum
from fco_cli.federation.coordinator.sites import MAX_MESSAGE_BYTES, report_invalid_response
from fco_cli.federation.message import ArraySpec, BadMessage
from fco_cli.problem.curvature import Quadratic, packed_size, unpack
from fco_cli.problem.data import QuadraticQuestion
from fco_cli.problem.layout import Array
from fco_cli.problem.risk import Evaluation, ordered_sum

ROUNDING = 1e-9  # largest magnitude of a negative eigenvalue of a Hessian, relative to its trace


@dataclass(frozen=True)
class HessianQuestion(Question):
    """Models of one fit, the Hessian at the first `hessians` of them, restricted to `columns`."""

    hessians: int
    columns: Array | None

    @classmethod
    def of(cls, asked: QuadraticQuestion) -> HessianQuestion:
        assert isinstance(asked.data, SiteRows)
        return cls(asked.data, asked.w, asked.weights, asked.hessians, asked.columns)

    def head(self) -> dict[str, Any]:
        columns = None if self.columns is None else self.columns.tolist()
        return super().head() | {"hessians": self.hessians, "columns": columns}

    @property
    def key(self) -> tuple[bytes, bytes]:
        """Key of the answer about a single model."""
        return self.w.tobytes(), b"" if self.columns is None else self.columns.astype(np.int64).tobytes()

    @property
    def packed(self) -> int:
        """Number of distinct entries of a Hessian."""
        return packed_size(self.w.shape[1] if self.columns is None else len(self.columns))

    def specs(self, name: str | None) -> dict[str, ArraySpec]:
        """Return the specs of a response; `value` is infinite for a model that has overflowed."""
        specs = {
            "value": ArraySpec((len(self.w),), low=0, finite=False),
            "gradient": ArraySpec(self.w.shape, finite=False),
        }
        if self.hessians:
            specs["hessian"] = ArraySpec((self.hessians, self.packed), finite=False)
        return specs


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
                one.rows.gradients[one.w.tobytes()] = Evaluation(quadratic.value, quadratic.gradient, None)
    return [answer for answer in answers if answer is not None]


def _request(questions: list[HessianQuestion]) -> list[AnyResponses]:
    """Return the sites' responses, checked one by one if they are not masked."""
    numbers = sum(len(one.w) * (1 + one.w.shape[1]) + one.hessians * one.packed for one in questions)
    sites = max(len(one.rows.names) for one in questions)
    if 8 * numbers * sites > MAX_MESSAGE_BYTES:
        limit = f"the limit of a message is {MAX_MESSAGE_BYTES / 1e9:.1f} GB"
        raise UserError(f"federation: Hessians of {sites} sites are {8 * numbers * sites / 1e9:.1f} GB; {limit}")
    responses = exchange("hessian", {"fits": [one.head() for one in questions]}, questions, HessianQuestion.specs)
    for one, answer in zip(questions, responses, strict=True):
        if isinstance(answer, SumOfResponses):
            one.rows.warn_about_overflow(None, answer.masked.fits)
            one.rows.warn_about_missing(answer.present)
            continue
        for name, response in answer.by_site.items():
            with report_invalid_response(name, "hessian"):
                one.rows.check_evaluation(name, response, one.rows.rows_of(name))
                if one.hessians:
                    finite = np.isfinite(response.arrays["value"][: one.hessians])
                    _check_semidefinite(unpack(response.arrays["hessian"][finite]))
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
                    _check_semidefinite(hessian[finite], size * len(rows.names) * 2.0**-answer.bits)
    return Quadratic(evaluation.value, evaluation.gradient, hessian)


def _check_semidefinite(hessians: Array, rounding: float = 0.0) -> None:
    """Raise BadMessage if a matrix [K, A, A] has a negative eigenvalue beyond rounding errors."""
    size = hessians.shape[1]
    slack = ROUNDING * np.abs(np.trace(hessians, axis1=1, axis2=2)) + rounding + np.finfo(float).tiny
    try:
        np.linalg.cholesky(hessians + slack[:, None, None] * np.eye(size))
    except np.linalg.LinAlgError:
        raise BadMessage("the array hessian must have positive semidefinite matrices") from None
