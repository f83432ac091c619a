"""What a site tells of its rows: what they are, how they are split and prepared, and how models do on them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import fco_cli
from fco_cli.federated_data.medians import BINS, counts_up_to
from fco_cli.federated_data.preparation import Preparation
from fco_cli.federation.message import BadMessage, Message
from fco_cli.federation.metrics import SUMS
from fco_cli.federation.noise import with_noise
from fco_cli.federation.policy import Policy, Refusal
from fco_cli.federation.rows import Prepared, SiteFile, Split
from fco_cli.federation.typed import typed
from fco_cli.problem.data import ClientData
from fco_cli.problem.folds import WAYS, Deal, HeldOut
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss
from fco_cli.problem.models import Linear
from fco_cli.problem.problem import TaskData
from fco_cli.problem.regularizers.penalties import NoRegularizer
from fco_cli.problem.risk import DataRisk, scores_of
from fco_cli.simulation.smoothness import BATCHES, largest_curvature
from fco_cli.tasks.custom import Custom

ROOMS = ("problem", "algorithms", "federated_data", "tasks", "simulation", "federation")  # what a result depends on
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
        self.prepared: Prepared | None = None
        self.model: Linear | None = None

    def describe(self, message: Message) -> Message:
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
            "names_digest": hashlib.sha256(json.dumps(data.feature_names).encode()).hexdigest()[:16],
            "names": data.feature_names if self.policy.share_names else None,
            "classes": classes,
            "split": [] if data.split is None else np.unique(data.split).tolist(),
        })  # fmt: skip

    def prepare(self, message: Message) -> Message:
        """Split the rows; how many there are, and what all must know to agree on their preparation."""
        unused: dict[str, Any] = {"name": "custom", "path": "", "strength": 0.0, "radius": 1.0}
        self.task = task = typed(Custom, message.value("task", dict) | unused, "task")
        self.policy.check("losses", task.loss)
        classes, seed, dtype = message.head.get("classes"), message.value("seed", int), message.value("dtype", str)
        if dtype not in ("float64", "float32"):
            raise Refusal("hparams.dtype must be float32 or float64")
        sites = message.value("sites", list)
        if self.name not in sites:
            raise Refusal("this run is not for this site")
        place, self.dtype = sites.index(self.name), dtype
        self.split = self.file.split(task, seed, place, classes, self.policy.share_names)
        self.prepared = self.model = None
        trains = np.ones(len(sites), bool)
        if (fold := message.head.get("fold")) is not None:
            apart = _held_out(fold)
            self.split, trains = self.split.without(apart, place, len(sites)), apart.trains(len(sites))
        self.client = int(trains[:place].sum())
        training, held_out, test = (int(rows.sum()) for rows in self.split.parts)
        least = self.policy.min_rows
        if training < least and trains[place]:
            raise Refusal(f"too few rows would be left to train on (min_rows: {least})")
        if fold is not None and 0 < held_out < least:
            raise Refusal(f"too few rows would be held out, {held_out} (min_rows: {least}); take fewer path.folds")
        outputs = task.chosen_loss().outputs(self.file.data.y, None if classes is None else len(classes))
        summary = None
        if not message.value("summary", bool):
            self.split.check_bare()
        elif training:
            summary = self.split.summary(self.name).plain()
        counts = {"training": training, "held_out": held_out, "test": test}
        return Message("", {**counts, "outputs": outputs, "summary": summary})

    def count(self, message: Message) -> Message:
        """How many of its values are at most each of some edges, by column: of medians."""
        if self.split is None:
            raise Refusal("the rows are not split")
        if not self.policy.share_histograms:
            raise Refusal("its policy does not share histograms, of which medians are made (share_histograms)")
        edges = message.wanted("edges", (len(self.split.names), BINS), float)
        return Message("", arrays={"counts": counts_up_to(self.split.table().x, edges)})

    def apply(self, message: Message) -> Message:
        """The preparation that all sites have agreed on, and how many scores a row has."""
        if self.split is None or self.task is None:
            raise Refusal("the rows are not split")
        preparation = Preparation.of_json(message.value("preparation", str), "the coordinator's preparation")
        outputs, seed = message.value("outputs", int), message.head.get("start")
        if not 1 <= outputs <= 10_000 or not (seed is None or type(seed) is int):
            raise Refusal("a model has from 1 to 10,000 outputs")
        self.prepared = self.split.prepared(preparation, self.dtype)
        self.model = Linear(len(preparation.features), outputs, seed=seed)
        return Message("")

    def evaluate(self, message: Message) -> Message:
        """Its share of F on the rows of one part, and what else is a sum over them; of the gradient where they train.

        The site weights them as the coordinator says, or not at all: then these are its own means.
        """
        rows, model, loss = self.rows(), self.linear(), self.loss()
        part, jobs = message.value("part", str), positive(message, "jobs")
        data = {"training": rows.training, "held_out": rows.held_out, "test": rows.test}.get(part)
        if data is None:
            raise Refusal("it has no such rows")
        gradient = message.value("gradient", bool)
        if gradient and part != "training":
            raise Refusal("only the rows that train have a gradient")
        w = message.wanted("w", (jobs, model.layout.size), float)
        risk = DataRisk(data, np.array([self._weight(message)]), model, loss)(w, gradient=gradient)
        arrays: dict[str, Array] = {"value": risk.value}
        if gradient:
            arrays["gradient"] = risk.gradient
        if risk.accuracy is not None:
            arrays["hits"] = np.rint(risk.accuracy * len(data.y))
        if (noise := message.head.get("noise")) is not None:
            return Message("", arrays=with_noise(arrays, noise))
        return Message("", arrays=arrays if part == "training" else arrays | self._scored(message, data, w))

    def _scored(self, message: Message, data: ClientData, w: Array) -> dict[str, Array]:
        """Of rows that a model has not learnt from: sums for the loss's metrics, and the spread of the rows' losses."""
        loss, arrays = self.loss(), dict[str, Array]()
        known, spread = SUMS.get(type(loss)), message.value("spread", bool) and loss.together is None
        if not message.value("sums", bool) or (known and known.histogram and not self.policy.share_histograms):
            known = None
        if known is None and not spread:
            return arrays
        scores = scores_of(self.linear(), data, w)
        if known is not None:
            arrays["sums"] = known.of_rows(scores[:, 0].astype(float), data.y.astype(float))
        if spread:
            losses = [[loss.value.as_python(job[:, i], y) for i, y in enumerate(data.y)] for job in scores]
            arrays["squares"] = (np.array(losses, float) ** 2).mean(axis=1) * self._weight(message)
        return arrays

    def _weight(self, message: Message) -> float:
        weights = message.head.get("weights")
        if weights is None:
            return 1.0
        mine = weights.get(self.name) if isinstance(weights, dict) else None
        if not isinstance(mine, float):
            raise BadMessage("evaluate: weights must be numbers by site")
        return mine

    def curvature(self, message: Message) -> Message:
        """The largest eigenvalue over batches of its own rows."""
        problem = TaskData(self.training(), self.linear(), self.loss()).joined(NoRegularizer())
        random = np.random.default_rng([message.value("seed", int), self.client])
        largest = largest_curvature(problem, np.zeros(BATCHES, int), positive(message, "batch_size"), random)
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


def _held_out(fold: Any) -> HeldOut:
    """What a fold holds out, from plain values."""
    if not (isinstance(fold, dict) and set(fold) == {"deal", "number"} and type(fold["number"]) is int):
        raise BadMessage("prepare: a fold has a deal and a number")
    deal = typed(Deal, fold["deal"], "fold")
    if not (2 <= deal.folds < 2**31 and 0 <= deal.draw < 2**24 and deal.by in WAYS and deal.seed >= 0):
        raise BadMessage("prepare: there is no such fold")
    return HeldOut(deal, fold["number"])


def positive(message: Message, name: str) -> int:
    number = message.value(name, int)
    if not 0 < number < 2**31:
        raise BadMessage(f"{message.kind}: {name} must be a whole number > 0")
    return number
