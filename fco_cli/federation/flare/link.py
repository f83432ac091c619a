"""The analyst's link to sites over NVIDIA FLARE: a job is submitted, and its relay asked until the run is over.

A job of FLARE is disposable: it does not survive the loss of a site or of the server. The run does: what is saved is
continued by another job.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import logging
import secrets
import tempfile
import time
from pathlib import Path
from typing import Any

from fco_cli.errors import UserError, install_extra
from fco_cli.federation.flare.enrol import LEAD, kit_of
from fco_cli.federation.flare.rights import SERVER_CLASS, SITE_JOB
from fco_cli.simulation.clients import ClientsLost

log = logging.getLogger(__name__)

IDLE_SECONDS = 120.0  # after which a relay that hears nothing ends by itself
LOGIN_SECONDS = 10.0
READY_SECONDS = 0.5
MARGIN_SECONDS = 5.0  # beyond what the relay waits for the sites
POLL_SECONDS = 0.25


def _impatient(authenticator: Any, **options: Any) -> Any:
    """FLARE introduces itself before the connection stands, always, and would then wait for a second."""
    return authenticator(**options | {"retry_interval": 0.1})


def state_of(home: Path) -> tuple[list[str], int]:
    """Who has joined, and how many jobs run."""
    session = FlareLink.session_of(kit_of(home, LEAD), time.monotonic())
    try:
        info = session.get_system_info()
        return sorted(client.name for client in info.client_info), len(info.job_info)
    finally:
        session.close()


class FlareLink:
    """One job, from its submission to its end; waits for the server and the sites up to `patience` seconds."""

    def __init__(self, home: Path, sites: list[str], patience: float) -> None:
        self.sites, self.key = sites, secrets.token_hex(16)
        self.end = time.monotonic() + patience
        self.session = self.session_of(kit_of(home, LEAD), self.end)
        self.job = ""
        try:
            self._wait_for_sites()
            with tempfile.TemporaryDirectory() as folder:
                self._write_job(Path(folder))
                self.job = self.session.submit_job(folder)
            self._wait_for_start()
        except BaseException:  # the session's threads would keep this process alive
            self.close()
            raise

    def ask(self, sites: list[str], content: bytes, timeout: float) -> dict[str, bytes]:
        asked = {"sites": sites, "content": content, "timeout": timeout}
        answers = self._send("ask", asked, timeout + MARGIN_SECONDS)
        if answers is None:
            raise ClientsLost("the server does not answer")
        return {name: answer for name, answer in answers.items() if name in sites}

    def close(self) -> None:
        with contextlib.suppress(Exception):  # whoever does not hear it ends by itself
            if self.job:
                self._send("bye", {}, 1.0)
        with contextlib.suppress(Exception):
            self.session.close()

    def _send(self, topic: str, asked: dict[str, Any], timeout: float) -> Any:
        from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
        from nvflare.fuel.f3.message import Message

        reply = self.session.api.cell.core_cell.send_request(
            channel="fco", topic=topic, target=f"server.{self.job}", request=Message(payload=asked | {"key": self.key}),
            timeout=timeout,
        )  # fmt: skip
        return reply.payload if reply.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.OK else None

    @staticmethod
    def session_of(kit: Path, end: float) -> Any:
        """The lead's session with the server, which may still be starting."""
        if not kit.exists():
            raise UserError(f"federation.home: {kit} is not there: fco-federate serve makes it, on this machine")
        logging.getLogger("nvflare").setLevel(logging.CRITICAL)
        try:
            from nvflare.fuel.flare_api.flare_api import new_secure_session
            from nvflare.fuel.hci.client import api
            from nvflare.fuel.utils.config_service import ConfigService
        except ImportError:
            raise UserError(f"federation=flare: needs NVIDIA FLARE: {install_extra('federation')}") from None
        # Or FLARE looks for its settings in all that is below the working directory, once for every ending.
        ConfigService.initialize({}, [str(kit / "startup")])
        if not isinstance(api.Authenticator, functools.partial):
            api.Authenticator = functools.partial(_impatient, api.Authenticator)
        while True:
            try:
                with contextlib.redirect_stdout(io.StringIO()):  # it talks
                    return new_secure_session(LEAD, str(kit), timeout=LOGIN_SECONDS)
            except Exception as problem:
                if time.monotonic() > end:
                    reason = f"{type(problem).__name__}: {problem}"
                    raise UserError(f"federation.home: the server of {kit} does not answer: {reason}") from problem
            time.sleep(1.0)

    def _wait_for_sites(self) -> None:
        said = False
        while True:
            there = {client.name for client in self.session.get_system_info().client_info}
            missing = [name for name in self.sites if name not in there]
            if not missing:
                return
            names = ", ".join(missing)
            if time.monotonic() > self.end:
                raise UserError(f"federation.sites: {names} did not join (fco-federate status lists who has)")
            if not said:
                log.info("waiting for %s", names)
                said = True
            time.sleep(POLL_SECONDS)

    def _wait_for_start(self) -> None:
        """Until all processes of the job answer, or a site has refused to run it."""
        while True:
            meta = self.session.get_job_meta(self.job)
            status = meta.get("status", "")
            if status == "RUNNING" and self._send("ready", {"sites": self.sites}, READY_SECONDS) == self.sites:
                return
            if status.startswith("FINISHED"):
                detail = "; ".join(meta.get("job_deploy_detail") or []) or status
                raise UserError(f"federation: the job was refused: {detail}")
            if time.monotonic() > self.end:
                raise ClientsLost(f"the job does not start ({status})")
            time.sleep(POLL_SECONDS)

    def _write_job(self, folder: Path) -> None:
        """What each side runs, by the name of an installed class; only the server is told the key."""
        relay = {
            "id": "fco",
            "path": SERVER_CLASS,
            "args": {"key": self.key, "sites": self.sites, "idle": IDLE_SECONDS},
        }
        files = {
            "meta.json": {
                "name": "fco",
                "resource_spec": {},
                "min_clients": len(self.sites),
                "mandatory_clients": self.sites,
                "deploy_map": {"relay": ["server"], "site": self.sites},
            },
            "relay/config/config_fed_server.json": {"format_version": 2, "workflows": [relay], "components": []},
            "site/config/config_fed_client.json": SITE_JOB,
        }
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(json.dumps(content), encoding="utf-8")
