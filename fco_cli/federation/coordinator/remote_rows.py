"""Rows at remote sites: evaluation of models by requests, and sums of the responses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from fco_cli.algorithms.rounds import from_fixed_point
from fco_cli.errors import UserError
from fco_cli.federation.coordinator.sites import MAX_MESSAGE_BYTES, Agreement, Response, report_invalid_response
from fco_cli.federation.message import MAX_MAGNITUDE, ArraySpec, BadMessage
from fco_cli.federation.metrics import SUMS, Sums
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
    """Responses of the sites to one request; only their sum is readable if they are masked."""

    by_site: dict[str, Response]
    mask_bits: int | None
    sum_specs: Specs = field(default_factory=dict)  # specs of the sums of masked arrays

    def all_have(self, name: str) -> bool:
        return all(name in response.arrays for response in self.by_site.values())

    def array(self, name: str) -> Array:
        """Return an array [M, ...] with one entry per site.

        Masked responses give one entry, their sum, which is NaN for jobs with a number out of the fixed-point range.
        """
        if self.mask_bits is None:
            return np.stack([response.arrays[name] for response in self.by_site.values()])
        total = from_fixed_point(self.total(name), self.mask_bits)
        fits = self.fits().all(axis=0)
        if name in self.sum_specs:
            with report_invalid_sum(self.by_site):
                replace(self.sum_specs[name], shape=total[fits].shape).checked(name, total[fits])
        return np.where(fits.reshape(-1, *[1] * (total.ndim - 1)), total, np.nan)[None]

    def total(self, name: str) -> Array:
        """Return the sum of all sites' masked arrays, in which the masks cancel, as int64 fixed-point numbers."""
        arrays = [response.arrays[name] for response in self.by_site.values()]
        return sum(arrays[1:], arrays[0].copy()).view(np.int64)

    def fits(self) -> Array:
        """Return a mask [M, J], true if the site's numbers are within the fixed-point range."""
        return np.stack([response.arrays["fits"] == 1 for response in self.by_site.values()])


@contextmanager
def report_invalid_sum(sites: Iterable[str]) -> Iterator[None]:
    """Convert BadMessage about a masked sum to a UserError; it names all sites, as the faulty one is unknown."""
    try:
        yield
    except BadMessage as problem:
        names = ", ".join(sites)
        raise UserError(f"sites {names}: invalid response to 'evaluate': in the masked sum {problem}") from problem


def masked_specs(specs: Specs) -> Specs:
    """Return the specs of the arrays as masked fixed-point numbers, and of `fits`, the jobs within range."""
    jobs = next(iter(specs.values())).shape[0]
    integers = {name: ArraySpec(spec.shape, np.uint64, optional=spec.optional) for name, spec in specs.items()}
    return integers | {"fits": ArraySpec((jobs,), np.int64, 0, 1)}


@dataclass(frozen=True, eq=False)
class SiteRows(RemoteRows):
    """Rows of one part (training, held out or test) at the sites that have any."""

    agreement: Agreement = field(kw_only=True)
    names: list[str] = field(kw_only=True)
    part: str = field(kw_only=True)
    loss: Loss = field(kw_only=True)
    last: dict[bytes, Responses] = field(default_factory=dict, kw_only=True)  # last evaluation, by its models
    shares_sums: dict[str, bool] = field(default_factory=dict, kw_only=True)  # by site, set by its first response
    overflowed: set[str] = field(default_factory=set, kw_only=True)  # sites that a warning was logged for

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
        norm of the gradient overflows.
        """
        responses = self._request_evaluation(w, weights, gradient=gradient)
        value, total = ordered_sum(responses.array("value")), np.empty((0, w.shape[1]))
        if gradient:
            with np.errstate(over="ignore", invalid="ignore"):
                total = ordered_sum(responses.array("gradient"))
                value = np.where(np.isfinite((total**2).sum(axis=1)), value, np.inf)
        if not self.loss.classification:
            return Evaluation(value, total, None)
        return Evaluation(value, total, responses.array("hits").sum(axis=0) / self.sizes.sum())

    def site_metrics(self, w: Array) -> list[SiteMetrics]:
        """Return the metrics of the models at every site, or of all sites together if responses are masked."""
        w = np.ascontiguousarray(w, dtype=float)
        masked = self.agreement.sites.mask_bits is not None
        responses = self._request_evaluation(w, self.sizes / self.sizes.sum() if masked else None, spread=True)
        loss = responses.array("value")
        squares = None if self.loss.client_loss else responses.array("squares")
        hits = responses.array("hits") if self.loss.classification else None
        sums = self._sums(responses)
        rows = [int(self.sizes.sum())] if masked else self.sizes.tolist()
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
        return sums, self.sizes if len(sums) == len(self.sizes) else self.sizes.sum(keepdims=True)

    def _request_evaluation(
        self, w: Array, weights: Array | None, gradient: bool = False, spread: bool = False
    ) -> Responses:
        """Return the sites' evaluations of the models; the last ones are kept in `last`."""
        bits, noise, known = self.agreement.sites.mask_bits, self.agreement.sites.noise, self._metric_sums
        parameters = None if noise is None or weights is None else noise.site_parameters(weights, self.sizes)
        head = {
            "jobs": len(w),
            "part": self.part,
            "gradient": gradient,
            "weights": None if weights is None else dict(zip(self.names, weights.tolist(), strict=True)),
            "noise": parameters,
            "sums": known is not None,
            "spread": spread,
        }
        rows = dict(zip(self.names, self.sizes.tolist(), strict=True))

        def expected(name: str) -> Specs:
            specs = self._specs(w, rows[name], gradient, spread, parameters, self.shares_sums.get(name))
            return specs if bits is None else masked_specs(specs)

        by_site = self.agreement.request("evaluate", head, {"w": w}, self.names, expected=expected)
        for name, response in by_site.items():
            if "sums" in expected(name):
                self.shares_sums[name] = "sums" in response.arrays
            if bits is not None:
                self._warn_about_overflow(name, response.arrays["fits"] == 1)
            elif parameters is None:
                with report_invalid_response(name, "evaluate"):
                    self._check_evaluation(name, response, rows[name])
        count = 1 if parameters is None else len(by_site)
        sum_specs = self._specs(w, int(self.sizes.sum()), gradient, spread, parameters, None, count)
        responses = Responses(by_site, bits, sum_specs)
        self.last.clear()
        self.last[w.tobytes()] = responses
        return responses

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

    def _warn_about_overflow(self, name: str, finite: Array) -> None:
        if not finite.all() and name not in self.overflowed:
            self.overflowed.add(name)
            log.warning("site %r: the loss of a model on its %s rows is not finite", name, self.part)

    def _check_sums(self, sums: Array, rows: int) -> None:
        if self._metric_sums is not None and not self._metric_sums.is_valid(sums, rows).all():
            raise BadMessage(f"the array sums is impossible for {rows} rows")

    def _sums(self, responses: Responses) -> Array | None:
        """Return the sums [M, J, k], masked [1, J, k]; None if a site does not send them."""
        if not responses.all_have("sums"):
            return None
        sums = responses.array("sums")
        if responses.mask_bits is not None:
            with report_invalid_sum(self.names):
                self._check_sums(sums[0][np.isfinite(sums[0]).all(axis=1)], int(self.sizes.sum()))
        return sums

    def smoothness(self, seed: int, batch_size: int) -> float:
        if not self.is_exact:
            raise UserError(
                "federation.evaluation_noise: curvature would be sent without noise; set hparams.client_lr to a number"
            )
        head, specs = {"seed": seed, "batch_size": batch_size}, {"largest": ArraySpec((1,), low=0)}
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
