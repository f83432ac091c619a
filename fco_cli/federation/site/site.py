"""Site: validates, answers and audits requests, independently of the transport.

A request has a kind of the list below, plain values and arrays; all code that it runs is installed at the site. The
size of a response does not depend on the number of rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fco_cli.data.format import shown
from fco_cli.errors import UserError
from fco_cli.federation.masks import MASKED_KINDS, Credentials, Masks
from fco_cli.federation.message import BadMessage, Message, read_arrays
from fco_cli.federation.policy import POLICY_FILE, Policy, Refusal
from fco_cli.federation.schema import REQUESTS, Describe, Header, Prepare
from fco_cli.federation.sharing import questions
from fco_cli.federation.site.audit import AUDIT_FILE, Audit, append_entry
from fco_cli.federation.site.data import SiteData
from fco_cli.federation.site.disclosure import Disclosure
from fco_cli.federation.site.evaluation import SiteEvaluator
from fco_cli.federation.site.ledger import LEDGER_FOLDER
from fco_cli.federation.site.rows import SiteFile
from fco_cli.federation.site.survival import SiteSurvival
from fco_cli.federation.site.trainer import SiteTrainer
from fco_cli.files import DelayedFlush

log = logging.getLogger(__name__)

MASKS_REQUIRED = f"the site's policy requires masks ({POLICY_FILE}: masks); set federation.masks=true"
WEIGHTED = ("train", "evaluate", "hessian")  # kinds whose sums have weights
# Kinds of requests with arrays; the others have none.
WITH_ARRAYS = ("summarize", "count", "evaluate", "hessian", "risk_table", "survival", "stack", "train")


def refuse_all(home: Path, problem: UserError) -> bytes:
    """Return the answer of a site without a valid policy or data file, and audit it; details stay in its log."""
    log.error("%s", problem)
    append_entry(home / AUDIT_FILE, "unknown", f"refused: {shown(problem)}")
    reason = f"the site cannot read its {POLICY_FILE}, ledger or data and answers nothing; see its log"
    return Message("refused", {"number": 0, "reason": reason}).packed()


class Site:
    """Site of one client, which answers one coordinator's requests in the order of their numbers."""

    def __init__(
        self, name: str, file: SiteFile, policy: Policy, folder: Path, credentials: Credentials | None = None
    ) -> None:
        self.name, self.file, self.policy = name, file, policy
        self.audit = Audit(folder / AUDIT_FILE, policy.flush)
        self.disclosure = Disclosure(policy, folder / LEDGER_FOLDER, file.data, file.secret)
        self.flusher = None if policy.flush else DelayedFlush(folder / AUDIT_FILE, self.disclosure.ledger.path)
        self.data = data = SiteData(name, file, policy, self.disclosure)
        self.trainer, evaluator = SiteTrainer(data, folder / "memory"), SiteEvaluator(data)
        survival, terms = SiteSurvival(data), data.terms
        trainer = self.trainer
        self.masks = masks = Masks(name, credentials, policy.peers, self.disclosure.check_group)
        self.session: str | None = None
        self.number = 0
        self.kinds: dict[str, Callable[..., Message]] = {
            "describe": self._describe, "prepare": self._prepare, "summarize": data.summarize,
            "count": data.count, "moments": data.moments, "terms": terms.terms, "apply": data.apply,
            "evaluate": evaluator.evaluate, "hessian": evaluator.hessian, "smoothness": evaluator.smoothness,
            "risk_table": survival.risk_table, "survival": survival.sums,
            "stack": trainer.stack, "train": trainer.train, "own": trainer.own,
            "key": masks.key, "keys": masks.keys, "offer": masks.offer, "unmask": masks.unmask,
            "save": trainer.save, "load": trainer.load, "forget": trainer.forget,
        }  # fmt: skip

    def handle(self, content: bytes) -> bytes:
        """Return the response to a request, or a refusal with a one-line reason; both are audited."""
        kind, number, message = "unknown", 0, None
        try:
            message = Message.unpacked(content)
            if message.kind not in self.kinds:
                raise Refusal("unknown kind of message")
            kind, header = message.kind, message.head_as(Header)
            number = header.number
            self._check(kind, header)
            reply = self._dispatch(message, content)
        except (Refusal, BadMessage, UserError) as problem:
            reason = shown(problem)
            self.audit.write(kind, content, f"refused: {reason}", message)
            return Message("refused", {"number": number, "reason": reason}).packed()
        except Exception as problem:  # its text may contain data and is not sent
            log.exception("%s", kind)
            self.audit.write(kind, content, f"failed: {type(problem).__name__}", message)
            reason = f"failed with {type(problem).__name__}; see the log of the site"
            return Message("refused", {"number": number, "reason": reason}).packed()
        answer = Message(kind, reply.head | {"number": number}, reply.arrays).packed()
        numbers = sum(values.size for values in reply.arrays.values())
        self.audit.write(kind, content, "answered", message, numbers, len(answer))
        if self.flusher is not None:
            self.flusher.start()
        return answer

    def _dispatch(self, message: Message, content: bytes) -> Message:
        """Validate a request against its schema and return the response of its handler, masked if keys are set."""
        request, handler = message.head_as(REQUESTS[message.kind]), self.kinds[message.kind]
        masked = self.masks.has_group and message.kind in MASKED_KINDS
        if masked:
            self._start_masked(message, request, content)
        if message.kind in WITH_ARRAYS:
            response = handler(request, message.arrays)
        else:
            read_arrays(message.arrays, {})
            response = handler(request)
        self.disclosure.check_answer(message.kind, response)
        if masked:
            response = self.masks.mask(message.kind, response)
            self.disclosure.charge_overflows(self.masks.fits)
        return response

    def _start_masked(self, message: Message, request: Any, content: bytes) -> None:
        """Check that the weights of a masked request are agreed on, and accept its keys."""
        agreed, is_weighted = self.data.agreed, message.kind in WEIGHTED
        if is_weighted and (agreed is None or agreed.names != self.masks.group or request.agreed != agreed.digest):
            raise Refusal("masks: the request does not refer to numbers of rows that all sites agreed on")
        digests = questions(message.kind, message.head, message.arrays)
        self.masks.start(request.number, content, digests, request.offers)

    def _check(self, kind: str, header: Header) -> None:
        """Raise Refusal for a second coordinator, a replayed message or a request that the policy forbids."""
        if kind == "describe" and self.session is None:
            self.session = self.audit.session = header.session
        if header.session != self.session:
            raise Refusal("the session belongs to another coordinator")
        if header.number <= self.number:
            raise Refusal("replayed or out-of-order message")
        self.number = header.number
        self.policy.check("messages", kind)
        is_masked = kind in MASKED_KINDS and self.masks.has_group
        self.disclosure.start(self.masks.needed if is_masked else 1)
        if self.policy.masks and kind in MASKED_KINDS and not self.masks.has_group:
            raise Refusal(MASKS_REQUIRED)
        if kind in ("risk_table", "terms") and (self.policy.masks or self.masks.has_group):
            raise Refusal(f"answers to {kind!r} are not sums over sites and cannot be masked")
        if kind == "own" and (self.policy.masks or self.masks.has_group):
            raise Refusal("metrics of a personal model are not a sum over sites and cannot be masked")

    def _describe(self, request: Describe) -> Message:
        self.audit.analyst = shown(request.analyst)
        return self.data.describe(request)

    def _prepare(self, request: Prepare) -> Message:
        if request.summary and not request.exact and self.masks.has_group:
            raise Refusal("masks: this site's own statistics of columns requested; sums over the sites are allowed")
        if request.summary and not request.exact and self.policy.masks:
            raise Refusal(MASKS_REQUIRED)
        self.trainer.stop()
        return self.data.prepare(request)
