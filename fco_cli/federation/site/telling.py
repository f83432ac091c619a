"""What a site tells of its rows: what they are, how they are split and prepared, and how models do on them."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import fco_cli
from fco_cli.data.medians import BINS, counts_up_to
from fco_cli.data.preparation import Preparation
from fco_cli.federation.message import LARGEST, Arrays, ArraySpec, BadMessage, Message, read_arrays, reason_of
from fco_cli.federation.metrics import SUMS
from fco_cli.federation.noise import with_noise
from fco_cli.federation.policy import Policy, Refusal
from fco_cli.federation.schema import Apply, Curvature, Evaluate, Prepare, Question, names_digest
from fco_cli.federation.site.rows import Prepared, SiteFile, Split
from fco_cli.federation.typed import typed
from fco_cli.problem.data import ClientData
from fco_cli.problem.folds import Deal, HeldOut
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.problem import TaskData
from fco_cli.problem.regularizers.penalties import NoRegularizer
from fco_cli.problem.risk import DataRisk, scores_of
from fco_cli.simulation.smoothness import BATCHES, largest_curvature
from fco_cli.tasks.custom import Custom

ROOMS = ("kernels", "problem", "algorithms", "data", "tasks", "simulation", "federation")  # what a result depends on
NOT_SENT = ("name", "path", "strength", "radius")  # keys of the task that a site has no use for


@cache
def code_digest() -> str:
    """Of the sources that both ends must share for the same bits."""
    package = Path(fco_cli.__file__).parent
    sources = sorted(path for room in ROOMS for path in (package / room).rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]


def sent_task(task: Custom) -> dict[str, Any]:
    """What a site must know of the task."""
    return {key.name: getattr(task, key.name) for key in fields(task) if key.name not in NOT_SENT}


class Telling:
    """One site's rows in one session, from its file to what a run wants of them."""

    def __init__(self, name: str, file: SiteFile, policy: Policy) -> None:
        self.name, self.file, self.policy = name, file, policy
        self.client = 0  # its place among the sites that train
        self.task: Custom | None = None
        self.split: Split | None = None
        self.dtype = "float64"
        self.outputs = 1  # scores of a row, as many as its own labels need
        self.prepared: Prepared | None = None
        self.model: Linear | None = None

    def describe(self, question: Question) -> Message:
        data = self.file.data
        if len(data.y) < self.policy.min_rows:
            raise Refusal(f"it has fewer rows than its policy asks for (min_rows: {self.policy.min_rows})")
        classes = None if data.classes is None else data.classes.tolist()
        if classes is not None and not self.policy.share_names:
            raise Refusal("its labels are words, and its policy does not share names (share_names)")
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

    def prepare(self, question: Prepare) -> Message:
        """Split the rows; how many there are, and what all must know to agree on their preparation."""
        unused: dict[str, Any] = {"name": "custom", "path": "", "strength": 0.0, "radius": 1.0}
        self.task = self.split = self.prepared = self.model = None
        task = typed(Custom, question.task | unused, "task")
        if task.loss == "auto":
            raise Refusal("task.loss must be named between sites: logistic, squared, ...")
        self.policy.check("losses", task.loss)
        classes, sites, fold = question.classes, question.sites, question.fold
        if self.name not in sites:
            raise Refusal("this run is not for this site")
        place = sites.index(self.name)
        split = self.file.split(task, question.seed, place, classes, self.policy.share_names)
        trains = np.ones(len(sites), bool)
        if fold is not None:
            apart = HeldOut(Deal(**msgspec.structs.asdict(fold.deal)), fold.number)
            split, trains = split.without(apart, place, len(sites)), apart.trains(len(sites))
        self.client = int(trains[:place].sum())
        training, held_out, test = (int(rows.sum()) for rows in split.parts)
        least = self.policy.min_rows
        if training < least and trains[place]:
            raise Refusal(f"too few rows would be left to train on (min_rows: {least})")
        if fold is not None and 0 < held_out < least:
            raise Refusal(f"too few rows would be held out, {held_out} (min_rows: {least}); take fewer path.folds")
        outputs = task.chosen_loss().outputs(self.file.data.y, None if classes is None else len(classes))
        summary = None
        if not question.summary:
            split.check_bare()
        elif training:
            summary = split.summary(self.name).plain()
            if not np.isfinite([summary["mean"], summary["deviations"]]).all():
                raise Refusal("its values are too large for their moments; rescale the columns")
        self.task, self.split, self.dtype, self.outputs = task, split, question.dtype, outputs
        counts = {"training": training, "held_out": held_out, "test": test}
        return Message("", {**counts, "outputs": outputs, "summary": summary})

    def count(self, question: Question, arrays: Arrays) -> Message:
        """How many of its values are at most each of some edges, by column: of medians."""
        if self.split is None:
            raise Refusal("the rows are not split")
        if not self.policy.share_histograms:
            raise Refusal("its policy does not share histograms, of which medians are made (share_histograms)")
        edges = read_arrays(arrays, {"edges": ArraySpec((len(self.split.names), BINS))})["edges"]
        return Message("", arrays={"counts": counts_up_to(self.split.table().x, edges)})

    def apply(self, question: Apply) -> Message:
        """The preparation that all sites have agreed on, and how many scores a row has."""
        if self.split is None or self.task is None:
            raise Refusal("the rows are not split")
        preparation = _preparation(question.preparation, self.split.names)
        if question.outputs < self.outputs or (question.outputs > 1) != (self.outputs > 1):
            allowed = "1" if self.outputs == 1 else f"at least {self.outputs}"
            raise Refusal(f"outputs: got {question.outputs}, must be {allowed}, by its labels and the loss")
        self.prepared = self.split.prepared(preparation, self.dtype)
        self.model = Linear(len(preparation.features), question.outputs, seed=question.start)
        return Message("")

    def evaluate(self, question: Evaluate, arrays: Arrays) -> Message:
        """Its share of F on the rows of one part, and what else is a sum over them; of the gradient where they train.

        The site weights them as the coordinator says, or not at all: then these are its own means.
        """
        rows, model = self.rows(), self.linear()
        data = {"training": rows.training, "held_out": rows.held_out, "test": rows.test}[question.part]
        if data is None:
            raise Refusal("it has no such rows")
        if question.gradient and question.part != "training":
            raise Refusal("only the rows that train have a gradient")
        self.policy.check_numbers(question.jobs * model.layout.size)
        w = read_arrays(arrays, {"w": ArraySpec((question.jobs, model.layout.size))})["w"]
        with np.errstate(all="ignore"):  # the coordinator detects what has overflowed
            return Message("", arrays=self._evaluated(question, data, w, self._weight(question)))

    def _evaluated(self, question: Evaluate, data: ClientData, w: Array, weight: float) -> Arrays:
        risk = DataRisk(data, np.array([weight]), self.linear(), self.loss())(w, gradient=question.gradient)
        arrays = {"value": np.maximum(risk.value, 0)}  # rounding can leave a perfect fit below 0
        if question.gradient:
            arrays["gradient"] = risk.gradient
        if risk.accuracy is not None:
            arrays["hits"] = np.rint(risk.accuracy * len(data.y))
        if question.noise is not None:
            return with_noise(arrays, question.noise)
        if question.part != "training":
            arrays |= self._scored(question, data, w, weight)
        sound = [(np.abs(values) <= LARGEST).reshape(len(w), -1).all(axis=1) for values in arrays.values()]
        overflow = ~np.logical_and.reduce(sound) & np.isfinite(arrays["value"])
        arrays["value"][overflow] = np.inf
        return arrays

    def _scored(self, question: Evaluate, data: ClientData, w: Array, weight: float) -> Arrays:
        """Of rows that a model has not learnt from: sums for the loss's metrics, and the spread of the rows' losses."""
        loss, arrays = self.loss(), Arrays()
        known, spread = SUMS.get(type(loss)), question.spread and loss.together is None
        if not question.sums or (known and known.histogram and not self.policy.share_histograms):
            known = None
        if known is None and not spread:
            return arrays
        scores = scores_of(self.linear(), data, w)
        if known is not None:
            finite = np.isfinite(scores[:, 0]).all(axis=1)
            arrays["sums"] = np.full((len(w), known.width), np.nan)
            if finite.any():
                arrays["sums"][finite] = known.of_rows(scores[finite, 0].astype(float), data.y.astype(float))
        if spread:
            losses = [[loss.value.as_python(job[:, i], y) for i, y in enumerate(data.y)] for job in scores]
            arrays["squares"] = (np.array(losses, float) ** 2).mean(axis=1) * weight
        return arrays

    def _weight(self, question: Evaluate) -> float:
        if question.weights is None:
            return 1.0
        if self.name not in question.weights:
            raise BadMessage("weights: there is none for this site")
        return question.weights[self.name]

    def curvature(self, question: Curvature) -> Message:
        """The largest eigenvalue over batches of its own rows."""
        problem = TaskData(self.training(), self.linear(), self.loss()).joined(NoRegularizer())
        random = np.random.default_rng([question.seed, self.client])
        largest = largest_curvature(problem, np.zeros(BATCHES, int), question.batch_size, random)
        return Message("", arrays={"largest": np.array([largest])})

    # What the others need of it.

    def rows(self) -> Prepared:
        if self.prepared is None:
            raise Refusal("the rows are not prepared")
        return self.prepared

    def training(self) -> ClientData:
        if (training := self.rows().training) is None:
            raise Refusal("none of its rows train here")
        return training

    def linear(self) -> Linear:
        if self.model is None:
            raise Refusal("the rows are not prepared")
        return self.model

    def loss(self) -> Loss:
        if self.task is None:
            raise Refusal("the rows are not prepared")
        return self.task.chosen_loss()


def _preparation(text: str, columns: list[str]) -> Preparation:
    """Return the coordinator's preparation; raise BadMessage if it is not one of these columns."""
    try:
        msgspec.json.decode(text)  # no number that is not finite, no deep nesting
        made = Preparation.of_json(text, "preparation")
        msgspec.convert(asdict(made), Preparation)
    except (ValueError, RecursionError) as problem:
        raise BadMessage(f"preparation: {reason_of(problem)}") from None
    sizes = (len(made.fill), len(made.mean), len(made.scale))
    features = len(made.features)
    known = made.columns == columns and {*made.flagged, *made.categories} <= set(columns)
    if not known or sizes not in ((len(columns), 0, 0), (len(columns), features, features)):
        raise BadMessage("preparation: it is not one of this site's columns")
    for own in made.categories.values():
        if not own.names or len(set(own.names)) != len(own.names) or len(own.fill) != len(own.names):
            raise BadMessage("preparation: categories must be distinct, and have a fill value each")
    if not features or any(scale <= 0 for scale in made.scale):
        raise BadMessage("preparation: it must have features, and scales above 0")
    return made
