"""Site side of an NVIDIA FLARE job: the executor class that the job names.

The data file is set in `local/fco.json` of the site's kit, the policy in `site.yaml` of the site's folder.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_constant import ReturnCode as TaskReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.shareable import make_reply as make_task_reply
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.defs import ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply

from fco_cli.errors import UserError
from fco_cli.federation.flare.enrollment import load_site
from fco_cli.federation.flare.guards import SiteGuard
from fco_cli.federation.flare.server import CHANNEL, READY, REQUEST
from fco_cli.federation.site.audit import AUDIT_FILE
from fco_cli.federation.site.site import Site, refuse_all


class SiteExecutor(Executor):
    """Executor that passes requests to the site one at a time and returns its responses."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.site: Site | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.ABOUT_TO_START_RUN:
            workspace, cell = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT), fl_ctx.get_engine().get_cell().core_cell
            settings = json.loads((Path(workspace.get_site_config_dir()) / "fco.json").read_text(encoding="utf-8"))
            SiteGuard(str(Path(settings["home"]) / AUDIT_FILE)).handle_event(event_type, fl_ctx)
            cell.register_request_cb(CHANNEL, READY, lambda request: make_reply(ReturnCode.OK, body=b"here"))
            startup = Path(workspace.get_startup_kit_dir())
            cell.register_request_cb(CHANNEL, REQUEST, self._handle, settings=settings, startup=startup)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        return make_task_reply(TaskReturnCode.TASK_UNKNOWN)  # requests do not use FLARE's task queue

    def _handle(self, request: Any, settings: dict[str, Any], startup: Path) -> Any:
        with self.lock:
            if self.site is None:
                try:
                    self.site = load_site(settings, startup)
                except UserError as problem:
                    return make_reply(ReturnCode.OK, body=refuse_all(Path(settings["home"]), problem))
            return make_reply(ReturnCode.OK, body=self.site.handle(bytes(request.payload)))
