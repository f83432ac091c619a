"""Guards for NVIDIA FLARE 2.9, named in local/resources.json: a site hears its server only, and only what a job needs.

2.9.0 forwards any member's message to any other member, and the sender of a command says itself whether the site's
policy is to be asked: without these one hospital could make another run shell commands. They use FLARE's internals,
hence the narrow pin of its version, and tests that attack.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.core_cell import make_reply
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessagePropKey, ReturnCode
from nvflare.fuel.f3.comm_error import CommError
from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.f3.sfm.constants import HandshakeKeys
from nvflare.private.defs import SysCommandTopic, TrainingTopic

SERVER = "server"
FORBIDDEN = (
    SysCommandTopic.SHELL,
    SysCommandTopic.CONFIGURE_SITE_LOG,
    SysCommandTopic.REPORT_ENV,
    SysCommandTopic.SYS_INFO,
    TrainingTopic.CONFIGURE_JOB_LOG,
)


def member(cell_name: str | None) -> str:
    """Whose cell that is: those of jobs are named below their owner's."""
    return (cell_name or "").split(".")[0]


class SiteGuard(FLComponent):
    """At a site, and in each of its job processes, which has a connection of its own."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        engine = fl_ctx.get_engine()
        if event_type in (EventType.SYSTEM_BOOTSTRAP, EventType.ABOUT_TO_START_RUN):
            cell = engine.get_cell()
            cell.core_cell.add_incoming_filter("*", "*", self.check, member(cell.get_fqcn()))
        elif event_type == EventType.SYSTEM_START:
            for topic in FORBIDDEN:
                engine.admin_agent.processors.pop(topic, None)

    def check(self, message: Any, me: str) -> Any:
        origin = message.get_header(MessageHeaderKey.ORIGIN, "")
        if member(origin) in (SERVER, me):
            return None
        self.logger.warning(f"refused a message of {origin}")
        return make_reply(ReturnCode.UNAUTHENTICATED, "not from my server")


class ServerGuard(FLComponent):
    """At the server: who sends is who holds the certificate of the connection, and members talk to the server only.

    The first to come with a certificate stays: a copy of a kit is not let in while its owner is there.
    """

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            core = fl_ctx.get_engine().get_cell().core_cell
            core.add_incoming_filter("*", "*", self.check)
            manager = core.communicator.conn_manager
            manager.update_endpoint = functools.partial(self.greet, manager, manager.update_endpoint)

    def greet(self, manager: ConnManager, admit: Callable[..., None], connection: Any, data: dict[str, Any]) -> None:
        """FLARE would close the older of two connections with one name."""
        name = data.get(HandshakeKeys.ENDPOINT_NAME)
        known = manager.sfm_endpoints.get(name)
        if known is not None and any(one is not connection for one in known.connections):
            connection.conn.close()
            raise CommError(CommError.BAD_DATA, f"refused a second {name}: it is connected already")
        admit(connection, data)

    def check(self, message: Any) -> Any:
        peer = member(message.get_prop(MessagePropKey.ENDPOINT).name)
        origin = member(message.get_header(MessageHeaderKey.ORIGIN))
        destination = member(message.get_header(MessageHeaderKey.DESTINATION))
        if peer == SERVER or (origin == peer and destination == SERVER):
            return None
        self.logger.warning(f"refused a message of {peer} ({origin} -> {destination})")
        return make_reply(ReturnCode.UNAUTHENTICATED, "members talk to the server only")
