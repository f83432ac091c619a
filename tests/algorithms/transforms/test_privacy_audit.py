"""Empirical audit: attacks must not beat the accounted epsilon, and beat it without noise.

Each of many clients is one trial: it has the same rows, its own batches and its own noise. The attacker knows all rows
but one, the canary.

Membership inference decides from a client's message which of two values the canary has. The true and false positive
rates of a test bound epsilon from below: epsilon >= log((TPR - delta) / FPR).

Reconstruction chooses one of K equally likely values of the canary. Without the message it is right with probability
1 / K. A mechanism with (epsilon, delta) allows at most exp(epsilon) / K + delta (reconstruction robustness: Balle,
Cherubin and Hayes, 2022); the accountant gives epsilon for every delta. For a Gaussian mechanism whose sums differ by
mu deviations, the smallest of these bounds is Phi(Phi^-1(1 / K) + mu) (Hayes, Mahloujifar and Balle, 2023).
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import beta, norm

from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.algorithms.transforms.row_accounting import RowSums, row_epsilon
from fco_cli.algorithms.transforms.row_clip_noise import RowClipNoise
from fco_cli.data.format import Features
from fco_cli.data.ranges import clipped_sums, declared_preparation, largest_norm
from fco_cli.problem.data import ClientData
from fco_cli.problem.losses import Squared
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.problem import TaskData
from fco_cli.problem.regularizers import all_regularizers
from fco_cli.simulation.clients import Sampler

pytestmark = pytest.mark.machine_code

TRIALS, ROWS, BATCH, FEATURES = 20_000, 4, 2, 4
CONFIDENCE = 1 - 1e-6  # the test fails by chance less than once in a million times
DELTA = 1e-5


@pytest.fixture
def messages(make_hparams):
    """Return the messages [trials, numbers] of one round, and the accounted epsilon.

    `canaries` are features and labels of the first row of every client, or of all clients.
    """

    def send(name, canaries, noise_multiplier, features=FEATURES, batch_size=BATCH, shares=1):
        x, y = np.tile(np.eye(ROWS, features), (TRIALS, 1, 1)), np.zeros((TRIALS, ROWS))
        x[:, 0], y[:, 0] = canaries
        data = ClientData(x.reshape(-1, features), y.ravel(), np.arange(TRIALS + 1) * ROWS)
        psi = all_regularizers()["none"]()
        problem = TaskData(data, Linear(features), Squared()).to_problem(psi)
        transform = RowClipNoise(noise_multiplier=noise_multiplier, delta=DELTA, noise_shares=shares)
        method = all_algorithms()[name]().with_transform(transform)
        algorithm = method.bind(problem, Varying.from_rates(method, psi, np.full(1, 0.1), np.ones(1)))
        epochs = 1 if batch_size >= ROWS else 2
        hparams = make_hparams(batch_size=batch_size, clients_per_round=TRIALS, local_epochs=epochs)
        sampler = Sampler(data.sizes, hparams, 7, sample_rows=True)
        cohort = sampler.cohort(0)
        sent = algorithm.round(algorithm.initial_state(np.zeros((1, features + 1))), cohort).messages
        spent = algorithm.privacy_spent(1, TRIALS, np.zeros(1), None, sampler.participation(1))
        by_client = np.empty((TRIALS, sent[0].size))
        by_client[cohort.clients] = sent.reshape(TRIALS, -1)
        return by_client, float(spent["epsilon"][0])

    return send


def epsilon_from_below(one, other):
    """Return the lower confidence bound of epsilon from messages [trials, numbers] in two worlds.

    The first half of the trials determines the direction and the threshold, the second half the rates.
    """
    half = len(one) // 2
    direction = one[:half].mean(axis=0) - other[:half].mean(axis=0)
    scores = [world @ direction for world in (one, other)]
    (train_one, train_other), (test_one, test_other) = ([each[part] for each in scores] for part in
        (slice(half), slice(half, None)))  # fmt: skip
    thresholds = np.quantile(np.concatenate([train_one, train_other]), np.linspace(0.01, 0.99, 99))
    threshold = max(thresholds, key=lambda cut: bound((train_one > cut).sum(), (train_other > cut).sum(), half))
    return bound((test_one > threshold).sum(), (test_other > threshold).sum(), len(test_one))


def bound(hits, false_alarms, count):
    """Return log((TPR - delta) / FPR) with Clopper-Pearson limits of both rates."""
    most = -rate_from_below(count - false_alarms, count) + 1
    return np.log(max(rate_from_below(hits, count) - DELTA, 1e-12) / most)


def rate_from_below(hits, count):
    """Return the lower Clopper-Pearson limit of a rate."""
    return beta.ppf((1 - CONFIDENCE) / 2, hits, count - hits + 1) if hits else 0.0


# Two values of the canary whose clipped contributions differ as much as possible: opposite gradients, and orthogonal
# rows, of norms far above clip_norm.
OPPOSITE = (np.eye(ROWS)[0], 1e3), (np.eye(ROWS)[0], -1e3)
ORTHOGONAL = (1e3 * np.eye(ROWS)[0], 0.0), (1e3 * np.eye(ROWS)[1], 0.0)


@pytest.mark.ci
@pytest.mark.parametrize(("name", "canaries", "noise"), [("fedavg", OPPOSITE, 3.0), ("moments", ORTHOGONAL, 2.0)])
def test_the_attack_stays_below_the_accounted_epsilon_and_exceeds_it_without_noise(name, canaries, noise, messages):
    def attack(multiplier):
        (one, epsilon), (other, _) = (messages(name, canary, multiplier) for canary in canaries)
        return epsilon_from_below(one, other), epsilon

    found, epsilon = attack(noise)
    assert 0.2 * epsilon < found <= epsilon  # the attack works, but not better than accounted
    assert found < attack(noise / 4)[0]
    assert attack(0.0)[0] > epsilon


def test_shared_noise_hides_a_row_in_the_sum_and_not_in_one_message(messages):
    """25 clients share the noise; a reader of the other 24 messages, or of their noise, is stronger than accounted."""
    shares, noise = 25, 5.5

    def send(label):
        sent, epsilon = messages("fedavg", (np.eye(FEATURES)[0], label), noise, batch_size=ROWS, shares=shares)
        return sent.reshape(TRIALS // shares, shares, -1), epsilon

    (one, epsilon), (other, _) = (
        send(np.tile([1e3] + [0.0] * (shares - 1), TRIALS // shares)),
        send(np.tile([-1e3] + [0.0] * (shares - 1), TRIALS // shares)),
    )
    assert epsilon < 2
    assert epsilon_from_below(one.sum(axis=1), other.sum(axis=1)) <= epsilon
    assert epsilon_from_below(one[:, 0], other[:, 0]) > epsilon


# Reconstruction.


def reconstruct(send, values):
    """Return the lower limit of the rate at which the attack finds the values [K] of the canaries, and epsilon.

    `send(secret)` returns the messages for values `secret` [trials]. The first half of the trials, in which the
    attacker has chosen the canaries, determines the mean message of every value; the nearest one is the guess.
    """
    half, secret = TRIALS // 2, np.random.default_rng(5).integers(values, size=TRIALS)
    sent, epsilon = send(secret)
    means = np.stack([sent[:half][secret[:half] == value].mean(axis=0) for value in range(values)])
    guesses = np.argmax(sent[half:] @ means.T - (means**2).sum(axis=1) / 2, axis=1)
    return rate_from_below(int((guesses == secret[half:]).sum()), TRIALS - half), epsilon


def largest_rate(values, noise_multiplier):
    """Return the largest rate of reconstruction that the accounted epsilon of one sum allows."""
    part = RowSums(1, 1.0, noise_multiplier)
    bounds = [np.exp(row_epsilon((part,), delta)) / values + delta for delta in np.geomspace(1e-5, 0.9, 60)]
    gaussian = norm.cdf(norm.ppf(1 / values) + 2 / noise_multiplier)
    assert gaussian <= min(bounds) < 1.02 * gaussian
    return min(bounds)


AXES = 16


def canaries_of(name, secret):
    """Return features [trials, AXES] and labels [trials]: 32 gradients, opposite or orthogonal, or 16 rows."""
    if name == "moments":
        return 1e3 * np.eye(AXES)[secret], np.zeros(len(secret))
    return np.eye(AXES)[secret % AXES] * 1e3, np.where(secret < AXES, 1e3, -1e3)


@pytest.mark.parametrize(
    ("name", "values", "noise", "change"),
    [("fedavg", 2 * AXES, 2.0, 1.0), pytest.param("moments", AXES, 1.2, np.sqrt(0.5), marks=pytest.mark.ci)],
)
def test_reconstruction_stays_below_the_bound_and_exceeds_it_without_noise(name, values, noise, change, messages):
    """`change` is half of the largest change of a sum by one row, in the unit of the noise multiplier."""

    def attack(multiplier):
        def send(secret):
            return messages(name, canaries_of(name, secret), multiplier, features=AXES, batch_size=ROWS)

        return reconstruct(send, values)

    found, epsilon = attack(noise)
    assert epsilon == pytest.approx(row_epsilon((RowSums(1, 1.0, noise / change),), DELTA))
    bound_of_rate = largest_rate(values, noise / change)
    assert 1.5 / values < found <= bound_of_rate
    assert found < attack(noise / 4)[0]
    assert attack(0.0)[0] > bound_of_rate


@pytest.mark.parametrize("noise", [1.0, 1e-3])
def test_reconstruction_from_noisy_moments_of_columns(noise):
    """The canary is a corner of the declared ranges of five columns; with negligible noise it is found."""
    columns, corners = [f"x{k}" for k in range(5)], np.array(list(itertools.product([0.0, 10.0], repeat=5)))
    preparation = declared_preparation(columns, {"default": [0, 10]}, True)
    others = np.random.default_rng(1).uniform(0, 10, (3, 5))
    sums = [
        clipped_sums(Features("here", np.vstack([corner, others]), columns, {}), preparation).ravel()
        for corner in corners
    ]
    random = np.random.default_rng(2)

    def send(secret):
        noisy = np.array(sums)[secret]
        return noisy + noise * largest_norm(5) * random.standard_normal(noisy.shape), None

    found, _ = reconstruct(send, 32)
    assert found > 1.5 / 32
    assert (found <= largest_rate(32, 1.0)) == (noise == 1.0)
