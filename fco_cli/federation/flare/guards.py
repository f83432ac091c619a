"""Guards for NVIDIA FLARE 2.9, named in local/resources.json: a site hears its server only, and only what a job needs.

2.9.0 forwards any member's message to any other member, the sender of a command says itself whether the site's policy
is to be asked, and whoever has signed a job as "super" may bring code. Without these one hospital could make another
run shell commands, and a coordinator could run what it likes. They use FLARE's internals, hence the narrow pin of its
version, and tests that attack. What is turned away has a line in the party's audit file.
"""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import AdminCommandNames
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.core_cell import make_reply
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessagePropKey, ReturnCode
from nvflare.fuel.f3.comm_error import CommError
from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.f3.sfm.constants import HandshakeKeys
from nvflare.fuel.sec.authz import AuthorizationService
from nvflare.lighter.tool_consts import NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE
from nvflare.private.admin_defs import error_reply
from nvflare.private.defs import CellChannel, SysCommandTopic, TrainingTopic
from nvflare.private.fed.client.admin import RequestProcessor

from fco_cli.federation.flare.handshakes import note_failures
from fco_cli.federation.flare.rights import SITE_JOB
from fco_cli.federation.site.audit import write_down

SERVER = "server"
CONFIG, LONGEST_CONFIG = "config/config_fed_client.json", 10_000  # bytes
SIGNATURES = (NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE)
NEEDED = (  # of what a server may ask of a site's main process
    TrainingTopic.CHECK_RESOURCE,
    TrainingTopic.CANCEL_RESOURCE,
    TrainingTopic.DEPLOY,
    TrainingTopic.START_JOB,
    TrainingTopic.ABORT,
    TrainingTopic.CHECK_STATUS,
    TrainingTopic.NOTIFY_JOB_STATUS,
    SysCommandTopic.REPORT_VERSION,
)


COMMANDS = (AdminCommandNames.CHECK_STATUS, AdminCommandNames.ABORT, AdminCommandNames.SHUTDOWN)  # to a job's process


def member(cell_name: str | None) -> str:
    """Whose cell that is: those of jobs are named below their owner's."""
    return (cell_name or "").split(".")[0]


class Guard(FLComponent):
    """What both sides have in common."""

    def __init__(self, audit: str) -> None:
        super().__init__()
        self.path = Path(audit)

    def refused(self, kind: str, reason: str, content: bytes = b"") -> str:
        """The reason, written down."""
        self.logger.warning(f"refused: {reason}")
        write_down(self.path, kind, f"refused: {reason}", content)
        return reason


class SiteGuard(Guard):
    """At a site, and in each of its job processes, which has a connection of its own."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        engine = fl_ctx.get_engine()
        if event_type in (EventType.SYSTEM_BOOTSTRAP, EventType.ABOUT_TO_START_RUN):
            cell = engine.get_cell()
            cell.core_cell.add_incoming_filter("*", "*", self.check, member(cell.get_fqcn()))
        elif event_type == EventType.SYSTEM_START:
            processors = engine.admin_agent.processors
            processors |= {topic: Refusing(self) for topic in processors if topic not in NEEDED}
            processors[TrainingTopic.DEPLOY] = Deploying(self, processors[TrainingTopic.DEPLOY])

    def check(self, message: Any, me: str) -> Any:
        origin = message.get_header(MessageHeaderKey.ORIGIN, "")
        if member(origin) not in (SERVER, me):
            self.refused("message", f"from {origin}, not from the server")
            return make_reply(ReturnCode.UNAUTHENTICATED, "not from my server")
        topic = message.get_header(MessageHeaderKey.TOPIC)
        if message.get_header(MessageHeaderKey.CHANNEL) == CellChannel.CLIENT_COMMAND and topic not in COMMANDS:
            return make_reply(ReturnCode.INVALID_REQUEST, self.refused("message", f"{topic} is not for servers to ask"))
        return None


class Refusing(RequestProcessor):
    """In place of what no run needs: shells, logs, the environment, restarts."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard

    def process(self, req: Any, app_ctx: Any) -> Any:
        return error_reply(self.guard.refused("message", f"{req.topic} is not for servers to ask"))


class Deploying(RequestProcessor):
    """Before FLARE unpacks a job: it must be the one that `fco-run` submits, to the letter."""

    def __init__(self, guard: Guard, deploy: RequestProcessor) -> None:
        self.guard, self.deploy = guard, deploy

    def process(self, req: Any, app_ctx: Any) -> Any:
        if is_ours(req.body):
            return self.deploy.process(req, app_ctx)
        return error_reply(self.guard.refused("job", "it is not the job that fco-run submits", req.body))


def is_ours(app: bytes) -> bool:
    """Whether a site's part of a job has our configuration and nothing else, beside its signatures."""
    try:
        with ZipFile(io.BytesIO(app)) as packed:
            files = [one for one in packed.infolist() if not one.is_dir() and Path(one.filename).name not in SIGNATURES]
            names, size = [one.filename for one in files], sum(one.file_size for one in files)
            return names == [CONFIG] and size <= LONGEST_CONFIG and json.loads(packed.read(CONFIG)) == SITE_JOB
    except (BadZipFile, ValueError, TypeError, NotImplementedError):
        return False


class ServerGuard(Guard):
    """At the server: who sends is who holds the certificate of the connection, and members talk to the server only.

    The first to come with a certificate stays: a copy of a kit is not let in while its owner is there.
    """

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            core = fl_ctx.get_engine().get_cell().core_cell
            core.add_incoming_filter("*", "*", self.check)
            filters = core.in_filter_reg.find("*", "*")
            filters.insert(0, filters.pop())  # before FLARE's own, which would tell its log only
            manager = core.communicator.conn_manager
            manager.update_endpoint = functools.partial(self.greet, manager, manager.update_endpoint)
            has_right = AuthorizationService.authorize
            AuthorizationService.authorize = staticmethod(functools.partial(self.allow, has_right))
            note_failures(functools.partial(self.refused, "connection"))

    def greet(self, manager: ConnManager, admit: Callable[..., None], connection: Any, data: dict[str, Any]) -> None:
        """FLARE would close the older of two connections with one name."""
        name = data.get(HandshakeKeys.ENDPOINT_NAME)
        known = manager.sfm_endpoints.get(name)
        try:
            if known is not None and any(one is not connection for one in known.connections):
                connection.conn.close()
                raise CommError(CommError.BAD_DATA, f"a second {name}, which is connected already")
            admit(connection, data)
        except CommError as problem:
            self.refused("connection", str(problem.message))
            raise

    def allow(self, has_right: Callable[[Any], tuple[bool, str]], context: Any) -> tuple[bool, str]:
        """Who asks for more than FLARE gives to its role is written down."""
        right, reason = has_right(context)
        if not right:
            self.refused("right", reason)
        return right, reason

    def check(self, message: Any) -> Any:
        peer = member(message.get_prop(MessagePropKey.ENDPOINT).name)
        origin = member(message.get_header(MessageHeaderKey.ORIGIN))
        destination = member(message.get_header(MessageHeaderKey.DESTINATION))
        if peer == SERVER or (origin == peer and destination == SERVER):
            return None
        self.refused("message", f"of {peer} ({origin} -> {destination})")
        return make_reply(ReturnCode.UNAUTHENTICATED, "members talk to the server only")
