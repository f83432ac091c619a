"""Jobs and commands that a site accepts, and the launchers of guarded job processes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from fco_cli.federation.flare.adapter import (
    NVFLARE_SIG_FILE,
    NVFLARE_SUBMITTER_CRT_FILE,
    PROGRAMS,
    ClientProcessJobLauncher,
    RequestProcessor,
    ServerProcessJobLauncher,
    SysCommandTopic,
    TrainingTopic,
    error_reply,
)
from fco_cli.federation.flare.rights import LAUNCH, SITE_JOB

CONFIG, MAX_CONFIG_BYTES = "config/config_fed_client.json", 10_000
SIGNATURES = (NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE)
ALLOWED_TOPICS = (  # topics that a site's main process accepts from the server; no shell, logs, environment or restart
    TrainingTopic.CHECK_RESOURCE,
    TrainingTopic.CANCEL_RESOURCE,
    TrainingTopic.DEPLOY,
    TrainingTopic.START_JOB,
    TrainingTopic.ABORT,
    TrainingTopic.CHECK_STATUS,
    TrainingTopic.NOTIFY_JOB_STATUS,
    SysCommandTopic.REPORT_VERSION,
)


class GuardedProcessor(RequestProcessor):
    """Processor of commands that a run needs; deploys only the job that `fco-run` submits."""

    def __init__(self, refuse: Callable[..., str], processor: Any) -> None:
        self.refuse, self.processor = refuse, processor

    def get_topics(self) -> list[str]:
        return self.processor.get_topics()

    def process(self, req: Any, app_ctx: Any) -> Any:
        if req.topic not in ALLOWED_TOPICS:
            return error_reply(self.refuse("message", f"{req.topic} is not an allowed command"))
        if req.topic == TrainingTopic.DEPLOY and not is_fco_job(req.body):
            return error_reply(self.refuse("job", "not the job that fco-run submits", req.body))
        return self.processor.process(req, app_ctx)


def is_fco_job(app: bytes) -> bool:
    """Return True if a site's part of a job contains `SITE_JOB` and signatures only."""
    try:
        with ZipFile(io.BytesIO(app)) as packed:
            files = [one for one in packed.infolist() if not one.is_dir() and Path(one.filename).name not in SIGNATURES]
            names, size = [one.filename for one in files], sum(one.file_size for one in files)
            return names == [CONFIG] and size <= MAX_CONFIG_BYTES and json.loads(packed.read(CONFIG)) == SITE_JOB
    except (BadZipFile, ValueError, TypeError, NotImplementedError):
        return False


class SiteLauncher(ClientProcessJobLauncher):
    """Launcher of a site's job process with guards."""

    def get_command(self, job_meta: Any, fl_ctx: Any) -> str:
        return guarded_command(super().get_command(job_meta, fl_ctx), "client_job")


class ServerLauncher(ServerProcessJobLauncher):
    """Launcher of the server's job process with guards."""

    def get_command(self, job_meta: Any, fl_ctx: Any) -> str:
        return guarded_command(super().get_command(job_meta, fl_ctx), "server_job")


def guarded_command(command: str, process: str) -> str:
    """Return the command of a job process that installs the guards first."""
    original = f" -m {PROGRAMS[process]} "
    if command.count(original) != 1:
        raise RuntimeError(f"not a command of NVIDIA FLARE's {process} process: {command}")
    return command.replace(original, f" -m {LAUNCH} {process} ")
