"""Tests of clipping, of the noise at the server and of privacy accounting."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import gammaln, logsumexp
from scipy.stats import norm

from fco_cli.algorithms.transforms.clip_noise import ClipNoise, total_epsilon
from fco_cli.errors import UserError


@pytest.fixture
def messages(make_problem, make_algorithm, full_cohort):
    """Return the messages of a round, clipped or not."""

    def send(name="scaffold_prox", **numbers):
        problem = make_problem()
        algorithm = make_algorithm(name, problem, 0.05, transform=ClipNoise(**numbers) if numbers else None)
        w = np.zeros((1, problem.layout.size))
        memory = np.repeat(algorithm.initial_client_arrays(w)[None], 3, axis=0)
        return algorithm.round(algorithm.initial_state(w), full_cohort(problem), memory).messages[:, :, 0]

    return send


@pytest.mark.parametrize("share", [0.01, 0.8, 1.2])
def test_all_arrays_of_a_message_together_are_clipped(messages, share):
    """Clipping keeps the direction, and leaves messages within the norm unchanged bit for bit."""
    raw = messages()
    lengths = np.sqrt((raw**2).sum(axis=(1, 2)))
    limit = share * np.median(lengths)
    sent = messages(clip_norm=limit, noise_multiplier=0.0)
    short = lengths <= limit
    assert short.any() == (share > 1)
    np.testing.assert_array_equal(sent[short], raw[short])
    clipped = np.sqrt((sent**2).sum(axis=(1, 2)))[~short]
    assert (clipped <= limit).all()
    np.testing.assert_allclose(clipped, limit, rtol=1e-13)
    np.testing.assert_allclose(sent[~short], (limit / lengths)[~short, None, None] * raw[~short], rtol=1e-13)


@pytest.mark.parametrize("big", [1e200, 1e-200])
def test_huge_and_tiny_messages(big):
    message = np.full((2, 1, 50), big)
    ClipNoise.encode.as_python(message, message[:0], ClipNoise(clip_norm=3.0).numbers, np.uint64(0))
    assert np.sqrt((message**2).sum()) == pytest.approx(3 if big > 1 else 0, abs=1e-12)
    assert (message > 0).all()


def test_the_noise_on_the_mean_has_the_specified_deviation(make_problem, make_algorithm, cohorts_of, make_hparams):
    """The standard deviation is noise_multiplier * clip_norm / S.

    The noise differs between rounds and is independent of client rates and of the number of jobs.
    """
    problem = make_problem(features=400, sizes=(6, 6, 6))
    transform = ClipNoise(clip_norm=0.5, noise_multiplier=3.0)
    algorithm = make_algorithm("fedavg", problem, [0.001, 0.002], transform=transform)
    cohorts = cohorts_of(problem, make_hparams(clients_per_round=2), 30)
    noise = []
    for cohort in cohorts:
        sent = algorithm.round(algorithm.initial_state(np.zeros((2, 401))), cohort).messages
        noise.append(algorithm.aggregates(sent, cohort)[0].mean["w"] - sent[:, 0].mean(axis=0))
    noise = np.array(noise)  # [30, J, P]
    np.testing.assert_allclose(noise[:, 0], noise[:, 1], atol=1e-12)
    draws = noise[:, 0].ravel()
    assert draws.std() == pytest.approx(3 * 0.5 / 2, rel=5 / np.sqrt(2 * draws.size))
    assert abs(draws.mean()) < 5 * draws.std() / np.sqrt(draws.size)
    assert abs(np.corrcoef(noise[0, 0], noise[1, 0])[0, 1]) < 5 / 20
    assert ((draws / draws.std()) ** 4).mean() == pytest.approx(3, abs=0.3)  # Gaussian
    alone = make_algorithm("fedavg", problem, 0.002, transform=transform)
    again = alone.aggregates(np.zeros((2, 1, 1, 401)), cohorts[3])[0].mean["w"]
    np.testing.assert_allclose(again[0], noise[3, 1], atol=1e-12)  # a function of seed and round


def test_the_noise_is_scaled_by_the_largest_step_normalization(make_problem, make_algorithm, cohorts_of, make_hparams):
    """With step normalization the client with the fewest steps has the factor mean K / min K."""
    problem = make_problem(sizes=(3, 9, 15))  # K = 1, 3, 5
    (cohort,) = cohorts_of(problem, make_hparams(clients_per_round=3), 1)
    assert (cohort.min_steps, cohort.mean_steps) == (1, 3)

    def noise(cohort):
        algorithm = make_algorithm("fedavg", problem, transform=ClipNoise(clip_norm=0.5))
        sent = np.zeros((3, 1, 1, problem.layout.size))
        return algorithm.aggregates(sent, cohort)[0].mean["w"]

    np.testing.assert_allclose(noise(cohort), 3 * noise(replace(cohort, normalize=False)), rtol=1e-12)
    np.testing.assert_allclose(noise(cohort), 2 * noise(replace(cohort, min_steps=2.0)), rtol=1e-12)


# Privacy accounting.


def exact_gaussian(noise_multiplier, delta):
    """Return the exact epsilon of one Gaussian mechanism (Balle and Wang, 2018, Theorem 8)."""
    distance = 1 / noise_multiplier

    def excess(epsilon):
        below = np.exp(epsilon + norm.logcdf(-distance / 2 - epsilon / distance))
        return norm.cdf(distance / 2 - epsilon / distance) - below - delta

    return brentq(excess, 0, 1000)


@pytest.mark.parametrize("rounds", [1, 10, 300])
@pytest.mark.parametrize("noise_multiplier", [2.0, 8.0, 30.0])
def test_with_full_participation_epsilon_is_a_tight_upper_bound(rounds, noise_multiplier):
    """n rounds are equivalent to one with noise / sqrt(n); the sensitivity is 2 clip_norm."""
    exact = exact_gaussian(noise_multiplier / 2 / np.sqrt(rounds), 1e-5)
    assert exact <= total_epsilon(rounds, 7, 7, noise_multiplier, 1e-5) <= 1.25 * exact + 0.01


def general_bound(order, share, noise_multiplier):
    """Return the bound of Wang, Balle and Kasiviswanathan (2019), Theorem 9, for a sampled Gaussian."""
    epsilon = [a / (2 * noise_multiplier**2) for a in range(order + 1)]
    terms = [0.0]
    for j in range(2, order + 1):
        choose = gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)
        least = np.log(2) + (j - 1) * epsilon[j]
        if j == 2:
            least = min(np.log(4) + np.log(np.expm1(epsilon[2])), np.log(2) + epsilon[2])
        terms.append(j * np.log(share) + choose + least)
    return logsumexp(terms) / (order - 1)


@pytest.mark.parametrize(("sampled", "clients", "rounds", "noise"), [(10, 1000, 100, 4.0), (100, 3400, 500, 6.0)])
def test_with_sampling_epsilon_is_close_to_the_general_bound_and_not_above(sampled, clients, rounds, noise):
    """The library uses the paper's sharper bound for Gaussian noise. Epsilon by Canonne et al., Proposition 12."""
    orders = np.arange(2, 60)
    divergence = rounds * np.array([general_bound(a, sampled / clients, noise / 2) for a in orders])
    general = (divergence + np.log1p(-1 / orders) - np.log(1e-5 * orders) / (orders - 1)).min()
    found = total_epsilon(rounds, sampled, clients, noise, 1e-5)
    assert 0.5 * general < found <= general * (1 + 1e-9)
    assert found < 0.5 * total_epsilon(rounds, clients, clients, noise, 1e-5)


def test_epsilon_grows_with_rounds_and_cohorts_and_decreases_with_noise():
    usual = (50, 20, 100, 5.0, 1e-5)
    rounds = [total_epsilon(r, *usual[1:]) for r in (0, 1, 10, 50, 500)]
    assert rounds[0] == 0
    assert (np.diff(rounds) > 0).all()
    assert total_epsilon(50, 20, 100, 10.0, 1e-5) < total_epsilon(*usual) < total_epsilon(50, 40, 100, 5.0, 1e-5)
    assert total_epsilon(50, 20, 100, 5.0, 1e-3) < total_epsilon(*usual)
    assert total_epsilon(50, 20, 100, 0.0, 1e-5) == np.inf
    for noise in (0.1, 1.0, 1e3):  # the bound for full participation also holds for samples
        assert total_epsilon(50, 50, 100, noise, 1e-5) <= total_epsilon(50, 100, 100, noise, 1e-5)


def test_epsilon_is_infinite_after_a_dropped_message():
    transform = ClipNoise(noise_multiplier=5.0)
    numbers = np.repeat(transform.numbers, 2).view(np.recarray)
    spent = transform.privacy_spent(10, 3, 6, np.array([0, 1]), numbers)["epsilon"]
    assert spent.tolist() == [total_epsilon(10, 3, 6, 5.0, 1e-5), np.inf]


def test_a_missing_library_is_reported_with_its_extra(monkeypatch, make_algorithm, make_problem):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    algorithm = make_algorithm("fedavg", make_problem(), transform=ClipNoise())
    with pytest.raises(UserError, match=r"^transform: clip_noise needs dp-accounting: run pip install '\.\[privacy\]'"):
        algorithm.check_transform("uniform")
    make_algorithm("fedavg", make_problem(), transform=ClipNoise(noise_multiplier=0.0)).check_transform("uniform")
