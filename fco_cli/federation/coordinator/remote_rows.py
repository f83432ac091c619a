"""Rows at remote sites: evaluation of models by requests, and sums of the responses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fco_cli.algorithms.rounds import from_fixed_point
from fco_cli.errors import UserError
from fco_cli.federation.coordinator.masked import MaskedSum
from fco_cli.federation.coordinator.sites import MAX_MESSAGE_BYTES, Agreement, Response, report_invalid_response
from fco_cli.federation.message import MAX_MAGNITUDE, ArraySpec, BadMessage
from fco_cli.federation.metrics import SUMS, Sums
from fco_cli.federation.sharing import LEVELS, largest_level
from fco_cli.problem.data import RemoteRows
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss
from fco_cli.problem.risk import Evaluation, ordered_sum
from fco_cli.simulation.clients import Clients
from fco_cli.simulation.hparams import Hparams

log = logging.getLogger(__name__)

Specs = Mapping[str, ArraySpec]
MAX_DEVIATIONS = 40  # standard deviations of noise; a normal variable exceeds them with probability below 1e-300


@dataclass(frozen=True)
class SiteMetrics:
    """Metrics of models [J] on one site's rows of one part."""

    site: str | None  # None: all sites together, if responses are masked
    rows: int
    loss: Array  # [J], mean over the rows
    squares: Array | None  # [J], mean squared loss of a row; None if the loss is not a sum over rows
    hits: Array | None  # [J], correctly classified rows; None for regression
    sums: Array | None  # [J, k], for the loss's metrics (metrics.py); None if not shared


@dataclass(frozen=True)
class Responses:
    """Responses of the sites to one evaluation."""

    by_site: dict[str, Response]

    @property
    def present(self) -> list[str]:
        """Sites that answered."""
        return list(self.by_site)

    def all_have(self, name: str) -> bool:
        return all(name in response.arrays for response in self.by_site.values())

    def array(self, name: str) -> Array:
        """Return an array [M, ...] with one entry per site."""
        return np.stack([response.arrays[name] for response in self.by_site.values()])


@dataclass(frozen=True)
class SumOfResponses:
    """Sum of the sites' masked responses, with the interface of `Responses`."""

    masked: MaskedSum
    bits: int
    sum_specs: Specs

    @property
    def present(self) -> list[str]:
        return self.masked.present

    def all_have(self, name: str) -> bool:
        return name in self.masked.totals

    def array(self, name: str) -> Array:
        """Return the sum as one entry [1, ...]; NaN for jobs with a number out of the fixed-point range."""
        total, fits = from_fixed_point(self.masked.totals[name], self.bits), self.masked.fits
        if name in self.sum_specs:
            with report_invalid_sum(self.present):
                replace(self.sum_specs[name], shape=total[fits].shape).checked(name, total[fits])
        return np.where(fits.reshape(-1, *[1] * (total.ndim - 1)), total, np.nan)[None]


@contextmanager
def report_invalid_sum(sites: Iterable[str], kind: str = "evaluate") -> Iterator[None]:
    """Convert BadMessage about a masked sum to a UserError; it names all sites, as the faulty one is unknown."""
    try:
        yield
    except BadMessage as problem:
        names = ", ".join(sites)
        raise UserError(f"sites {names}: invalid response to {kind!r}: in the masked sum {problem}") from problem


@dataclass(frozen=True, eq=False)
class SiteRows(RemoteRows):
    """Rows of one part (training, held out or test) at the sites that have any."""

    agreement: Agreement = field(kw_only=True)
    names: list[str] = field(kw_only=True)
    part: str = field(kw_only=True)
    loss: Loss = field(kw_only=True)
    last: dict[bytes, Responses | SumOfResponses] = field(
        default_factory=dict, kw_only=True
    )  # last evaluation, by its models
    shares_sums: dict[str, bool] = field(default_factory=dict, kw_only=True)  # by site, set by its first response
    unevaluated: list[str] = field(default_factory=list, kw_only=True)  # sites missing in the last evaluation
    overflowed: set[str | None] = field(default_factory=set, kw_only=True)  # sites that a warning was logged for

    @property
    def is_exact(self) -> bool:
        return self.agreement.sites.noise is None

    def risk(self, weights: Array) -> Callable[..., Evaluation]:
        def evaluate(w: Array, gradient: bool = True) -> Evaluation:
            return self._evaluate(np.ascontiguousarray(w, dtype=float), weights, gradient)

        return evaluate

    def _evaluate(self, w: Array, weights: Array, gradient: bool) -> Evaluation:
        """Return sum_m p_m F_m, its gradient and the accuracy, as sums of the sites' responses.

        The sites apply the weights p_m, so the sums are bitwise those of the simulation. The value is infinite if the
        norm of the gradient overflows. If sites are missing, the sums are divided by the weight of the others.
        """
        responses = self._request_evaluation(w, weights, gradient=gradient)
        share, present = self._share(responses, weights), self._is_present(responses)
        value, total = share * ordered_sum(responses.array("value")), np.empty((0, w.shape[1]))
        if gradient:
            with np.errstate(over="ignore", invalid="ignore"):
                total = share * ordered_sum(responses.array("gradient"))
                value = np.where(np.isfinite((total**2).sum(axis=1)), value, np.inf)
        if not self.loss.classification:
            return Evaluation(value, total, None)
        return Evaluation(value, total, responses.array("hits").sum(axis=0) / self.sizes[present].sum())

    def _is_present(self, responses: Responses | SumOfResponses) -> Array:
        """Return the mask [M] of the sites that answered."""
        return np.array([name in responses.present for name in self.names])

    def _share(self, responses: Responses | SumOfResponses, weights: Array) -> float:
        """Return the factor that makes up for the weights of missing sites: 1 if all answered."""
        present = self._is_present(responses)
        return 1.0 if present.all() else float(weights.sum() / weights[present].sum())

    def site_metrics(self, w: Array) -> list[SiteMetrics]:
        """Return the metrics of the models at every site, or of all sites together if responses are masked."""
        w = np.ascontiguousarray(w, dtype=float)
        masked, weights = self.agreement.sites.mask_bits is not None, self.sizes / self.sizes.sum()
        responses = self._request_evaluation(w, weights if masked else None, spread=True)
        share = self._share(responses, weights)
        loss = share * responses.array("value")
        squares = None if self.loss.client_loss else share * responses.array("squares")
        hits = responses.array("hits") if self.loss.classification else None
        sums = self._sums(responses)
        rows = [int(self.sizes[self._is_present(responses)].sum())] if masked else self.sizes.tolist()
        names = [None] if masked else self.names
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
        w = np.ascontiguousarray(w, dtype=float)
        responses = self.last.get(w.tobytes()) or self._request_evaluation(w, None)
        if (sums := self._sums(responses)) is None:
            return None
        present = self.sizes[self._is_present(responses)]
        return sums, self.sizes if len(sums) == len(self.sizes) else present.sum(keepdims=True)

    def _request_evaluation(
        self, w: Array, weights: Array | None, gradient: bool = False, spread: bool = False
    ) -> Responses | SumOfResponses:
        """Return the sites' evaluations of the models; the last ones are kept in `last`."""
        bits, noise = self.agreement.sites.mask_bits, self.agreement.sites.noise
        parameters = None
        if noise is not None and weights is not None:
            count = len(self.names) if bits is None else self.agreement.sites.min_sites
            parameters = noise.site_parameters(weights, self.sizes, count)
        head = {
            "jobs": len(w),
            "part": self.part,
            "gradient": gradient,
            "weights": None if weights is None else dict(zip(self.names, weights.tolist(), strict=True)),
            "noise": parameters,
            "sums": self._metric_sums is not None,
            "spread": spread,
        }
        responses: Responses | SumOfResponses
        if bits is None:
            responses = Responses(self._request_each(head, w, gradient, spread, parameters))
        else:
            rows, count = int(self.sizes.sum()), 1 if parameters is None else len(self.names)
            specs = self._specs(w, rows, gradient, spread, parameters, None, count)
            responses = SumOfResponses(self.agreement.sum("evaluate", head, {"w": w}, specs), bits, specs)
            self._warn_about_overflow(None, responses.masked.fits)
            missing = [name for name in self.names if name not in responses.present]
            if missing and missing != self.unevaluated:
                log.warning(
                    "%s: no response; metrics on %s rows are those of the others", ", ".join(missing), self.part
                )
            self.unevaluated[:] = missing
        self.last.clear()
        self.last[w.tobytes()] = responses
        return responses

    def _request_each(
        self, head: dict[str, Any], w: Array, gradient: bool, spread: bool, noise: dict[str, float] | None
    ) -> dict[str, Response]:
        """Return every site's own evaluation."""
        rows = dict(zip(self.names, self.sizes.tolist(), strict=True))

        def expected(name: str) -> Specs:
            return self._specs(w, rows[name], gradient, spread, noise, self.shares_sums.get(name))

        by_site = self.agreement.request("evaluate", head, {"w": w}, self.names, expected=expected)
        for name, response in by_site.items():
            if "sums" in expected(name):
                self.shares_sums[name] = "sums" in response.arrays
            if noise is None:
                with report_invalid_response(name, "evaluate"):
                    self._check_evaluation(name, response, rows[name])
        return by_site

    @property
    def _metric_sums(self) -> Sums | None:
        """The sums for the loss's metrics, or None if the sites cannot send them."""
        known = SUMS.get(type(self.loss))
        additive = known is not None and (known.additive or self.agreement.sites.mask_bits is None)
        return known if additive else None

    def _specs(
        self,
        w: Array,
        rows: int,
        gradient: bool,
        spread: bool,
        noise: dict[str, float | bool] | None,
        shares_sums: bool | None,
        sites: int = 1,
    ) -> dict[str, ArraySpec]:
        """Return the specs of an evaluation on `rows` rows; `value` is not finite for a job that has overflowed.

        `shares_sums` is the policy of the site (None: unknown yet). With noise, the magnitude of every number is at
        most `sites` times (clipping norm + `MAX_DEVIATIONS` standard deviations).
        """
        number = ArraySpec((len(w),), low=0, finite=False)
        specs = {"value": number}
        if gradient:
            specs["gradient"] = ArraySpec(w.shape, finite=False)
        if self.loss.classification:
            specs["hits"] = ArraySpec((len(w),), low=0, high=rows, whole=True)
        if noise is not None:
            most = sites * (noise["most"] + MAX_DEVIATIONS * noise["deviation"])
            limits = {name: most * (noise["rows"] if name == "hits" else 1) for name in specs}
            return {name: ArraySpec(spec.shape, low=-limits[name], high=limits[name]) for name, spec in specs.items()}
        if self.part != "training":
            if spread and self.loss.client_loss is None:
                specs["squares"] = number
            if self._metric_sums is not None and shares_sums is not False:
                optional = shares_sums is None
                specs["sums"] = ArraySpec((len(w), self._metric_sums.width), finite=False, optional=optional)
        return specs

    def _check_evaluation(self, name: str, response: Response, rows: int) -> None:
        """Raise BadMessage if a number overflows although the loss is finite, or if sums do not match `rows`."""
        finite = np.isfinite(response.arrays["value"])
        for array, values in response.arrays.items():
            if not (np.abs(values[finite]) <= MAX_MAGNITUDE).all():
                raise BadMessage(
                    f"the array {array} must have numbers up to {MAX_MAGNITUDE:g} where the loss is finite"
                )
        if "sums" in response.arrays:
            self._check_sums(response.arrays["sums"][finite], rows)
        self._warn_about_overflow(name, finite)

    def _warn_about_overflow(self, name: str | None, finite: Array) -> None:
        """Warn once about a site, or about all sites together (None)."""
        if not finite.all() and name not in self.overflowed:
            self.overflowed.add(name)
            site = "a site" if name is None else f"site {name!r}"
            log.warning("%s: the loss of a model on its %s rows is not finite", site, self.part)

    def _check_sums(self, sums: Array, rows: int) -> None:
        if self._metric_sums is not None and not self._metric_sums.is_valid(sums, rows).all():
            raise BadMessage(f"the array sums is impossible for {rows} rows")

    def _sums(self, responses: Responses | SumOfResponses) -> Array | None:
        """Return the sums [M, J, k], masked [1, J, k]; None if a site does not send them."""
        if not responses.all_have("sums"):
            return None
        sums = responses.array("sums")
        if isinstance(responses, SumOfResponses):
            rows = int(self.sizes[self._is_present(responses)].sum())
            with report_invalid_sum(responses.present):
                self._check_sums(sums[0][np.isfinite(sums[0]).all(axis=1)], rows)
        return sums

    def smoothness(self, seed: int, batch_size: int) -> float:
        if not self.is_exact:
            raise UserError(
                "federation.evaluation_noise: curvature would be sent without noise; set hparams.client_lr to a number"
            )
        head = {"seed": seed, "batch_size": batch_size}
        if self.agreement.sites.mask_bits is not None:
            levels = {"exceeds": ArraySpec((1, len(LEVELS)))}
            return largest_level(self.agreement.sum_of_all("curvature", head, {}, levels)["exceeds"][0])
        specs = {"largest": ArraySpec((1,), low=0)}
        responses = self.agreement.request("curvature", head, names=self.names, expected=lambda _: specs)
        return max(float(response.arrays["largest"][0]) for response in responses.values())

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
