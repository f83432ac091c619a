"""Secure aggregation: sites add masks that cancel in the sum over all sites, so the coordinator learns only the sum.

In every session, each site draws an X25519 key and signs it with the key of its certificate; the other sites verify the
signature and that the federation's authority issued the certificate. Each pair of sites derives a shared secret, and
from it a stream of 64-bit numbers for every array of every request. The first site in alphabetical order adds the
stream modulo 2^64 and the other subtracts it. The stream depends on all bytes of the request, so masks do not cancel if
two sites receive different requests.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fco_cli.algorithms.rounds import to_fixed_point
from fco_cli.federation.message import Message
from fco_cli.federation.policy import Refusal
from fco_cli.federation.schema import Header, Keys, Request, SignedKey
from fco_cli.problem.layout import Array

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.x509 import Certificate

MIN_SITES = 3  # with two sites, each could compute the other's numbers from the sum
MASKED_KINDS = ("train", "evaluate")  # kinds whose responses are sums over sites


@dataclass(frozen=True)
class Credentials:
    """Certificate and private key of a site, and the certificate of its trusted authority."""

    certificate: Certificate
    key: RSAPrivateKey
    authority: Certificate

    @classmethod
    def of_kit(cls, startup: Path) -> Credentials:
        """Read the credentials from the startup folder of a kit."""
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
        from cryptography.x509 import load_pem_x509_certificate

        key: Any = load_pem_private_key((startup / "client.key").read_bytes(), None)
        certificate, authority = ((startup / name).read_bytes() for name in ("client.crt", "rootCA.pem"))
        return cls(load_pem_x509_certificate(certificate), key, load_pem_x509_certificate(authority))

    def sign(self, statement: bytes) -> dict[str, str]:
        """Return the signature of a statement and the certificate, as text."""
        from cryptography.hazmat.primitives.serialization import Encoding

        return {
            "signature": self.key.sign(statement, *_signature_scheme()).hex(),
            "certificate": self.certificate.public_bytes(Encoding.PEM).decode(),
        }

    def check(self, name: str, statement: bytes, signed: SignedKey) -> None:
        """Raise Refusal unless the statement is signed with a valid certificate of that name."""
        from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
        from cryptography.x509 import NameOID, load_pem_x509_certificate

        try:
            certificate = load_pem_x509_certificate(signed.certificate.encode())
            certificate.verify_directly_issued_by(self.authority)
            key: Any = certificate.public_key()
            key.verify(bytes.fromhex(signed.signature), statement, *_signature_scheme())
            names = [one.value for one in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
            valid = certificate.not_valid_before_utc <= datetime.now(UTC) <= certificate.not_valid_after_utc
        except (InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError, AttributeError):
            raise Refusal(f"the mask key of {name} is not signed by a certificate of this federation") from None
        if names != [name] or not valid:
            raise Refusal(f"the certificate of the mask key of {name} has another name or is not valid now")


class Masks:
    """Masks of one site in one session."""

    def __init__(self, name: str, credentials: Credentials | None) -> None:
        self.name, self.credentials = name, credentials
        self.private_key: X25519PrivateKey | None = None
        self.secrets: dict[str, bytes] = {}  # by site, each shared with that site
        self.bits = 0

    @property
    def has_secrets(self) -> bool:
        return bool(self.secrets)

    def key(self, request: Request) -> Message:
        """Return a new signed key of this site for the session."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        if self.credentials is None:
            raise Refusal("the site has no certificate to sign a mask key")
        self.private_key, self.secrets = X25519PrivateKey.generate(), {}
        public = self.private_key.public_key().public_bytes_raw().hex()
        signed = self.credentials.sign(_statement(request, self.name, public))
        return Message("", {"key": {"key": public, **signed}})

    def keys(self, request: Keys) -> Message:
        """Verify the keys of all sites and derive the shared secrets; later responses of `MASKED_KINDS` are masked."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        signed_keys = request.keys
        if self.private_key is None or self.credentials is None:
            raise Refusal("no mask key of this site was requested")
        if len(signed_keys) < MIN_SITES or self.name not in signed_keys:
            raise Refusal(f"masks need at least {MIN_SITES} sites, including this one")
        secrets = {}
        for name, one in signed_keys.items():
            self.credentials.check(name, _statement(request, name, one.key), one)
            if name != self.name:
                try:
                    secrets[name] = self.private_key.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(one.key)))
                except ValueError:
                    raise Refusal(f"the mask key of {name} is not a valid point") from None
            elif one.key != self.private_key.public_key().public_bytes_raw().hex():
                raise Refusal("the mask key under this site's name is not its own")
        self.secrets, self.bits = secrets, request.bits
        return Message("")

    def mask(self, content: bytes, response: Message) -> Message:
        """Return the response in masked fixed-point numbers; `fits` marks the jobs with all numbers in range."""
        with np.errstate(over="ignore"):  # such numbers are out of range
            whole, fits = to_fixed_point(response.arrays, self.bits, len(self.secrets) + 1)
        digest = hashlib.sha256(content).digest()
        arrays = {name: values.view(np.uint64) for name, values in whole.items()}
        for other, secret in self.secrets.items():
            for name, values in arrays.items():
                mask = mask_stream(secret, digest + name.encode(), values.size).reshape(values.shape)
                arrays[name] = arrays[name] + mask if self.name < other else arrays[name] - mask
        return Message("", response.head, {**arrays, "fits": fits.astype(np.int64)})


def _statement(header: Header, name: str, public: str) -> bytes:
    """Return the statement that a site signs; it binds the key to one session."""
    return f"fco mask key {header.session} {name} {public}".encode()


def _signature_scheme() -> tuple[Any, Any]:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS

    return PSS(MGF1(hashes.SHA256()), PSS.DIGEST_LENGTH), hashes.SHA256()


def mask_stream(secret: bytes, purpose: bytes, count: int) -> Array:
    """Return `count` 64-bit numbers: the ChaCha20 stream of a key derived from the secret and the purpose."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    key = HKDF(SHA256(), 32, None, purpose).derive(secret)
    numbers = Cipher(ChaCha20(key, b"\0" * 16), None).encryptor().update(b"\0" * (8 * count))
    return np.frombuffer(numbers, "<u8").astype(np.uint64)
