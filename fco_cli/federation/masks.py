"""Secure aggregation at a site: its numbers leave it with masks that cancel only in the sum over the surviving sites.

In every session, each site draws an X25519 key and signs it with the key of its certificate; the other sites verify the
signature and that the federation's authority issued the certificate. The keys fix the group of the session. For every
masked request, each site offers a fresh key of its pairwise masks and shares of its secrets (`sharing.py`); an offer is
used once. Masks depend on all bytes of the request, so they do not cancel if two sites receive different requests; the
sites' channels depend on the whole key exchange, so offers are unreadable if two sites received different ones.

If fewer sites than the group are needed, a site opens each request for one set of survivors, of at least `threshold`
sites: it discloses shares of the survivors' self-masks and of the other sites' pairwise keys, never both of one site.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fco_cli.algorithms.rounds import to_fixed_point
from fco_cli.data.exact_sums import to_integers, to_words
from fco_cli.federation.message import Arrays, Message
from fco_cli.federation.policy import POLICY_FILE, Refusal, normalized
from fco_cli.federation.schema import Header, Keys, Offer, Request, SignedKey, Unmask
from fco_cli.federation.sharing import (
    EXACT,
    MIN_SITES,
    SEED_BYTES,
    add_mask,
    arrays_by_fit,
    derive,
    exceeded_levels,
    pair_mask,
    pair_secret,
    private_key,
    public_key,
    random_numbers,
    seal,
    self_mask,
    split,
    subtract_mask,
    threshold,
    transcript,
    unseal,
    with_fit,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.x509 import Certificate

    from fco_cli.problem.layout import Array

MASKED_KINDS = (
    "train",
    "evaluate",
    "hessian",
    "summarize",
    "count",
    "smoothness",
    "survival",
)  # kinds whose responses are sums over sites


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

    def check(self, name: str, statement: bytes, signed: SignedKey, pin: str | None = None) -> None:
        """Raise Refusal unless the statement is signed with a valid certificate of that name and fingerprint."""
        from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
        from cryptography.hazmat.primitives.hashes import SHA256
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
        if pin is not None and certificate.fingerprint(SHA256()).hex() != normalized(pin):
            raise Refusal(f"the certificate of {name} has another fingerprint than in {POLICY_FILE} (peers)")


@dataclass(frozen=True)
class Secrets:
    """Secrets of this site for one masked request, and its shares of them."""

    serial: int
    seed: bytes  # of the self-mask
    key: X25519PrivateKey  # of the pairwise masks
    shares: tuple[bytes, bytes]  # own shares of both; empty if all sites are needed


@dataclass
class MaskedRequest:
    """Last masked request: what this site may disclose about it."""

    number: int
    digest: bytes
    own: Secrets
    publics: dict[str, str]  # keys of the pairwise masks of all participants
    shares: dict[str, tuple[bytes, bytes]]  # by participant: shares of its self-mask and of its pairwise key
    questions: list[bytes]  # digests (`sharing.questions`)
    survivors: list[str] | None = None  # set once


class Masks:
    """Masks of one site in one session."""

    def __init__(
        self,
        name: str,
        credentials: Credentials | None,
        peers: Mapping[str, str | None] | None = None,
        check_group: Callable[[list[str], int], None] = lambda *_: None,
    ) -> None:
        """`check_group` raises Refusal for a group, or a number of sites that sums need, that the policy forbids."""
        self.name, self.credentials, self.peers, self.check_group = name, credentials, peers, check_group
        self.private_key: X25519PrivateKey | None = None
        self.channels: dict[str, bytes] = {}  # by site, each a secret shared with that site
        self.group: list[str] = []  # names of all sites, sorted
        self.bits = 0
        self.needed = 0  # sites that a sum needs
        self.serial = 0  # of the last offer
        self.offered: Secrets | None = None  # not used yet
        self.seen: dict[str, int] = {}  # by site, the serial of its last offer
        self.request: MaskedRequest | None = None
        self.answered: dict[bytes, list[str]] = {}  # survivors by digest of the question
        self.fits = np.ones(0, dtype=bool)  # jobs of the last response with all numbers in range

    @property
    def has_group(self) -> bool:
        return bool(self.group)

    @property
    def has_self_masks(self) -> bool:
        """True if a sum may lack sites of the group."""
        return self.needed < len(self.group)

    def key(self, request: Request) -> Message:
        """Return the signed key of this site for the session."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        if self.credentials is None:
            raise Refusal("the site has no certificate to sign a mask key")
        if self.private_key is not None:
            raise Refusal("the mask keys of this session are exchanged already")
        self.private_key = X25519PrivateKey.generate()
        public = self.private_key.public_key().public_bytes_raw().hex()
        signed = self.credentials.sign(_statement(request, self.name, public))
        return Message("", {"key": {"key": public, **signed}})

    def keys(self, request: Keys) -> Message:
        """Verify the keys of all sites, which are the group of this session; return the first offer."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        signed_keys = request.keys
        if self.private_key is None or self.credentials is None:
            raise Refusal("no mask key of this site was requested")
        if self.has_group:
            raise Refusal("the group of sites is fixed for this session")
        if len(signed_keys) < MIN_SITES or self.name not in signed_keys:
            raise Refusal(f"masks need at least {MIN_SITES} sites, including this one")
        if not threshold(len(signed_keys)) <= request.needed <= len(signed_keys):
            allowed = f"{threshold(len(signed_keys))} to {len(signed_keys)}"
            raise Refusal(f"masks: a sum of {request.needed} sites is not allowed, must be from {allowed}")
        if self.peers is not None and (others := sorted(signed_keys.keys() - self.peers.keys() - {self.name})):
            raise Refusal(
                f"masks with {others[0]} requested; the site's policy allows its peers ({POLICY_FILE}: peers)"
            )
        channels = {}
        common = transcript(
            request.session, {name: one.key for name, one in signed_keys.items()}, request.bits, request.needed
        )
        for name, one in signed_keys.items():
            pin = None if self.peers is None else self.peers.get(name)
            self.credentials.check(name, _statement(request, name, one.key), one, pin)
            if name != self.name:
                try:
                    public = X25519PublicKey.from_public_bytes(bytes.fromhex(one.key))
                    channels[name] = derive(self.private_key.exchange(public), b"fco channel" + common)
                except ValueError:
                    raise Refusal(f"the mask key of {name} is not a valid point") from None
            elif one.key != self.private_key.public_key().public_bytes_raw().hex():
                raise Refusal("the mask key under this site's name is not its own")
        self.check_group(sorted(signed_keys), request.needed)
        self.channels, self.group, self.bits, self.needed = channels, sorted(signed_keys), request.bits, request.needed
        return self.offer(request)

    def offer(self, request: Request) -> Message:
        """Return a new offer for the next masked request; an earlier one that was not used becomes void."""
        if not self.has_group:
            raise Refusal("no mask keys were exchanged in this session")
        return Message("", {"offer": self._next_offer()})

    def _next_offer(self) -> dict[str, Any]:
        seed, key_seed = secrets.token_bytes(SEED_BYTES), secrets.token_bytes(SEED_BYTES)
        key = private_key(key_seed)
        shares = dict.fromkeys(self.group, (b"", b""))
        if self.has_self_masks:
            of_seed, of_key = (split(secret, self.group, self.needed) for secret in (seed, key_seed))
            shares = {name: (of_seed[name], of_key[name]) for name in self.group}
        self.serial, public = self.serial + 1, public_key(key)
        self.offered = Secrets(self.serial, seed, key, shares[self.name])
        sealed = {
            name: seal(channel, self.name, name, self.serial, b"".join(shares[name]), public)
            for name, channel in self.channels.items()
        }
        return {"serial": self.serial, "public": public, "sealed": sealed}

    def start(self, number: int, content: bytes, digests: list[bytes], offers: Mapping[str, Offer] | None) -> None:
        """Accept the offers of the participants of a masked request; raise Refusal if one is missing or used."""
        own, offers = self.offered, offers or {}
        self.request = None
        if own is None or self.name not in offers or offers[self.name].serial != own.serial:
            raise Refusal("masks: the request does not have this site's last offer")
        if len(offers) < self.needed:
            raise Refusal(f"masks need {self.needed} of {len(self.group)} sites, got {len(offers)}")
        if unknown := sorted(offers.keys() - set(self.group)):
            raise Refusal(f"masks: {unknown[0]} is not in the group of this session")
        shares = {name: self._shares_of(name, one) for name, one in offers.items() if name != self.name}
        self.seen = self.seen | {name: one.serial for name, one in offers.items()}
        self.offered = None
        publics = {name: one.public for name, one in offers.items()}
        digest = hashlib.sha256(content).digest()
        self.request = MaskedRequest(number, digest, own, publics, shares | {self.name: own.shares}, digests)

    def _shares_of(self, name: str, offer: Offer) -> tuple[bytes, bytes]:
        """Return this site's shares of the secrets in another site's offer."""
        if offer.serial <= self.seen.get(name, 0) or self.name not in offer.sealed:
            raise Refusal(f"masks: the offer of {name} was used already or is not for this site")
        try:
            pair = unseal(self.channels[name], name, self.name, offer.serial, offer.sealed[self.name], offer.public)
        except ValueError:
            raise Refusal(f"masks: the offer of {name} was changed") from None
        return pair[:SEED_BYTES], pair[SEED_BYTES:]

    def mask(self, kind: str, response: Message) -> Message:
        """Return the response in masked integers, with the next offer.

        Counts are integers, sums of columns integers of many words, and other numbers fixed-point numbers. The array
        `overflow` is 0 in jobs with all numbers in range, otherwise random: its sum over the sites discloses that a
        number is out of range, not at which site.
        """
        request = self.request
        assert request is not None
        arrays: Arrays = {}
        all_fit = []  # for every fit of the run, which models are in range
        for fit, own in arrays_by_fit(response.arrays).items():
            integers, in_range = self._as_integers(kind, own)
            integers["overflow"] = np.where(in_range, np.uint64(0), random_numbers(len(in_range)))
            arrays |= with_fit(integers, fit)
            all_fit.append(in_range)
        self.fits = np.concatenate(all_fit)
        if self.has_self_masks:
            for name, values in arrays.items():
                mask = self_mask(request.own.seed, request.digest, name, values.size)
                arrays[name] = add_mask(name, values, mask.reshape(values.shape))
        for other, public in request.publics.items():
            if other == self.name:
                continue
            secret = pair_secret(request.own.key, public)
            for name, values in arrays.items():
                mask = pair_mask(secret, request.digest, name, values.size).reshape(values.shape)
                arrays[name] = (add_mask if self.name < other else subtract_mask)(name, values, mask)
        if not self.has_self_masks:  # the response can be a summand of the sum of all sites only
            self._survive(request, self.group)
        return Message("", response.head | {"offer": self._next_offer()}, arrays)

    def _as_integers(self, kind: str, arrays: Arrays) -> tuple[Arrays, Array]:
        """Return the numbers of one fit as 64-bit integers before masking, and which of its models are in range."""
        if kind == "smoothness":
            return {"exceeds": exceeded_levels(float(arrays["largest"][0]))[None]}, np.ones(1, dtype=bool)
        if kind == "summarize":
            many_words, fits = to_integers(arrays[EXACT])
            return {EXACT: to_words(many_words)}, fits
        with np.errstate(over="ignore"):  # such numbers are out of range
            whole, fits = to_fixed_point(arrays, 0 if kind == "count" else self.bits, len(self.group))
        return {name: values.view(np.uint64) for name, values in whole.items()}, fits

    def unmask(self, request: Unmask) -> Message:
        """Disclose what the sum over the survivors of the last masked request needs."""
        last, survivors = self.request, sorted(request.survivors)
        if not self.has_self_masks:
            raise Refusal("masks: a sum needs all sites of the group, so there are no shares to disclose")
        if last is None or request.request != last.number:
            raise Refusal("masks: only the last masked request can be unmasked")
        if not set(survivors) <= last.publics.keys() or self.name not in survivors:
            raise Refusal("masks: the survivors must be participants of the request, including this site")
        if len(survivors) < self.needed:
            raise Refusal(f"masks: a sum needs {self.needed} of {len(self.group)} sites, got {len(survivors)}")
        self._survive(last, survivors)
        missing = sorted(last.publics.keys() - set(survivors))
        opened = {
            "seed_shares": {name: last.shares[name][0].hex() for name in survivors},
            "key_shares": {name: last.shares[name][1].hex() for name in missing},
        }
        return Message("", {"opened": opened})

    def _survive(self, last: MaskedRequest, survivors: list[str]) -> None:
        """Fix the survivors of a request; raise Refusal if they differ from those of this or an equal question."""
        if last.survivors not in (None, survivors):
            raise Refusal("masks: the request was unmasked for other survivors; both would disclose a site's numbers")
        if any(self.answered.get(one, survivors) != survivors for one in last.questions):
            raise Refusal("masks: the same question was answered by other sites; the difference would disclose a site")
        self.answered.update(dict.fromkeys(last.questions, survivors))
        last.survivors = survivors


def _statement(header: Header, name: str, public: str) -> bytes:
    """Return the statement that a site signs; it binds the key to one session."""
    return f"fco mask key {header.session} {name} {public}".encode()


def _signature_scheme() -> tuple[Any, Any]:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS

    return PSS(MGF1(hashes.SHA256()), PSS.DIGEST_LENGTH), hashes.SHA256()
