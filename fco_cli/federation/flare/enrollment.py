"""Enrollment with NVIDIA FLARE: certificate authority, signed requests, and startup kits with restricted permissions.

Private keys never leave their site.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

import yaml

from fco_cli.data.readers.source import Columns
from fco_cli.errors import UserError, install_extra, require
from fco_cli.federation.flare.rights import LEAD_RIGHTS, RIGHTS, ROLES, SERVER_CLASS, SITE_CLASS
from fco_cli.federation.masks import Credentials
from fco_cli.federation.policy import POLICY_FILE, Policy, check_authority
from fco_cli.federation.site.audit import AUDIT_FILE
from fco_cli.federation.site.rows import SiteFile
from fco_cli.federation.site.site import Site

PROJECT, LEAD, ORGANIZATION = "fco", "lead@fco.local", "fco"
GUARDS = "fco_cli.federation.flare.guards"
GRPC_LOGGING = {"GRPC_VERBOSITY": "info"}  # environment in which gRPC reports failed handshakes, which the guards read
NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")


def kit_path(home: Path, name: str) -> Path:
    """Return the folder of a party's startup kit."""
    return home / "kits" / PROJECT / "prod_00" / name


def nvflare(*arguments: object) -> dict[str, Any]:
    """Run an nvflare command in this process, as a new process needs seconds to import it, and return its data."""
    try:
        from nvflare.cli import run
    except ImportError:
        raise UserError(f"fco-federate: NVIDIA FLARE is not installed: {install_extra('federation')}") from None
    output, before = io.StringIO(), sys.argv
    sys.argv = ["nvflare", "--format", "json", *map(str, arguments)]
    code: Any = 0
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
            run("nvflare")
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv = before
    try:
        answer = json.loads(output.getvalue())
    except ValueError:
        raise UserError(
            f"nvflare {arguments[0]} {arguments[1]}: {' '.join(output.getvalue().split()) or code}"
        ) from None
    if code:
        raise UserError(f"nvflare {arguments[0]} {arguments[1]}: {answer.get('message') or answer}")
    return answer.get("data", answer)


def request(name: str, home: Path, kind: str = "client", **more: str) -> Path:
    """Create a key, which stays in `home`, and a certificate request; return the request's path."""
    folder = home / "requests"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    definition = folder / f"{name}.yaml"
    organization = ORGANIZATION if kind != "client" else name.replace("-", "_")
    participant = {"name": name, "type": kind, "org": organization, **more}
    definition.write_text(yaml.safe_dump({"name": PROJECT, "participants": [participant]}), encoding="utf-8")
    nvflare("cert", "request", "--participant", definition, "--out", folder / name)
    return folder / name / f"{name}.request.zip"


def approve(zipped: Path, home: Path) -> tuple[Path, str]:
    """Sign a request; return the signed file, in the same folder, and the fingerprint of the authority."""
    require(zipped.name.endswith(".request.zip"), "the request", str(zipped), "a file NAME.request.zip")
    if not zipped.exists():
        raise UserError(f"{zipped}: no such file")
    signed = zipped.with_name(zipped.name.replace(".request.zip", ".signed.zip"))
    authority = ("--ca-dir", home / "ca", "--profile", home / "profile.yaml")
    answer = nvflare("cert", "approve", zipped, *authority, "--out", signed)
    return signed, answer["rootca_fingerprint_sha256"]


def create_federation(address: str, home: Path) -> None:
    """Create the certificate authority and the kits of the server and the lead."""
    host, _, port = address.rpartition(":")
    require(bool(host) and port.isdigit(), "the address", address, "HOST:PORT, by which the sites reach the server")
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    server = {"host": host, "fed_learn_port": int(port), "admin_port": int(port)}
    profile = {"name": PROJECT, "scheme": "grpc", "connection_security": "mtls", "server": server}
    (home / "profile.yaml").write_text(yaml.safe_dump(profile), encoding="utf-8")
    nvflare("cert", "init", "--profile", home / "profile.yaml", "-o", home / "ca")
    for name, kind, more in ((host, "server", {}), (LEAD, "admin", {"role": "lead"})):
        signed, fingerprint = approve(request(name, home, kind, **more), home)
        package(signed, name, home, fingerprint)
    (home / "founded.json").write_text(json.dumps({"host": host, "fingerprint": fingerprint}), encoding="utf-8")


def is_port_free(address: str) -> bool:
    """Return True if no process listens on that port of this machine."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("0.0.0.0", int(address.rpartition(":")[2])))
        except OSError:
            return False
    return True


def package(signed: Path, name: str, home: Path, fingerprint: str) -> None:
    """Create the kit from a signed request; the authority must have that fingerprint."""
    nvflare(
        "package", signed, "--request-dir", home / "requests" / name, "-w", home / "kits", "--fingerprint", fingerprint
    )


def restrict(kit: Path, server: bool, home: Path, settings: dict[str, Any]) -> None:
    """Write the party's local restrictions to its kit: one allowed class, no code, shell or log streaming."""
    local = kit / "local"
    resources = json.loads((local / "resources.json.default").read_text(encoding="utf-8"))
    resources["class_allow_list"] = [SERVER_CLASS if server else SITE_CLASS]
    components = [one for one in resources["components"] if one["id"] != "site_log_streamer"]
    if server:
        resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(kit / "snapshots")
        next(one for one in components if one["id"] == "job_manager")["args"]["uri_root"] = str(kit / "jobs")
    else:
        resources["allow_log_streaming"] = False
    name = "ServerGuard" if server else "SiteGuard"
    guard = {"id": "fco_guard", "path": f"{GUARDS}.{name}", "args": {"audit": str(home / AUDIT_FILE)}}
    resources["components"] = [*components, guard]
    rights = {role: RIGHTS | (LEAD_RIGHTS if role == "lead" else {}) for role in ROLES}
    policy = {"format_version": "1.0", "permissions": rights}
    for name, content in (("resources", resources), ("authorization", policy), ("fco", settings)):
        (local / f"{name}.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    os.chmod(kit, 0o700)


def load_site(settings: dict[str, Any], startup: Path | None = None) -> Site:
    """Return the site that its `fco.json` describes, with the credentials of its kit."""
    home, name = Path(settings["home"]), settings["name"]
    options: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in settings["columns"].items()
    }
    columns = Columns(**options)
    file = SiteFile(Path(settings["data"]), name, columns, home / "secret")
    policy, credentials = Policy.read(home / POLICY_FILE), None
    if startup is not None:
        credentials = Credentials.of_kit(startup)
        check_authority(policy, credentials.authority)
    return Site(name, file, policy, home, credentials)


def start(kit: Path, party: str, *options: str) -> NoReturn:
    """Replace this process by FLARE's process of that party; a single client needs one Numba thread."""
    module = f"nvflare.private.fed.app.{party}.{party}_train"
    os.chdir(kit)
    os.environ |= {"NUMBA_NUM_THREADS": "1"} | (GRPC_LOGGING if party == "server" else {})
    command = [sys.executable, "-u", "-m", module, "-m", str(kit), "-s", f"fed_{party}.json"]
    os.execv(sys.executable, [*command, "--set", "secure_train=true", *options, "config_folder="])
