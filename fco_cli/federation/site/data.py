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
from fco_cli.data.preparation import Preparation
from fco_cli.data.statistics import MEDIAN_BINS, count_up_to_edges
from fco_cli.federation.message import (
    MAX_MAGNITUDE,
    Arrays,
    ArraySpec,
    BadMessage,
    Message,
    parse_dataclass,
    read_arrays,
    reason_of,
)
from fco_cli.federation.metrics import SUMS, Sums
from fco_cli.federation.noise import clip_and_add_noise
from fco_cli.federation.policy import Policy, Refusal
from fco_cli.federation.schema import Apply, Curvature, Evaluate, Prepare, Request, names_digest
from fco_cli.federation.site.agreed import WEIGHTINGS, AgreedRows
from fco_cli.federation.site.disclosure import Disclosure
from fco_cli.federation.site.row_noise import noisy_row_sums
from fco_cli.federation.site.rows import Prepared, SiteFile, Split
from fco_cli.problem.data import ClientData, FoldAssignment, HeldOut
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.problem import TaskData
from fco_cli.problem.regularizers.penalties import NoRegularizer
from fco_cli.problem.risk import DataRisk, scores_of
from fco_cli.simulation.smoothness import BATCHES, largest_curvature
from fco_cli.tasks.tabular import Custom

# Packages whose code affects results.
PACKAGES = ("kernels", "problem", "algorithms", "data", "tasks", "simulation", "federation")
LOCAL_KEYS = ("name", "path", "strength", "radius", "model")  # keys of the task that are not sent to sites


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
    """Rows of one site in one session: split, prepared and evaluated on request."""

    def __init__(self, name: str, file: SiteFile, policy: Policy, disclosure: Disclosure) -> None:
        self.name, self.file, self.policy, self.disclosure = name, file, policy, disclosure
        self.client = 0  # index among the sites with training rows
        self.task: Custom | None = None
        self.split: Split | None = None
        self.dtype = "float64"
        self.outputs = 1  # scores per row that the site's labels need
        self.prepared: Prepared | None = None
        self.model: Linear | None = None
        self.agreed: AgreedRows | None = None  # if responses are masked
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
        """Split the rows; return their numbers and a summary for the common preparation."""
        unused: dict[str, Any] = {"name": "custom", "path": "", "strength": 0.0, "radius": 1.0}
        self.task = self.split = self.prepared = self.model = self.agreed = None
        task = parse_dataclass(Custom, request.task | unused, "task")
        if task.loss == "auto":
            raise Refusal(
                "task.loss: got auto, must be the name of a loss (logistic, squared, ...) with federation=flare"
            )
        self.policy.check("losses", task.loss)
        classes, sites, fold = request.classes, request.sites, request.fold
        if self.name not in sites:
            raise Refusal("the run does not include this site")
        index = sites.index(self.name)
        seed, client = self.disclosure.split_seed(request.seed), 0 if self.policy.site_splits else index
        split = self.file.split(task, seed, client, classes, self.policy.share_names)
        trains = np.ones(len(sites), bool)
        if fold is not None:
            deal = FoldAssignment(**msgspec.structs.asdict(fold.deal))
            trains = HeldOut(deal, fold.number).trains(len(sites))
            if deal.by == "rows":
                deal = replace(deal, seed=self.disclosure.split_seed(deal.seed))
            split = split.hold_out(HeldOut(deal, fold.number), client if deal.by == "rows" else index, len(sites))
        self.client = int(trains[:index].sum())
        training, held_out, test = (int(rows.sum()) for rows in split.parts)
        self.disclosure.check_parts(split.parts, fold is not None)
        outputs = task.configured_loss().outputs(self.file.data.y, None if classes is None else len(classes))
        summary = None
        if not request.summary:
            split.check_needs_no_preparation()
        elif training:
            exact = split.summary(self.name)
            if not np.isfinite([exact.moments.mean, exact.moments.deviations]).all():
                raise Refusal("the moments of the site's values overflow; rescale the columns")
            summary = self.disclosure.released_summary(exact, split.training_table()).plain()
        self.task, self.split, self.dtype, self.outputs = task, split, request.dtype, outputs
        counts = {"training": training, "held_out": held_out, "test": test}
        return Message("", {**counts, "outputs": outputs, "summary": summary})

    def count(self, request: Request, arrays: Arrays) -> Message:
        """Return the numbers of values up to each edge, by column, for the search of medians."""
        if self.split is None:
            raise Refusal("the rows are not split yet")
        if not self.policy.share_histograms:
            raise Refusal("medians need histograms, which the site does not share (site.yaml: share_histograms)")
        edges = read_arrays(arrays, {"edges": ArraySpec((len(self.split.names), MEDIAN_BINS))})["edges"]
        x = self.split.training_table().x
        edges = self.disclosure.histogram_edges(edges)
        self.disclosure.charge(edges.size, counts=1)
        counts = self.disclosure.released_counts(count_up_to_edges(x, edges), (~np.isnan(x)).sum(axis=0)[:, None])
        return Message("", arrays={"counts": counts})

    def apply(self, request: Apply) -> Message:
        """Apply the common preparation and create the model."""
        if self.split is None or self.task is None:
            raise Refusal("the rows are not split yet")
        preparation = _preparation(request.preparation, self.split.names)
        if request.outputs < self.outputs or (request.outputs > 1) != (self.outputs > 1):
            allowed = "1" if self.outputs == 1 else f"at least {self.outputs}"
            raise Refusal(f"outputs: got {request.outputs}, must be {allowed} for the site's labels and the loss")
        agreed = None
        if request.rows is not None:
            own = dict(zip(("training", "held_out", "test"), (int(one.sum()) for one in self.split.parts), strict=True))
            agreed = AgreedRows(
                {str(part): sizes for part, sizes in request.rows.items()}, self.name, own, self.weightings
            )
            if self.agreed is not None and self.agreed.digest != agreed.digest:
                raise Refusal("rows: other numbers of rows were agreed on")
        training = self.split.training_table()
        self.disclosure.check_preparation(preparation, training)
        merge = partial(self.disclosure.merge_levels, training=training)
        self.prepared, self.agreed = self.split.prepared(preparation, self.dtype, merge), agreed
        self.model = Linear(len(preparation.features), request.outputs, seed=request.start)
        return Message("")

    def evaluate(self, request: Evaluate, arrays: Arrays) -> Message:
        """Return the loss and other sums over the rows of one part, and the gradient on training rows.

        They are multiplied by the site's weight in the request; without one, they are means over the rows.
        """
        rows, model = self.rows(), self.linear()
        data = {"training": rows.training, "held_out": rows.held_out, "test": rows.test}[request.part]
        if data is None:
            raise Refusal("the site has no rows of this part")
        if request.gradient and request.part != "training":
            raise Refusal("gradients are computed on training rows only")
        self.policy.check_numbers(request.jobs * model.layout.size)
        w = read_arrays(arrays, {"w": ArraySpec((request.jobs, model.layout.size))})["w"]
        weight = self._weight(request)
        self.disclosure.check_evaluation_noise(request.noise)
        self.disclosure.charge(request.jobs * self._numbers_per_model(request), evaluations=request.jobs)
        with np.errstate(all="ignore"):  # the coordinator detects overflows
            return Message("", arrays=self._evaluate_rows(request, data, w, weight))

    def _evaluate_rows(self, request: Evaluate, data: ClientData, w: Array, weight: float) -> Arrays:
        """Return the arrays of an evaluation; `value` is infinite for jobs in which a number overflows."""
        if (noise := request.noise) is not None and noise.by_row:
            return noisy_row_sums(data, self.linear(), self.loss(), w, weight, request.gradient, noise)
        risk = DataRisk(data, np.array([weight]), self.linear(), self.loss())(w, gradient=request.gradient)
        arrays = {"value": np.maximum(risk.value, 0)}  # rounding can make a zero loss negative
        if request.gradient:
            arrays["gradient"] = risk.gradient
        if risk.accuracy is not None:
            arrays["hits"] = self.disclosure.released_counts(np.rint(risk.accuracy * len(data.y)), len(data.y))
        if request.noise is not None:
            return clip_and_add_noise(arrays, request.noise)
        if request.part != "training":
            arrays |= self._score_metrics(request, data, w, weight)
        in_range = [(np.abs(values) <= MAX_MAGNITUDE).reshape(len(w), -1).all(axis=1) for values in arrays.values()]
        overflow = ~np.logical_and.reduce(in_range) & np.isfinite(arrays["value"])
        arrays["value"][overflow] = np.inf
        return arrays

    def _score_metrics(self, request: Evaluate, data: ClientData, w: Array, weight: float) -> Arrays:
        """Return the sums for the loss's metrics and the mean squared loss on held-out rows, as far as shared."""
        loss, arrays, known = self.loss(), Arrays(), self._metric_sums(request)
        spread = request.spread and loss.client_loss is None
        if known is None and not spread:
            return arrays
        scores = scores_of(self.linear(), data, w)
        if known is not None:
            finite = np.isfinite(scores[:, 0]).all(axis=1)
            arrays["sums"] = np.full((len(w), known.width), np.nan)
            if finite.any():
                sums = known.of_rows(scores[finite, 0].astype(float), data.y.astype(float))
                arrays["sums"][finite] = self._released_sums(sums) if known.histogram else sums
        if spread:
            losses = [[loss.value.as_python(job[:, i], y) for i, y in enumerate(data.y)] for job in scores]
            arrays["squares"] = (np.array(losses, float) ** 2).mean(axis=1) * weight
        return arrays

    def _metric_sums(self, request: Evaluate) -> Sums | None:
        """Return the sums for the loss's metrics, None if they are not requested or not shared."""
        known = SUMS.get(type(self.loss()))
        withheld = known is not None and known.histogram and not self.policy.share_histograms
        return known if request.sums and not withheld else None

    def _released_sums(self, histograms: Array) -> Array:
        """Return histograms of negative and of positive rows [J, 2 bins] as they may be sent."""
        return np.hstack([self.disclosure.released_histogram(half) for half in np.hsplit(histograms, 2)])

    def _numbers_per_model(self, request: Evaluate) -> int:
        """Return the number of answered numbers per model: loss, hits, gradient, squares and sums."""
        numbers = 2 + request.gradient * self.linear().layout.size
        if request.part != "training" and request.noise is None:
            known = self._metric_sums(request)
            numbers += request.spread + (0 if known is None else known.width)
        return numbers

    def _weight(self, request: Evaluate) -> float:
        if self.agreed is not None:
            self.agreed.check_weights(request.part, request.weights)
        if request.weights is None:
            return 1.0
        if self.name not in request.weights:
            raise BadMessage("weights: no weight for this site")
        return request.weights[self.name]

    def curvature(self, request: Curvature) -> Message:
        """Return the largest curvature over batches of the site's rows."""
        problem = TaskData(self.training(), self.linear(), self.loss()).to_problem(NoRegularizer())
        rows = int(problem.data.sizes[0])
        self.disclosure.check_noise_free("curvature")
        self.disclosure.check_batches(request.batch_size, rows)
        self.disclosure.check_parameters(self.linear().layout.size, rows, "set hparams.client_lr to a number")
        self.disclosure.charge(1, evaluations=1)
        random = np.random.default_rng([self.disclosure.batch_seed(request.seed), self.client])
        largest = largest_curvature(problem, np.zeros(BATCHES, int), request.batch_size, random)
        return Message("", arrays={"largest": np.array([largest])})

    def rows(self) -> Prepared:
        if self.prepared is None:
            raise Refusal("the rows are not prepared yet")
        return self.prepared

    def training(self) -> ClientData:
        if (training := self.rows().training) is None:
            raise Refusal("the site has no training rows in this run")
        return training

    def linear(self) -> Linear:
        if self.model is None:
            raise Refusal("the rows are not prepared yet")
        return self.model

    def loss(self) -> Loss:
        if self.task is None:
            raise Refusal("the rows are not prepared yet")
        return self.task.configured_loss()


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
