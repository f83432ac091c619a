"""Rows at sites, as the coordinator sees them: what sites tell of models on them, and the sums of that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from fco_cli.algorithms.fixed_point import as_numbers
from fco_cli.errors import UserError
from fco_cli.federation.message import Message
from fco_cli.federation.metrics import SUMS
from fco_cli.federation.sites import MOST_BYTES, Agreement, from_site
from fco_cli.problem.data import Elsewhere
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss
from fco_cli.problem.risk import Evaluation, ordered_sum


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

    by_site: dict[str, Message]
    mask_bits: int | None

    def all_have(self, name: str) -> bool:
        return all(name in answer.arrays for answer in self.by_site.values())

    def array(self, name: str, shape: tuple[int, ...]) -> Array:
        """[M, *shape], an entry for every site; masked there is one, their sum, NaN in jobs where a number was too
        large for it."""
        if self.mask_bits is not None:
            total = as_numbers(self.total(name, shape), self.mask_bits)
            return np.where(self.fits(shape[0]).all(axis=0).reshape(-1, *[1] * (total.ndim - 1)), total, np.nan)[None]
        parts = []
        for site, answer in self.by_site.items():
            with from_site(site):
                parts.append(answer.wanted(name, shape, float))
        return np.stack(parts)

    def total(self, name: str, shape: tuple[int, ...]) -> Array:
        """The sum of all sites' masked arrays, of which the masks are gone: int64, in fixed point."""
        total = np.zeros(shape, np.uint64)
        for site, answer in self.by_site.items():
            with from_site(site):
                total += answer.wanted(name, shape, np.uint64)
        return total.view(np.int64)

    def fits(self, jobs: int) -> Array:
        """Whose numbers fit, in which job: [M, J]."""
        parts = []
        for site, answer in self.by_site.items():
            with from_site(site):
                parts.append(answer.wanted("fits", (jobs,), np.int64) == 1)
        return np.stack(parts)


@dataclass(frozen=True, eq=False)
class SiteRows(Elsewhere):
    """The rows of one part, training, held out or test, at the sites that have any."""

    agreement: Agreement = field(kw_only=True)
    names: list[str] = field(kw_only=True)
    part: str = field(kw_only=True)
    loss: Loss = field(kw_only=True)
    last: dict[bytes, Answers] = field(default_factory=dict, kw_only=True)  # answers, of the last models

    @property
    def exact(self) -> bool:
        return self.agreement.sites.noise is None

    def risk(self, weights: Array) -> Callable[..., Evaluation]:
        def at(w: Array, gradient: bool = True) -> Evaluation:
            return self._evaluated(np.ascontiguousarray(w, dtype=float), weights, gradient)

        return at

    def _evaluated(self, w: Array, weights: Array, gradient: bool) -> Evaluation:
        """sum_m p_m F_m, its gradient and the share of the rows that are right, from the sites' own, which they have
        weighted: so the sums have the simulation's bits."""
        answers = self._asked(w, weights, gradient=gradient)
        value = ordered_sum(answers.array("value", (len(w),)))
        total = ordered_sum(answers.array("gradient", w.shape)) if gradient else np.empty((0, w.shape[1]))
        if not self.loss.classification:
            return Evaluation(value, total, None)
        return Evaluation(value, total, answers.array("hits", (len(w),)).sum(axis=0) / self.sizes.sum())

    def told(self, w: Array) -> list[Told]:
        """What every site tells of these models beside the gradient; masked, what all together do."""
        w, jobs, known = np.ascontiguousarray(w, dtype=float), (len(w),), SUMS.get(type(self.loss))
        masked = self.agreement.sites.mask_bits is not None
        answers = self._asked(w, self.sizes / self.sizes.sum() if masked else None, spread=True)
        loss = answers.array("value", jobs)
        squares = None if self.loss.together else answers.array("squares", jobs)
        hits = answers.array("hits", jobs) if self.loss.classification else None
        sums = None if known is None or not answers.all_have("sums") else answers.array("sums", (*jobs, known.width))
        rows = [int(self.sizes.sum())] if masked else self.sizes.tolist()
        names = [None] if masked else self.names
        return [
            Told(name, rows[m], loss[m], *(None if one is None else one[m] for one in (squares, hits, sums)))
            for m, name in enumerate(names)
        ]

    def sums(self, w: Array, width: int) -> tuple[Array, Array] | None:
        """What every site knows of its scores, [M, J, width], and of how many rows [M], masked of all together; nothing
        where one of them does not tell."""
        if not self.exact:
            return None
        w = np.ascontiguousarray(w, dtype=float)
        answers = self.last.get(w.tobytes()) or self._asked(w, None)
        if not answers.all_have("sums"):
            return None
        sums = answers.array("sums", (len(w), width))
        return sums, self.sizes if len(sums) == len(self.sizes) else self.sizes.sum(keepdims=True)

    def _asked(self, w: Array, weights: Array | None, gradient: bool = False, spread: bool = False) -> Answers:
        """The sites' answers about these models; the last ones are kept, for there is more to learn from them."""
        bits, noise, known = self.agreement.sites.mask_bits, self.agreement.sites.noise, SUMS.get(type(self.loss))
        head = {
            "jobs": len(w),
            "part": self.part,
            "gradient": gradient,
            "weights": None if weights is None else dict(zip(self.names, weights.tolist(), strict=True)),
            "noise": None if noise is None or weights is None else noise.told(weights, self.sizes),
            "sums": known is not None and (known.additive or bits is None),
            "spread": spread,
        }
        answers = Answers(self.agreement.ask("evaluate", head, {"w": w}, self.names), bits)
        self.last.clear()
        self.last[w.tobytes()] = answers
        return answers

    def smoothness(self, seed: int, batch_size: int) -> float:
        if not self.exact:
            raise UserError(
                "federation.evaluation_noise: the sites' curvature is not covered; give hparams.client_lr a number"
            )
        answers = self.agreement.ask("curvature", {"seed": seed, "batch_size": batch_size}, who=self.names)
        largest = 0.0
        for name, answer in answers.items():
            with from_site(name):
                largest = max(largest, float(answer.wanted("largest", (1,), float)[0]))
        return largest

    def jobs_at_once(self, broadcast: int, sent: int, size: int) -> int:
        """All sites' answers come in one message; in an evaluation each is a gradient."""
        vectors = max(broadcast, len(self.names) * max(sent, 1))
        one = vectors * size * np.dtype(float).itemsize
        if one > MOST_BYTES:
            allowed = f"a message can have {MOST_BYTES / 1e9:.1f} GB"
            raise UserError(f"federation: {vectors} vectors of {size:,} parameters are {one / 1e9:.1f} GB; {allowed}")
        return MOST_BYTES // one
