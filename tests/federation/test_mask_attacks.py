"""Attacks of a malicious coordinator, alone or with sites, on secure aggregation; each also succeeds where it may."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from fco_cli.data.readers.source import Columns
from fco_cli.errors import UserError
from fco_cli.federation.coordinator.sites import Sites
from fco_cli.federation.masks import Masks
from fco_cli.federation.message import Message, converted
from fco_cli.federation.policy import Refusal, preset
from fco_cli.federation.schema import Keys, Offer, Unmask
from fco_cli.federation.sharing import combine, pair_mask, pair_secret, private_key, self_mask
from fco_cli.federation.site.rows import SiteFile
from fco_cli.federation.site.site import Site
from tests.federation.coordinator.test_masked import Line
from tests.federation.test_masks import BITS, SESSION, chi_square, exact_sum, keys_of

VALUES = 20_000  # numbers of a response, enough to tell them from random ones


class Group:
    """Sites with masks after the exchange of keys, and all that a coordinator receives."""

    def __init__(self, signed: Callable[..., Any], count: int, needed: int) -> None:
        self.names, self.needed = [chr(ord("a") + k) for k in range(count)], needed
        self.masks = {name: Masks(name, signed(name)) for name in self.names}
        keys, random = keys_of(self.masks), np.random.default_rng(count)
        request = converted({**SESSION, "keys": keys, "bits": BITS, "needed": needed}, Keys)
        self.offers = {name: converted(self.masks[name].keys(request).head["offer"], Offer) for name in self.names}
        self.values = {name: random.normal(size=(1, VALUES)) for name in self.names}
        self.sent: dict[str, np.ndarray] = {}
        self.number = 1

    def ask(self, content: bytes, names: str, offers: str | None = None, question: bytes = b"w") -> None:
        """Send the same content, with the last offers, to these sites; a second request uses their new offers."""
        self.number += 1
        used = {name: self.offers[name] for name in offers or self.names}
        for name in names:
            one = self.masks[name]
            one.start(self.number, content, [question], used)
            response = one.mask("train", Message("", arrays={"w.0": self.values[name]}))
            self.sent[name] = response.arrays["w.0"]
            self.offers[name] = converted(response.head["offer"], Offer)

    def unmask(self, name: str, survivors: str) -> dict[str, dict[str, str]]:
        """Return the shares that a site discloses."""
        request = {**SESSION, "request": self.number, "survivors": list(survivors)}
        return self.masks[name].unmask(converted(request, Unmask)).head["opened"]

    def secret(self, shares: dict[str, str]) -> bytes | None:
        """Return the secret of enough shares, by site."""
        if len(shares) < self.needed:
            return None
        return combine({site: bytes.fromhex(one) for site, one in shares.items()}, self.names, self.needed)


def is_random(values: np.ndarray) -> bool:
    return chi_square(values) < chi2.isf(1e-9, 255)


def without_pairwise_masks(group: Group, name: str, key_seed: bytes, content: bytes, publics: dict[str, str]) -> Any:
    """Return the response of a site without the pairwise masks, whose key is known."""
    digest, values, key = hashlib.sha256(content).digest(), group.sent[name].reshape(-1).copy(), private_key(key_seed)
    for other, public in publics.items():
        if other != name:
            mask = pair_mask(pair_secret(key, public), digest, "w.0", VALUES)
            values += mask if name > other else np.uint64(0) - mask
    return values


@pytest.mark.parametrize("needed", [3, 4])
def test_different_requests_to_different_sites(signed, needed):
    """The sum of all responses is random, also with the self-masks removed."""
    group = Group(signed, 4, needed)
    seeds = {name: one.offered.seed for name, one in group.masks.items()}
    first = dict(group.offers)
    group.ask(b"one", "abc")
    group.offers, later = first, dict(group.offers)
    group.ask(b"other", "d", offers="abcd")
    assert later != first
    total = sum(group.sent[name] for name in "abcd").reshape(-1)
    assert is_random(total)
    if needed == 3:
        for name, content in {**dict.fromkeys("abc", b"one"), "d": b"other"}.items():
            total = total - self_mask(seeds[name], hashlib.sha256(content).digest(), "w.0", VALUES)
        assert is_random(total)


@pytest.mark.parametrize(
    ("count", "needed", "colluding", "succeeds"),
    [(4, 3, 0, False), (4, 3, 1, False), (4, 3, 2, True), (5, 4, 2, False), (5, 4, 3, True), (6, 4, 1, False)],
)
def test_two_sets_of_survivors(signed, count, needed, colluding, succeeds):
    """Some sites receive the message that the target survives, the others that it is missing.

    Colluding sites disclose both of their shares. The attack needs 2 needed - count of them, at least a third.
    """
    group = Group(signed, count, needed)
    *others, target = group.names
    content, everyone = b"one", "".join(group.names)
    seeds, publics = group.masks[target].offered.seed, {name: one.public for name, one in group.offers.items()}
    group.ask(content, everyone)
    corrupt, honest = others[:colluding], others[colluding:]
    shares = {name: group.masks[name].request.shares[target] for name in corrupt}
    both = False
    for told in itertools.product((True, False), repeat=len(honest)):
        of_seed, of_key = ({name: share[k].hex() for name, share in shares.items()} for k in (0, 1))
        for name, survives in zip(honest, told, strict=True):
            group.masks[name].request.survivors = None  # another world in which it was told something else
            group.masks[name].answered.clear()
            opened = group.unmask(name, everyone if survives else "".join(others))
            of_seed |= {name: opened["seed_shares"][target]} if survives else {}
            of_key |= {} if survives else {name: opened["key_shares"][target]}
        of_seed |= {target: group.unmask(target, everyone)["seed_shares"][target]}  # told that it survives
        seed, key = group.secret(of_seed), group.secret(of_key)
        both |= seed is not None and key is not None
        if seed is not None and key is not None:
            assert seed == seeds
            found = without_pairwise_masks(group, target, key, content, publics)
            found -= self_mask(seed, hashlib.sha256(content).digest(), "w.0", VALUES)
            np.testing.assert_array_equal(found.view(np.int64), exact_sum(group.values, [target]).reshape(-1))
        elif key is not None:
            assert is_random(without_pairwise_masks(group, target, key, content, publics))
    assert both == succeeds


def test_one_offer_in_two_requests(signed):
    """The target answers one request alone; in the other one it is declared missing, and its key is disclosed."""
    group = Group(signed, 4, 3)
    first = dict(group.offers)
    publics = {name: one.public for name, one in first.items()}
    group.ask(b"one", "d")
    group.offers = first
    group.ask(b"other", "abc", offers="abcd")
    opened = {name: group.unmask(name, "abc") for name in "abc"}
    key = group.secret({name: one["key_shares"]["d"] for name, one in opened.items()})
    assert all("d" not in one["seed_shares"] for one in opened.values())
    assert is_random(without_pairwise_masks(group, "d", key, b"one", publics))
    for name in "abc":  # the offer cannot be used for another request that would disclose its self-mask
        with pytest.raises(Refusal, match=r"masks: the offer of d was used already|does not have this site's last"):
            group.masks[name].start(9, b"third", [b"w"], {**group.offers, "d": first["d"]})


def test_a_site_declared_missing_if_all_are_needed(signed):
    """No shares exist, and no site discloses any: the responses of three sites remain random."""
    group = Group(signed, 4, 4)
    group.ask(b"one", "abc", offers="abcd")
    assert all(one == (b"", b"") for one in group.masks["a"].request.shares.values())
    for survivors in ("abc", "abcd"):
        with pytest.raises(Refusal, match="a sum needs all sites of the group, so there are no shares"):
            group.unmask("a", survivors)
    for size in (1, 2, 3):
        for names in itertools.combinations("abc", size):
            assert is_random(sum(group.sent[name] for name in names))
    with pytest.raises(Refusal, match="masks need 4 of 4 sites, got 3"):
        group.masks["d"].start(9, b"third", [b"w"], {name: group.offers[name] for name in "abd"})


@pytest.mark.parametrize("change", ["needed", "bits", "group"])
def test_other_rules_for_other_sites(signed, change):
    """One site receives another threshold, precision or group than the others, which cannot read its offer."""
    masks = {name: Masks(name, signed(name)) for name in "abcd"}
    keys = keys_of(masks)
    told = {"keys": keys, "bits": BITS, "needed": 3}
    other = told | {"needed": {"needed": 4}, "bits": {"bits": 20}, "group": {"keys": keys | {"e": keys["d"]}}}[change]
    if change == "group":
        masks_e = Masks("e", signed("e"))
        other["keys"] = keys | keys_of({"e": masks_e})
        other["needed"] = 4
    offers = {
        name: converted(one.keys(converted({**SESSION, **(other if name == "d" else told)}, Keys)).head["offer"], Offer)
        for name, one in masks.items()
    }
    for name, reason in (("a", "the offer of d was changed"), ("d", "the offer of a was changed|masks need 4 of 5")):
        with pytest.raises(Refusal, match=reason):
            masks[name].start(2, b"one", [b"w"], offers)
    del offers["d"]
    masks["a"].start(3, b"one", [b"w"], offers)  # the others agree


def test_a_question_changed_by_a_rounding_error(signed):
    """If sums may lack a site, the coordinator can pretend that one is missing: the difference is its numbers."""
    group = Group(signed, 4, 3)
    sums = []
    for question, survivors in ((b"1.0", "abcd"), (b"1.0000000000000002", "abc")):
        content, seeds = question, {name: group.masks[name].offered.seed for name in "abcd"}
        publics = {name: one.public for name, one in group.offers.items()}
        group.ask(content, "abcd", question=question)
        opened = {name: group.unmask(name, survivors) for name in survivors}
        total, digest = sum(group.sent[name] for name in survivors).reshape(-1), hashlib.sha256(content).digest()
        for name in survivors:
            total = total - self_mask(seeds[name], digest, "w.0", VALUES)
        if survivors == "abc":
            key = group.secret({name: one["key_shares"]["d"] for name, one in opened.items()})
            for name in "abc":
                total = total - pair_mask(pair_secret(private_key(key), publics[name]), digest, "w.0", VALUES)
        sums.append(total.view(np.int64))
    np.testing.assert_array_equal(sums[0] - sums[1], exact_sum(group.values, ["d"]).reshape(-1))


@pytest.fixture
def strict_sites(signed, tmp_path) -> Callable[..., Sites]:
    """Return a function that connects four sites with the default policy; their ledgers persist."""
    names, random = ["site0", "site1", "site2", "site3", "site4"], np.random.default_rng(0)
    for name in names:
        (tmp_path / name).mkdir()
        x = random.normal(size=(40, 3))
        np.savez(tmp_path / f"{name}.npz", x=x, y=(x[:, 0] > 0).astype(float), client=np.full(40, name))

    def site(name: str) -> Site:
        file = SiteFile(tmp_path / f"{name}.npz", name, Columns(), tmp_path / name / "secret")
        return Site(name, file, preset("strict"), Path(tmp_path / name), signed(name))

    def make(count: int, min_sites: int | None = None) -> Sites:
        chosen = names[:count]
        return Sites(chosen, lambda: Line({name: site(name) for name in chosen}), mask_bits=BITS, min_sites=min_sites)

    return make


def test_default_sites_answer_sums_of_all_sites_of_one_group(strict_sites):
    expected = "site0: masks: sums of 3 of 4 sites requested; the site's policy allows sums of all sites only"
    with pytest.raises(UserError, match=expected):
        strict_sites(4, min_sites=3).descriptions()
    for _ in range(2):  # the same group again
        assert len(strict_sites(4).descriptions()) == 4
    for count in (3, 5):  # the difference of the sums would be one site's numbers
        expected = r"masks: a group that differs by 1 site from an earlier one .* 3 or more \(site.yaml: fixed_group\)"
        with pytest.raises(UserError, match=expected):
            strict_sites(count).descriptions()


def test_a_refused_group_answers_nothing(strict_sites):
    strict_sites(4).descriptions()
    refused = strict_sites(3)
    with pytest.raises(UserError, match="differs by 1 site"):
        refused.descriptions()
    assert not any(site.masks.has_group for site in refused.link.sites.values())
