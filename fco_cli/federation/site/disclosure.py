"""Disclosure control of a site: every answer passes `Disclosure`, which applies the policy and counts in the ledger.

Kinds of answers that are not in `ANSWERS`, keys that it does not list and arrays whose numbers were not counted are
refused.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from fco_cli.algorithms.transforms import Transform
from fco_cli.data.format import Features, FederatedData, shown
from fco_cli.data.preparation import OTHER
from fco_cli.data.splits import Parts
from fco_cli.data.statistics import Summary
from fco_cli.federation.message import Message
from fco_cli.federation.policy import POLICY_FILE, Policy, Refusal, plural
from fco_cli.federation.schema import Noise
from fco_cli.federation.sharing import MIN_SITES
from fco_cli.federation.site.cells import (
    KnownCells,
    are_record_numbers,
    are_steep,
    check_rare_values,
    curvature_weights,
    grid_steps,
    merge_rare,
    merged_bins,
    rounded_extremes,
    smallest_cross_cell,
)
from fco_cli.federation.site.ledger import Ledger, limits_of
from fco_cli.problem.data import ClientData, Rows
from fco_cli.problem.layout import Array
from fco_cli.problem.losses.base import Loss
from fco_cli.problem.losses.regression import Huber
from fco_cli.problem.models.linear import Model
from fco_cli.problem.risk import scores_of

ANSWERS: dict[str, frozenset[str]] = {  # keys of the answers' heads, by kind
    "describe": frozenset(("version", "code", "digest", "features", "names_digest", "names", "classes", "split")),
    "prepare": frozenset(("fits", "outputs", "estimates", "tables", "min_cell")),
    "load": frozenset(("known",)),
    "terms": frozenset(("summary",)),
    "key": frozenset(("key",)),
    "keys": frozenset(("offer",)),
    "offer": frozenset(("offer",)),
    "unmask": frozenset(("opened",)),
    **dict.fromkeys(
        (
            "summarize",
            "count",
            "moments",
            "apply",
            "evaluate",
            "hessian",
            "smoothness",
            "risk_table",
            "survival",
            "stack",
            "train",
            "own",
            "save",
            "forget",
        ),
        frozenset[str](),
    ),
}
MIN_ROW_NOISE = 1.0  # noise multiplier of sums of clipped rows, if differences are refused and min_noise is 0
GRID_PARTS = 8  # grid lines of a column per standard deviation, for the edges of its histograms


class Disclosure:
    """Rules of one site in one session; `sites` is the least number of sites in a masked sum."""

    def __init__(self, policy: Policy, folder: Path, data: FederatedData, secret: bytes) -> None:
        self.policy, self.data, self.secret = policy, data, secret
        values = len(data.y) * (data.x.shape[1] + 1)  # with the labels
        self.ledger, self.limits = Ledger(folder, values, policy.flush), limits_of(policy, values)
        self.charged, self.sites = 0, 1
        self._cells = KnownCells(policy.min_rows)

    def start(self, sites: int) -> None:
        """Start a request."""
        self.charged, self.sites = 0, sites

    def charge(self, numbers: int, **amounts: int) -> None:
        """Count numbers and models (`rounds`, `evaluations`, `counts`) that are about to be answered."""
        for name, amount in amounts.items():
            if name in ("rounds", "evaluations"):
                self.policy.check_limit("max_models_per_request", amount, f"{amount:,} models of one request")
        counted = amounts | {"numbers": numbers / self.sites, "steep_models": 0}
        self.ledger.charge(self.limits, counted | ({"overflows": 0} if self.sites > 1 else {}))
        self.charged += numbers

    def check_answer(self, kind: str, reply: Message) -> None:
        """Raise Refusal unless the kind, the keys and the numbers of an answer are covered by these rules."""
        known = ANSWERS.get(kind)
        numbers = sum(values.size for values in reply.arrays.values())
        if known is None or not reply.head.keys() <= known or numbers > self.charged:
            raise Refusal(f"answers to {kind!r} are not covered by the site's disclosure control")

    def charge_overflows(self, fits: Array) -> None:
        """Count masked models with numbers out of range, which the sum over the sites discloses.

        Above the limit, all masked requests are refused, since a refusal of some would report it as well.
        """
        if count := int((~fits).sum()):
            self.ledger.charge({"overflows": (None, "")}, {"overflows": count})

    # Rows.

    def split_seed(self, seed: int) -> int:
        """Return the seed of the split and of the folds: the site's own, not that of the analyst's request."""
        return self._own_seed("split") if self.policy.site_splits else seed

    def batch_seed(self, seed: int, *shape: int | str | None) -> int:
        """Return the seed of batches: a secret function of the analyst's and of their sizes."""
        return self._own_seed(f"batches {seed} {shape}") if self.policy.site_splits else seed

    def _own_seed(self, purpose: str) -> int:
        digest = hmac.new(self.secret, f"fco {purpose}".encode(), hashlib.sha256).digest()
        return int.from_bytes(digest[:8], "big") >> 1

    def check_description(self) -> None:
        """Raise Refusal if the file has too few rows, rare classes or a column of identifiers."""
        data, policy = self.data, self.policy
        policy.check_rows(len(data.y), "a file")
        if policy.hide_small_cells and data.classes is not None:
            policy.check_rows(int(np.bincount(data.y.astype(int)).min()), "a class of the labels")
        if policy.max_categories_per_row is None:
            return
        self._check_record_numbers()
        for feature, levels in data.levels.items():
            present = int((~np.isnan(data.x[:, feature])).sum())
            if len(levels) > policy.max_categories_per_row * present:
                name = shown(data.feature_names[feature]) if policy.share_names else f"x{feature}"
                raise Refusal(
                    f"column {name!r}: {len(levels)} categories in {present} rows are identifiers, which are not sent "
                    f"({POLICY_FILE}: max_categories_per_row); drop the column at the site: fco-federate join --drop"
                )

    def _check_record_numbers(self) -> None:
        """Raise Refusal if a column of numbers looks like record numbers and the site does not keep it."""
        names, kept = self.data.feature_names, self.policy.keep_numbers or []
        for feature in sorted(set(range(len(names))) - self.data.levels.keys()):
            if names[feature] not in kept and are_record_numbers(np.asarray(self.data.x[:, feature], float)):
                name = shown(names[feature]) if self.policy.share_names else f"x{feature}"
                raise Refusal(
                    f"column {name!r}: looks like record numbers, which are not sent; drop the column at the site "
                    f"(fco-federate join --drop) or, if it is a measurement, keep it ({POLICY_FILE}: keep_numbers)"
                )

    def check_parts(self, parts: Parts, fold: bool) -> None:
        """Raise Refusal if parts, or their differences to earlier ones, are too small; record them in the ledger."""
        remedy = "use fewer path.folds" if fold else "change task.holdout_fraction or task.test_fraction"
        for subject, rows in zip(("training rows", "held-out rows", "test rows"), parts, strict=True):
            if rows.any():
                self.policy.check_rows(int(rows.sum()), f"a part ({subject})", remedy)
        if self.policy.refuse_differences or self.policy.max_subsets or self.policy.max_subsets_per_row:
            hashes = self.row_hashes
            everything = np.ones(len(hashes), dtype=bool)  # sums over the parts add up to those over the whole file
            self.ledger.add_subsets(
                [np.sort(hashes[rows]) for rows in (*parts, everything)], np.sort(hashes), self.policy
            )

    @cached_property
    def row_hashes(self) -> Array:
        """Keyed hashes [N] of the rows; equal rows are numbered."""
        seen: dict[bytes, int] = {}
        hashes = np.empty(len(self.data.y), np.uint64)
        key = hashlib.sha256(self.secret).digest()
        for i, y in enumerate(np.asarray(self.data.y, float)):
            row = np.asarray(self.data.x[i], float).tobytes() + y.tobytes()
            seen[row] = seen.get(row, -1) + 1
            digest = hashlib.blake2b(row + seen[row].to_bytes(8, "big"), digest_size=8, key=key)
            hashes[i] = int.from_bytes(digest.digest(), "big")
        return hashes

    def check_group(self, names: list[str], needed: int) -> None:
        """Raise Refusal if masked sums of this group, or of a part of it, could isolate a site."""
        if not self.policy.fixed_group:
            return
        if needed < len(names):
            rule = f"the site's policy allows sums of all sites only ({POLICY_FILE}: fixed_group)"
            raise Refusal(
                f"masks: sums of {needed} of {len(names)} sites requested; {rule}; use federation.min_sites=null"
            )
        self.ledger.add_group(names, MIN_SITES)

    # Statistics of columns.

    def check_columns(self, table: Features) -> None:
        """Raise Refusal if sums of a column of the training rows would be about few rows."""
        self.check_noise_free("summaries of columns")
        for name, count in zip(table.names, (~np.isnan(table.x)).sum(axis=0).tolist(), strict=True):
            self.policy.check_rows(count, f"a column ({shown(name)}) with values")
        if self.policy.hide_small_cells:
            check_rare_values(table, self.policy)

    def released_summary(self, summary: Summary, table: Features) -> Summary:
        """Return the summary as it may be sent, and count its numbers."""
        self.check_columns(table)
        if self.policy.hide_small_cells:
            least = self.policy.min_rows
            categories = {name: merge_rare(counts, least) for name, counts in summary.categories.items()}
            low, high = rounded_extremes(table.x, summary, least)
            summary = replace(summary, categories=categories, low=low, high=high)
        cells = sum(map(len, summary.categories.values()))
        self.charge(4 * len(summary.columns) - 3 * len(summary.categories) + cells)
        return summary

    def merge_levels(self, table: Features, training: Features) -> Features:
        """Return a table in which categories that are rare in the training rows are named `other`."""
        if not self.policy.hide_small_cells or not table.levels:
            return table
        known = Summary.of("", training).categories
        kept = {name: merge_rare(counts, self.policy.min_rows).keys() for name, counts in known.items()}
        levels = {
            k: [level if level in kept[table.names[k]] else OTHER for level in names]
            for k, names in table.levels.items()
        }
        return replace(table, levels=levels)

    def histogram_edges(self, edges: Array, x: Array | None = None) -> Array:
        """Return the edges, rounded up to a grid of the site's own if small cells are hidden; `x`: of other columns."""
        self.check_noise_free("histograms of columns")
        if not self.policy.hide_small_cells:
            return edges
        with np.errstate(invalid="ignore"):
            values = np.asarray(self.data.x if x is None else x, float)
            step = grid_steps(np.nanstd(values, axis=0))[:, None] / GRID_PARTS
        return np.ceil(edges / step) * step

    def released_counts(self, counts: Array, rows: Array | int) -> Array:
        """Return counts of rows; if small cells are hidden, counts below min_rows are 0, or all rows."""
        if not self.policy.hide_small_cells:
            return counts
        least = self.policy.min_rows
        return np.where(counts < least, 0, np.where(rows - counts < least, rows, counts))

    def released_events(self, y: Array) -> int | None:
        """Return the number of events among labels, None if the policy hides it; count it in the ledger."""
        events, policy = int((y > 0).sum()), self.policy
        is_small = min(events, len(y) - events) < policy.min_rows and 0 < events < len(y)
        if policy.min_noise > 0 or (policy.hide_small_cells and is_small):
            return None
        self.charge(1)
        return events

    def released_histogram(self, counts: Array) -> Array:
        """Return histograms [J, bins] with neighboring bins merged until they hold min_rows rows."""
        if not self.policy.hide_small_cells:
            return counts
        return np.stack([merged_bins(one, self.policy.min_rows) for one in counts])

    # Models.

    def check_batches(self, batch_size: int, rows: int) -> None:
        """Raise Refusal if batches would have fewer than min_rows rows."""
        self.policy.check_rows(min(batch_size, rows), "a batch", "raise hparams.batch_size")

    def check_steps(self, steps: int) -> None:
        """Raise Refusal if a round would have more local steps than the policy allows."""
        self.policy.check_limit("max_local_steps", steps, f"{steps:,} local steps of one round")

    def check_visits(self, order: Array, edges: Array, rows: int) -> None:
        """Raise Refusal if one batch has few rows, or if some rows are visited more often: answers would be theirs."""
        if not self.policy.refuse_differences:
            return
        remedy = "use a hparams.batch_size of at least the site's training rows"
        self.policy.check_rows(int(np.diff(edges).min()), "a last batch", remedy)
        if np.ptp(np.bincount(order, minlength=rows)):
            rule = f"the site's policy allows equal numbers ({POLICY_FILE}: refuse_differences)"
            raise Refusal(f"unequal numbers of visits of rows requested; {rule}; {remedy}")

    def check_curvature(self, loss: Loss, model: Model, data: ClientData, w: Array) -> None:
        """Raise Refusal if few rows, of all or of a cell, determine a model's curvature (`cells.are_steep`).

        Answers about two similar models differ by sums over rows with these weights: a steep model, whose scores are
        far from 0 but for a few rows, would isolate these. Refusals are counted, since they disclose information too.
        """
        if not self.policy.refuse_differences:
            return
        with np.errstate(all="ignore"):
            weights = curvature_weights(loss, scores_of(model, data, w).astype(float))
            steep = int(are_steep(weights, self._cells.of(data), self.policy.min_rows).sum())
        if steep:
            self.ledger.charge({"steep_models": (None, "")}, {"steep_models": steep})
            limit = f"the site's policy allows {self.policy.min_rows} or more ({POLICY_FILE}: min_rows)"
            raise Refusal(f"a model with the curvature of few rows requested; {limit}; lower the learning rate")

    def check_smooth(self, loss: Loss) -> None:
        """Raise Refusal for a loss with kinks: exact answers about models on both sides of a kink isolate its row."""
        if self.policy.refuse_differences and isinstance(loss, Huber):
            rule = f"the site's policy allows losses without kinks ({POLICY_FILE}: refuse_differences)"
            raise Refusal(f"exact sums of the {loss.name} loss requested; {rule}; use task.loss=squared")

    def check_parameters(self, parameters: int, rows: int, remedy: str) -> None:
        """Raise Refusal if an answer about a Hessian or Gram matrix has too many parameters per row."""
        limit = self.policy.max_parameters_per_row
        if limit is not None and parameters > limit * rows:
            allowed = f"{int(limit * rows)} for {rows} rows ({POLICY_FILE}: max_parameters_per_row)"
            raise Refusal(
                f"curvature of a model with {parameters} parameters requested; the site's policy allows {allowed}; "
                f"{remedy}"
            )

    def check_cross_cells(self, x: Rows, remedy: str) -> None:
        """Raise Refusal if an entry of a Hessian or Gram matrix would be about few rows."""
        if self.policy.hide_small_cells:
            self.policy.check_rows(smallest_cross_cell(x), "a cross cell of two columns, in a Hessian,", remedy)

    def max_parameters(self, rows: int, x: Array) -> int | None:
        """Return the largest number of parameters of a Hessian of columns x that the site sends; None: no limit."""
        refused = self.policy.messages is not None and "hessian" not in self.policy.messages
        if refused or self.policy.min_noise > 0:
            return 0
        if self.policy.hide_small_cells and rows > 0 and smallest_cross_cell(x) < self.policy.min_rows:
            return 0
        limit = self.policy.max_parameters_per_row
        return None if limit is None else int(limit * rows)

    # Noise.

    @property
    def min_row_noise(self) -> float:
        """Least noise multiplier of sums of clipped rows; 0 if the policy has none.

        Clipped rows have kinks: without noise, two models on both sides of a row's kink isolate that row. Noise
        replaces the rules about batches and parameters only if the policy has a least multiplier.
        """
        return self.policy.min_noise or (MIN_ROW_NOISE if self.policy.refuse_differences else 0.0)

    def check_noise_free(self, subject: str) -> None:
        """Raise Refusal for answers that never have noise if the policy requires noise."""
        if self.policy.min_noise > 0:
            raise Refusal(f"{subject} without noise requested; {self._noise_rule()}")

    def check_multiplier(self, transform: Transform, multipliers: Array | None) -> None:
        """Raise Refusal if the transform of messages has less noise in some job than the policy requires."""
        self.policy.check("transforms", transform.name)
        least = self.min_row_noise if transform.protects_rows else self.policy.min_noise
        if least > 0 and (multipliers is None or multipliers.min() < least):
            multiplier = "none" if multipliers is None else f"{multipliers.min():g}"
            rule = self._noise_rule(by_row=transform.protects_rows)
            raise Refusal(f"transform {transform.name} with noise multiplier {multiplier} requested; {rule}")

    def check_shares(self, shares: int) -> None:
        """Raise Refusal if noise is divided among more sites than those of a sum that do not collude."""
        if shares > 1 and shares > (most := self.sites - self.policy.colluding_sites):
            raise Refusal(
                f"noise shared by {shares} sites requested; the site's policy allows {max(most, 1)} in a sum of "
                f"{plural(self.sites, 'site')} ({POLICY_FILE}: colluding_sites); change transform.noise_shares"
            )

    def check_message_noise(self, deviation: Array | None, sensitivity: Array) -> None:
        """Raise Refusal if this site's share of the noise is too small for the norm of its weighted message [J]."""
        if self.policy.min_noise == 0:
            return
        least = self.policy.min_noise * sensitivity / math.sqrt(self.sites)
        if deviation is None or (deviation < least * (1 - 1e-9)).any():
            raise Refusal(
                f"messages without noise of the sites requested; {self._noise_rule()}; use federation.masks=true"
            )

    def check_moments_noise(self, multiplier: float) -> None:
        """Raise Refusal if noisy moments have less noise than the policy requires."""
        if multiplier < self.min_row_noise:
            rule = self._noise_rule(by_row=True)
            raise Refusal(f"moments with noise multiplier {multiplier:.3g} requested; {rule}")

    def check_evaluation_noise(self, noise: Noise | None) -> None:
        """Raise Refusal if an evaluation has less noise than the policy requires."""
        multiplier, by_row = 0.0, noise is not None and noise.by_row
        if noise is not None:  # the deviation of noise that hides single rows is that of all shares together
            self.check_shares(noise.shares)
            multiplier = noise.deviation * (1.0 if noise.by_row else math.sqrt(self.sites)) / noise.most
        if multiplier < (self.min_row_noise if by_row else self.policy.min_noise) * (1 - 1e-9):
            remedy = "raise federation.evaluation_noise" if by_row else "use federation.evaluation_noise with masks"
            rule = self._noise_rule(by_row)
            raise Refusal(f"an evaluation with noise multiplier {multiplier:.3g} requested; {rule}; {remedy}")

    def _noise_rule(self, by_row: bool = False) -> str:
        least, key = self.policy.min_noise, "min_noise"
        if by_row and not least:
            least, key = self.min_row_noise, "refuse_differences"
        return f"the site's policy allows {least:g} or more ({POLICY_FILE}: {key})"
