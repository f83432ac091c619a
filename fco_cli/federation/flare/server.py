"""Server side of an NVIDIA FLARE job: a relay of the analyst's requests to the sites and of their responses.

Requests come from the `fco-run` process, which has the job's key, the record and the checkpoint. They are pushed to the
sites, as FLARE's task queue is polled every two seconds. The module imports no site code, to start in half the time.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from typing import Any

from fco_cli.federation.flare.adapter import (
    FQCN,
    Controller,
    Message,
    MessageHeaderKey,
    ReturnCode,
    core_cell,
    make_reply,
)
from fco_cli.federation.flare.rights import BYE, CHANNEL, READY, REQUEST

BYTES_TYPES = (bytes, bytearray, memoryview)
CHECK_SECONDS = 0.1
READY_SECONDS = 0.3


class RelayController(Controller):
    """Relay of one analyst's session, until the analyst ends it or sends no request for `idle` seconds."""

    def __init__(self, key: str, sites: list[str], idle: float) -> None:
        super().__init__()
        self.key, self.sites, self.idle = key, sites, idle
        self.is_over = False
        self.last_request = time.monotonic()

    def start_controller(self, fl_ctx: Any) -> None: ...

    def stop_controller(self, fl_ctx: Any) -> None: ...

    def process_result_of_unknown_task(
        self, client: Any, task_name: str, client_task_id: str, result: Any, fl_ctx: Any
    ) -> None: ...

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        self.job, self.cell = fl_ctx.get_job_id(), core_cell(fl_ctx.get_engine())
        for topic, handler in ((READY, self._ready), (REQUEST, self._forward), (BYE, self._bye)):
            self.cell.register_request_cb(CHANNEL, topic, self._handle, handler=handler)
        while not (abort_signal.triggered or self.is_over or time.monotonic() - self.last_request > self.idle):
            time.sleep(CHECK_SECONDS)

    def _handle(self, request: Any, handler: Callable[[dict[str, Any]], Any]) -> Any:
        """Return the handler's reply, or an error if the request does not have the job's key."""
        payload = request.payload
        if not (isinstance(payload, dict) and hmac.compare_digest(str(payload.get("key")), self.key)):
            return make_reply(ReturnCode.UNAUTHENTICATED, "invalid key of this job")
        try:
            return make_reply(ReturnCode.OK, body=handler(payload))
        finally:
            self.last_request = time.monotonic()

    def _ready(self, payload: dict[str, Any]) -> list[str]:
        """Return the sites whose processes have started."""
        return sorted(self._push(READY, b"", payload["sites"], READY_SECONDS))

    def _forward(self, payload: dict[str, Any]) -> dict[str, bytes]:
        """Return the sites' responses to a request."""
        return self._push(REQUEST, payload["content"], payload["sites"], payload["timeout"])

    def _bye(self, payload: dict[str, Any]) -> bool:
        self.is_over = True
        return True

    def _push(self, topic: str, content: bytes, sites: list[str], timeout: float) -> dict[str, bytes]:
        """Send a message to the sites and return the replies that arrived, by site."""
        site_by_cell = {FQCN.join([site, self.job]): site for site in sites}
        replies = self.cell.broadcast_request(
            CHANNEL, topic, list(site_by_cell), Message(payload=content), timeout, optional=True
        )
        return {
            site_by_cell[cell]: bytes(reply.payload)
            for cell, reply in replies.items()
            if reply.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.OK
            and isinstance(reply.payload, BYTES_TYPES)
        }
