"""Transport from the analyst to the sites over NVIDIA FLARE: a submitted job relays requests until the run ends.

A FLARE job does not survive the loss of a site or of the server; the run resumes from its checkpoint with another job.
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

from fco_cli.errors import UserError
from fco_cli.federation.flare.adapter import send_from_session
from fco_cli.federation.flare.kits import kit_path
from fco_cli.federation.flare.rights import BYE, CHANNEL, LEAD, READY, REQUEST, SERVER_CLASS, SITE_JOB
from fco_cli.simulation.clients import ClientsLost

log = logging.getLogger(__name__)

IDLE_SECONDS = 120.0  # without requests, after which the relay ends
LOGIN_SECONDS = 10.0
READY_SECONDS = 0.5
MARGIN_SECONDS = 5.0  # added to the relay's timeout
POLL_SECONDS = 0.25


def _retry_quickly(authenticator: Any, **options: Any) -> Any:
    """Return an authenticator that retries after 0.1 s: its first attempt always precedes the connection."""
    return authenticator(**options | {"retry_interval": 0.1})


def federation_status(home: Path) -> tuple[list[str], int]:
    """Return the names of the connected sites and the number of running jobs."""
    session = FlareLink.open_session(kit_path(home, LEAD), time.monotonic())
    try:
        info = session.get_system_info()
        return sorted(client.name for client in info.client_info), len(info.job_info)
    finally:
        session.close()


class FlareLink:
    """Link through one FLARE job; waits up to `patience` seconds for the server and the sites.

    All sites must be there at the start; the job continues as long as `min_sites` of them are (default: all).
    """

    def __init__(self, home: Path, sites: list[str], patience: float, min_sites: int | None = None) -> None:
        self.sites, self.key = sites, secrets.token_hex(16)
        self.min_sites = len(sites) if min_sites is None else min_sites
        self.end = time.monotonic() + patience
        self.session = self.open_session(kit_path(home, LEAD), self.end)
        self.job = ""
        try:
            self._wait_for_sites()
            with tempfile.TemporaryDirectory() as folder:
                self._write_job(Path(folder))
                self.job = self.session.submit_job(folder)
            self._wait_for_start()
        except BaseException:  # otherwise the session's threads keep this process alive
            self.close()
            raise

    def request(self, sites: list[str], content: bytes, timeout: float) -> dict[str, bytes]:
        payload = {"sites": sites, "content": content, "timeout": timeout}
        responses = self._send(REQUEST, payload, timeout + MARGIN_SECONDS)
        if responses is None:
            raise ClientsLost("no response from the server")
        return {name: response for name, response in responses.items() if name in sites}

    def last_contacts(self) -> dict[str, float]:
        with contextlib.suppress(Exception):  # the next request reports a lost server
            clients = self.session.get_system_info().client_info
            return {client.name: client.last_connect_time or 0.0 for client in clients}
        return {}

    def close(self) -> None:
        with contextlib.suppress(Exception):  # without it, the relay ends after IDLE_SECONDS
            if self.job:
                self._send(BYE, {}, 1.0)
        with contextlib.suppress(Exception):
            self.session.close()

    def _send(self, topic: str, payload: dict[str, Any], timeout: float) -> Any:
        from fco_cli.federation.flare.adapter import Message, MessageHeaderKey, ReturnCode

        request = Message(payload=payload | {"key": self.key})
        reply = send_from_session(
            self.session, channel=CHANNEL, topic=topic, target=f"server.{self.job}", timeout=timeout, request=request
        )
        return reply.payload if reply.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.OK else None

    @staticmethod
    def open_session(kit: Path, end: float) -> Any:
        """Return a session of the lead; retries until `end`, as the server may still be starting."""
        if not kit.exists():
            raise UserError(f"federation.home: {kit} not found; run fco-federate serve on this machine to create it")
        logging.getLogger("nvflare").setLevel(logging.CRITICAL)
        from fco_cli.federation.flare.adapter import AdminApi, ConfigService, new_secure_session

        # Without this, FLARE searches the whole working directory for its settings, once per file extension.
        ConfigService.initialize({}, [str(kit / "startup")])
        if not isinstance(AdminApi.Authenticator, functools.partial):
            AdminApi.Authenticator = functools.partial(_retry_quickly, AdminApi.Authenticator)
        while True:
            try:
                with contextlib.redirect_stdout(io.StringIO()):  # it prints messages
                    return new_secure_session(LEAD, str(kit), timeout=LOGIN_SECONDS)
            except Exception as problem:
                if time.monotonic() > end:
                    reason = f"{type(problem).__name__}: {problem}"
                    raise UserError(f"federation.home: no response from the server of {kit}: {reason}") from problem
            time.sleep(1.0)

    def _wait_for_sites(self) -> None:
        logged = False
        while True:
            connected = {client.name for client in self.session.get_system_info().client_info}
            missing = [name for name in self.sites if name not in connected]
            if not missing:
                return
            names = ", ".join(missing)
            if time.monotonic() > self.end:
                raise UserError(f"federation.sites: {names} did not join (fco-federate status lists connected sites)")
            if not logged:
                log.info("waiting for %s", names)
                logged = True
            time.sleep(POLL_SECONDS)

    def _wait_for_start(self) -> None:
        """Wait until all processes of the job are ready; raise UserError if a site refuses the job."""
        while True:
            meta = self.session.get_job_meta(self.job)
            status = meta.get("status", "")
            if status == "RUNNING" and self._send(READY, {"sites": self.sites}, READY_SECONDS) == self.sites:
                return
            if status.startswith("FINISHED"):
                detail = "; ".join(meta.get("job_deploy_detail") or []) or status
                raise UserError(f"federation: the job was refused: {detail}")
            if time.monotonic() > self.end:
                raise ClientsLost(f"the job did not start (status: {status})")
            time.sleep(POLL_SECONDS)

    def _write_job(self, folder: Path) -> None:
        """Write the job, which names an installed class for each side; only the server receives the key."""
        relay = {
            "id": "fco",
            "path": SERVER_CLASS,
            "args": {"key": self.key, "sites": self.sites, "idle": IDLE_SECONDS},
        }
        files = {
            "meta.json": {
                "name": "fco",
                "resource_spec": {},
                "min_clients": self.min_sites,
                "mandatory_clients": self.sites if self.min_sites == len(self.sites) else [],
                "deploy_map": {"relay": ["server"], "site": self.sites},
            },
            "relay/config/config_fed_server.json": {"format_version": 2, "workflows": [relay], "components": []},
            "site/config/config_fed_client.json": SITE_JOB,
        }
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(json.dumps(content), encoding="utf-8")
