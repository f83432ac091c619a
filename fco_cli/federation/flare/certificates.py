"""Certificates that a coordinator accepts: the current one of every party, in `certificates.json` of its folder.

A certificate of the federation's authority is not enough to connect. It must be the one that was issued last to its
name and must not be revoked. The server reads the file when it changes; without the file, it accepts no party.
"""

from __future__ import annotations

import socket
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import msgspec

from fco_cli.errors import UserError
from fco_cli.files import write_atomically

CERTIFICATES_FILE = "certificates.json"
HANDSHAKE_SECONDS = 10.0


class Issued(msgspec.Struct):
    """Current certificate of a party: its fingerprint, its end, and the time of its revocation."""

    sha256: str
    until: str
    revoked: str | None = None


class Certificates:
    """Contents of the file, read again when it has changed."""

    def __init__(self, home: Path) -> None:
        self.path = home / CERTIFICATES_FILE
        self._stamp: tuple[int, int] | None = None
        self._issued: dict[str, Issued] = {}

    @property
    def issued(self) -> dict[str, Issued]:
        """Current certificates by name; raises UserError if the file is damaged."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return {}
        stamp = (status.st_mtime_ns, status.st_ino)
        if stamp != self._stamp:
            try:
                self._issued = msgspec.json.decode(self.path.read_bytes(), type=dict[str, Issued])
            except (msgspec.DecodeError, UnicodeDecodeError) as problem:
                raise UserError(
                    f"{self.path}: cannot be read: {problem}; restore it or approve all sites again"
                ) from None
            self._stamp = stamp
        return self._issued

    def accept(self, name: str, certificate: Any) -> None:
        """Store a party's new certificate; the one before is refused from now on."""
        until = certificate.not_valid_after_utc.strftime("%Y-%m-%d")
        self._write(self.issued | {name: Issued(fingerprint(certificate), until)})

    def revoke(self, name: str) -> None:
        """Refuse a party from now on."""
        if name not in self.issued:
            raise UserError(f"{name}: no such site; certificates of {', '.join(self.issued) or 'none'} were issued")
        known, now = self.issued[name], datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._write(self.issued | {name: Issued(known.sha256, known.until, known.revoked or now)})

    def refusal(self, name: str, sha256: str) -> str | None:
        """Return why the certificate with that fingerprint is refused, or None."""
        known = self.issued.get(name)
        if known is None:
            return f"no certificate was issued to {name}"
        if known.revoked is not None:
            return f"the certificate of {name} is revoked"
        return None if known.sha256 == sha256 else f"the certificate of {name} was replaced"

    def _write(self, issued: dict[str, Issued]) -> None:
        write_atomically(self.path, msgspec.json.format(msgspec.json.encode(issued), indent=1))


def fingerprint(certificate: Any) -> str:
    """Return the SHA-256 fingerprint of a certificate, in hexadecimal."""
    from cryptography.hazmat.primitives.hashes import SHA256

    return certificate.fingerprint(SHA256()).hex()


def server_certificate(host: str, port: int, authority: Path) -> bytes:
    """Return the certificate (DER) of a server, which the authority must have issued; raise OSError if it has none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # its host is verified by gRPC
    context.load_verify_locations(authority)
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((host, port), HANDSHAKE_SECONDS) as connection,
        context.wrap_socket(connection) as secured,
    ):
        return secured.getpeercert(binary_form=True) or b""


def load_certificate(pem: bytes) -> Any:
    from cryptography.x509 import load_pem_x509_certificate

    return load_pem_x509_certificate(pem)


def common_name(certificate: Any) -> str:
    """Return the name to which a certificate was issued."""
    from cryptography.x509 import NameOID

    return str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def signed_certificate(signed: Path, name: str) -> Any:
    """Return the certificate in a signed request; raise UserError if the file is not one of that party."""
    try:
        with ZipFile(signed) as packed:
            return load_certificate(packed.read(f"{name}.crt"))
    except FileNotFoundError:
        raise UserError(f"{signed}: no such file") from None
    except Exception as problem:  # zipfile raises many kinds
        raise UserError(f"{signed}: is not a signed request of {name}: {type(problem).__name__}") from None
