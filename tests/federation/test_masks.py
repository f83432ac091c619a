"""Secure aggregation: masks cancel only in the sum over all sites, and forged keys are refused."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.algorithms.rounds import from_fixed_point, to_fixed_point
from fco_cli.algorithms.transforms.clip_noise import ClipNoise
from fco_cli.errors import UserError
from fco_cli.federation.coordinator.clients import remote_clients
from fco_cli.federation.coordinator.task import CustomAtSites
from fco_cli.federation.masks import Masks
from fco_cli.federation.message import Message, converted
from fco_cli.federation.policy import Policy, Refusal, preset
from fco_cli.federation.schema import Keys, Request
from fco_cli.federation.settings import Flare
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


def agreed(all_credentials: dict[str, Any]) -> dict[str, Masks]:
    masks = {name: Masks(name, credentials) for name, credentials in all_credentials.items()}
    keys = keys_of(masks)
    for one in masks.values():
        one.keys(converted({**SESSION, "keys": keys, "bits": BITS}, Keys))
    return masks


@pytest.fixture
def all_credentials(signed) -> dict[str, Any]:
    return {name: signed(name) for name in NAMES}


def test_masks_cancel_only_in_the_sum_over_all_sites(all_credentials):
    random = np.random.default_rng(0)
    values = {name: random.normal(size=(2, 7)) for name in NAMES}
    masked = {
        name: one.mask(b"request", Message("", arrays={"w": values[name]})).arrays["w"]
        for name, one in agreed(all_credentials).items()
    }
    total = sum(masked.values()).view(np.int64)
    exact = sum(to_fixed_point({"w": one}, BITS, 3)[0]["w"] for one in values.values())
    np.testing.assert_array_equal(total, exact)
    np.testing.assert_allclose(from_fixed_point(total, BITS), sum(values.values()), atol=3 * 2.0**-BITS)
    two = (masked["east"] + masked["north"]).view(np.int64)
    assert (np.abs(from_fixed_point(two, BITS)) > 100).any()  # south's masks remain


def test_masked_numbers_are_uniform(all_credentials):
    """Test the bytes of masked zeros by chi-square at the level 1e-9."""
    sent = (
        agreed(all_credentials)["north"].mask(b"request", Message("", arrays={"w": np.zeros((1, 20_000))})).arrays["w"]
    )
    counts = np.bincount(np.frombuffer(sent.tobytes(), np.uint8), minlength=256)
    expected = sent.nbytes / 256
    assert ((counts - expected) ** 2 / expected).sum() < chi2.isf(1e-9, 255)


def test_masks_depend_on_the_request(all_credentials):
    north, zero = agreed(all_credentials)["north"], Message("", arrays={"w": np.zeros((1, 50)), "v": np.zeros((1, 50))})
    first, second = north.mask(b"one", zero).arrays, north.mask(b"two", zero).arrays
    for a, b in ((first["w"], second["w"]), (first["w"], first["v"])):
        assert (a != b).all()


def test_numbers_out_of_range_are_reported_and_not_sent(all_credentials):
    """Only the job with such numbers is dropped."""
    values = np.array([[1.0, 2.0], [np.nan, 1.0], [np.inf, 1.0], [2.0**22, 1.0]])
    whole, fits = to_fixed_point({"w": values}, BITS, 3)
    assert fits.tolist() == [True, False, False, False]
    assert not whole["w"][1:].any()
    responses = [one.mask(b"q", Message("", arrays={"w": values})) for one in agreed(all_credentials).values()]
    assert all(response.arrays["fits"].tolist() == [1, 0, 0, 0] for response in responses)
    np.testing.assert_array_equal(sum(response.arrays["w"] for response in responses).view(np.int64), 3 * whole["w"])


class TestForgedKeys:
    """Keys that are not signed by the site's own certificate are refused."""

    def refused(self, all_credentials: dict[str, Any], change: Callable[[dict], None], reason: str) -> None:
        masks = {name: Masks(name, credentials) for name, credentials in all_credentials.items()}
        keys = keys_of(masks)
        change(keys)
        with pytest.raises(Refusal, match=reason):
            masks["north"].keys(converted({**SESSION, "keys": keys, "bits": BITS}, Keys))
        assert not masks["north"].has_secrets

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

    def test_fewer_than_three(self, all_credentials):
        self.refused(all_credentials, lambda keys: keys.pop("south"), "at least 3")


@pytest.fixture
def both(hospitals, make_sites, psi_for, make_hparams, all_credentials) -> Callable[..., tuple[Setup, Setup, Varying]]:
    """Return setups of a fixed-point run: simulated, and with masks."""

    def make(algo: str, policy: Policy | None = None, masked: bool = True, **changes: Any):
        folder, algorithm, psi = hospitals("logistic"), all_algorithms()[algo](), psi_for(algo)
        hparams = make_hparams(clients_per_round=3, batch_size=4, fraction_bits=BITS, **changes)
        task = task_of(folder, "logistic")
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
    _, remote, varying = both("feddualavg", policy, masked=False)
    with pytest.raises(UserError, match="the site's policy requires masks"):
        run(remote, varying)
    _, remote, varying = both("feddualavg", policy)
    run(remote, varying)


def test_a_site_without_a_certificate_refuses_masks(hospitals, make_sites):
    with pytest.raises(UserError, match="east: the site has no certificate to sign a mask key"):
        make_sites(hospitals("logistic"), mask_bits=BITS).descriptions()


@pytest.mark.parametrize(
    ("settings", "hparams", "line"),
    [
        ({"sites": ["a", "b"]}, {}, "federation.sites: got ['a', 'b'], must be at least 3 with federation.masks"),
        ({"min_sites": 2}, {}, "federation.min_sites: got 2, must be null with federation.masks"),
        ({}, {"clients_per_round": 2}, "hparams.clients_per_round: got 2, must be all with federation.masks"),
        ({}, {"fraction_bits": None}, "hparams.fraction_bits: got None, must be a number, such as 40"),
    ],
)
def test_settings_that_masks_do_not_allow(make_hparams, hospitals, settings, hparams, line):
    task = task_of(hospitals("logistic"), "logistic", path="")
    given = make_hparams(**{"clients_per_round": 3, "fraction_bits": BITS, **hparams})
    with pytest.raises(UserError) as caught:
        Flare(**{"sites": NAMES, "masks": True, **settings}).bind_task(task, given)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)
