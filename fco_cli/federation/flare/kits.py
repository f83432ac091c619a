"""Startup kits of the parties: installation from a signed request, restriction of permissions, and start.

A new kit is created next to the old one and replaces it after it was verified, so a process that is killed leaves a
whole kit or none.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from fco_cli.data.readers.source import Columns
from fco_cli.errors import UserError
from fco_cli.federation.flare.certificates import fingerprint, load_certificate, signed_certificate
from fco_cli.federation.flare.handshakes import ENVIRONMENT as GRPC_LOGGING
from fco_cli.federation.flare.nvflare_cli import nvflare
from fco_cli.federation.flare.rights import LAUNCH, LEAD_RIGHTS, PROJECT, RIGHTS, ROLES, SERVER_CLASS, SITE_CLASS
from fco_cli.federation.masks import Credentials
from fco_cli.federation.policy import POLICY_FILE, Policy, check_authority
from fco_cli.federation.site.rows import SiteFile
from fco_cli.federation.site.site import Site

GUARD = {"id": "fco_guard", "path": "fco_cli.federation.flare.guards.RequireGuard", "args": {}}
UNFINISHED = ".new-"
LAUNCHERS = "fco_cli.federation.flare.jobs"


def kit_path(home: Path, name: str) -> Path:
    """Return the folder of a party's startup kit."""
    return home / "kits" / PROJECT / "prod_00" / name


def install_kit(signed: Path, name: str, home: Path, authority: str) -> Path:
    """Install the kit of a signed request and return its folder; `authority` is the fingerprint of the authority.

    An installed kit with the same certificate is kept. One with another certificate is set aside.
    """
    kit = kit_path(home, name)
    if kit.exists():
        if not signed.exists() or _fingerprint(_certificate(kit)) == fingerprint(signed_certificate(signed, name)):
            _check_authority(kit, authority)
            return kit
    elif not signed.exists():
        raise UserError(f"{signed}: no such file")
    kit.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    for unfinished in (home / "kits").glob(f"{UNFINISHED}*"):  # of a killed process
        shutil.rmtree(unfinished)
    with tempfile.TemporaryDirectory(dir=home / "kits", prefix=UNFINISHED) as folder:
        arguments = ("--request-dir", home / "requests" / name, "-w", folder, "--fingerprint", authority)
        nvflare("package", signed, *arguments)
        if kit.exists():
            set_aside(kit)
        (Path(folder) / PROJECT / "prod_00" / name).rename(kit)
    return kit


def set_aside(folder: Path) -> Path:
    """Rename a folder to NAME.old-1, NAME.old-2, ... and return its new path."""
    number = 1
    while (aside := folder.with_name(f"{folder.name}.old-{number}")).exists():
        number += 1
    folder.rename(aside)
    return aside


def _certificate(kit: Path) -> Path:
    """Return the path of the certificate in a kit."""
    paths = list((kit / "startup").glob("*.crt"))
    if len(paths) != 1:
        raise UserError(f"{kit}: the kit has no certificate; delete this folder to install it again")
    return paths[0]


def certificate_of(kit: Path) -> str:
    """Return the fingerprint of the certificate in a kit."""
    return _fingerprint(_certificate(kit))


def _fingerprint(path: Path) -> str:
    try:
        return fingerprint(load_certificate(path.read_bytes()))
    except ValueError:
        raise UserError(f"{path}: is not a certificate; delete the kit {path.parents[1]} to install it again") from None


def _check_authority(kit: Path, authority: str) -> None:
    """Raise UserError unless the kit was signed by the authority with that fingerprint."""
    expected = authority.strip().upper().removeprefix("SHA256:").replace(":", "")
    root = kit / "startup" / "rootCA.pem"
    if _fingerprint(root).upper() != expected:
        raise UserError(
            f"--fingerprint: got {authority}, but the kit {kit} was signed by another authority; check the fingerprint"
            " with the coordinator, or use another --home for another federation"
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
    launcher = next(one for one in components if one["id"] == "process_launcher")
    launcher["path"] = f"{LAUNCHERS}.{'ServerLauncher' if server else 'SiteLauncher'}"
    resources["components"] = [*components, GUARD]
    rights = {role: RIGHTS | (LEAD_RIGHTS if role == "lead" else {}) for role in ROLES}
    policy = {"format_version": "1.0", "permissions": rights}
    for name, content in (("resources", resources), ("authorization", policy), ("fco", settings | {"home": str(home)})):
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
    os.chdir(kit)
    os.environ |= {"NUMBA_NUM_THREADS": "1"} | (GRPC_LOGGING if party == "server" else {})
    command = [sys.executable, "-u", "-m", LAUNCH, party, "-m", str(kit), "-s", f"fed_{party}.json"]
    os.execv(sys.executable, [*command, "--set", "secure_train=true", *options, "config_folder="])
