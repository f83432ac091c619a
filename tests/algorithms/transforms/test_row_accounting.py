"""Tests of the privacy loss of a row against other accountants, exact formulas and numerical integration."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm

from fco_cli.algorithms.rounds import Participation
from fco_cli.algorithms.transforms import Evaluations
from fco_cli.algorithms.transforms.clip_noise import dp_accounting
from fco_cli.algorithms.transforms.row_accounting import RowSums, noise_for_epsilon, row_epsilon, undominated
from fco_cli.algorithms.transforms.row_clip_noise import RowClipNoise
from fco_cli.simulation.clients import Sampler


def exact_gaussian(noise_multiplier, delta):
    """Return the exact epsilon of one Gaussian mechanism of sensitivity 1 (Balle and Wang, 2018, Theorem 8)."""
    distance = 1 / noise_multiplier

    def excess(epsilon):
        below = np.exp(epsilon + norm.logcdf(-distance / 2 - epsilon / distance))
        return norm.cdf(distance / 2 - epsilon / distance) - below - delta

    return brentq(excess, 0, 1000)


@pytest.mark.parametrize("sums", [1, 10, 300])
@pytest.mark.parametrize("noise_multiplier", [2.0, 8.0, 30.0])
def test_sums_over_all_rows_have_the_exact_epsilon(sums, noise_multiplier):
    """n sums are one with noise / sqrt(n); a row changes a sum by 2 clip_norm."""
    exact = exact_gaussian(noise_multiplier / 2 / np.sqrt(sums), 1e-5)
    assert row_epsilon((RowSums(sums, 1.0, noise_multiplier),), 1e-5) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(("sampling", "noise_multiplier"), [(0.1, 1.0), (0.5, 3.0), (0.02, 0.7)])
def test_one_sampled_sum_has_the_epsilon_of_numerical_integration(sampling, noise_multiplier):
    """Neighbors: a row of gradient +clip_norm or -clip_norm in a sample, or none."""

    def density(x, sign):
        present, absent = norm.pdf(x, sign, noise_multiplier), norm.pdf(x, 0, noise_multiplier)
        return sampling * present + (1 - sampling) * absent

    def delta(epsilon):
        def excess(x):
            return max(density(x, 1) - np.exp(epsilon) * density(x, -1), 0.0)

        return quad(excess, -12 * noise_multiplier, 12 * noise_multiplier + 1, limit=500, points=[0, 1])[0]

    exact = brentq(lambda epsilon: delta(epsilon) - 1e-3, 0, 30)
    found = row_epsilon((RowSums(1, sampling, noise_multiplier),), 1e-3)
    assert exact * (1 - 1e-6) <= found <= 1.01 * exact + 1e-3


@pytest.mark.parametrize(("sums", "sampling", "noise"), [(300, 0.1, 8.0), (3000, 0.01, 1.0), (100, 0.5, 20.0)])
def test_sampled_sums_agree_with_the_accountants_of_the_library(sums, sampling, noise):
    relation = dp_accounting().NeighboringRelation
    event = dp_accounting().PoissonSampledDpEvent(sampling, dp_accounting().GaussianDpEvent(noise))
    fine = dp_accounting().pld.PLDAccountant(relation.REPLACE_ONE, value_discretization_interval=1e-4)
    fine.compose(event, sums)
    found = row_epsilon((RowSums(sums, sampling, noise),), 1e-5)
    assert fine.get_epsilon(1e-5) <= found <= 1.005 * fine.get_epsilon(1e-5)
    removed = dp_accounting().rdp.RdpAccountant(neighboring_relation=relation.ADD_OR_REMOVE_ONE).compose(event, sums)
    assert removed.get_epsilon(1e-5) < 1.2 * found  # hiding the presence of a row is easier than hiding its values
    assert found < row_epsilon((RowSums(sums, 1.0, noise),), 1e-5)


def test_evaluations_add_to_the_rounds():
    rounds, answers = RowSums(100, 0.1, 4.0), RowSums(5, 1.0, 30.0)
    both, alone = row_epsilon((rounds, answers), 1e-5), [row_epsilon((part,), 1e-5) for part in (rounds, answers)]
    assert max(alone) < both < sum(alone)
    whole = row_epsilon((RowSums(4, 1.0, 8.0), RowSums(8, 1.0, 8.0)), 1e-5)
    assert whole == pytest.approx(row_epsilon((RowSums(12, 1.0, 8.0),), 1e-5))


def test_no_noise_is_infinite_and_no_sum_is_zero():
    assert row_epsilon((RowSums(0, 0.1, 0.0),), 1e-5) == 0
    assert row_epsilon((RowSums(1, 0.1, 0.0),), 1e-5) == np.inf
    assert row_epsilon((RowSums(3, 0.1, 5.0), RowSums(1, 1.0, 0.0)), 1e-5) == np.inf
    assert row_epsilon((RowSums(10**6, 0.5, 1e-6),), 1e-5) > 1e12  # in milliseconds


def test_epsilon_grows_with_sums_and_sampling_and_decreases_with_noise_and_delta():
    def epsilon(sums=50, sampling=0.1, noise=3.0, delta=1e-5):
        return row_epsilon((RowSums(sums, sampling, noise),), delta)

    for key, values in {"sums": (1, 10, 100), "sampling": (0.01, 0.1, 0.9, 1.0)}.items():
        assert (np.diff([epsilon(**{key: value}) for value in values]) > 0).all(), key
    for key, values in {"noise": (0.1, 0.2, 1.0, 5.0), "delta": (1e-9, 1e-5, 1e-2)}.items():
        assert (np.diff([epsilon(**{key: value}) for value in values]) < 0).all(), key


def test_only_undominated_clients_are_accounted():
    pairs = [(10, 0.5), (10, 0.1), (4, 0.9), (3, 0.9), (12, 0.05), (10, 0.5)]
    assert undominated(pairs) == [(12, 0.05), (10, 0.5), (4, 0.9)]


def test_noise_for_epsilon_inverts_the_accountant():
    def spent(noise):
        return row_epsilon((RowSums(100, 0.2, noise),), 1e-5)

    noise = noise_for_epsilon(2.0, spent)
    assert spent(noise) <= 2 < spent(noise / 1.01)


# The metrics of a run.


def spent_by(sizes, hparams, rounds, name, make_problem, make_algorithm, evaluated=None, **numbers):
    algorithm = make_algorithm(name, make_problem(sizes=sizes), transform=RowClipNoise(**numbers))
    participation = Sampler(np.array(sizes), hparams, 0, algorithm.local_step_rule).participation(rounds)
    spent = algorithm.privacy_spent(rounds, 2, np.array([5]), evaluated, participation)
    return {key: float(value) for key, (value,) in spent.items()}, participation


def test_a_run_reports_the_client_with_the_largest_epsilon(make_problem, make_algorithm, make_hparams):
    hparams = make_hparams(batch_size=4, local_epochs=2)
    spent, participation = spent_by(
        (40, 16, 9), hparams, 30, "fedavg", make_problem, make_algorithm, noise_multiplier=6
    )
    assert participation.rounds.sum() == 60
    assert participation.steps.tolist() == (participation.rounds * [20, 8, 6]).tolist()
    each = zip(participation.steps.tolist(), (0.1, 0.25, 4 / 9), strict=True)
    assert spent["epsilon"] == max(row_epsilon((RowSums(n, q, 6.0),), 1e-5) for n, q in each)
    assert spent["epsilon_run"] == np.inf  # the evaluations of a simulation are exact


def test_a_method_with_full_gradients_releases_one_sum_per_round(make_problem, make_algorithm, make_hparams):
    hparams = make_hparams(clients_per_round=3)
    spent, _ = spent_by((7, 4, 9), hparams, 12, "fista", make_problem, make_algorithm, noise_multiplier=6.0)
    assert spent["epsilon"] == pytest.approx(exact_gaussian(3 / np.sqrt(12), 1e-5), rel=1e-9)


def test_noisy_evaluations_are_part_of_the_run(make_problem, make_algorithm, make_hparams):
    hparams, options = make_hparams(batch_size=20, clients_per_round=3), (make_problem, make_algorithm)
    for evaluated in (Evaluations(10, 7.0), Evaluations(10, 0.0)):
        spent, _ = spent_by((7, 4, 9), hparams, 12, "fedavg", *options, evaluated, noise_multiplier=6.0)
        precision = 12 / 6**2 + 10 / 7**2
        expected = exact_gaussian(1 / np.sqrt(precision) / 2, 1e-5) if evaluated.noise_multiplier else np.inf
        assert spent["epsilon_run"] == pytest.approx(expected, rel=1e-9)
        assert spent["epsilon"] == pytest.approx(exact_gaussian(3 / np.sqrt(12), 1e-5), rel=1e-9)


def test_participation_counts_the_rounds_of_the_cohorts(make_hparams):
    for pace in ("epochs", "geometric"):
        sampler = Sampler(np.array([7, 4, 9]), make_hparams(), 3, pace)
        for rounds in (5, 9, 2):
            expected = np.zeros((2, 3), int)
            for r in range(rounds):
                cohort = sampler.cohort(r)
                expected[0, cohort.clients] += 1
                expected[1, cohort.clients] += cohort.steps
            found: Participation = sampler.participation(rounds)
            np.testing.assert_array_equal([found.rounds, found.steps], expected)
