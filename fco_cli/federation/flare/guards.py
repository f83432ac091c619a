"""Guards for NVIDIA FLARE 2.9, named in local/resources.json: sites accept only their server's messages for a job.

FLARE 2.9.0 forwards messages between any two members, lets the sender of a command skip the site's authorization, and
accepts code in a job signed with the role "super". Without the guards, a site could run shell commands at another site
and a coordinator could run arbitrary code. The guards use internals of FLARE, so its version is pinned and tests attack
a running federation. Refused messages are logged in the party's audit file.
"""

from __future__ import annotations

import atexit
import functools
import io
import json
import os
import threading
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

from fco_cli.federation.flare.rights import SITE_JOB
from fco_cli.federation.site.audit import append_entry

SERVER = "server"
CONFIG, MAX_CONFIG_BYTES = "config/config_fed_client.json", 10_000
SIGNATURES = (NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE)
ALLOWED_TOPICS = (  # topics that a site's main process accepts from the server
    TrainingTopic.CHECK_RESOURCE,
    TrainingTopic.CANCEL_RESOURCE,
    TrainingTopic.DEPLOY,
    TrainingTopic.START_JOB,
    TrainingTopic.ABORT,
    TrainingTopic.CHECK_STATUS,
    TrainingTopic.NOTIFY_JOB_STATUS,
    SysCommandTopic.REPORT_VERSION,
)
ALLOWED_COMMANDS = (  # commands that a job's process accepts from the server
    AdminCommandNames.CHECK_STATUS,
    AdminCommandNames.ABORT,
    AdminCommandNames.SHUTDOWN,
)
MARK = "Handshake failed with error "


def member(cell_name: str | None) -> str:
    """Return the member that owns a cell; cells of jobs are named MEMBER.JOB."""
    return (cell_name or "").split(".")[0]


class Guard(FLComponent):
    """Base class of the guards: refusals are logged and written to the audit file."""

    def __init__(self, audit: str) -> None:
        super().__init__()
        self.path = Path(audit)

    def refuse(self, kind: str, reason: str, content: bytes = b"") -> str:
        """Log a refusal and return its reason."""
        self.logger.warning(f"refused: {reason}")
        append_entry(self.path, kind, f"refused: {reason}", content)
        return reason


class SiteGuard(Guard):
    """Guard of a site's main process and of each of its job processes."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        engine = fl_ctx.get_engine()
        if event_type in (EventType.SYSTEM_BOOTSTRAP, EventType.ABOUT_TO_START_RUN):
            cell = engine.get_cell()
            cell.core_cell.add_incoming_filter("*", "*", self.check, member(cell.get_fqcn()))
        elif event_type == EventType.SYSTEM_START:
            processors = engine.admin_agent.processors
            processors |= {topic: RefusedProcessor(self) for topic in processors if topic not in ALLOWED_TOPICS}
            processors[TrainingTopic.DEPLOY] = CheckedDeploy(self, processors[TrainingTopic.DEPLOY])

    def check(self, message: Any, me: str) -> Any:
        """Return an error reply to a message from another member or with a topic not allowed, else None."""
        origin = message.get_header(MessageHeaderKey.ORIGIN, "")
        if member(origin) not in (SERVER, me):
            self.refuse("message", f"sender {origin} is not the server")
            return make_reply(ReturnCode.UNAUTHENTICATED, "the sender is not the server")
        topic = message.get_header(MessageHeaderKey.TOPIC)
        if message.get_header(MessageHeaderKey.CHANNEL) == CellChannel.CLIENT_COMMAND and topic not in ALLOWED_COMMANDS:
            return make_reply(ReturnCode.INVALID_REQUEST, self.refuse("message", f"{topic} is not an allowed command"))
        return None


class RefusedProcessor(RequestProcessor):
    """Processor that refuses commands no run needs: shell, logs, environment, restart."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard

    def process(self, req: Any, app_ctx: Any) -> Any:
        return error_reply(self.guard.refuse("message", f"{req.topic} is not an allowed command"))


class CheckedDeploy(RequestProcessor):
    """Processor that deploys a job only if it is exactly the one that `fco-run` submits."""

    def __init__(self, guard: Guard, deploy: RequestProcessor) -> None:
        self.guard, self.deploy = guard, deploy

    def process(self, req: Any, app_ctx: Any) -> Any:
        if is_fco_job(req.body):
            return self.deploy.process(req, app_ctx)
        return error_reply(self.guard.refuse("job", "not the job that fco-run submits", req.body))


def is_fco_job(app: bytes) -> bool:
    """Return True if a site's part of a job contains `SITE_JOB` and signatures only."""
    try:
        with ZipFile(io.BytesIO(app)) as packed:
            files = [one for one in packed.infolist() if not one.is_dir() and Path(one.filename).name not in SIGNATURES]
            names, size = [one.filename for one in files], sum(one.file_size for one in files)
            return names == [CONFIG] and size <= MAX_CONFIG_BYTES and json.loads(packed.read(CONFIG)) == SITE_JOB
    except (BadZipFile, ValueError, TypeError, NotImplementedError):
        return False


class ServerGuard(Guard):
    """Guard of the server: senders must match their connection's certificate and send to the server only.

    A second connection with the same certificate, such as from a copied kit, is refused while the first is open.
    """

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            core = fl_ctx.get_engine().get_cell().core_cell
            core.add_incoming_filter("*", "*", self.check)
            filters = core.in_filter_reg.find("*", "*")
            filters.insert(0, filters.pop())  # before FLARE's own filters, which do not write to the audit file
            manager = core.communicator.conn_manager
            manager.update_endpoint = functools.partial(self.update_endpoint, manager, manager.update_endpoint)
            authorize = AuthorizationService.authorize
            AuthorizationService.authorize = staticmethod(functools.partial(self.authorize, authorize))
            report_failures(functools.partial(self.refuse, "connection"))

    def update_endpoint(
        self, manager: ConnManager, update: Callable[..., None], connection: Any, data: dict[str, Any]
    ) -> None:
        """Accept a connection unless its name is connected already; FLARE would close the older one."""
        name = data.get(HandshakeKeys.ENDPOINT_NAME)
        known = manager.sfm_endpoints.get(name)
        try:
            if known is not None and any(one is not connection for one in known.connections):
                connection.conn.close()
                raise CommError(CommError.BAD_DATA, f"{name} is connected already")
            update(connection, data)
        except CommError as problem:
            self.refuse("connection", str(problem.message))
            raise

    def authorize(self, authorize: Callable[[Any], tuple[bool, str]], context: Any) -> tuple[bool, str]:
        """Return FLARE's decision and log a refusal."""
        allowed, reason = authorize(context)
        if not allowed:
            self.refuse("right", reason)
        return allowed, reason

    def check(self, message: Any) -> Any:
        """Return an error reply to a message with a forged sender or between members, else None."""
        peer = member(message.get_prop(MessagePropKey.ENDPOINT).name)
        origin = member(message.get_header(MessageHeaderKey.ORIGIN))
        destination = member(message.get_header(MessageHeaderKey.DESTINATION))
        if peer == SERVER or (origin == peer and destination == SERVER):
            return None
        self.refuse("message", f"sent by {peer} ({origin} -> {destination})")
        return make_reply(ReturnCode.UNAUTHENTICATED, "members may send to the server only")


def report_failures(report: Callable[[str], object]) -> None:
    """Call `report` for every failed handshake; all lines of standard error still reach their destination."""
    read_end, write_end = os.pipe()
    original = os.dup(2)
    os.dup2(write_end, 2)
    os.close(write_end)

    def forward() -> None:
        with os.fdopen(read_end, "rb") as lines:
            for line in lines:
                os.write(original, line)
                _, mark, reason = line.decode(errors="replace").partition(MARK)
                if mark:
                    report(f"no certificate of this federation: {reason.strip()}")

    reader = threading.Thread(target=forward, daemon=True)
    reader.start()

    def restore() -> None:
        os.dup2(original, 2)  # closes the pipe, so the reader ends
        reader.join(1.0)

    atexit.register(restore)
