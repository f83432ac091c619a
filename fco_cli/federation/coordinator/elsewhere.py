"""Rows at sites, as the coordinator sees them: what sites tell of models on them, and the sums of that."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from fco_cli.algorithms.fixed_point import as_numbers
from fco_cli.errors import UserError
from fco_cli.federation.coordinator.sites import MOST_BYTES, Agreement, Answer, from_site
from fco_cli.federation.message import LARGEST, ArraySpec, BadMessage
from fco_cli.federation.metrics import SUMS, Sums
from fco_cli.problem.data import Elsewhere
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss
from fco_cli.problem.risk import Evaluation, ordered_sum

log = logging.getLogger(__name__)

Specs = Mapping[str, ArraySpec]
MOST_DEVIATIONS = 40  # of noise; beyond them lies less than 1e-300 of a normal distribution


@dataclass(frozen=True)
class Told:
    """What a site tells of models [J] on its rows of one part."""

    site: str | None  # none: all of them, whose sum is all that masks let through
    rows: int
    loss: Array  # [J], means over the rows
    squares: Array | None  # [J], of the rows' losses; none where a row has no loss of its own
    hits: Array | None  # [J], rows that are right, of classes
    sums: Array | None  # [J, k], of which the loss's metrics are made (metrics.py), if it tells them


@dataclass(frozen=True)
class Answers:
    """The sites' answers to one question, or through masks their sum."""

    by_site: dict[str, Answer]
    mask_bits: int | None
    sum_specs: Specs = field(default_factory=dict)  # of the sums of masked arrays

    def all_have(self, name: str) -> bool:
        return all(name in answer.arrays for answer in self.by_site.values())

    def array(self, name: str) -> Array:
        """[M, ...], an entry for every site; masked there is one, their sum, NaN in jobs where a number was too large
        for it."""
        if self.mask_bits is None:
            return np.stack([answer.arrays[name] for answer in self.by_site.values()])
        total = as_numbers(self.total(name), self.mask_bits)
        fits = self.fits().all(axis=0)
        if name in self.sum_specs:
            with of_sum(self.by_site):
                replace(self.sum_specs[name], shape=total[fits].shape).checked(name, total[fits])
        return np.where(fits.reshape(-1, *[1] * (total.ndim - 1)), total, np.nan)[None]

    def total(self, name: str) -> Array:
        """The sum of all sites' masked arrays, of which the masks are gone: int64, in fixed point."""
        arrays = [answer.arrays[name] for answer in self.by_site.values()]
        return sum(arrays[1:], arrays[0].copy()).view(np.int64)

    def fits(self) -> Array:
        """Whose numbers fit, in which job: [M, J]."""
        return np.stack([answer.arrays["fits"] == 1 for answer in self.by_site.values()])


@contextmanager
def of_sum(sites: Iterable[str]) -> Iterator[None]:
    """Report an invalid sum of masked answers with all sites' names: whose masks do not fit is not known."""
    try:
        yield
    except BadMessage as problem:
        names = ", ".join(sites)
        raise UserError(f"sites {names}: invalid response to 'evaluate': in the masked sum {problem}") from problem


def masked(specs: Specs) -> Specs:
    """Return the specs of the same arrays in fixed point under masks, and of the jobs in which they fit."""
    jobs = next(iter(specs.values())).shape[0]
    hidden = {name: ArraySpec(spec.shape, np.uint64, optional=spec.optional) for name, spec in specs.items()}
    return hidden | {"fits": ArraySpec((jobs,), np.int64, 0, 1)}


@dataclass(frozen=True, eq=False)
class SiteRows(Elsewhere):
    """The rows of one part, training, held out or test, at the sites that have any."""

    agreement: Agreement = field(kw_only=True)
    names: list[str] = field(kw_only=True)
    part: str = field(kw_only=True)
    loss: Loss = field(kw_only=True)
    last: dict[bytes, Answers] = field(default_factory=dict, kw_only=True)  # answers, of the last models
    shares_sums: dict[str, bool] = field(default_factory=dict, kw_only=True)  # by site, from its first answer on
    overflowed: set[str] = field(default_factory=set, kw_only=True)  # sites with a warning

    @property
    def exact(self) -> bool:
        return self.agreement.sites.noise is None

    def risk(self, weights: Array) -> Callable[..., Evaluation]:
        def at(w: Array, gradient: bool = True) -> Evaluation:
            return self._evaluated(np.ascontiguousarray(w, dtype=float), weights, gradient)

        return at

    def _evaluated(self, w: Array, weights: Array, gradient: bool) -> Evaluation:
        """sum_m p_m F_m, its gradient and the share of the rows that are right, from the sites' own, which they have
        weighted: so the sums have the simulation's bits. Where a gradient's norm overflows, so does the value."""
        answers = self._asked(w, weights, gradient=gradient)
        value, total = ordered_sum(answers.array("value")), np.empty((0, w.shape[1]))
        if gradient:
            with np.errstate(over="ignore", invalid="ignore"):
                total = ordered_sum(answers.array("gradient"))
                value = np.where(np.isfinite((total**2).sum(axis=1)), value, np.inf)
        if not self.loss.classification:
            return Evaluation(value, total, None)
        return Evaluation(value, total, answers.array("hits").sum(axis=0) / self.sizes.sum())

    def told(self, w: Array) -> list[Told]:
        """What every site tells of these models beside the gradient; masked, what all together do."""
        w = np.ascontiguousarray(w, dtype=float)
        masked = self.agreement.sites.mask_bits is not None
        answers = self._asked(w, self.sizes / self.sizes.sum() if masked else None, spread=True)
        loss = answers.array("value")
        squares = None if self.loss.together else answers.array("squares")
        hits = answers.array("hits") if self.loss.classification else None
        sums = self._sums(answers)
        rows = [int(self.sizes.sum())] if masked else self.sizes.tolist()
        names = [None] if masked else self.names
        return [
            Told(name, rows[m], loss[m], *(None if one is None else one[m] for one in (squares, hits, sums)))
            for m, name in enumerate(names)
        ]

    def sums(self, w: Array) -> tuple[Array, Array] | None:
        """What every site knows of its scores, [M, J, width], and of how many rows [M], masked of all together; nothing
        where one of them does not tell."""
        if not self.exact:
            return None
        w = np.ascontiguousarray(w, dtype=float)
        answers = self.last.get(w.tobytes()) or self._asked(w, None)
        if (sums := self._sums(answers)) is None:
            return None
        return sums, self.sizes if len(sums) == len(self.sizes) else self.sizes.sum(keepdims=True)

    def _asked(self, w: Array, weights: Array | None, gradient: bool = False, spread: bool = False) -> Answers:
        """The sites' answers about these models; the last ones are kept, for there is more to learn from them."""
        bits, noise, known = self.agreement.sites.mask_bits, self.agreement.sites.noise, self._known
        told = None if noise is None or weights is None else noise.told(weights, self.sizes)
        head = {
            "jobs": len(w),
            "part": self.part,
            "gradient": gradient,
            "weights": None if weights is None else dict(zip(self.names, weights.tolist(), strict=True)),
            "noise": told,
            "sums": known is not None,
            "spread": spread,
        }
        rows = dict(zip(self.names, self.sizes.tolist(), strict=True))

        def expected(name: str) -> Specs:
            specs = self._specs(w, rows[name], gradient, spread, told, self.shares_sums.get(name))
            return specs if bits is None else masked(specs)

        by_site = self.agreement.ask("evaluate", head, {"w": w}, self.names, expected=expected)
        for name, answer in by_site.items():
            if "sums" in expected(name):
                self.shares_sums[name] = "sums" in answer.arrays
            if bits is not None:
                self._warn_of_overflow(name, answer.arrays["fits"] == 1)
            elif told is None:
                with from_site(name, "evaluate"):
                    self._check_evaluation(name, answer, rows[name])
        count = 1 if told is None else len(by_site)
        answers = Answers(by_site, bits, self._specs(w, int(self.sizes.sum()), gradient, spread, told, None, count))
        self.last.clear()
        self.last[w.tobytes()] = answers
        return answers

    @property
    def _known(self) -> Sums | None:
        """The sums for the loss's metrics, if the sites can send them."""
        known = SUMS.get(type(self.loss))
        additive = known is not None and (known.additive or self.agreement.sites.mask_bits is None)
        return known if additive else None

    def _specs(
        self,
        w: Array,
        rows: int,
        gradient: bool,
        spread: bool,
        noise: dict[str, float] | None,
        shares_sums: bool | None,
        sites: int = 1,
    ) -> dict[str, ArraySpec]:
        """Return the arrays of an evaluation on so many rows; of a job that has overflowed `value` is not finite.

        `shares_sums` says whether a site sends sums, which its policy decides once; None: not known yet. With noise,
        every number is at most the clipping norm plus the noise, for each of so many sites.
        """
        number = ArraySpec((len(w),), low=0, finite=False)
        specs = {"value": number}
        if gradient:
            specs["gradient"] = ArraySpec(w.shape, finite=False)
        if self.loss.classification:
            specs["hits"] = ArraySpec((len(w),), low=0, high=rows, whole=True)
        if noise is not None:
            most = sites * (noise["most"] + MOST_DEVIATIONS * noise["deviation"])
            limits = {name: most * (noise["rows"] if name == "hits" else 1) for name in specs}
            return {name: ArraySpec(spec.shape, low=-limits[name], high=limits[name]) for name, spec in specs.items()}
        if self.part != "training":
            if spread and self.loss.together is None:
                specs["squares"] = number
            if self._known is not None and shares_sums is not False:
                optional = shares_sums is None
                specs["sums"] = ArraySpec((len(w), self._known.width), finite=False, optional=optional)
        return specs

    def _check_evaluation(self, name: str, answer: Answer, rows: int) -> None:
        """Raise BadMessage if numbers have overflowed where the loss has not, or sums are not those of so many rows."""
        sound = np.isfinite(answer.arrays["value"])
        for array, values in answer.arrays.items():
            if not (np.abs(values[sound]) <= LARGEST).all():
                raise BadMessage(f"the array {array} must have numbers up to {LARGEST:g} where the loss is finite")
        if "sums" in answer.arrays:
            self._check_sums(answer.arrays["sums"][sound], rows)
        self._warn_of_overflow(name, sound)

    def _warn_of_overflow(self, name: str, sound: Array) -> None:
        if not sound.all() and name not in self.overflowed:
            self.overflowed.add(name)
            log.warning("site %r: the loss of a model on its %s rows is not finite", name, self.part)

    def _check_sums(self, sums: Array, rows: int) -> None:
        if self._known is not None and not self._known.is_valid(sums, rows).all():
            raise BadMessage(f"the array sums is not possible for {rows} rows")

    def _sums(self, answers: Answers) -> Array | None:
        """[M, J, k], or masked [1, J, k]; None if a site does not send them."""
        if not answers.all_have("sums"):
            return None
        sums = answers.array("sums")
        if answers.mask_bits is not None:
            with of_sum(self.names):
                self._check_sums(sums[0][np.isfinite(sums[0]).all(axis=1)], int(self.sizes.sum()))
        return sums

    def smoothness(self, seed: int, batch_size: int) -> float:
        if not self.exact:
            raise UserError(
                "federation.evaluation_noise: the sites' curvature is not covered; give hparams.client_lr a number"
            )
        head, specs = {"seed": seed, "batch_size": batch_size}, {"largest": ArraySpec((1,), low=0)}
        answers = self.agreement.ask("curvature", head, who=self.names, expected=lambda _: specs)
        return max(float(answer.arrays["largest"][0]) for answer in answers.values())

    def jobs_at_once(self, broadcast: int, sent: int, size: int) -> int:
        """All sites' answers come in one message; in an evaluation each is a gradient."""
        vectors = max(broadcast, len(self.names) * max(sent, 1))
        one = vectors * size * np.dtype(float).itemsize
        if one > MOST_BYTES:
            allowed = f"a message can have {MOST_BYTES / 1e9:.1f} GB"
            raise UserError(f"federation: {vectors} vectors of {size:,} parameters are {one / 1e9:.1f} GB; {allowed}")
        return MOST_BYTES // one
