"""The server's end of a job of NVIDIA FLARE: it passes the analyst's questions to the sites, and their answers back.

The questions come from the process of `fco-run`, which holds the job's key; the rounds, the record and the checkpoint
are there. Questions are pushed: FLARE's queue would be polled every two seconds. Nothing of a site is imported here:
its process starts in half the time.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message

CHANNEL = "fco"
READY, QUESTION, BYE = "ready", "ask", "bye"  # what may be said there, to the relay and by it to the sites' processes
BYTES = (bytes, bytearray, memoryview)
CHECK_SECONDS = 0.1
READY_SECONDS = 0.3


class RelayController(Controller):
    """One analyst's session; it ends when the analyst says so, or has been silent for long."""

    def __init__(self, key: str, sites: list[str], idle: float) -> None:
        super().__init__()
        self.key, self.sites, self.idle = key, sites, idle
        self.over = False
        self.heard = time.monotonic()

    def start_controller(self, fl_ctx: FLContext) -> None: ...

    def stop_controller(self, fl_ctx: FLContext) -> None: ...

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None: ...

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        self.job, self.cell = fl_ctx.get_job_id(), fl_ctx.get_engine().get_cell().core_cell
        for topic, answer in ((READY, self._ready), (QUESTION, self._ask), (BYE, self._bye)):
            self.cell.register_request_cb(CHANNEL, topic, self._checked, answer=answer)
        while not (abort_signal.triggered or self.over or time.monotonic() - self.heard > self.idle):
            time.sleep(CHECK_SECONDS)

    def _checked(self, request: Any, answer: Callable[[dict[str, Any]], Any]) -> Any:
        """Whoever does not know the key is not heard."""
        asked = request.payload
        if not (isinstance(asked, dict) and hmac.compare_digest(str(asked.get("key")), self.key)):
            return make_reply(ReturnCode.UNAUTHENTICATED, "not the analyst of this job")
        try:
            return make_reply(ReturnCode.OK, body=answer(asked))
        finally:
            self.heard = time.monotonic()

    def _ready(self, asked: dict[str, Any]) -> list[str]:
        """Whose processes have started."""
        return sorted(self._push(READY, b"", asked["sites"], READY_SECONDS))

    def _ask(self, asked: dict[str, Any]) -> dict[str, bytes]:
        """The sites' answers to a question."""
        return self._push(QUESTION, asked["content"], asked["sites"], asked["timeout"])

    def _bye(self, asked: dict[str, Any]) -> bool:
        self.over = True
        return True

    def _push(self, topic: str, content: bytes, sites: list[str], timeout: float) -> dict[str, bytes]:
        """The answers of those who answered."""
        named = {FQCN.join([site, self.job]): site for site in sites}
        replies = self.cell.broadcast_request(
            CHANNEL, topic, list(named), Message(payload=content), timeout, optional=True
        )
        return {
            named[cell]: bytes(reply.payload)
            for cell, reply in replies.items()
            if reply.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.OK and isinstance(reply.payload, BYTES)
        }
