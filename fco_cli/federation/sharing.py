"""Keys, shares and streams of secure aggregation that survives dropouts, used by both sides.

The protocol is that of Bonawitz et al. (2017, https://doi.org/10.1145/3133956.3133982). For every masked request, a
site draws a seed of its self-mask and an X25519 key of its pairwise masks; Shamir shares of both go to all sites of the
group, encrypted for each. After the responses, the survivors disclose their shares of the survivors' self-masks and of
the missing sites' pairwise keys: the coordinator can compute the sum of the survivors' numbers and nothing else.

Every sum needs an agreed number of sites, at least `threshold`. If all sites of the group are needed, no key can be
declared missing: there are no shares and no self-masks, and pairwise masks cancel in the sum of all responses.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fco_cli.data.exact_sums import add_words, subtract_words
from fco_cli.problem.layout import Array

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

T = TypeVar("T")

MIN_SITES = 3  # with two sites, each could compute the other's numbers from the sum
LEVELS = 2.0 ** (np.arange(-1024, 1025) / 16)  # of curvatures: 4.4 % apart
EXACT = "exact"  # array of exact sums: integers of many words each
SEED_BYTES = 16  # of a self-mask, and of the private key of pairwise masks


def threshold(sites: int) -> int:
    """Return the smallest number of sites that a sum may have: two thirds of the group, and at least `MIN_SITES`.

    More than half are required: otherwise one half could disclose a site's self-mask and the other its pairwise key.
    """
    return max(MIN_SITES, math.ceil(2 * sites / 3))


def questions(kind: str, head: Mapping[str, Any], arrays: Mapping[str, Array]) -> list[bytes]:
    """Return digests of the rows and models that a masked request is about, one for each model of every fit.

    A second answer about the same ones by other sites would disclose the difference of two sums. A Hessian comes with
    the loss and the gradient, and therefore counts as an evaluation of its model.
    """
    subject = (
        "evaluate training False"
        if kind == "hessian"
        else f"{kind} {head.get('part')} {head.get('differences', False)}"
    )
    digests = []
    for fit, own in arrays_by_fit(arrays).items():
        rows = f"{subject} {head.get('agreed')} {fit}".encode()
        ordered = [np.ascontiguousarray(values) for _, values in sorted(own.items())]
        digests += [
            hashlib.sha256(rows + b"".join(values[j].tobytes() for values in ordered)).digest()
            for j in range(min(map(len, ordered)))
        ]
    return digests


def arrays_by_fit(arrays: Mapping[str, T]) -> dict[str, dict[str, T]]:
    """Return arrays, or their specs, by the fit that the names end with (`w.3`), then by the rest of the names."""
    fits: dict[str, dict[str, T]] = {}
    for name, values in arrays.items():
        own, _, fit = name.partition(".")
        fits.setdefault(fit, {})[own] = values
    return fits


def with_fit(arrays: Mapping[str, T], fit: int | str) -> dict[str, T]:
    """Return arrays, or their specs, with names that end with the fit."""
    return {f"{name}.{fit}": values for name, values in arrays.items()}


def transcript(session: str, keys: Mapping[str, str], bits: int, needed: int) -> bytes:
    """Return a digest of the session, the sites with their keys and the rules of sums, which all sites must share."""
    text = json.dumps([session, bits, needed, sorted(keys.items())])
    return hashlib.sha256(text.encode()).digest()


def derive(secret: bytes, purpose: bytes, length: int = 32) -> bytes:
    """Return a key derived from a secret for one purpose (HKDF with SHA-256)."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), length, None, purpose).derive(secret)


def mask_stream(secret: bytes, purpose: bytes, count: int) -> Array:
    """Return `count` 64-bit numbers: the ChaCha20 stream of a key derived from the secret and the purpose."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    cipher = Cipher(ChaCha20(derive(secret, purpose), b"\0" * 16), None)
    return np.frombuffer(cipher.encryptor().update(b"\0" * (8 * count)), "<u8").astype(np.uint64, copy=False)


def pair_secret(private: X25519PrivateKey, public: str) -> bytes:
    """Return the secret of two sites for one request, from one site's key and the other's public key."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    return private.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(public)))


def public_key(private: X25519PrivateKey) -> str:
    """Return the public key of a private key as text."""
    return private.public_key().public_bytes_raw().hex()


def private_key(seed: bytes) -> X25519PrivateKey:
    """Return the private key of a site's pairwise masks for one request, from its seed."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(derive(seed, b"fco pairwise key"))


def seal(channel: bytes, sender: str, receiver: str, serial: int, content: bytes, public: str) -> str:
    """Return content encrypted from one site to another (AES-GCM); `public` is authenticated with it."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    key = derive(channel, f"fco shares from {sender} to {receiver}".encode())
    return AESGCM(key).encrypt(serial.to_bytes(12, "big"), content, public.encode()).hex()


def unseal(channel: bytes, sender: str, receiver: str, serial: int, sealed: str, public: str) -> bytes:
    """Return the content of `seal`; raise ValueError if it was changed."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    key = derive(channel, f"fco shares from {sender} to {receiver}".encode())
    try:
        return AESGCM(key).decrypt(serial.to_bytes(12, "big"), bytes.fromhex(sealed), public.encode())
    except InvalidTag:
        raise ValueError("the shares were changed") from None


def split(secret: bytes, group: Sequence[str], needed: int) -> dict[str, bytes]:
    """Return one share per site of the group; any `needed` of them determine the secret."""
    from Crypto.Protocol.SecretSharing import Shamir

    shares = Shamir.split(needed, len(group), secret)
    return {name: share for name, (_, share) in zip(group, shares, strict=True)}


def combine(shares: Mapping[str, bytes], group: Sequence[str], needed: int) -> bytes:
    """Return the secret from at least `needed` shares of sites of the group."""
    from Crypto.Protocol.SecretSharing import Shamir

    return Shamir.combine(sorted((group.index(name) + 1, share) for name, share in shares.items())[:needed])


def self_mask(seed: bytes, digest: bytes, name: str, count: int) -> Array:
    """Return the self-mask of an array of the response to a request."""
    return mask_stream(seed, b"self" + digest + name.encode(), count)


def pair_mask(secret: bytes, digest: bytes, name: str, count: int) -> Array:
    """Return the pairwise mask of an array, which the first site in alphabetical order adds."""
    return mask_stream(secret, b"pair" + digest + name.encode(), count)


def _is_exact(name: str) -> bool:
    return name.partition(".")[0] == EXACT


def add_mask(name: str, values: Array, mask: Array) -> Array:
    """Return values plus a mask: modulo 2^64, or as integers of many words in the array `EXACT`."""
    return add_words(values, mask) if _is_exact(name) else values + mask


def subtract_mask(name: str, values: Array, mask: Array) -> Array:
    """Return values minus a mask, as in `add_mask`."""
    return subtract_words(values, mask) if _is_exact(name) else values - mask


def random_numbers(count: int) -> Array:
    """Return random 64-bit numbers."""
    return np.frombuffer(secrets.token_bytes(8 * count), np.uint64)


def exceeded_levels(value: float) -> Array:
    """Return random numbers at the `LEVELS` below a value and 0 at the others.

    The sum over the sites discloses the largest value up to a level, but not whose it is, nor any other value.
    """
    return np.where(value > LEVELS, random_numbers(len(LEVELS)), np.uint64(0))


def largest_level(total: Array) -> float:
    """Return the lowest level that no site's value exceeds, from the sum of `exceeded_levels`; infinite if none is."""
    return float(np.append(LEVELS, math.inf)[np.flatnonzero(total)[-1] + 1]) if total.any() else float(LEVELS[0])
