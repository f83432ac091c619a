"""A site's end of a job of NVIDIA FLARE: installed at the site; the job names this class and nothing else.

Which file is read, and what is answered, is decided in the site's own folder: `local/fco.json` of its kit, `site.yaml`.
"""

from __future__ import annotations

import json
from pathlib import Path

from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from fco_cli.federation.enrol import site_of
from fco_cli.federation.flare_guards import SiteGuard
from fco_cli.federation.flare_server import CONTENT, QUESTION
from fco_cli.federation.site import Site


class SiteExecutor(Executor):
    """Hands questions to the site and answers back; `fco_ready` only shows that this process has started."""

    def __init__(self) -> None:
        super().__init__()
        self.guard = SiteGuard()
        self.site: Site | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        self.guard.handle_event(event_type, fl_ctx)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        reply = Shareable()
        if task_name == QUESTION:
            reply[CONTENT] = self._site(fl_ctx).answer(shareable[CONTENT])
        return reply

    def _site(self, fl_ctx: FLContext) -> Site:
        if self.site is None:
            workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
            own = json.loads((Path(workspace.get_site_config_dir()) / "fco.json").read_text())
            self.site = site_of(own, Path(workspace.get_startup_kit_dir()))
        return self.site
