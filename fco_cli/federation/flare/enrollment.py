"""Enrollment with NVIDIA FLARE: certificate authority, requests, and their approval, renewal and rotation.

Private keys never leave their site.
"""

from __future__ import annotations

import json
import re
import socket
import tempfile
from pathlib import Path
from typing import Any

import yaml

from fco_cli.errors import UserError, require
from fco_cli.federation.flare.certificates import Certificates, signed_certificate
from fco_cli.federation.flare.kits import install_kit, set_aside
from fco_cli.federation.flare.nvflare_cli import nvflare
from fco_cli.federation.flare.rights import LEAD, ORGANIZATION, PROJECT
from fco_cli.files import write_atomically

FEDERATION_FILE = "founded.json"  # host and fingerprint, in the coordinator's folder
APPROVED = "approved"  # folder with the requests of the sites, in the coordinator's folder
NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")


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


def approve(zipped: Path, home: Path, replace: bool = False) -> tuple[Path, str]:
    """Sign a request; return the signed file, in the same folder, and the fingerprint of the authority.

    The new certificate is the only one of its name that the server accepts. With `replace`, the name may have one.
    """
    require(zipped.name.endswith(".request.zip"), "the request", str(zipped), "a file NAME.request.zip")
    if not zipped.exists():
        raise UserError(f"{zipped}: no such file")
    if not (home / "ca" / "rootCA.key").exists():
        raise UserError(f"{home / 'ca'}: the key of the authority is not here; restore its copy to sign certificates")
    name, certificates = zipped.name.removesuffix(".request.zip"), Certificates(home)
    known = certificates.issued.get(name)
    if known is not None and known.revoked is None and not replace:
        raise UserError(
            f"{name}: has a certificate until {known.until}; if the site itself sent this request, add --replace, and"
            f" the certificate before is refused (fco-federate renew {name} keeps its key)"
        )
    signed = zipped.with_name(f"{name}.signed.zip")
    with tempfile.TemporaryDirectory() as folder:
        authority = ("--ca-dir", home / "ca", "--profile", home / "profile.yaml")
        answer = nvflare("cert", "approve", zipped, *authority, "--out", Path(folder) / signed.name)
        content = (Path(folder) / signed.name).read_bytes()
        certificate = signed_certificate(Path(folder) / signed.name, name)
    write_atomically(signed, content)
    certificates.accept(name, certificate)
    return signed, answer["rootca_fingerprint_sha256"]


def approve_site(zipped: Path, home: Path, replace: bool = False) -> tuple[Path, str]:
    """Sign a site's request and keep a copy of it for `renew`."""
    signed, fingerprint = approve(zipped, home, replace)
    (home / APPROVED).mkdir(exist_ok=True, mode=0o700)
    write_atomically(home / APPROVED / zipped.name, zipped.read_bytes())
    return signed, fingerprint


def renew(name: str, home: Path) -> tuple[Path, str]:
    """Sign the stored request of a site again: the same name and key with a new certificate."""
    known = Certificates(home).issued.get(name)
    zipped = home / APPROVED / f"{name}.request.zip"
    if known is None or not zipped.exists():
        raise UserError(f"{name}: no approved request in {home / APPROVED}; approve a request of the site")
    if known.revoked is not None:
        raise UserError(f"{name}: is revoked; the site runs fco-federate rotate {name}, then approve its new request")
    return approve(zipped, home, replace=True)


def rotate_site(name: str, home: Path) -> Path:
    """Create a new key and request of a site; keep the old ones aside, which the current kit does not need."""
    folder = home / "requests" / name
    if not folder.exists():
        raise UserError(f"{name}: no request in {home / 'requests'}; run fco-federate request {name}")
    set_aside(folder)
    return request(name, home)


def rotate_coordinator(home: Path) -> None:
    """Replace the keys and certificates of the server and of the lead; the authority stays the same."""
    for name, kind, more in _own_parties(read_federation(home)["host"]):
        set_aside(home / "requests" / name)
        signed, fingerprint = approve(request(name, home, kind, **more), home, replace=True)
        install_kit(signed, name, home, fingerprint)


def read_federation(home: Path) -> dict[str, Any]:
    """Return the host and the authority's fingerprint of the coordinator's federation."""
    try:
        return json.loads((home / FEDERATION_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"{home}: no certificate authority found; run fco-federate serve HOST:PORT to create one"
        ) from None


def create_federation(address: str, home: Path) -> None:
    """Create the certificate authority and the kits of the server and the lead."""
    host, _, port = address.rpartition(":")
    require(bool(host) and port.isdigit(), "the address", address, "HOST:PORT, by which the sites reach the server")
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    server = {"host": host, "fed_learn_port": int(port), "admin_port": int(port)}
    profile = {"name": PROJECT, "scheme": "grpc", "connection_security": "mtls", "server": server}
    (home / "profile.yaml").write_text(yaml.safe_dump(profile), encoding="utf-8")
    nvflare("cert", "init", "--profile", home / "profile.yaml", "-o", home / "ca")
    for name, kind, more in _own_parties(host):
        signed, fingerprint = approve(request(name, home, kind, **more), home)
        install_kit(signed, name, home, fingerprint)
    (home / FEDERATION_FILE).write_text(json.dumps({"host": host, "fingerprint": fingerprint}), encoding="utf-8")


def _own_parties(host: str) -> tuple[tuple[str, str, dict[str, str]], ...]:
    """Return the names, kinds and further keys of the coordinator's own parties."""
    return ((host, "server", {}), (LEAD, "admin", {"role": "lead"}))


def is_port_free(address: str) -> bool:
    """Return True if no process listens on that port of this machine."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("0.0.0.0", int(address.rpartition(":")[2])))
        except OSError:
            return False
    return True
