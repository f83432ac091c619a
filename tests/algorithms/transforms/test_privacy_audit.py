"""Empirical audit: a membership inference attack must not beat the accounted epsilon, and beats it without noise.

Each of many clients is one trial: it has the same rows, its own batches and its own noise. The attacker knows all rows
but one, the canary, and decides from a client's message which of two values the canary has. The true and false positive
rates of a test bound epsilon from below: epsilon >= log((TPR - delta) / FPR).
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import beta

from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.algorithms.transforms.row_clip_noise import RowClipNoise
from fco_cli.problem.data import ClientData
from fco_cli.problem.losses import Squared
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.problem import TaskData
from fco_cli.problem.regularizers import all_regularizers
from fco_cli.simulation.clients import Sampler

pytestmark = pytest.mark.machine_code

TRIALS, ROWS, BATCH = 20_000, 4, 2
CONFIDENCE = 1 - 1e-6  # the test fails by chance less than once in a million times
DELTA = 1e-5


@pytest.fixture
def messages(make_hparams):
    """Return the messages [trials, numbers] of one round for a canary, and the accounted epsilon."""

    def send(name, canary, noise_multiplier):
        x, y = np.eye(ROWS), np.zeros(ROWS)
        x[0], y[0] = canary
        data = ClientData(np.tile(x, (TRIALS, 1)), np.tile(y, TRIALS), np.arange(TRIALS + 1) * ROWS)
        psi = all_regularizers()["none"]()
        problem = TaskData(data, Linear(ROWS), Squared()).to_problem(psi)
        method = all_algorithms()[name]().with_transform(RowClipNoise(noise_multiplier=noise_multiplier, delta=DELTA))
        algorithm = method.bind(problem, Varying.from_rates(method, psi, np.full(1, 0.1), np.ones(1)))
        hparams = make_hparams(batch_size=BATCH, clients_per_round=TRIALS, local_epochs=2)
        sampler = Sampler(data.sizes, hparams, 7, sample_rows=True)
        cohort = sampler.cohort(0)
        sent = algorithm.round(algorithm.initial_state(np.zeros((1, ROWS + 1))), cohort).messages
        spent = algorithm.privacy_spent(1, TRIALS, np.zeros(1), None, sampler.participation(1))
        return sent.reshape(TRIALS, -1), float(spent["epsilon"][0])

    return send


def epsilon_from_below(one, other):
    """Return the lower confidence bound of epsilon from messages [trials, numbers] in two worlds.

    The first half of the trials determines the direction and the threshold, the second half the rates.
    """
    direction = one[: TRIALS // 2].mean(axis=0) - other[: TRIALS // 2].mean(axis=0)
    scores = [world @ direction for world in (one, other)]
    (train_one, train_other), (test_one, test_other) = ([each[part] for each in scores] for part in
        (slice(TRIALS // 2), slice(TRIALS // 2, None)))  # fmt: skip
    thresholds = np.quantile(np.concatenate([train_one, train_other]), np.linspace(0.01, 0.99, 99))
    threshold = max(thresholds, key=lambda cut: bound((train_one > cut).sum(), (train_other > cut).sum()))
    return bound((test_one > threshold).sum(), (test_other > threshold).sum())


def bound(hits, false_alarms):
    """Return log((TPR - delta) / FPR) with Clopper-Pearson limits of both rates."""
    count, error = TRIALS // 2, (1 - CONFIDENCE) / 2
    least = beta.ppf(error, hits, count - hits + 1) if hits else 0.0
    most = beta.ppf(1 - error, false_alarms + 1, count - false_alarms) if false_alarms < count else 1.0
    return np.log(max(least - DELTA, 1e-12) / most)


# Two values of the canary whose clipped contributions differ as much as possible: opposite gradients, and orthogonal
# rows, of norms far above clip_norm.
OPPOSITE = (np.eye(ROWS)[0], 1e3), (np.eye(ROWS)[0], -1e3)
ORTHOGONAL = (1e3 * np.eye(ROWS)[0], 0.0), (1e3 * np.eye(ROWS)[1], 0.0)


@pytest.mark.parametrize(("name", "canaries", "noise"), [("fedavg", OPPOSITE, 3.0), ("moments", ORTHOGONAL, 2.0)])
def test_the_attack_stays_below_the_accounted_epsilon_and_exceeds_it_without_noise(name, canaries, noise, messages):
    def attack(multiplier):
        (one, epsilon), (other, _) = (messages(name, canary, multiplier) for canary in canaries)
        return epsilon_from_below(one, other), epsilon

    found, epsilon = attack(noise)
    assert 0.2 * epsilon < found <= epsilon  # the attack works, but not better than accounted
    assert found < attack(noise / 4)[0]
    assert attack(0.0)[0] > epsilon
