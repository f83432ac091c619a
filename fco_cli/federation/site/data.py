"""Requests about a site's rows: description, split, preparation, and evaluation of models."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import fco_cli
from fco_cli.data.exact_sums import category_names, column_sums
from fco_cli.data.preparation import Preparation
from fco_cli.data.ranges import clipped_sums, largest_norm
from fco_cli.data.statistics import MEDIAN_BINS, count_up_to_edges
from fco_cli.federation.message import (
    Arrays,
    ArraySpec,
    BadMessage,
    Message,
    names_digest,
    parse_dataclass,
    read_arrays,
    reason_of,
)
from fco_cli.federation.policy import POLICY_FILE, Policy, Refusal
from fco_cli.federation.schema import Apply, Count, FitTerms, Fold, NoisyMoments, Prepare, Request, Summarize
from fco_cli.federation.sharing import EXACT
from fco_cli.federation.site.agreed import WEIGHTINGS, AgreedFits
from fco_cli.federation.site.disclosure import Disclosure
from fco_cli.federation.site.isolation import KnownModels
from fco_cli.federation.site.preparations import check_offset, check_preparation, check_units, with_own_fills
from fco_cli.federation.site.rows import Fit, SiteFile, Split
from fco_cli.federation.site.spans import columns_of
from fco_cli.federation.site.terms import SiteTerms, check_terms
from fco_cli.memory_limit import require_memory
from fco_cli.problem.data import FoldAssignment, HeldOut
from fco_cli.problem.losses import Loss
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.streams import secret_noise
from fco_cli.tasks.tabular import Custom

PARTS = ("training", "held_out", "test")  # of the rows

# Packages whose code affects results.
PACKAGES = ("kernels", "problem", "algorithms", "data", "tasks", "simulation", "federation")
LOCAL_KEYS = (
    "name",
    "path",
    "strength",
    "radius",
    "model",
    "exact_sums",
)  # keys of the task that are not sent to sites


@cache
def code_digest() -> str:
    """Return the digest of the sources that must be equal at all parties for bitwise equal results."""
    package = Path(fco_cli.__file__).parent
    sources = sorted(path for name in PACKAGES for path in (package / name).rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]


def sent_task(task: Custom) -> dict[str, Any]:
    """Return the keys of the task that are sent to sites."""
    return {key.name: getattr(task, key.name) for key in fields(task) if key.name not in LOCAL_KEYS}


class SiteData:
    """Rows of one site in one session: split into the fits of a run and prepared on request."""

    def __init__(self, name: str, file: SiteFile, policy: Policy, disclosure: Disclosure) -> None:
        self.name, self.file, self.policy, self.disclosure = name, file, policy, disclosure
        self.task: Custom | None = None
        self.terms, self.models = SiteTerms(self), KnownModels(disclosure)
        self.fits: list[Fit] = []  # of the last `prepare`
        self.dtype = "float64"
        self.outputs = 1  # scores per row that the site's labels need
        self.agreed: AgreedFits | None = None  # if responses are masked
        self.weightings = set(WEIGHTINGS)  # possible ones of masked sums over training rows

    def describe(self, request: Request) -> Message:
        """Return the version of the software, and the features, classes and parts of the file."""
        data = self.file.data
        self.disclosure.check_description()
        classes = None if data.classes is None else data.classes.tolist()
        if classes is not None and not self.policy.share_names:
            raise Refusal("the site's labels are class names, but it does not share names (site.yaml: share_names)")
        return Message("", {
            "version": fco_cli.__version__,
            "code": code_digest(),
            "digest": self.file.digest,
            "features": len(data.feature_names),
            "names_digest": names_digest(data.feature_names),
            "names": data.feature_names if self.policy.share_names else None,
            "classes": classes,
            "split": [] if data.split is None else np.unique(data.split).tolist(),
        })  # fmt: skip

    def prepare(self, request: Prepare) -> Message:
        """Split the rows into fits; return their numbers and summaries for the common preparations."""
        unused: dict[str, Any] = {"name": "custom", "path": "", "strength": 0.0, "radius": 1.0}
        self.task, self.fits, self.agreed = None, [], None
        task = parse_dataclass(Custom, request.task | unused, "task")
        if task.loss == "auto":
            raise Refusal(
                "task.loss: got auto, must be the name of a loss (logistic, squared, ...) with federation=flare"
            )
        self.policy.check("losses", task.loss)
        if self.policy.refuse_differences and request.dtype != "float64":  # two centers would round single rows
            rule = f"the site's policy allows float64 ({POLICY_FILE}: refuse_differences)"
            raise Refusal(f"rows as {request.dtype} requested; {rule}; use hparams.dtype=float64")
        classes = request.classes
        if self.name not in request.sites:
            raise Refusal("the run does not include this site")
        seed = self.disclosure.split_seed(request.seed)
        client = 0 if self.policy.site_splits else request.sites.index(self.name)
        split = self.file.split(task, seed, client, classes, self.policy.share_names, request.keeps_offset)
        outputs = task.configured_loss().outputs(self.file.data.y, None if classes is None else len(classes))
        fits = [self._fit(split, fold, request.sites) for fold in request.folds]
        answers = []
        for fit, fold in zip(fits, request.folds, strict=True):
            self.disclosure.check_parts(fit.split.parts, fold is not None)
            if (offset := task.offset_expression()) is not None:
                check_offset(offset, self.file.data.take(fit.split.parts.training).raw, self.disclosure)
            answers.append(self._row_counts(fit.split, task, request))
        self.task, self.fits, self.dtype, self.outputs = task, fits, request.dtype, outputs
        self._loss = task.configured_loss()
        shared = {"estimates": self.policy.share_estimates, "tables": self.policy.shares_tables}
        return Message("", {"fits": answers, "outputs": outputs, "min_cell": self.policy.min_rows, **shared})

    def _fit(self, split: Split, fold: Fold | None, sites: list[str]) -> Fit:
        """Return the rows of a fold; those of `split` without one."""
        index, trains = sites.index(self.name), np.ones(len(sites), bool)
        if fold is not None:
            deal = FoldAssignment(**msgspec.structs.asdict(fold.deal))
            trains = HeldOut(deal, fold.number).trains(len(sites))
            own = index
            if deal.by == "rows":
                deal = replace(deal, seed=self.disclosure.split_seed(deal.seed))
                own = 0 if self.policy.site_splits else index
            split = split.hold_out(HeldOut(deal, fold.number), own, len(sites))
        return Fit(split, int(trains[:index].sum()), int(trains.sum()))

    def _row_counts(self, split: Split, task: Custom, request: Prepare) -> dict[str, Any]:
        """Return the numbers of rows of a fit and, for its preparation, a summary or names of categories."""
        training, held_out, test = (int(rows.sum()) for rows in split.parts)
        summary = names = None
        if not request.summary:
            if task.ranges is None:
                split.check_needs_no_preparation()
        elif training and request.exact:
            table = split.training_table()
            self.disclosure.check_columns(table)
            names = category_names([self.disclosure.merge_levels(table, table)])
        elif training:
            exact = split.summary(self.name)
            if not np.isfinite([exact.moments.mean, exact.moments.deviations]).all():
                raise Refusal("the moments of the site's values overflow; rescale the columns")
            summary = self.disclosure.released_summary(exact, split.training_table()).plain()
        return {
            "training": training, "held_out": held_out, "test": test, "summary": summary, "categories": names,
            "max_parameters": self._max_parameters(split, task), "events": self._held_out_events(split, task),
        }  # fmt: skip

    def _max_parameters(self, split: Split, task: Custom) -> int | None:
        """Return the largest number of parameters of a Hessian that the site sends for a fit; None: no limit."""
        table = split.training_table()
        columns = np.zeros((len(table.x), 0))
        if self.policy.hide_small_cells and len(table.x):
            columns = columns_of(self.disclosure.merge_levels(table, table), task.flag_missing)
        return self.disclosure.max_parameters(len(table.x), columns)

    def _held_out_events(self, split: Split, task: Custom) -> int | None:
        """Return the number of events among the held-out rows of a fit, None if it is not shared."""
        if not task.configured_loss().censored_labels or not split.parts.validation.any():
            return None
        return self.disclosure.released_events(split.data.y[split.parts.validation])

    def summarize(self, request: Summarize, arrays: Arrays) -> Message:
        """Return sums of the training rows' columns around a center, for preparations from sums over the sites."""
        if request.terms is not None:
            return self._summarize_terms(request.terms, arrays)
        if len(request.categories) != len(self.fits):
            raise Refusal("the rows are not split into these fits")
        tables = {k: fit.split.training_table() for k, fit in enumerate(self.fits) if fit.split.parts.training.any()}
        centers = read_arrays(arrays, {
            f"center.{k}": ArraySpec((len(fit.split.names),)) for k, fit in enumerate(self.fits)
        })  # fmt: skip
        sums = {}
        for k, table in tables.items():
            if not request.categories[k].keys() <= set(table.names):
                raise BadMessage("categories: must be those of the site's columns")
            self.disclosure.check_columns(table)
            merged = self.disclosure.merge_levels(table, table)
            sums[f"{EXACT}.{k}"] = column_sums(merged, centers[f"center.{k}"], request.categories[k])
        self.disclosure.charge(sum(map(len, sums.values())))
        return Message("", arrays=sums)

    def _summarize_terms(self, terms: FitTerms, arrays: Arrays) -> Message:
        """Return sums of the terms of one fit around a center."""
        table = self.terms.table(terms.fit, terms.preparation)
        center = read_arrays(arrays, {f"center.{terms.fit}": ArraySpec((table.x.shape[1],))})[f"center.{terms.fit}"]
        self.disclosure.check_columns(table)
        sums = column_sums(table, center, {})
        self.disclosure.charge(len(sums))
        return Message("", arrays={f"{EXACT}.{terms.fit}": sums})

    def count(self, request: Count, arrays: Arrays) -> Message:
        """Return the numbers of values up to each edge, by column, for the search of medians."""
        tables = {k: self.fit(k).split.training_table().x for k in request.fits}
        if request.terms is not None:
            tables = {request.terms.fit: self.terms.table(request.terms.fit, request.terms.preparation).x}
        if not self.policy.share_histograms:
            raise Refusal("medians need histograms, which the site does not share (site.yaml: share_histograms)")
        read = read_arrays(arrays, {f"edges.{k}": ArraySpec((x.shape[1], MEDIAN_BINS)) for k, x in tables.items()})
        used = {k: x for k, x in tables.items() if len(x)}  # fits with training rows at this site
        edges = {
            k: self.disclosure.histogram_edges(read[f"edges.{k}"], None if request.terms is None else used[k])
            for k in used
        }
        self.disclosure.charge(sum(one.size for one in edges.values()), counts=len(edges))
        counts = {
            f"counts.{k}": self.disclosure.released_counts(
                count_up_to_edges(x, edges[k]), (~np.isnan(x)).sum(axis=0)[:, None]
            )
            for k, x in used.items()
        }
        return Message("", arrays=counts)

    def moments(self, request: NoisyMoments) -> Message:
        """Return sums of the scaled and clipped features and of their squares, with noise that hides single rows."""
        split = self.fit(request.fit).split
        if not split.parts.training.any():
            raise Refusal("the site has no training rows in this run")
        preparation = _preparation(request.preparation, split.names)
        if not preparation.mean:
            raise Refusal("moments: the preparation has no ranges")
        self.disclosure.check_moments_noise(request.noise)
        self.disclosure.charge(2 * len(preparation.features), counts=1)  # a narrow range counts the values above it
        sums = clipped_sums(split.training_table(), preparation)
        deviation = request.noise * largest_norm(sums.shape[1])
        return Message("", arrays={f"sums.{request.fit}": sums + deviation * secret_noise(2, 1, sums.shape[1])[:, 0]})

    def apply(self, request: Apply) -> Message:
        """Apply the common preparations and create the models."""
        if not self.fits or len(request.preparations) != len(self.fits):
            raise Refusal("the rows are not split into these fits")
        preparations = [
            _preparation(text, fit.split.names) for text, fit in zip(request.preparations, self.fits, strict=True)
        ]
        if request.outputs < self.outputs or (request.outputs > 1) != (self.outputs > 1):
            allowed = "1" if self.outputs == 1 else f"at least {self.outputs}"
            raise Refusal(f"outputs: got {request.outputs}, must be {allowed} for the site's labels and the loss")
        agreed = None
        if request.rows is not None:
            own = [dict(zip(PARTS, map(int, map(np.sum, fit.split.parts)), strict=True)) for fit in self.fits]
            agreed = AgreedFits(request.rows, self.name, own, self.weightings)  # type: ignore[arg-type]
            if self.agreed is not None and self.agreed.digest != agreed.digest:
                raise Refusal("rows: other numbers of rows were agreed on")
        rows = sum(int(part.sum()) for fit in self.fits for part in fit.split.parts)
        features = max(len(one.features) for one in preparations)
        require_memory("the prepared rows of all fits", rows * features * np.dtype(self.dtype).itemsize)
        for preparation, fit in zip(preparations, self.fits, strict=True):
            training = fit.split.training_table()
            check_preparation(preparation, training, self.disclosure)
            preparation = with_own_fills(preparation, fit.split, self.disclosure)
            if preparation.terms and len(training.x):
                check_terms(preparation, fit.split, self.disclosure)
            check_units(preparation, fit.split, self.disclosure)
            merge = partial(self.disclosure.merge_levels, training=training)
            fit.prepared = fit.split.prepared(preparation, self.dtype, merge)
            fit.model = Linear(len(fit.prepared.features), request.outputs, seed=request.start)
        self.agreed = agreed
        return Message("")

    def fit(self, index: int) -> Fit:
        """Return a fit; raise Refusal if there is none."""
        if index >= len(self.fits):
            raise Refusal(f"fit {index} of {len(self.fits)} does not exist: the rows are not split into these fits")
        return self.fits[index]

    @staticmethod
    def preparation_of(text: str, columns: list[str]) -> Preparation:
        """Return a preparation of these columns; raise BadMessage if it is invalid."""
        return _preparation(text, columns)

    def loss(self) -> Loss:
        if self.task is None:
            raise Refusal("the rows are not prepared yet")
        return self._loss


def _preparation(text: str, columns: list[str]) -> Preparation:
    """Return the preparation; raise BadMessage if it is invalid or for other columns."""
    try:
        msgspec.json.decode(text)  # refuses NaN, infinity and deep nesting
        preparation = Preparation.of_json(text, "preparation")
        msgspec.convert(asdict(preparation), Preparation)
    except (ValueError, RecursionError) as problem:
        raise BadMessage(f"preparation: {reason_of(problem)}") from None
    sizes = (len(preparation.fill), len(preparation.mean), len(preparation.scale))
    features = len(preparation.features)
    known = preparation.columns == columns and {*preparation.flagged, *preparation.categories} <= set(columns)
    if not known or sizes not in ((len(columns), 0, 0), (len(columns), features, features)):
        raise BadMessage("preparation: its columns must be the site's columns")
    for levels in preparation.categories.values():
        if not levels.names or len(set(levels.names)) != len(levels.names) or len(levels.fill) != len(levels.names):
            raise BadMessage("preparation: categories must be distinct and have one fill value each")
    if not features or any(scale <= 0 for scale in preparation.scale):
        raise BadMessage("preparation: must have features and scales > 0")
    return preparation
