"""A site: one client's rows, what it remembers, and what it answers; no transport.

Everything it computes with is installed here: a question names a kind of the list below and brings plain values and
arrays. Nothing that grows with the number of rows leaves it, except counts.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import fco_cli
from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.algorithms.protocol import Federated
from fco_cli.algorithms.transforms import all_transforms
from fco_cli.errors import UserError
from fco_cli.federated_data.format import shown
from fco_cli.federated_data.medians import BINS, counts_up_to
from fco_cli.federated_data.preparation import Preparation
from fco_cli.federation.memory import SiteMemory
from fco_cli.federation.message import BadMessage, Message
from fco_cli.federation.metrics import SUMS
from fco_cli.federation.policy import Audit, Policy, Refusal
from fco_cli.federation.rows import Prepared, SiteFile, Split
from fco_cli.federation.typed import one_of, typed
from fco_cli.problem.layout import Array
from fco_cli.problem.mirror_maps import MIRRORS
from fco_cli.problem.models import Linear
from fco_cli.problem.numbers import HasNumbers, Numbers
from fco_cli.problem.problem import Problem, TaskData
from fco_cli.problem.regularizers import all_regularizers
from fco_cli.problem.regularizers.penalties import NoRegularizer
from fco_cli.problem.risk import DataRisk, own_losses, scores_of
from fco_cli.problem.streams import batches_of, message_keys
from fco_cli.simulation.smoothness import BATCHES, largest_curvature
from fco_cli.tasks.custom import Custom

log = logging.getLogger(__name__)

ROOMS = ("problem", "algorithms", "federated_data", "tasks", "simulation", "federation")  # what a result depends on
NOT_SENT = ("name", "path", "strength", "radius")  # keys of the task that a site has no use for


@cache
def code_digest() -> str:
    """Of the sources that both ends must share for the same bits."""
    package = Path(fco_cli.__file__).parent
    sources = sorted(path for room in ROOMS for path in (package / room).rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]


def names_digest(names: list[str]) -> str:
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()[:16]


class Site:
    """Answers one coordinator's questions, in the order of their numbers."""

    def __init__(self, name: str, file: SiteFile, policy: Policy, folder: Path) -> None:
        self.name, self.file, self.policy = name, file, policy
        self.client = 0  # its place among the sites of the run
        self.audit, self.memory = Audit(folder / "audit.jsonl"), SiteMemory(folder / "memory")
        self.session: str | None = None
        self.number = 0
        self.task: Custom | None = None
        self.split: Split | None = None
        self.dtype = "float64"
        self.rows: Prepared | None = None
        self.model: Linear | None = None
        self.algorithm: Federated | None = None
        self.initial: Array | None = None
        self.stack = -1

    def answer(self, content: bytes) -> bytes:
        """The answer to a question, or a refusal in one line; whatever it is, it is written down."""
        kind, number = "unknown", 0
        try:
            message = Message.unpacked(content)
            if message.kind not in self.KINDS:
                raise Refusal("this kind of message is not known here")
            kind, number = message.kind, message.value("number", int)
            self._admit(message, number)
            reply = self.KINDS[kind](self, message)
        except (Refusal, BadMessage, UserError) as problem:
            reason = shown(problem)
            self.audit.write(kind, content, f"refused: {reason}")
            return Message("refused", {"number": number, "reason": reason}).packed()
        except Exception as problem:  # its text may speak of rows: it stays here
            log.exception("%s", kind)
            self.audit.write(kind, content, f"failed: {type(problem).__name__}")
            reason = f"failed with {type(problem).__name__}; its own log says more"
            return Message("refused", {"number": number, "reason": reason}).packed()
        self.audit.write(kind, content, "answered")
        return Message(kind, reply.head | {"number": number}, reply.arrays).packed()

    def _admit(self, message: Message, number: int) -> None:
        """One coordinator at a time, no message twice, nothing that the policy forbids."""
        session = message.value("session", str)
        if message.kind == "describe" and self.session is None:
            self.session = session
        if session != self.session:
            raise Refusal("this job has another coordinator")
        if number <= self.number:
            raise Refusal("a message came twice, or too late")
        self.number = number
        self.policy.check("messages", message.kind)
        self.audit.check(message, self.policy)

    # What it answers.

    def _describe(self, message: Message) -> Message:
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

    def _prepare(self, message: Message) -> Message:
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
        self.client, self.dtype = sites.index(self.name), dtype
        self.split = self.file.split(task, seed, self.client, classes, self.policy.share_names)
        self.model = self.algorithm = self.rows = None
        training, held_out, test = (int(rows.sum()) for rows in self.split.parts)
        if training < self.policy.min_rows:
            raise Refusal(f"too few rows would be left to train on (min_rows: {self.policy.min_rows})")
        outputs = task.chosen_loss().outputs(self.file.data.y, None if classes is None else len(classes))
        summary = self.split.summary(self.name).plain()
        counts = {"training": training, "held_out": held_out, "test": test}
        return Message("", {**counts, "outputs": outputs, "summary": summary})

    def _count(self, message: Message) -> Message:
        """How many of its values are at most each of some edges, by column: of medians."""
        if self.split is None:
            raise Refusal("the rows are not split")
        if not self.policy.share_histograms:
            raise Refusal("its policy does not share histograms, of which medians are made (share_histograms)")
        edges = message.wanted("edges", (len(self.split.names), BINS), float)
        return Message("", arrays={"counts": counts_up_to(self.split.table().x, edges)})

    def _apply(self, message: Message) -> Message:
        """The preparation that all sites have agreed on, and how many scores a row has."""
        if self.split is None or self.task is None:
            raise Refusal("the rows are not split")
        preparation = Preparation.of_json(message.value("preparation", str), "the coordinator's preparation")
        outputs, seed = message.value("outputs", int), message.head.get("start")
        if not 1 <= outputs <= 10_000 or not (seed is None or type(seed) is int):
            raise Refusal("a model has from 1 to 10,000 outputs")
        self.rows = self.split.prepared(preparation, self.dtype)
        self.model = Linear(len(preparation.features), outputs, seed=seed)
        return Message("")

    def _stack(self, message: Message) -> Message:
        """The algorithm and the regularizer, with the numbers of every job of a stack."""
        rows, task = self._prepared()
        if self.model is None:
            raise Refusal("the rows are not prepared")
        algorithm = one_of(all_algorithms(), message.value("algo", dict), "algo")
        psi = one_of(all_regularizers(), _without_paths(message.value("regularizer", dict)), "regularizer")
        mirror = one_of(MIRRORS, message.value("mirror", dict), "mirror")
        transform = one_of(all_transforms(), message.value("transform", dict), "transform")
        self.policy.check("algorithms", algorithm.name)
        self.policy.check("regularizers", psi.name)
        if not isinstance(algorithm, Federated):
            raise Refusal(f"{algorithm.name} is no federated algorithm")
        jobs = message.value("jobs", int)
        if not 1 <= jobs * self.model.layout.size <= self.policy.max_numbers:
            raise Refusal(f"more numbers than its policy allows (max_numbers: {self.policy.max_numbers})")
        problem = TaskData(rows.training, self.model, task.chosen_loss(), features=rows.features).joined(psi, mirror)
        varying = Varying(
            message.wanted("client_lr", (jobs,), rows.dtype),
            message.wanted("server_lr", (jobs,), rows.dtype),
            _numbers(message, "psi", psi, jobs),
            _numbers(message, "options", algorithm, jobs),
            _numbers(message, "transform", transform, jobs),
        )
        self.algorithm = algorithm.through(transform).bind(problem, varying)
        self.initial = self.algorithm.initial_kept(problem.initial_models(varying.psi))
        self.stack = message.value("stack", int)
        return Message("")

    def _train(self, message: Message) -> Message:
        """`client_update`, on the batches that (seed, round, client) and the site's own rows determine."""
        algorithm, tokens = self._at_work(message), _tokens(message)
        problem, jobs = algorithm.problem, len(algorithm.varying)
        if len(tokens) != jobs:
            raise BadMessage("train: there must be a token for every job")
        shape = (jobs, problem.layout.size)
        received = {name: message.wanted(name, shape, problem.dtype) for name in algorithm.broadcast}
        received |= {name: message.wanted(name, (jobs,), float) for name in algorithm.clocks}
        self.memory.settle(self._outcomes(message))
        assert self.initial is not None
        kept = self.memory.read(tokens, self.initial) if algorithm.kept else self.initial
        rows, round_index = problem.data, message.value("round", int)
        steps = message.head.get("steps")
        seed, alone = message.value("seed", int), np.array([self.client])
        order, edges, _ = batches_of(
            seed, round_index, alone, rows.sizes,
            _positive(message, "batch_size"), _positive(message, "local_epochs"), message.value("last_batch", str),
            None if steps is None else _positive(message, "steps"),
        )  # fmt: skip
        before = dict(zip(algorithm.kept, kept, strict=True))
        keys = message_keys(seed, round_index, alone) if algorithm.transform.random else None
        sent, after = algorithm.client_update(received, before, rows, order, edges, keys)
        if algorithm.kept:
            self.memory.propose(round_index, tokens, np.stack(list(after.values())))
        return Message("", arrays=sent)

    def _evaluate(self, message: Message) -> Message:
        """Its share of F and of the gradient, and how many rows are right, on the rows that train and those held out;
        or, when the run is done, on those kept for a test."""
        rows, task = self._prepared()
        if self.model is None:
            raise Refusal("the rows are not prepared")
        jobs = _positive(message, "jobs")
        w = message.wanted("w", (jobs, self.model.layout.size), float)
        arrays: dict[str, Array] = {}
        parts = {"test": rows.test} if message.value("test", bool) else {
            "training": rows.training, "held_out": rows.held_out,
        }  # fmt: skip
        sums = SUMS.get(type(task.chosen_loss()))
        for part, data in parts.items():
            if data is not None:
                risk = DataRisk(data, np.ones(1), self.model, task.chosen_loss())(w, gradient=part == "training")
                arrays[f"{part}_value"] = risk.value
                if part == "training":
                    arrays["gradient"] = risk.gradient
                if risk.accuracy is not None:
                    arrays[f"{part}_hits"] = np.rint(risk.accuracy * len(data.y))
                if part != "training" and sums is not None and (self.policy.share_histograms or not sums.histogram):
                    scores = scores_of(self.model, data, w)[:, 0].astype(float)
                    arrays[f"{part}_sums"] = sums.of_rows(scores, data.y.astype(float))
        return Message("", arrays=arrays)

    def _curvature(self, message: Message) -> Message:
        """The largest eigenvalue over batches of its own rows."""
        problem = self._plain_problem()
        random = np.random.default_rng([message.value("seed", int), self.client])
        largest = largest_curvature(problem, np.zeros(BATCHES, int), _positive(message, "batch_size"), random)
        return Message("", arrays={"largest": np.array([largest])})

    def _own(self, message: Message) -> Message:
        """How the client's own model, which it remembers, does on its own rows."""
        algorithm, tokens, (rows, task) = self._at_work(message), _tokens(message), self._prepared()
        if algorithm.personal not in algorithm.remembered or self.initial is None:
            raise Refusal(f"{algorithm.name} has no personal models")
        self.memory.settle(self._outcomes(message))
        kept = self.memory.read(tokens, self.initial)[algorithm.remembered.index(algorithm.personal)]
        arrays: dict[str, Array] = {}
        for part, data in (("train", rows.training), ("validation", rows.held_out)):
            if data is not None:
                losses, accuracy = own_losses(
                    data, algorithm.problem.model, task.chosen_loss(), kept[None], np.zeros(1, int)
                )
                arrays[f"own_{part}_loss"] = losses[0]
                if accuracy is not None:
                    arrays[f"own_{part}_accuracy"] = accuracy[0]
        return Message("", arrays=arrays)

    def _save(self, message: Message) -> Message:
        self.memory.settle(self._outcomes(message))
        self.memory.save(message.value("round", int), _tokens(message))
        return Message("")

    def _load(self, message: Message) -> Message:
        algorithm = self._at_work(message)
        shape = (len(algorithm.kept), algorithm.problem.layout.size)
        round_index, tokens = message.value("round", int), _tokens(message)
        return Message("", {"known": self.memory.load(round_index, tokens, shape, algorithm.problem.dtype)})

    def _forget(self, message: Message) -> Message:
        self.memory.forget(_tokens(message))
        return Message("")

    KINDS: ClassVar = {
        "describe": _describe, "prepare": _prepare, "count": _count, "apply": _apply, "stack": _stack, "train": _train,
        "evaluate": _evaluate, "curvature": _curvature, "own": _own, "save": _save, "load": _load, "forget": _forget,
    }  # fmt: skip

    def _prepared(self) -> tuple[Prepared, Custom]:
        if self.rows is None or self.task is None:
            raise Refusal("the rows are not prepared")
        return self.rows, self.task

    def _at_work(self, message: Message) -> Federated:
        if self.algorithm is None or message.value("stack", int) != self.stack:
            raise Refusal("this stack of jobs is not known here")
        return self.algorithm

    def _outcomes(self, message: Message) -> list[tuple[int, list[str]]]:
        outcomes = message.value("outcomes", dict).get(self.name, [])
        for one in outcomes:
            if not (isinstance(one, list) and len(one) == 2 and type(one[0]) is int and isinstance(one[1], list)):
                raise BadMessage(f"{message.kind}: outcomes must be rounds and tokens")
        return outcomes

    def _plain_problem(self) -> Problem:
        rows, task = self._prepared()
        if self.model is None:
            raise Refusal("the rows are not prepared")
        return TaskData(rows.training, self.model, task.chosen_loss()).joined(NoRegularizer())


def _without_paths(regularizer: dict[str, Any]) -> dict[str, Any]:
    """Groups come as a mapping: no file of the site's is ever looked for."""
    if not isinstance(regularizer.get("groups"), dict | None):
        raise Refusal("regularizer.groups must be a mapping")
    return regularizer


def _numbers(message: Message, name: str, owner: HasNumbers, jobs: int) -> Numbers:
    """The numbers of every job, as records of the owner's kind."""
    one = owner.numbers
    flat = message.wanted(name, (jobs, one.dtype.itemsize // 8), float)
    return np.frombuffer(flat.tobytes(), one.dtype).view(np.recarray)


def _tokens(message: Message) -> list[str]:
    tokens = message.value("tokens", list)
    if not all(isinstance(token, str) for token in tokens):
        raise BadMessage(f"{message.kind}: tokens must be text")
    return tokens


def _positive(message: Message, name: str) -> int:
    number = message.value(name, int)
    if not 0 < number < 2**31:
        raise BadMessage(f"{message.kind}: {name} must be a whole number > 0")
    return number


def sent_task(task: Custom) -> dict[str, Any]:
    """What a site must know of the task."""
    return {key.name: getattr(task, key.name) for key in fields(task) if key.name not in NOT_SENT}
