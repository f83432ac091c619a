"""What a site does in a round: the client's part of an algorithm, on its own rows, and what it then remembers."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import numpy as np

from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.algorithms.protocol import Federated
from fco_cli.algorithms.transforms import all_transforms
from fco_cli.federation.memory import SiteMemory
from fco_cli.federation.message import BadMessage, Message
from fco_cli.federation.policy import Refusal
from fco_cli.federation.telling import Telling, positive
from fco_cli.federation.typed import one_of
from fco_cli.problem.layout import Array
from fco_cli.problem.mirror_maps import MIRRORS
from fco_cli.problem.numbers import HasNumbers, Numbers
from fco_cli.problem.problem import TaskData
from fco_cli.problem.regularizers import all_regularizers
from fco_cli.problem.risk import own_losses
from fco_cli.problem.streams import batches_of, message_keys


class Working:
    """One site's client at work in one session, on the rows that `telling` has."""

    def __init__(self, telling: Telling, folder: Path) -> None:
        self.telling, self.memory = telling, SiteMemory(folder)
        self.algorithm: Federated | None = None
        self.initial: Array | None = None
        self.stacked = -1

    def stack(self, message: Message) -> Message:
        """The algorithm and the regularizer, with the numbers of every job of a stack."""
        policy, model = self.telling.policy, self.telling.linear()
        algorithm = one_of(all_algorithms(), message.value("algo", dict), "algo")
        psi = one_of(all_regularizers(), _without_paths(message.value("regularizer", dict)), "regularizer")
        mirror = one_of(MIRRORS, message.value("mirror", dict), "mirror")
        transform = one_of(all_transforms(), message.value("transform", dict), "transform")
        policy.check("algorithms", algorithm.name)
        policy.check("regularizers", psi.name)
        if not isinstance(algorithm, Federated):
            raise Refusal(f"{algorithm.name} is no federated algorithm")
        jobs = message.value("jobs", int)
        if not 1 <= jobs * model.layout.size <= policy.max_numbers:
            raise Refusal(f"more numbers than its policy allows (max_numbers: {policy.max_numbers})")
        rows = self.telling.rows()
        data = TaskData(self.telling.training(), model, self.telling.loss(), features=rows.features)
        problem = data.joined(psi, mirror)
        varying = Varying(
            message.wanted("client_lr", (jobs,), rows.dtype),
            message.wanted("server_lr", (jobs,), rows.dtype),
            _numbers(message, "psi", psi, jobs),
            _numbers(message, "options", algorithm, jobs),
            _numbers(message, "transform", transform, jobs),
        )
        self.algorithm = algorithm.through(transform).bind(problem, varying)
        self.initial = self.algorithm.initial_kept(problem.initial_models(varying.psi))
        self.stacked = message.value("stack", int)
        return Message("")

    def train(self, message: Message) -> Message:
        """`client_update`, on the batches that (seed, round, client) and the site's own rows determine."""
        algorithm, tokens = self._at_work(message), _tokens(message)
        problem, jobs = algorithm.problem, len(algorithm.varying)
        if len(tokens) != jobs:
            raise BadMessage("train: there must be a token for every job")
        shape = (jobs, problem.layout.size)
        received = {name: message.wanted(name, shape, problem.dtype) for name in algorithm.broadcast}
        received |= {name: message.wanted(name, (jobs,), float) for name in algorithm.clocks}
        for name, values in received.items():
            if not np.isfinite(values).all():  # a job whose state is not has left the stack
                raise Refusal(f"train: the array {name} is not finite")
        self.memory.settle(self._outcomes(message))
        assert self.initial is not None
        kept = self.memory.read(tokens, self.initial) if algorithm.kept else self.initial
        rows, round_index = problem.data, message.value("round", int)
        steps = message.head.get("steps")
        seed, alone = message.value("seed", int), np.array([self.telling.client])
        order, edges, _ = batches_of(
            seed, round_index, alone, rows.sizes,
            positive(message, "batch_size"), positive(message, "local_epochs"), message.value("last_batch", str),
            None if steps is None else positive(message, "steps"),
        )  # fmt: skip
        before = dict(zip(algorithm.kept, kept, strict=True))
        keys = message_keys(seed, round_index, alone) if algorithm.transform.random else None
        sent, after = algorithm.client_update(received, before, rows, order, edges, keys)
        if algorithm.kept:
            self.memory.propose(round_index, tokens, np.stack(list(after.values())))
        if (factors := message.head.get("factors")) is not None:  # of a sum, in which the site weights its message
            mine = factors.get(self.telling.name) if isinstance(factors, dict) else None
            factor, noise = _per_job("factors", mine, jobs), message.head.get("noise")
            sent = {name: factor[:, None] * values.astype(float) for name, values in sent.items()}
            if noise is not None:
                sent = _with_noise(sent, _per_job("noise", noise, jobs))
        return Message("", arrays=sent)

    def own(self, message: Message) -> Message:
        """How the client's own model, which it remembers, does on its own rows."""
        algorithm, tokens, rows = self._at_work(message), _tokens(message), self.telling.rows()
        if algorithm.personal not in algorithm.remembered or self.initial is None:
            raise Refusal(f"{algorithm.name} has no personal models")
        self.memory.settle(self._outcomes(message))
        kept = self.memory.read(tokens, self.initial)[algorithm.remembered.index(algorithm.personal)]
        arrays: dict[str, Array] = {}
        for part, data in (("train", rows.training), ("validation", rows.held_out)):
            if data is not None:
                losses, accuracy = own_losses(
                    data, algorithm.problem.model, self.telling.loss(), kept[None], np.zeros(1, int)
                )
                arrays[f"own_{part}_loss"] = losses[0]
                if accuracy is not None:
                    arrays[f"own_{part}_accuracy"] = accuracy[0]
        return Message("", arrays=arrays)

    def save(self, message: Message) -> Message:
        self.memory.settle(self._outcomes(message))
        self.memory.save(message.value("round", int), _tokens(message))
        return Message("")

    def load(self, message: Message) -> Message:
        algorithm = self._at_work(message)
        shape = (len(algorithm.kept), algorithm.problem.layout.size)
        round_index, tokens = message.value("round", int), _tokens(message)
        return Message("", {"known": self.memory.load(round_index, tokens, shape, algorithm.problem.dtype)})

    def forget(self, message: Message) -> Message:
        self.memory.forget(_tokens(message))
        return Message("")

    def stop(self) -> None:
        """Other rows are prepared: the stack was of those before."""
        self.algorithm = None

    def _at_work(self, message: Message) -> Federated:
        if self.algorithm is None or message.value("stack", int) != self.stacked:
            raise Refusal("this stack of jobs is not known here")
        return self.algorithm

    def _outcomes(self, message: Message) -> list[tuple[int, list[str]]]:
        outcomes = message.value("outcomes", dict).get(self.telling.name, [])
        for one in outcomes:
            if not (isinstance(one, list) and len(one) == 2 and type(one[0]) is int and isinstance(one[1], list)):
                raise BadMessage(f"{message.kind}: outcomes must be rounds and tokens")
        return outcomes


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


def _per_job(name: str, values: Any, jobs: int) -> Array:
    """A number for every job."""
    if not (isinstance(values, list) and len(values) == jobs and all(isinstance(one, float) for one in values)):
        raise BadMessage(f"train: {name} must be numbers for every job")
    return np.array(values)


def _with_noise(sent: dict[str, Array], deviation: Array) -> dict[str, Array]:
    """With this site's share of the noise: from randomness that nobody else knows, unlike the run's seed."""
    random = np.random.default_rng(secrets.randbits(128))
    return {
        name: values + deviation[:, None] * random.standard_normal(values.shape)  # jobs that share it would tell it
        for name, values in sent.items()
    }
