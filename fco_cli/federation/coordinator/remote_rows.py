"""Rows at remote sites: evaluation of models by requests, and sums of the responses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fco_cli.errors import UserError
from fco_cli.federation.coordinator.exchange import exchange
from fco_cli.federation.coordinator.responses import (
    AnyResponses,
    Known,
    SiteMetrics,
    SumOfResponses,
    report_invalid_sum,
    sum_in,
)
from fco_cli.federation.coordinator.sites import MAX_MESSAGE_BYTES, Agreement, Response, report_invalid_response
from fco_cli.federation.message import MAX_MAGNITUDE, ArraySpec, BadMessage
from fco_cli.federation.metrics import SUMS, Sums
from fco_cli.federation.sharing import LEVELS, largest_level, with_fit
from fco_cli.problem.curvature import Quadratic
from fco_cli.problem.data import QuadraticQuestion, RemoteRows
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss
from fco_cli.problem.risk import Evaluation, ordered_sum
from fco_cli.problem.score_products import ScoreProducts
from fco_cli.simulation.clients import Clients
from fco_cli.simulation.hparams import Hparams

log = logging.getLogger(__name__)

MAX_DEVIATIONS = 40  # standard deviations of noise; a normal variable exceeds them with probability below 1e-300


@dataclass(frozen=True, eq=False)
class SiteRows(RemoteRows):
    """Rows of one part (training, held out or test) of one fit, at the sites that have any."""

    agreement: Agreement = field(kw_only=True)
    fit: int = field(kw_only=True)  # index in the agreement
    names: list[str] = field(kw_only=True)
    part: str = field(kw_only=True)
    loss: Loss = field(kw_only=True)
    hessian_limits: dict[str, int | None] = field(kw_only=True)  # by site, parameters of a Hessian; None: no limit
    estimating: list[str] = field(default_factory=list, kw_only=True)  # sites that take part in fits of their own
    tabulating: list[str] = field(default_factory=list, kw_only=True)  # sites that send risk tables
    smallest_cell: int = field(default=1, kw_only=True)  # events in an interval of these
    events: int | None = field(default=None, kw_only=True)  # of held-out rows whose labels are times, if shared
    last: dict[bytes, Known] = field(default_factory=dict, kw_only=True)  # last evaluation, by model
    quadratics: dict[tuple[bytes, bytes, bool], Quadratic] = field(default_factory=dict, kw_only=True)
    # answers about single models, by model, columns and width of the gradient
    gradients: dict[bytes, Evaluation] = field(default_factory=dict, kw_only=True)  # the same, without Hessians
    shares_sums: dict[str, bool] = field(default_factory=dict, kw_only=True)  # by site, set by its first response
    unevaluated: list[str] = field(default_factory=list, kw_only=True)  # sites missing in the last evaluation
    overflowed: set[str | None] = field(default_factory=set, kw_only=True)  # sites that a warning was logged for

    @property
    def is_exact(self) -> bool:
        return self.agreement.sites.noise is None

    @property
    def is_masked(self) -> bool:
        return self.agreement.sites.mask_bits is not None

    def risk(self, weights: Array) -> Callable[..., Evaluation]:
        def evaluate(w: Array, gradient: bool = True) -> Evaluation:
            if len(w) == 1 and (known := self.gradients.get(np.asarray(w, float).tobytes())) is not None:
                return known
            (evaluation,) = evaluate_together([Question(self, w, weights)], gradient=gradient)
            return evaluation

        return evaluate

    def evaluation(self, responses: AnyResponses, question: Question, gradient: bool, dtype: Any = float) -> Evaluation:
        """Return sum_m p_m F_m, its gradient and the accuracy, as sums of the sites' responses.

        The sites apply the weights p_m, so the sums are bitwise those of the simulation. The value is infinite if the
        norm of the gradient overflows. If sites are missing, the sums are divided by the weight of the others.
        """
        share, present = self.share(responses, question.weights), self.is_present(responses)
        value, total = share * ordered_sum(responses.array("value")), np.empty((0, question.w.shape[1]))
        if gradient:
            with np.errstate(over="ignore", invalid="ignore"):
                total = share * sum_in(dtype, responses.array("gradient"))
                value = np.where(np.isfinite((total**2).sum(axis=1)), value, np.inf)
        if not responses.all_have("hits"):
            return Evaluation(value, total, None)
        return Evaluation(value, total, responses.array("hits").sum(axis=0) / self.sizes[present].sum())

    def is_present(self, responses: AnyResponses) -> Array:
        """Return the mask [M] of the sites that answered."""
        return np.array([name in responses.present for name in self.names])

    def share(self, responses: AnyResponses, weights: Array) -> float:
        """Return the factor that makes up for the weights of missing sites: 1 if all answered."""
        present = self.is_present(responses)
        return 1.0 if present.all() else float(weights.sum() / weights[present].sum())

    def site_metrics(self, responses: AnyResponses, weights: Array) -> list[SiteMetrics]:
        """Return the metrics of models at every site, or of all sites together if responses are masked."""
        share = np.full(1, self.share(responses, weights)) if self.is_masked else 1 / weights
        loss = share[:, None] * responses.array("value")
        squares = share[:, None] * responses.array("squares") if responses.all_have("squares") else None
        hits = responses.array("hits") if responses.all_have("hits") else None
        sums = self._sums(responses)
        rows = [int(self.sizes[self.is_present(responses)].sum())] if self.is_masked else self.sizes.tolist()
        names = [None] if self.is_masked else self.names
        return [
            SiteMetrics(name, rows[m], loss[m], *(None if one is None else one[m] for one in (squares, hits, sums)))
            for m, name in enumerate(names)
        ]

    def sums(self, w: Array) -> tuple[Array, Array] | None:
        """Return the sites' sums for metrics [M, J, width] and their numbers of rows [M].

        Masked responses give one entry for all sites. None if a site does not share its sums.
        """
        if not self.is_exact:
            return None
        if (known := self.known(w, spread=False)) is not None:
            responses = known[0]
        else:
            (responses,) = request_evaluations([Question(self, w, self.sizes / self.sizes.sum())])
        if (sums := self._sums(responses)) is None:
            return None
        present = self.sizes[self.is_present(responses)]
        return sums, self.sizes if len(sums) == len(self.sizes) else present.sum(keepdims=True)

    def known(self, w: Array, spread: bool) -> tuple[AnyResponses, Array] | None:
        """Return the last evaluation of these models and the sites' weights in it.

        None unless sums for metrics and, if `spread`, mean squared losses were requested.
        """
        entries = [self.last.get(model.tobytes()) for model in np.ascontiguousarray(w, dtype=float)]
        known = [one for one in entries if one is not None and one.sums and one.spread >= spread]
        if len(known) < len(entries):
            return None
        return known[0].responses.take([one.job for one in known]), known[0].weights

    def remember(self, question: Question, responses: AnyResponses, sums: bool, spread: bool) -> None:
        """Keep the last evaluation."""
        self.last.clear()
        for j, model in enumerate(question.w):
            self.last[model.tobytes()] = Known(responses, j, question.weights, sums, spread)

    @property
    def metric_sums(self) -> Sums | None:
        """The sums for the loss's metrics, or None if the sites cannot send them."""
        known = SUMS.get(type(self.loss))
        additive = known is not None and (known.additive or not self.is_masked)
        return known if additive else None

    def specs(
        self, shape: tuple[int, int], rows: int, gradient: bool, sums: bool, spread: bool,
        noise: Mapping[str, float | bool] | None, shares_sums: bool | None, sites: int = 1,
    ) -> dict[str, ArraySpec]:  # fmt: skip
        """Return the specs of an evaluation on `rows` rows; `value` is not finite for a job that has overflowed.

        `shares_sums` is the policy of the site (None: unknown yet). With noise, the magnitude of every number is at
        most `sites` times (clipping norm + `MAX_DEVIATIONS` standard deviations).
        """
        number = ArraySpec(shape[:1], low=0, finite=False)
        specs = {"value": number}
        if gradient:
            specs["gradient"] = ArraySpec(shape, finite=False)
        if self.loss.classification:
            specs["hits"] = ArraySpec(shape[:1], low=0, high=rows, whole=True, optional=True)
        if noise is not None:
            most = sites * (noise["most"] + MAX_DEVIATIONS * noise["deviation"])
            limits = {name: most * (noise["rows"] if name == "hits" else 1) for name in specs}
            return {
                name: ArraySpec(spec.shape, low=-limits[name], high=limits[name], optional=spec.optional)
                for name, spec in specs.items()
            }
        if self.part != "training":
            if spread and self.loss.client_loss is None:
                specs["squares"] = replace(number, optional=True)
            if sums and self.metric_sums is not None and shares_sums is not False:
                optional = shares_sums is None
                specs["sums"] = ArraySpec((shape[0], self.metric_sums.width), finite=False, optional=optional)
        return specs

    def check_evaluation(self, name: str, response: Response, rows: int) -> None:
        """Raise BadMessage if a number overflows although the loss is finite, or if sums do not match `rows`."""
        finite = np.isfinite(response.arrays["value"])
        for array, values in response.arrays.items():
            if not (np.abs(values[finite[: len(values)]]) <= MAX_MAGNITUDE).all():
                raise BadMessage(
                    f"the array {array} must have numbers up to {MAX_MAGNITUDE:g} where the loss is finite"
                )
        if "sums" in response.arrays:
            self._check_sums(response.arrays["sums"][finite], rows)
        self.warn_about_overflow(name, finite)

    def warn_about_overflow(self, name: str | None, finite: Array) -> None:
        """Warn once about a site, or about all sites together (None)."""
        if not finite.all() and name not in self.overflowed:
            self.overflowed.add(name)
            site = "a site" if name is None else f"site {name!r}"
            log.warning("%s: the loss of a model on its %s rows is not finite", site, self.part)

    def warn_about_missing(self, present: list[str]) -> None:
        """Warn about sites that did not take part in a masked evaluation, once until they are others."""
        missing = [name for name in self.names if name not in present]
        if missing and missing != self.unevaluated:
            log.warning("%s: no response; metrics on %s rows are those of the others", ", ".join(missing), self.part)
        self.unevaluated[:] = missing

    def _check_sums(self, sums: Array, rows: int) -> None:
        if self.metric_sums is not None and not self.metric_sums.is_valid(sums, rows).all():
            raise BadMessage(f"the array sums is impossible for {rows} rows")

    def _sums(self, responses: AnyResponses) -> Array | None:
        """Return the sums [M, J, k], masked [1, J, k]; None if a site does not send them."""
        if not responses.all_have("sums"):
            return None
        sums = responses.array("sums")
        if isinstance(responses, SumOfResponses):
            rows = int(self.sizes[self.is_present(responses)].sum())
            with report_invalid_sum(responses.present):
                self._check_sums(sums[0][np.isfinite(sums[0]).all(axis=1)], rows)
        return sums

    def smoothness(self, seed: int, batch_size: int) -> float:
        if not self.is_exact:
            raise UserError(
                "federation.evaluation_noise: curvature would be sent without noise; set hparams.client_lr to a number"
            )
        head = {"fit": self.fit, "seed": seed, "batch_size": batch_size}
        if self.is_masked:
            levels = with_fit({"exceeds": ArraySpec((1, len(LEVELS)))}, self.fit)
            total = self.agreement.sum_of_all("smoothness", head, {}, levels)[self.fit]
            return largest_level(total.totals["exceeds"][0])
        specs = with_fit({"largest": ArraySpec((1,), low=0)}, self.fit)
        responses = self.agreement.request("smoothness", head, names=self.names, expected=lambda _: specs)
        return max(float(response.arrays[f"largest.{self.fit}"][0]) for response in responses.values())

    def why_no_hessian(self, parameters: int) -> str | None:
        if not self.is_exact:
            return "federation.evaluation_noise: Hessians would be sent without noise"
        for name, limit in self.hessian_limits.items():
            if limit is not None and parameters > limit:
                return f"{name} sends Hessians of at most {limit} parameters (site.yaml), the model has {parameters}"
        return None

    def curvature(self, questions: Sequence[QuadraticQuestion]) -> list[Quadratic]:
        from fco_cli.federation.coordinator.hessians import request_quadratics  # imports this module

        return request_quadratics(questions)

    def score_products(self, question: QuadraticQuestion, with_clients: bool) -> tuple[Quadratic, ScoreProducts]:
        from fco_cli.federation.coordinator.hessians import request_score_products  # imports this module

        return request_score_products(question, with_clients)

    @property
    def why_no_tables(self) -> str | None:
        if self.is_masked:
            return "with federation.masks only sums over the sites are known"
        if not self.tabulating:
            return "the sites do not share histograms (site.yaml: share_histograms)"
        return None

    def survival(self, w: Array, columns: Array, minimum: int) -> Any:
        from fco_cli.federation.coordinator.survival import RemoteSurvival  # imports this module

        return RemoteSurvival(self, w, columns, minimum)

    def why_no_estimates(self, m: int) -> str | None:
        if self.is_masked:
            return "with federation.masks only sums over the sites are known"
        name = self.names[m]
        return (
            None if name in self.estimating else f"{name} shares no estimates of its own (site.yaml: share_estimates)"
        )

    def client(self, m: int) -> SiteRows:
        offsets = np.array([0, self.sizes[m]], np.int64)
        known: dict[str, Any] = {"last": {}, "quadratics": {}, "gradients": {}}
        return replace(self, offsets=offsets, names=[self.names[m]], **known)

    def rows_of(self, name: str) -> int:
        """Return the number of rows at a site."""
        return int(self.sizes[self.names.index(name)])

    def max_jobs_per_round(self, broadcast: int, sent: int, size: int) -> int:
        """Return the number of jobs whose vectors fit in one message, which holds all sites' responses."""
        vectors = max(broadcast, len(self.names) * max(sent, 1))
        one = vectors * size * np.dtype(float).itemsize
        if one > MAX_MESSAGE_BYTES:
            limit = f"the limit of a message is {MAX_MESSAGE_BYTES / 1e9:.1f} GB"
            raise UserError(f"federation: {vectors} vectors of {size:,} parameters are {one / 1e9:.1f} GB; {limit}")
        return MAX_MESSAGE_BYTES // one

    def clients_factory(self, hparams: Hparams, seed: int) -> Callable[..., Clients]:
        from fco_cli.federation.coordinator.clients import remote_clients  # imports this module

        return remote_clients(self, hparams, seed)


@dataclass(frozen=True)
class Question:
    """Models on the rows of one fit that are evaluated, with the sites' weights."""

    rows: SiteRows
    w: Array  # [J, P]
    weights: Array  # [M]

    def __post_init__(self) -> None:
        object.__setattr__(self, "w", np.ascontiguousarray(self.w, dtype=float))

    def head(self) -> dict[str, Any]:
        """Return the keys of the models in a request."""
        weights = dict(zip(self.rows.names, self.weights.tolist(), strict=True))
        return {"fit": self.rows.fit, "jobs": len(self.w), "weights": weights}

    @property
    def noise(self) -> dict[str, Any] | None:
        """Parameters of the noise that every site adds; None: no noise."""
        sites, noise = self.rows.agreement.sites, self.rows.agreement.sites.noise
        if noise is None:
            return None
        count = sites.min_sites if self.rows.is_masked else len(self.rows.names)
        return noise.site_parameters(self.weights, self.rows.sizes, count)


def evaluate_together(
    questions: Sequence[Question],
    gradient: bool = False,
    sums: bool = True,
    spread: bool = False,
    differences: bool = False,
) -> list[Evaluation]:
    """Return the evaluations of models of several fits on rows of the same part, requested in one message."""
    responses = request_evaluations(questions, gradient, sums, spread, differences)
    return [one.rows.evaluation(answer, one, gradient) for one, answer in zip(questions, responses, strict=True)]


def request_evaluations(
    questions: Sequence[Question],
    gradient: bool = False,
    sums: bool = True,
    spread: bool = False,
    differences: bool = False,
) -> list[AnyResponses]:
    """Return the sites' evaluations of the models; the last ones are kept in `SiteRows.last`."""
    first, sums_requested = questions[0].rows, sums
    sums = sums and first.metric_sums is not None
    head = {
        "fits": [one.head() | {"noise": one.noise} for one in questions],
        "part": first.part, "gradient": gradient, "sums": sums, "spread": spread, "differences": differences,
    }  # fmt: skip

    def specs(one: Question, name: str | None) -> dict[str, ArraySpec]:
        """Return the specs of a site's response; None: of the sum over the sites."""
        rows, shared, count = int(one.rows.sizes.sum()), None, 1 if one.noise is None else len(one.rows.names)
        if name is not None:
            rows, shared, count = one.rows.rows_of(name), one.rows.shares_sums.get(name), 1
        return one.rows.specs(one.w.shape, rows, gradient, sums, spread, one.noise, shared, count)

    answers = exchange("evaluate", head, questions, specs)
    for one, answer in zip(questions, answers, strict=True):
        one.rows.remember(one, answer, sums_requested, spread)
        if isinstance(answer, SumOfResponses):
            one.rows.warn_about_overflow(None, answer.masked.fits)
            one.rows.warn_about_missing(answer.present)
            continue
        for name, response in answer.by_site.items():
            if "sums" in specs(one, name):
                one.rows.shares_sums[name] = "sums" in response.arrays
            if one.noise is None:
                with report_invalid_response(name, "evaluate"):
                    one.rows.check_evaluation(name, response, one.rows.rows_of(name))
    return answers
