"""What a site does in a round: the client's part of an algorithm, on its own rows, and what it then remembers."""

from __future__ import annotations

import secrets
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.algorithms.protocol import Federated
from fco_cli.algorithms.transforms import all_transforms
from fco_cli.federation.message import LARGEST, Arrays, ArraySpec, BadMessage, Message, converted, read_arrays
from fco_cli.federation.policy import Refusal
from fco_cli.federation.schema import Forget, Load, Outcome, Own, Save, Stack, Train
from fco_cli.federation.site.memory import SiteMemory
from fco_cli.federation.site.telling import Telling
from fco_cli.federation.typed import one_of
from fco_cli.problem.layout import Array
from fco_cli.problem.mirror_maps import MIRRORS
from fco_cli.problem.numbers import Numbers
from fco_cli.problem.problem import TaskData
from fco_cli.problem.regularizers import all_regularizers
from fco_cli.problem.risk import own_losses
from fco_cli.problem.streams import batches_of, message_keys

T = TypeVar("T")


class Working:
    """One site's client at work in one session, on the rows that `telling` has."""

    def __init__(self, telling: Telling, folder: Path) -> None:
        self.telling, self.memory = telling, SiteMemory(folder)
        self.algorithm: Federated | None = None
        self.initial: Array | None = None
        self.stacked = -1

    def stack(self, question: Stack, arrays: Arrays) -> Message:
        """The algorithm and the regularizer, with the numbers of every job of a stack."""
        policy, model, jobs = self.telling.policy, self.telling.linear(), question.jobs
        algorithm = one_of(all_algorithms(), question.algo, "algo")
        psi = one_of(all_regularizers(), _without_paths(question.regularizer), "regularizer")
        mirror = one_of(MIRRORS, question.mirror, "mirror")
        transform = one_of(all_transforms(), question.transform, "transform")
        policy.check("algorithms", algorithm.name)
        policy.check("regularizers", psi.name)
        if not isinstance(algorithm, Federated):
            raise Refusal(f"{algorithm.name} is no federated algorithm")
        policy.check_numbers(jobs * model.layout.size)
        rows = self.telling.rows()
        data = TaskData(self.telling.training(), model, self.telling.loss(), features=rows.features)
        problem = data.joined(psi, mirror)
        owners = {"psi": psi, "options": algorithm, "transform": transform}
        rate = ArraySpec((jobs,), rows.dtype, low=0)
        specs = {name: ArraySpec((jobs, owner.numbers.dtype.itemsize // 8)) for name, owner in owners.items()}
        read = read_arrays(arrays, {"client_lr": rate, "server_lr": rate, **specs})
        numbers = [numbers_of_jobs(name, owner, read[name]) for name, owner in owners.items()]
        varying = Varying(read["client_lr"], read["server_lr"], *numbers)
        self.algorithm = algorithm.through(transform).bind(problem, varying)
        self.initial = self.algorithm.initial_kept(problem.initial_models(varying.psi))
        self.stacked = question.stack
        return Message("")

    def train(self, question: Train, arrays: Arrays) -> Message:
        """`client_update`, on the batches that (seed, round, client) and the site's own rows determine."""
        algorithm, tokens = self._at_work(question.stack), question.tokens
        problem, jobs = algorithm.problem, len(algorithm.varying)
        _check_for_every_job("tokens", tokens, jobs)
        vector, number = ArraySpec((jobs, problem.layout.size), problem.dtype), ArraySpec((jobs,))
        received = read_arrays(
            arrays, dict.fromkeys(algorithm.broadcast, vector) | dict.fromkeys(algorithm.clocks, number)
        )
        factor, noise = self._masked(question, jobs)
        rows, alone = problem.data, np.array([self.telling.client])
        visited = int(rows.sizes[0]) * question.local_epochs
        if question.steps is not None:
            visited = question.steps * question.batch_size
        self.telling.policy.check_numbers(visited)
        self.memory.settle(self._outcomes(question))
        assert self.initial is not None
        kept = self.memory.read(tokens, self.initial) if algorithm.kept else self.initial
        order, edges, _ = batches_of(
            question.seed, question.round, alone, rows.sizes,
            question.batch_size, question.local_epochs, question.last_batch, question.steps,
        )  # fmt: skip
        before = dict(zip(algorithm.kept, kept, strict=True))
        keys = message_keys(question.seed, question.round, alone) if algorithm.transform.random else None
        with np.errstate(all="ignore"):  # a message that is not finite has no weight in the mean
            sent, after = algorithm.client_update(received, before, rows, order, edges, keys)
            if algorithm.kept:
                self.memory.propose(question.round, tokens, np.stack(list(after.values())))
            if factor is not None:  # of a sum, in which the site weights its message
                sent = {name: factor[:, None] * values.astype(float) for name, values in sent.items()}
            if noise is not None:
                sent = _with_noise(sent, noise)
        return Message("", arrays=sent)

    def _masked(self, question: Train, jobs: int) -> tuple[Array | None, Array | None]:
        """Return this site's factors and its noise [J], for a sum of all sites' messages."""
        if question.factors is None:
            if question.noise is not None:
                raise BadMessage("noise: it needs factors")
            return None, None
        mine = _check_for_every_job("factors", question.factors.get(self.telling.name, []), jobs)
        noise = question.noise
        return np.array(mine), None if noise is None else np.array(_check_for_every_job("noise", noise, jobs))

    def own(self, question: Own) -> Message:
        """How the client's own model, which it remembers, does on its own rows."""
        algorithm, tokens, rows = self._at_work(question.stack), question.tokens, self.telling.rows()
        if algorithm.personal not in algorithm.remembered or self.initial is None:
            raise Refusal(f"{algorithm.name} has no personal models")
        _check_for_every_job("tokens", tokens, len(algorithm.varying))
        self.memory.settle(self._outcomes(question))
        kept = self.memory.read(tokens, self.initial)[algorithm.remembered.index(algorithm.personal)]
        arrays: dict[str, Array] = {}
        for part, data in (("train", rows.training), ("validation", rows.held_out)):
            if data is not None:
                losses, accuracy = own_losses(
                    data, algorithm.problem.model, self.telling.loss(), kept[None], np.zeros(1, int)
                )
                arrays[f"own_{part}_loss"] = np.where(losses[0] > LARGEST, np.inf, np.maximum(losses[0], 0))
                if accuracy is not None:
                    arrays[f"own_{part}_accuracy"] = accuracy[0]
        return Message("", arrays=arrays)

    def save(self, question: Save) -> Message:
        self._at_work(question.stack)
        self.memory.settle(self._outcomes(question))
        self.memory.save(question.round, question.tokens)
        return Message("")

    def load(self, question: Load) -> Message:
        algorithm = self._at_work(question.stack)
        shape = (len(algorithm.kept), algorithm.problem.layout.size)
        return Message("", {"known": self.memory.load(question.round, question.tokens, shape, algorithm.problem.dtype)})

    def forget(self, question: Forget) -> Message:
        self.memory.forget(question.tokens)
        return Message("")

    def stop(self) -> None:
        """Other rows are prepared: the stack was of those before."""
        self.algorithm = None

    def _at_work(self, stack: int) -> Federated:
        if self.algorithm is None or stack != self.stacked:
            raise Refusal("this stack of jobs is not known here")
        return self.algorithm

    def _outcomes(self, question: Own) -> list[Outcome]:
        return question.outcomes.get(self.telling.name, [])


def _without_paths(regularizer: dict[str, Any]) -> dict[str, Any]:
    """Refuse groups that are not a mapping, in blocks too: no file of the site is read."""
    if not isinstance(regularizer.get("groups"), dict | None):
        raise Refusal("regularizer.groups must be a mapping")
    if isinstance(blocks := regularizer.get("blocks"), dict):
        kinds = {name: kind for name, kind in all_regularizers().items() if name != "blockwise"}
        for block, options in blocks.items():
            one_of(kinds, _without_paths(converted(options, dict[str, Any])), f"regularizer.blocks.{block}")
    return regularizer


def numbers_of_jobs(name: str, owner: Any, flat: Array) -> Numbers:
    """Return the numbers of every job [J] as records of the owner's kind; raise UserError if one is out of range.

    The owner's own checks run for every job; a number that cannot vary within a stack must be the owner's.
    """
    for job in flat:
        _check_numbers(name, owner, job)
    return np.frombuffer(flat.tobytes(), owner.numbers.dtype).view(np.recarray)


def _check_numbers(name: str, owner: Any, job: Array) -> None:
    if pieces := getattr(owner, "pieces", None):  # their numbers follow each other
        ends = np.cumsum([one.numbers.dtype.itemsize // 8 for one in pieces.values()])
        for one, part in zip(pieces.values(), np.split(job, ends[:-1]), strict=True):
            _check_numbers(name, one, part)
        return
    known, changes = {key.name for key in fields(owner)}, {}
    for key, number in zip(owner.numbers.dtype.names, job.tolist(), strict=True):
        if key in known and isinstance(getattr(owner, key), float):
            changes[key] = number
        elif number != float(owner.numbers[key][0]):
            raise BadMessage(f"the array {name}: {key} cannot vary within a stack")
    replace(owner, **changes)


def _check_for_every_job(name: str, values: list[T], jobs: int) -> list[T]:
    if len(values) != jobs:
        raise BadMessage(f"{name}: there must be one for every job")
    return values


def _with_noise(sent: dict[str, Array], deviation: Array) -> dict[str, Array]:
    """With this site's share of the noise: from randomness that nobody else knows, unlike the run's seed."""
    random = np.random.default_rng(secrets.randbits(128))
    return {
        name: values + deviation[:, None] * random.standard_normal(values.shape)  # jobs that share it would tell it
        for name, values in sent.items()
    }
