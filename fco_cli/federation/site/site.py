"""A site: one client's rows, what it remembers, and what it answers; no transport.

Everything it computes with is installed here: a question names a kind of the list below and brings plain values and
arrays. Nothing that grows with the number of rows leaves it, except counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from fco_cli.data.format import shown
from fco_cli.errors import UserError
from fco_cli.federation.masks import MASKED, Badge, Masks
from fco_cli.federation.message import BadMessage, Message, read_arrays
from fco_cli.federation.policy import Policy, Refusal
from fco_cli.federation.schema import QUESTIONS, Header, Prepare
from fco_cli.federation.site.audit import FILE, Audit
from fco_cli.federation.site.rows import SiteFile
from fco_cli.federation.site.telling import Telling
from fco_cli.federation.site.working import Working

log = logging.getLogger(__name__)

WITH_ARRAYS = ("count", "evaluate", "stack", "train")  # questions; the others have none


class Site:
    """Answers one coordinator's questions, in the order of their numbers."""

    def __init__(self, name: str, file: SiteFile, policy: Policy, folder: Path, badge: Badge | None = None) -> None:
        self.name, self.file, self.policy = name, file, policy
        self.audit = Audit(folder / FILE)
        self.telling = telling = Telling(name, file, policy)
        self.working = working = Working(telling, folder / "memory")
        self.masks = masks = Masks(name, badge)
        self.session: str | None = None
        self.number = 0
        self.kinds: dict[str, Callable[..., Message]] = {
            "describe": telling.describe, "prepare": self._prepare, "count": telling.count, "apply": telling.apply,
            "evaluate": telling.evaluate, "curvature": telling.curvature,
            "stack": working.stack, "train": working.train, "own": working.own,
            "key": masks.key, "keys": masks.keys, "save": working.save, "load": working.load, "forget": working.forget,
        }  # fmt: skip

    def answer(self, content: bytes) -> bytes:
        """The answer to a question, or a refusal in one line; whatever it is, it is written down."""
        kind, number = "unknown", 0
        try:
            message = Message.unpacked(content)
            if message.kind not in self.kinds:
                raise Refusal("this kind of message is not known here")
            kind, header = message.kind, message.head_as(Header)
            number = header.number
            self._admit(kind, header)
            reply = self._handled(message)
            if self.masks.agreed and kind in MASKED:
                reply = self.masks.hidden(content, reply)
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

    def _handled(self, message: Message) -> Message:
        """Validate a question against its schema and answer it: the only reader."""
        question, handler = message.head_as(QUESTIONS[message.kind]), self.kinds[message.kind]
        if message.kind in WITH_ARRAYS:
            return handler(question, message.arrays)
        read_arrays(message.arrays, {})
        return handler(question)

    def _admit(self, kind: str, header: Header) -> None:
        """Refuse a second coordinator, a replayed message and what the policy forbids."""
        if kind == "describe" and self.session is None:
            self.session = header.session
        if header.session != self.session:
            raise Refusal("this job has another coordinator")
        if header.number <= self.number:
            raise Refusal("replayed or out-of-order message")
        self.number = header.number
        self.policy.check("messages", kind)
        self.policy.check_limits(kind, self.audit.answered)
        if self.policy.masks and kind in MASKED and not self.masks.agreed:
            raise Refusal("its policy answers through masks only (masks: true; federation.masks=true)")
        if kind == "own" and (self.policy.masks or self.masks.agreed):
            raise Refusal("how its own model does is no sum, and cannot be masked")

    def _prepare(self, question: Prepare) -> Message:
        self.working.stop()
        return self.telling.prepare(question)
