"""Secure aggregation: sites add masks that cancel in the sum over all of them, and the coordinator learns that alone.

For every session a site draws an X25519 key and signs it with the key of its certificate; the others believe it if the
federation's authority has signed that certificate. A pair of sites then shares a secret, of which both make the same
stream of 64-bit numbers for every array of every question; the first in the alphabet adds it, the other subtracts it,
modulo 2^64. The stream depends on all bytes of the question: if two sites are asked differently, nothing cancels.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fco_cli.algorithms.fixed_point import rounded
from fco_cli.federation.message import Message
from fco_cli.federation.policy import Refusal
from fco_cli.federation.schema import Header, Keys, Question, SignedKey
from fco_cli.problem.layout import Array

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.x509 import Certificate

FEWEST = 3  # sites: of two each would know the other's numbers from the sum
MASKED = ("train", "evaluate")  # kinds whose answers are sums over sites


@dataclass(frozen=True)
class Badge:
    """Who a site is: its certificate, the key that belongs to it, and the authority that it believes."""

    certificate: Certificate
    key: RSAPrivateKey
    authority: Certificate

    @classmethod
    def of_kit(cls, startup: Path) -> Badge:
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
        from cryptography.x509 import load_pem_x509_certificate

        key: Any = load_pem_private_key((startup / "client.key").read_bytes(), None)
        own, authority = ((startup / name).read_bytes() for name in ("client.crt", "rootCA.pem"))
        return cls(load_pem_x509_certificate(own), key, load_pem_x509_certificate(authority))

    def signed(self, statement: bytes) -> dict[str, str]:
        """The statement's signature and the certificate, as text."""
        from cryptography.hazmat.primitives.serialization import Encoding

        return {
            "signature": self.key.sign(statement, *_signature_scheme()).hex(),
            "certificate": self.certificate.public_bytes(Encoding.PEM).decode(),
        }

    def check(self, name: str, statement: bytes, given: SignedKey) -> None:
        """Whether the holder of that name's certificate, of the authority that this site believes, has signed it."""
        from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
        from cryptography.x509 import NameOID, load_pem_x509_certificate

        try:
            certificate = load_pem_x509_certificate(given.certificate.encode())
            certificate.verify_directly_issued_by(self.authority)
            key: Any = certificate.public_key()
            key.verify(bytes.fromhex(given.signature), statement, *_signature_scheme())
            names = [one.value for one in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
            valid = certificate.not_valid_before_utc <= datetime.now(UTC) <= certificate.not_valid_after_utc
        except (InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError, AttributeError):
            raise Refusal(f"the mask key of {name} is not signed by a certificate of this federation") from None
        if names != [name] or not valid:
            raise Refusal(f"the mask key of {name} is signed by another's certificate, or by one that is not valid")


class Masks:
    """One site's end, in one session."""

    def __init__(self, name: str, badge: Badge | None) -> None:
        self.name, self.badge = name, badge
        self.own: X25519PrivateKey | None = None
        self.secrets: dict[str, bytes] = {}  # shared with every other site
        self.bits = 0

    @property
    def agreed(self) -> bool:
        return bool(self.secrets)

    def key(self, question: Question) -> Message:
        """This site's key for the session, signed."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        if self.badge is None:
            raise Refusal("it has no certificate to sign a mask key with")
        self.own, self.secrets = X25519PrivateKey.generate(), {}
        public = self.own.public_key().public_bytes_raw().hex()
        signed = self.badge.signed(_statement(question, self.name, public))
        return Message("", {"key": {"key": public, **signed}})

    def keys(self, question: Keys) -> Message:
        """Everybody's keys, which the coordinator passes on; from now on answers that are sums are masked."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        given = question.keys
        if self.own is None or self.badge is None:
            raise Refusal("it was not asked for its own mask key")
        if len(given) < FEWEST or self.name not in given:
            raise Refusal(f"masks hide a site among at least {FEWEST}, itself one of them")
        secrets = {}
        for name, one in given.items():
            self.badge.check(name, _statement(question, name, one.key), one)
            if name != self.name:
                try:
                    secrets[name] = self.own.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(one.key)))
                except ValueError:
                    raise Refusal(f"the mask key of {name} is not a valid point") from None
            elif one.key != self.own.public_key().public_bytes_raw().hex():
                raise Refusal("the mask key that bears its name is not its own")
        self.secrets, self.bits = secrets, question.bits
        return Message("")

    def hidden(self, content: bytes, answer: Message) -> Message:
        """The answer to a question, in fixed point and masked; `fits` says in which jobs its numbers did."""
        with np.errstate(over="ignore"):  # such a number does not fit
            whole, fits = rounded(answer.arrays, self.bits, len(self.secrets) + 1)
        question = hashlib.sha256(content).digest()
        arrays = {name: values.view(np.uint64) for name, values in whole.items()}
        for other, secret in self.secrets.items():
            for name, values in arrays.items():
                mask = stream(secret, question + name.encode(), values.size).reshape(values.shape)
                arrays[name] = arrays[name] + mask if self.name < other else arrays[name] - mask
        return Message("", answer.head, {**arrays, "fits": fits.astype(np.int64)})


def _statement(header: Header, name: str, public: str) -> bytes:
    """Return the text that a site signs: a key is valid for one session."""
    return f"fco mask key {header.session} {name} {public}".encode()


def _signature_scheme() -> tuple[Any, Any]:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS

    return PSS(MGF1(hashes.SHA256()), PSS.DIGEST_LENGTH), hashes.SHA256()


def stream(secret: bytes, purpose: bytes, count: int) -> Array:
    """So many 64-bit numbers that only the holders of the secret know: ChaCha20, under a key for this purpose alone."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    key = HKDF(SHA256(), 32, None, purpose).derive(secret)
    numbers = Cipher(ChaCha20(key, b"\0" * 16), None).encryptor().update(b"\0" * (8 * count))
    return np.frombuffer(numbers, "<u8").astype(np.uint64)
