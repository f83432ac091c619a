"""Site side of an NVIDIA FLARE job: the executor class that the job names.

The data file is set in `local/fco.json` of the site's kit, the policy in `site.yaml` of the site's folder.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from fco_cli.errors import UserError
from fco_cli.federation.flare.adapter import (
    EventType,
    Executor,
    FLContextKey,
    ReturnCode,
    TaskReturnCode,
    core_cell,
    make_reply,
    make_task_reply,
)
from fco_cli.federation.flare.kits import load_site
from fco_cli.federation.flare.rights import CHANNEL, READY, REQUEST
from fco_cli.federation.site.site import Site, refuse_all


class SiteExecutor(Executor):
    """Executor that passes requests to the site one at a time and returns its responses."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.site: Site | None = None

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        if event_type == EventType.ABOUT_TO_START_RUN:
            workspace, cell = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT), core_cell(fl_ctx.get_engine())
            settings = json.loads((Path(workspace.get_site_config_dir()) / "fco.json").read_text(encoding="utf-8"))
            cell.register_request_cb(CHANNEL, READY, lambda request: make_reply(ReturnCode.OK, body=b"here"))
            startup = Path(workspace.get_startup_kit_dir())
            cell.register_request_cb(CHANNEL, REQUEST, self._handle, settings=settings, startup=startup)

    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:
        return make_task_reply(TaskReturnCode.TASK_UNKNOWN)  # requests do not use FLARE's task queue

    def _handle(self, request: Any, settings: dict[str, Any], startup: Path) -> Any:
        with self.lock:
            if self.site is None:
                try:
                    self.site = load_site(settings, startup)
                except UserError as problem:
                    return make_reply(ReturnCode.OK, body=refuse_all(Path(settings["home"]), problem))
            return make_reply(ReturnCode.OK, body=self.site.handle(bytes(request.payload)))
