"""A site's end of a job of NVIDIA FLARE: installed at the site; the job names this class and nothing else.

Which file is read, and what is answered, is decided in the site's own folder: `local/fco.json` of its kit, `site.yaml`.
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

from fco_cli.federation.flare.enrol import site_of
from fco_cli.federation.flare.guards import SiteGuard
from fco_cli.federation.flare.server import CHANNEL, QUESTION, READY
from fco_cli.federation.site.audit import FILE
from fco_cli.federation.site.site import Site


class SiteExecutor(Executor):
    """Hands questions to the site, one after another, and answers back."""

    def __init__(self) -> None:
        super().__init__()
        self.one_at_a_time = threading.Lock()
        self.site: Site | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.ABOUT_TO_START_RUN:
            workspace, cell = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT), fl_ctx.get_engine().get_cell().core_cell
            own = json.loads((Path(workspace.get_site_config_dir()) / "fco.json").read_text(encoding="utf-8"))
            SiteGuard(str(Path(own["home"]) / FILE)).handle_event(event_type, fl_ctx)
            cell.register_request_cb(CHANNEL, READY, lambda request: make_reply(ReturnCode.OK, body=b"here"))
            startup = Path(workspace.get_startup_kit_dir())
            cell.register_request_cb(CHANNEL, QUESTION, self._answer, own=own, startup=startup)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        return make_task_reply(TaskReturnCode.TASK_UNKNOWN)  # questions do not come by FLARE's own way

    def _answer(self, request: Any, own: dict[str, Any], startup: Path) -> Any:
        with self.one_at_a_time:
            if self.site is None:
                self.site = site_of(own, startup)
            return make_reply(ReturnCode.OK, body=self.site.answer(bytes(request.payload)))
