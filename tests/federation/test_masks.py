"""Secure aggregation: masks cancel only in the sum over all sites, and forged keys are refused."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.algorithms.rounds import from_fixed_point, to_fixed_point
from fco_cli.algorithms.transforms.base import NoTransform
from fco_cli.algorithms.transforms.clip_noise import ClipNoise
from fco_cli.errors import UserError
from fco_cli.federation.coordinator.clients import remote_clients
from fco_cli.federation.coordinator.masked import MaskedGroup, MaskedSum
from fco_cli.federation.coordinator.sites import Response
from fco_cli.federation.coordinator.task import CustomAtSites
from fco_cli.federation.flare.certificates import fingerprint
from fco_cli.federation.masks import Masks
from fco_cli.federation.message import Message, converted
from fco_cli.federation.policy import Policy, Refusal, preset
from fco_cli.federation.response_schema import RESPONSES
from fco_cli.federation.schema import Keys, Offer, Request, Unmask
from fco_cli.federation.settings import Flare
from fco_cli.federation.sharing import pair_mask, pair_secret, questions, self_mask, threshold
from fco_cli.simulation.clients import ClientsLost
from fco_cli.simulation.engine import Job, Setup, Simulation
from tests.federation.coordinator.test_clients import FEDERATED, NAMES, assert_same, run, task_of

BITS = 40
SESSION = {"session": "a" * 32, "number": 1}
PERSONAL = [name for name in FEDERATED if all_algorithms()[name].personal]


def key_of(masks: Masks, **changes: Any) -> dict[str, str]:
    return masks.key(Request(**(SESSION | changes))).head["key"]


def keys_of(masks: dict[str, Masks]) -> dict[str, Any]:
    return {name: key_of(one) for name, one in masks.items()}


class Members:
    """Sites that only have masks, with the interface of `Sites`; they answer `train` with their entries of `values`.

    `silent` has the sites that do not answer, by kind of request.
    """

    def __init__(self, all_credentials: dict[str, Any], values: dict[str, Any], needed: int | None = None) -> None:
        self.names, self.values, self.number = sorted(all_credentials), values, 1
        self.masks = {name: Masks(name, all_credentials[name]) for name in self.names}
        self.silent: dict[str, set[str]] = {}
        self.timeout = 1.0
        self.sent: dict[str, Message] = {}  # last masked responses, also those that do not arrive
        self.content = b""
        self.requests: list[tuple[str, dict[str, Any]]] = []
        keys = keys_of(self.masks)
        needed = needed or threshold(len(keys))
        request = converted({**SESSION, "keys": keys, "bits": BITS, "needed": needed}, Keys)
        responses = {name: self._response("keys", self.masks[name].keys(request)) for name in keys}
        self.group = MaskedGroup(self, needed, responses)

    def _response(self, kind: str, message: Message) -> Response:
        return Response(converted(message.head | {"number": 1}, RESPONSES[kind]), message.arrays)

    def exchange(self, kind, head, arrays, names, expected=None, timeout=None):
        self.number += 1
        self.requests.append((kind, head))
        head = {**SESSION, "number": self.number, **head}
        self.content = self.content if kind == "unmask" else repr((kind, head)).encode()
        responses = {}
        for name in names:
            message = self._answer(name, kind, head, arrays)
            if name not in self.silent.get(kind, ()):
                responses[name] = self._response(kind, message)
        return self.number, self.content, responses

    def _answer(self, name: str, kind: str, head: dict[str, Any], arrays: dict[str, Any]) -> Message:
        one = self.masks[name]
        if kind == "unmask":
            return one.unmask(converted(head, Unmask))
        if kind == "offer":
            return one.offer(converted(head, Request))
        offers = converted(head["offers"], dict[str, Offer])
        one.start(self.number, self.content, questions(kind, head, arrays), offers)
        self.sent[name] = one.mask(kind, Message("", arrays={"w.0": self.values[name]}))
        return self.sent[name]

    def sum(self, question: float = 0.0) -> MaskedSum:
        """Return the masked sum about a question."""
        return self.group.sum("train", {}, {"z.0": np.array([question])}, None)[0]

    def disconnect(self) -> None: ...


def exact_sum(values: dict[str, Any], names: list[str]) -> np.ndarray:
    return sum(to_fixed_point({"w": values[name]}, BITS, len(values))[0]["w"] for name in names)


@pytest.fixture(scope="session")
def members(signed) -> Callable[..., Members]:
    """Return a function that creates sites named a, b, ... with random values of two jobs."""

    def make(count: int, values: dict[str, Any] | None = None, needed: int | None = None) -> Members:
        names, random = [chr(ord("a") + k) for k in range(count)], np.random.default_rng(count)
        values = values or {name: random.normal(size=(2, 7)) for name in names}
        return Members({name: signed(name) for name in names}, values, needed)

    return make


@pytest.fixture
def all_credentials(signed) -> dict[str, Any]:
    return {name: signed(name) for name in NAMES}


@pytest.mark.parametrize("count", [3, 4, 5, 7, 10])
def test_the_sum_of_all_sites_is_exact(members, count):
    sites = members(count)
    made = sites.sum()
    assert made.present == sites.names
    assert made.fits.all()
    np.testing.assert_array_equal(made.totals["w"], exact_sum(sites.values, sites.names))
    partial = sum(sites.sent[name].arrays["w.0"] for name in sites.names[1:]).view(np.int64)
    assert (np.abs(from_fixed_point(partial, BITS)) > 100).any()  # the masks remain


@pytest.mark.parametrize(("count", "needed"), [(3, 3), (4, 3), (5, 4), (6, 4), (9, 6), (10, 7), (30, 20)])
def test_the_threshold(count, needed):
    assert threshold(count) == needed
    assert 2 * needed > count


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_survivors_above_the_threshold_give_their_exact_sum(members, data):
    """Sites vanish before their response, or after it and before they unmask; with fewer there is no sum."""
    count = data.draw(st.integers(3, 8))
    sites = members(count)
    before = data.draw(st.sets(st.sampled_from(sites.names)))
    after = data.draw(st.sets(st.sampled_from(sites.names)))
    sites.silent = {"train": before, "unmask": before | after}
    survivors = [name for name in sites.names if name not in before]
    if threshold(count) == count:  # sites open their masks with their responses
        after = set()
    if count - len(before | after) < threshold(count):
        with pytest.raises(
            ClientsLost, match=f"^no response from .*; a masked sum needs {threshold(count)} of {count}"
        ):
            sites.sum()
        return
    made = sites.sum()
    assert made.present == survivors
    np.testing.assert_array_equal(made.totals["w"], exact_sum(sites.values, survivors))


def test_a_site_rejoins_in_the_next_round(members):
    sites = members(10)
    sites.silent = {"train": {"b", "c", "e"}, "unmask": {"b", "c", "e"}, "offer": {"c", "e"}}
    assert sites.sum(1).present == list("adfghij")
    sites.silent = {"offer": {"c", "e"}}
    assert sites.sum(2).present == list("abdfghij")
    sites.silent, sites.group.next_try = {}, 0.0
    made = sites.sum(3)
    assert made.present == sites.names
    np.testing.assert_array_equal(made.totals["w"], exact_sum(sites.values, sites.names))


def chi_square(values: np.ndarray) -> float:
    counts = np.bincount(np.frombuffer(values.tobytes(), np.uint8), minlength=256)
    return float(((counts - values.nbytes / 256) ** 2 / (values.nbytes / 256)).sum())


def test_masked_numbers_are_uniform_whatever_the_inputs(members):
    """Two inputs with equal sums give the same sums and responses that look random (chi-square at the level 1e-9).

    The sums of fewer sites look random too, also without the self-masks that the coordinator learns.
    """
    one = {name: np.zeros((1, 20_000)) for name in "abcd"}
    other = one | {"a": np.full((1, 20_000), 1000.0), "b": np.full((1, 20_000), -1000.0)}
    for values in (one, other):
        sites = members(4, values)
        seeds = {name: masks.offered.seed for name, masks in sites.masks.items()}
        made = sites.sum()
        assert not made.totals["w"].any()
        digest = hashlib.sha256(sites.content).digest()
        for size in (1, 2, 3):
            for names in itertools.combinations("abcd", size):
                sent = sum(sites.sent[name].arrays["w.0"] for name in names)
                opened = sent - sum(self_mask(seeds[name], digest, "w.0", 20_000) for name in names)
                assert chi_square(sent) < chi2.isf(1e-9, 255)
                assert chi_square(opened) < chi2.isf(1e-9, 255)


def test_the_coordinator_s_view_does_not_unmask_a_site(members):
    """Of a site declared missing, it receives the pairwise key, but too few shares of the self-mask."""
    sites = members(4)
    sites.silent = {"train": {"d"}, "unmask": {"d"}}
    seed = sites.masks["d"].offered.seed
    sites.sum()
    number = sites.number - 1
    for name in "abc":
        for survivors in (list("abcd"), list("abd"), ["a", "b"]):
            request = {**SESSION, "request": number, "survivors": survivors}
            with pytest.raises(Refusal, match=r"^masks: "):
                sites.masks[name].unmask(converted(request, Unmask))
    sent, digest = sites.sent["d"].arrays["w.0"], hashlib.sha256(sites.content).digest()
    unmasked = sent - self_mask(seed, digest, "w.0", sent.size).reshape(sent.shape)  # the seed is what it does not have
    for other in "abc":
        secret = pair_secret(sites.masks["d"].request.own.key, sites.masks["d"].request.publics[other])
        unmasked += pair_mask(secret, digest, "w.0", sent.size).reshape(sent.shape)  # d comes after the others
    np.testing.assert_array_equal(unmasked.view(np.int64), exact_sum(sites.values, ["d"]))


def test_masks_depend_on_the_request(members):
    sites = members(3, {name: np.zeros((1, 50)) for name in "abc"})
    sites.sum(1)
    first = sites.sent["a"].arrays["w.0"]
    sites.sum(2)
    assert (first != sites.sent["a"].arrays["w.0"]).all()


def test_numbers_out_of_range_are_reported_without_the_site(members):
    """Only the job with such numbers is dropped; which site has them is masked."""
    values = {name: np.ones((4, 2)) for name in "abc"}
    values["b"] = np.array([[1.0, 2.0], [np.nan, 1.0], [np.inf, 1.0], [2.0**22, 1.0]])
    whole, fits = to_fixed_point({"w": values["b"]}, BITS, 3)
    assert fits.tolist() == [True, False, False, False]
    assert not whole["w"][1:].any()
    sites = members(3, values)
    made = sites.sum()
    assert made.fits.tolist() == [True, False, False, False]
    np.testing.assert_array_equal(made.totals["w"], exact_sum(values, list("abc")))
    assert all(sites.sent[name].arrays["overflow.0"].all() for name in "abc")


class TestRefusals:
    """Requests by which a coordinator could isolate a site."""

    def test_a_second_key_exchange(self, members):
        sites = members(4)
        with pytest.raises(Refusal, match="the mask keys of this session are exchanged already"):
            key_of(sites.masks["a"])

    def test_another_group_in_the_session(self, members, signed):
        """Sum(a, b, c, d) - Sum(a, b, c) would be d's numbers."""
        masks = {name: Masks(name, signed(name)) for name in "abcd"}
        keys = keys_of(masks)
        masks["a"].keys(converted({**SESSION, "keys": keys, "bits": BITS, "needed": len(keys)}, Keys))
        del keys["d"]
        with pytest.raises(Refusal, match="the group of sites is fixed for this session"):
            masks["a"].keys(converted({**SESSION, "keys": keys, "bits": BITS, "needed": len(keys)}, Keys))

    def start(self, sites: Members, change: Callable[[dict[str, Any]], None], name: str = "a") -> None:
        offers = dict(sites.group.offers)
        change(offers)
        sites.masks[name].start(9, b"content", [b"question"], offers)

    def test_too_few_participants(self, members):
        with pytest.raises(Refusal, match="masks need 4 of 5 sites, got 3"):
            self.start(members(5), lambda offers: (offers.pop("b"), offers.pop("c")))

    def test_offers_are_used_once(self, members):
        sites = members(4)
        old = dict(sites.group.offers)
        sites.sum(1)
        with pytest.raises(Refusal, match="does not have this site's last offer"):
            self.start(sites, lambda offers: offers.update(old))
        with pytest.raises(Refusal, match="the offer of b was used already"):
            self.start(sites, lambda offers: offers.update(b=old["b"]))

    def test_a_changed_offer(self, members):
        sites = members(4)
        forged = msgspec.structs.replace(sites.group.offers["b"], public=sites.group.offers["c"].public)
        with pytest.raises(Refusal, match="the offer of b was changed"):
            self.start(sites, lambda offers: offers.update(b=forged))

    def unmask(self, sites: Members, number: int, survivors: str) -> None:
        request = {**SESSION, "request": number, "survivors": list(survivors)}
        sites.masks["a"].unmask(converted(request, Unmask))

    def test_both_kinds_of_shares_of_a_site(self, members):
        sites = members(4)
        sites.sum(1)
        with pytest.raises(Refusal, match="unmasked for other survivors; both would disclose a site's numbers"):
            self.unmask(sites, sites.number - 1, "abc")

    def test_too_few_survivors(self, members):
        sites = members(4)
        sites.silent = {"unmask": set("abcd")}
        with pytest.raises(ClientsLost):
            sites.sum(1)
        with pytest.raises(Refusal, match="a sum needs 3 of 4 sites, got 2"):
            self.unmask(sites, sites.number - 1, "ab")
        with pytest.raises(Refusal, match="survivors must be participants of the request, including this site"):
            self.unmask(sites, sites.number - 1, "bcd")

    def test_an_earlier_request(self, members):
        sites = members(4)
        sites.sum(1)
        number = sites.number - 1
        sites.sum(2)
        with pytest.raises(Refusal, match="only the last masked request can be unmasked"):
            self.unmask(sites, number, "abcd")

    def test_the_same_question_to_fewer_sites(self, members):
        """An honest coordinator waits for all sites instead; others are refused."""
        sites = members(4)
        sites.sum(1)
        sites.silent = {"train": {"d"}, "unmask": {"d"}}
        sites.group.answered.clear()
        with pytest.raises(Refusal, match="the same question was answered by other sites"):
            sites.sum(1)
        sites = members(4)
        sites.silent = {"train": {"d"}, "unmask": {"d"}, "offer": {"d"}}
        sites.sum(1)
        sites.silent = {}
        with pytest.raises(ClientsLost, match="a model was evaluated with other sites before"):
            sites.sum(1)


class TestForgedKeys:
    """Keys that are not signed by the site's own certificate are refused."""

    def refused(self, all_credentials: dict[str, Any], change: Callable[[dict], None], reason: str) -> None:
        masks = {name: Masks(name, credentials) for name, credentials in all_credentials.items()}
        keys = keys_of(masks)
        change(keys)
        with pytest.raises(Refusal, match=reason):
            masks["north"].keys(converted({**SESSION, "keys": keys, "bits": BITS, "needed": len(keys)}, Keys))
        assert not masks["north"].has_group

    def test_a_key_of_the_coordinators(self, all_credentials):
        other = key_of(Masks("south", all_credentials["south"]))["key"]
        self.refused(all_credentials, lambda keys: keys["south"].update(key=other), "south is not signed")

    def test_a_certificate_of_another_authority(self, all_credentials, signed):
        forged = key_of(Masks("south", signed("south", "another")))
        self.refused(all_credentials, lambda keys: keys.update(south=forged), "south is not signed by a certificate")

    def test_the_certificate_of_another_member(self, all_credentials, signed):
        """The lead has a certificate of this authority too."""
        forged = key_of(Masks("south", signed("south", calling="lead@fco.local")))
        self.refused(all_credentials, lambda keys: keys.update(south=forged), "has another name")

    def test_a_key_of_an_earlier_session(self, all_credentials):
        old = key_of(Masks("south", all_credentials["south"]), session="b" * 32)
        self.refused(all_credentials, lambda keys: keys.update(south=old), "south is not signed")

    def test_garbage(self, all_credentials):
        self.refused(all_credentials, lambda keys: keys["south"].update(certificate="x"), "south is not signed")
        self.refused(all_credentials, lambda keys: keys["south"].update(signature="00"), "south is not signed")

    def pinned(self, all_credentials, peers: dict[str, str | None], reason: str | None) -> None:
        masks = {name: Masks(name, credentials) for name, credentials in all_credentials.items()}
        masks["north"] = Masks("north", all_credentials["north"], peers=peers)
        request = converted({**SESSION, "keys": keys_of(masks), "bits": BITS, "needed": 3}, Keys)
        if reason is None:
            masks["north"].keys(request)
            return
        with pytest.raises(Refusal, match=reason):
            masks["north"].keys(request)
        assert not masks["north"].has_group

    def test_a_peer_with_another_certificate_than_the_pinned_one(self, all_credentials, signed):
        """A certificate of the same authority and name is not enough."""
        pins = {name: f"SHA256:{fingerprint(one.certificate).upper()}" for name, one in all_credentials.items()}
        self.pinned(all_credentials, pins, None)
        self.pinned(all_credentials, {"east": pins["east"], "south": None}, None)
        others = all_credentials | {"south": signed("another key", calling="south")}
        self.pinned(others, {"east": None, "south": None}, None)
        self.pinned(others, pins, r"^the certificate of south has another fingerprint than in site.yaml \(peers\)$")

    def test_a_site_that_is_no_peer(self, all_credentials):
        """The holder of the authority's key can sign for sites that do not exist."""
        self.pinned(all_credentials, {"east": None}, "^masks with south requested; the site's policy allows its peers")

    def test_fewer_than_three(self, all_credentials):
        self.refused(all_credentials, lambda keys: keys.pop("south"), "at least 3")


@pytest.fixture
def both(hospitals, make_sites, psi_for, make_hparams, all_credentials) -> Callable[..., tuple[Setup, Setup, Varying]]:
    """Return setups of a fixed-point run: simulated, and with masks."""

    def make(algo: str, policy: Policy | None = None, masked: bool = True, **changes: Any):
        folder, algorithm, psi = hospitals("logistic"), all_algorithms()[algo](), psi_for(algo)
        hparams = make_hparams(clients_per_round=3, batch_size=4, fraction_bits=BITS, **changes)
        task = task_of(folder, "logistic", exact_sums=True)
        sites = make_sites(folder, all_credentials=all_credentials, mask_bits=BITS if masked else None, policy=policy)
        setups = []
        for one in (task, CustomAtSites.of(task, sites)):
            problem = one.data(0, hparams.dtype).to_problem(psi, weighting=hparams.weighting)
            setups.append(Setup(one, problem, hparams, 0, algorithm))
        setups[1] = dataclasses.replace(setups[1], clients=remote_clients(setups[1].problem.data, hparams, 0))
        rates = np.array([0.05, 0.02], hparams.dtype)
        return *setups, Varying.from_rates(algorithm, psi, rates, np.ones_like(rates))

    return make


@pytest.mark.parametrize("algo", [name for name in FEDERATED if name not in PERSONAL])
def test_every_algorithm_equals_the_fixed_point_simulation(both, algo):
    local, remote, varying = both(algo, rounds=2, weighting="examples", dtype="float32" if algo == "zhj" else "float64")
    assert_same(run(local, varying), run(remote, varying))


def test_fixed_point_is_close_to_floating_point(both):
    local, _, varying = both("feddualavg")
    exact = dataclasses.replace(local, hparams=dataclasses.replace(local.hparams, fraction_bits=None))
    for one, other in zip(run(local, varying), run(exact, varying), strict=True):
        np.testing.assert_allclose(one.model, other.model, atol=1e-9)
        assert (one.model != other.model).any()


def test_a_job_that_diverges_leaves_the_stack(both):
    """Its numbers leave the fixed-point range in the same round in both runs."""
    local, remote, varying = both("feddualavg", rounds=4)
    varying = dataclasses.replace(varying, client_lr=np.array([0.01, 1e300]))
    one, other = run(local, varying), run(remote, varying)
    assert one[1].diverged is not None
    assert one[1].diverged == other[1].diverged
    assert_same(one, other)


def test_the_round_is_repeated_after_a_site_drops_out(both):
    local, remote, varying = both("zhj", rounds=3)
    jobs = [Job(), Job()]
    simulation = Simulation(remote, jobs, varying)
    simulation.advance()
    saved = [dataclasses.replace(job, history=copy.deepcopy(job.history)) for job in simulation.snapshot()]
    remote.task.connection.link.silent_in_training = "north"
    with pytest.raises(ClientsLost, match="north"):
        simulation.advance()
    assert_same(run(local, varying), run(remote, varying, saved))


def test_sites_draw_the_noise_themselves(both):
    """The noise is not reproducible, and its variance is that of noise added by one server."""
    pytest.importorskip("dp_accounting")
    noise, rounds = ClipNoise(clip_norm=1e-3, noise_multiplier=100.0), 12
    states = []
    for _ in range(2):
        _, remote, varying = both("fedavg", rounds=rounds, normalize_steps=False)
        remote = dataclasses.replace(remote, algorithm=remote.algorithm.with_transform(noise))
        states.append([job.model for job in run(remote, varying)])
    first, second = (np.array(models) for models in states)
    assert (first != second).all()
    expected = 2 * rounds * (noise.noise_multiplier * noise.clip_norm / len(NAMES)) ** 2
    assert 0.1 < ((first - second)[0] ** 2).mean() / expected < 10


def test_a_policy_can_require_masks(both):
    policy = preset("demo", masks=True)
    with pytest.raises(UserError, match="the site's policy requires masks"):
        both("feddualavg", policy, masked=False)
    _, remote, varying = both("feddualavg", policy)
    run(remote, varying)


def test_a_site_without_a_certificate_refuses_masks(hospitals, make_sites):
    with pytest.raises(UserError, match="east: the site has no certificate to sign a mask key"):
        make_sites(hospitals("logistic"), mask_bits=BITS).descriptions()


@pytest.mark.parametrize(
    ("given_settings", "hparams", "line"),
    [
        ({"sites": ["a", "b"]}, {}, "federation.sites: got ['a', 'b'], must be at least 3 with federation.masks"),
        ({"min_sites": 2}, {}, "federation.min_sites: got 2, must be null or from 3 to 3 with federation.masks"),
        ({}, {"clients_per_round": 2}, "hparams.clients_per_round: got 2, must be all with federation.masks"),
        ({}, {"fraction_bits": None}, "hparams.fraction_bits: got None, must be a number, such as 40"),
    ],
)
def test_settings_that_masks_do_not_allow(make_hparams, hospitals, given_settings, hparams, line):
    task = task_of(hospitals("logistic"), "logistic", path="")
    used = make_hparams(**{"clients_per_round": 3, "fraction_bits": BITS, **hparams})
    with pytest.raises(UserError) as caught:
        Flare(**{"sites": NAMES, "masks": True, **given_settings}).bind_task(task, used, NoTransform())
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)
