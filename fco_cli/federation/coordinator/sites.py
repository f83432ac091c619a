"""The coordinator's connection to sites: a question goes out, and answers that can be believed come back."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

import fco_cli
from fco_cli.data.format import shown
from fco_cli.errors import UserError
from fco_cli.federation.message import Arrays, ArraySpec, BadMessage, Message, read_arrays
from fco_cli.federation.noise import EvaluationNoise
from fco_cli.federation.schema import ANSWERS, Refused, Software
from fco_cli.federation.site.telling import code_digest
from fco_cli.simulation.clients import ClientsLost

MOST_BYTES = 2**31 - 2**25  # of a message: NVIDIA FLARE's frames have a little less than 2 GiB
COMPILING_SECONDS = 300.0  # more, for the first question of a kind: sites may have to compile for it


Expected = Callable[[str], Mapping[str, ArraySpec]]  # the arrays of a site's answer


@dataclass(frozen=True)
class Answer:
    """A validated answer: its head of the schema for its kind, its arrays as declared."""

    head: Any
    arrays: Arrays = field(default_factory=dict)


def no_arrays(_name: str) -> Mapping[str, ArraySpec]:
    return {}


class Link(Protocol):
    """How messages reach the sites."""

    def ask(self, sites: list[str], content: bytes, timeout: float) -> dict[str, bytes]:
        """The answers of those who answered in time."""

    def close(self) -> None: ...


class Sites:
    """Sites in the order of their names, connected when they are first asked."""

    def __init__(
        self,
        names: list[str],
        connect: Callable[[], Link],
        timeout: float = 60.0,
        patience: float = 600.0,
        min_sites: int | None = None,
        mask_bits: int | None = None,
        noise: EvaluationNoise | None = None,
    ) -> None:
        """With `mask_bits` behind the point sites answer through masks, and only sums over all of them are known; with
        `noise` they tell nothing but rounds and evaluations, which have it."""
        self.mask_bits, self.noise = mask_bits, noise
        self.names, self.connect, self.timeout, self.patience = sorted(names), connect, timeout, patience
        self.enough = len(names) if min_sites is None else min_sites
        self.link: Link | None = None
        self.agreement: Agreement | None = None  # on which the sites are now; a new connection is brought to it
        self.stacks = 0
        self.compiled: set[str] = set()

    def ask(
        self,
        kind: str,
        head: dict[str, Any] | None = None,
        arrays: Arrays | None = None,
        who: list[str] | None = None,
        at_least: int | None = None,
        expected: Expected = no_arrays,
    ) -> dict[str, Answer]:
        """Return valid answers by site, of all that were asked unless `at_least` is smaller."""
        who = self.names if who is None else who
        self._connected()
        least = len(who) if at_least is None else at_least
        return self._ask(kind, head or {}, arrays or {}, who, least, expected)

    def bring_to(self, agreement: Agreement) -> None:
        """The sites go on with the rows of that agreement, unless they are there already."""
        if self.agreement is not agreement:
            self.agreement = agreement
            connected = self.link is not None
            self._connected()
            if connected:
                self._repeat(agreement)

    def described(self) -> dict[str, Answer]:
        """What the sites are, all of them of our version; where they differ from each other is the task's to judge."""
        self._connected()
        return self.descriptions

    def disconnect(self) -> None:
        if self.link is not None:
            self.link.close()
            self.link = None

    def _connected(self) -> None:
        """A connection that knows what every connection must; waits for sites that have gone, but not forever."""
        end = time.monotonic() + self.patience
        while self.link is None:
            try:
                self._connect()
            except ClientsLost as problem:
                if time.monotonic() > end:
                    raise UserError(f"federation: {problem}") from problem

    def _connect(self) -> None:
        self.link, self.session, self.number = self.connect(), secrets.token_hex(16), 0
        self.compiled.clear()
        everyone = len(self.names)
        self.descriptions = self._ask("describe", {}, {}, self.names, everyone)
        if self.mask_bits is not None:
            answers = self._ask("key", {}, {}, self.names, everyone)
            keys = {name: msgspec.to_builtins(answer.head.key) for name, answer in answers.items()}
            self._ask("keys", {"keys": keys, "bits": self.mask_bits}, {}, self.names, everyone)
        if self.agreement is not None:
            self._repeat(self.agreement)

    def _repeat(self, agreement: Agreement) -> None:
        for kind, head in agreement.questions:
            self._ask(kind, head, {}, self.names, len(self.names))

    def _ask(
        self,
        kind: str,
        head: dict[str, Any],
        arrays: Arrays,
        who: list[str],
        at_least: int,
        expected: Expected = no_arrays,
    ) -> dict[str, Answer]:
        assert self.link is not None
        self.number += 1
        if kind == "stack":
            self.compiled.clear()
        timeout = self.timeout + COMPILING_SECONDS * (kind not in self.compiled)
        content = Message(kind, head | {"session": self.session, "number": self.number}, arrays).packed()
        try:
            answers = self.link.ask(who, content, timeout)
            if len(answers) < at_least:
                silent = ", ".join(name for name in who if name not in answers)
                raise ClientsLost(f"no answer from {silent} within {timeout:g} s")
        except ClientsLost:
            self.disconnect()
            raise
        self.compiled.add(kind)
        return {name: self._checked(name, kind, answers[name], expected) for name in who if name in answers}

    def _checked(self, name: str, kind: str, content: bytes, expected: Expected) -> Answer:
        """Validate an answer to the last question: the only reader. A refusal ends the run with the site's reason."""
        with from_site(name, kind):
            message = Message.unpacked(content)
            if message.kind == "refused":
                raise UserError(f"{name}: {shown(message.head_as(Refused).reason)}")
            if message.kind != kind:
                raise BadMessage("it answers another question")
            if kind == "describe":
                _check_software(name, message.head_as(Software))
            head = message.head_as(ANSWERS[kind])
            if head.number != self.number:
                raise BadMessage("it answers another question")
            return Answer(head, read_arrays(message.arrays, expected(name)))


class Agreement:
    """Rows as all sites have agreed on them: the questions that bring a site there, today and whenever it is asked
    about these rows again."""

    def __init__(self, sites: Sites) -> None:
        self.sites = sites
        self.questions: list[tuple[str, dict[str, Any]]] = []

    def add(self, kind: str, head: dict[str, Any]) -> dict[str, Answer]:
        """One question more."""
        self.sites.bring_to(self)
        answers = self.sites.ask(kind, head)
        self.questions.append((kind, head))
        return answers

    def ask(self, *question: Any, **options: Any) -> dict[str, Answer]:
        """As `Sites.ask`, of these rows."""
        self.sites.bring_to(self)
        return self.sites.ask(*question, **options)


def _check_software(name: str, theirs: Software) -> None:
    """Raise UserError if the site's software is not ours."""
    version, code = fco_cli.__version__, code_digest()
    if (theirs.version, theirs.code) != (version, code):
        versions = f"{shown(theirs.version)} ({theirs.code}), here it is {version} ({code})"
        raise UserError(f"{name}: its fco-cli is {versions}; all parties must install the same")


@contextmanager
def from_site(name: str, kind: str) -> Iterator[None]:
    """Report an invalid answer with the site's name and the kind of the question."""
    try:
        yield
    except BadMessage as problem:
        raise UserError(f"site {name!r}: invalid response to {kind!r}: {shown(problem)}") from problem
