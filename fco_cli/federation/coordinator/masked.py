"""Coordinator's side of secure aggregation: sums over the sites that answered (`sharing.py` describes the protocol)."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import numpy as np

from fco_cli.errors import UserError
from fco_cli.federation.message import Arrays, ArraySpec
from fco_cli.federation.response_schema import Opening
from fco_cli.federation.schema import Offer
from fco_cli.federation.sharing import (
    add_mask,
    arrays_by_fit,
    combine,
    pair_mask,
    pair_secret,
    private_key,
    public_key,
    questions,
    self_mask,
    subtract_mask,
    with_fit,
)
from fco_cli.problem.layout import Array
from fco_cli.simulation.clients import ClientsLost

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    from fco_cli.federation.coordinator.sites import Expected, Response, Sites

log = logging.getLogger(__name__)

REJOIN_SECONDS = 2.0  # timeout of a request to a site that was missing
LOOK_SECONDS = 5.0  # between two checks of the missing sites' last contacts
CONTACTS = 3  # different times after which a missing site counts as being back
REJOIN_SHARE = 0.05  # largest share of the time that is spent on waiting for missing sites


@dataclass(frozen=True)
class MaskedSum:
    """Sums of the sites that answered about the models of one fit, as int64 fixed-point numbers.

    An array that a site does not send is left out.
    """

    totals: dict[str, Array]
    present: list[str]
    fits: Array  # [J], true if all numbers are within the fixed-point range


def masked_specs(specs: Mapping[str, ArraySpec]) -> dict[str, ArraySpec]:
    """Return the specs of the arrays as masked fixed-point numbers, and of `overflow` [J] of every fit."""
    masked = {name: ArraySpec(spec.shape, np.uint64, optional=spec.optional) for name, spec in specs.items()}
    for fit, own in arrays_by_fit(specs).items():
        jobs = max(spec.shape[0] for spec in own.values())
        masked |= with_fit({"overflow": ArraySpec((jobs,), np.uint64)}, fit)
    return masked


class MaskedGroup:
    """Group of sites of one session."""

    def __init__(self, sites: Sites, needed: int, responses: Mapping[str, Response]) -> None:
        self.sites, self.names, self.needed = sites, sites.names, needed
        self.offers: dict[str, Offer] = {name: response.head.offer for name, response in responses.items()}
        self.answered: dict[bytes, list[str]] = {}  # survivors by digest of the question
        self.next_try = 0.0
        self.next_look = 0.0
        self.contacts: dict[str, set[float]] = {}  # by missing site, the times of its last contacts with the server
        self.behind: set[str] = set()  # missing sites that do not have the current stack

    @property
    def missing(self) -> list[str]:
        return [name for name in self.names if name not in self.offers]

    @property
    def present(self) -> list[str]:
        return [name for name in self.names if name in self.offers]

    def sum(self, kind: str, head: dict[str, Any], arrays: Arrays, expected: Expected) -> dict[int, MaskedSum]:
        """Return the sums of the sites' responses by fit; raise ClientsLost if too few sites answer."""
        if kind == "train":
            self._let_rejoin()
        offers, digests = self.offers, questions(kind, head, arrays)
        if any(self.answered.get(one, sorted(offers)) != sorted(offers) for one in digests):
            self._lose(f"{', '.join(self.missing) or 'a site'}: a model was evaluated with other sites before")
        self._require_enough(offers)
        self.offers = {}
        plain = {name: msgspec.to_builtins(offer) for name, offer in offers.items()}
        number, content, responses = self.sites.exchange(kind, head | {"offers": plain}, arrays, list(offers), expected)
        self.offers = {name: _next_offer(name, kind, response) for name, response in responses.items()}
        self._require_enough(responses)
        survivors = sorted(responses)
        self.answered.update(dict.fromkeys(digests, survivors))
        shared = set.intersection(*(set(response.arrays) for response in responses.values()))
        masked = {name: [response.arrays[name] for response in responses.values()] for name in sorted(shared)}
        seeds, keys = self._open(number, survivors, offers) if self.needed < len(self.names) else ({}, {})
        digest = hashlib.sha256(content).digest()
        totals = {name: self._unmasked(name, values, digest, offers, seeds, keys) for name, values in masked.items()}
        return {
            int(fit): MaskedSum(own, survivors, own.pop("overflow") == 0) for fit, own in arrays_by_fit(totals).items()
        }

    def _unmasked(
        self,
        name: str,
        masked: list[Array],
        digest: bytes,
        offers: Mapping[str, Offer],
        seeds: Mapping[str, bytes],
        keys: Mapping[str, X25519PrivateKey],
    ) -> Array:
        """Return the sum of the survivors' arrays without their self-masks and their masks with missing sites."""
        total, shape = masked[0], masked[0].shape
        for values in masked[1:]:
            total = add_mask(name, total, values)
        for seed in seeds.values():
            total = subtract_mask(name, total, self_mask(seed, digest, name, total.size).reshape(shape))
        for missing, key in keys.items():
            for site in seeds:
                mask = pair_mask(pair_secret(key, offers[site].public), digest, name, total.size).reshape(shape)
                total = (subtract_mask if site < missing else add_mask)(name, total, mask)
        return total.view(np.int64)

    def _open(
        self, number: int, survivors: list[str], offers: Mapping[str, Offer]
    ) -> tuple[dict[str, bytes], dict[str, X25519PrivateKey]]:
        """Return the seeds of the survivors' self-masks and the missing participants' pairwise keys."""
        missing = sorted(offers.keys() - set(survivors))
        opened = self._unmask(number, survivors, missing)
        seeds = {
            name: self._combined({site: one.seed_shares[name] for site, one in opened.items()}) for name in survivors
        }
        of_keys = {name: {site: one.key_shares[name] for site, one in opened.items()} for name in missing}
        keys = {name: private_key(self._combined(shares)) for name, shares in of_keys.items()}
        for name, key in keys.items():
            if public_key(key) != offers[name].public:
                raise UserError(f"sites {', '.join(opened)}: invalid response to 'unmask': a wrong share of {name}")
        return seeds, keys

    def _combined(self, shares: Mapping[str, str]) -> bytes:
        """Return a secret from the sites' shares of it."""
        return combine({site: bytes.fromhex(share) for site, share in shares.items()}, self.names, self.needed)

    def _unmask(self, number: int, survivors: list[str], missing: list[str]) -> dict[str, Opening]:
        """Return the shares that survivors disclose; raise ClientsLost if too few answer."""
        head = {"request": number, "survivors": survivors}
        _, _, responses = self.sites.exchange("unmask", head, {}, survivors, timeout=self.sites.timeout)
        for name in survivors:
            if name not in responses:
                self.offers.pop(name, None)
        self._require_enough(responses)
        opened: dict[str, Opening] = {name: response.head.opened for name, response in responses.items()}
        for name, one in opened.items():
            if (set(one.seed_shares), set(one.key_shares)) != (set(survivors), set(missing)):
                reason = "its shares are not those of the survivors and the missing sites"
                raise UserError(f"site {name!r}: invalid response to 'unmask': {reason}")
        return opened

    def _let_rejoin(self) -> None:
        """Request offers from missing sites, so that those that answer again participate from this round on."""
        if not self.missing or time.monotonic() < self.next_try:
            return
        start = time.monotonic()
        for name in self.missing:
            try:
                offered = self.sites.exchange("offer", {}, {}, [name], timeout=REJOIN_SECONDS)[2]
                if offered and name in self.behind:
                    offered = offered if self.sites.repeat_stack(name) else {}
            except UserError as problem:  # such as a site that has been started anew
                log.warning("%s cannot rejoin: %s", name, problem)
                continue
            if offered:
                log.info("%s takes part again", name)
                self.offers[name] = offered[name].head.offer
                self.behind.discard(name)
        self.next_try = time.monotonic() + (time.monotonic() - start) / REJOIN_SHARE

    def have_joined_again(self) -> bool:
        """Return True if all missing sites are in contact with the server again, so that a new session has all sites.

        A site whose process was killed cannot return to this session.
        """
        assert self.sites.link is not None
        if not self.missing or time.monotonic() < self.next_look:
            return False
        self.next_look = time.monotonic() + LOOK_SECONDS
        for name, at in self.sites.link.last_contacts().items():
            self.contacts.setdefault(name, set()).add(at)
        self.contacts = {name: times for name, times in self.contacts.items() if name in self.missing}
        return all(len(self.contacts.get(name, ())) >= CONTACTS for name in self.missing)

    def _require_enough(self, names: Collection[str]) -> None:
        if len(names) < self.needed:
            silent = ", ".join(name for name in self.names if name not in names)
            self._lose(f"no response from {silent}; a masked sum needs {self.needed} of {len(self.names)} sites")

    def _lose(self, reason: str) -> NoReturn:
        self.sites.disconnect()
        raise ClientsLost(reason)


def _next_offer(name: str, kind: str, response: Response) -> Offer:
    if response.head.offer is None:
        raise UserError(f"site {name!r}: invalid response to {kind!r}: it has no offer for the next masked request")
    return response.head.offer
