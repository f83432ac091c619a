"""Tests of clipped row gradients, of the noise on their sums, of sampled batches and of the refusals."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.algorithms.arrays import views
from fco_cli.algorithms.numpy_backend import numpy_clients
from fco_cli.algorithms.transforms.row_clip_noise import RowClipNoise
from fco_cli.data.sparse import as_sparse_rows
from fco_cli.errors import UserError
from fco_cli.problem.losses import all_losses
from fco_cli.problem.models.linear import Linear, SparseLinear
from fco_cli.problem.models.network import Network
from fco_cli.problem.private_descent import CohortNoise
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers import all_regularizers
from fco_cli.problem.streams import row_noise, sampled_batches, secret_noise
from fco_cli.simulation.clients import Sampler

PRIVATE = [
    name
    for name, kind in all_algorithms().items()
    if kind.federated and kind.row_sums is not None and name != "quasi_newton"  # refuses all transforms
]
LOSSES = ["squared", "logistic", "huber", "poisson", "softmax"]
EXACT = RowClipNoise(clip_norm=np.inf, noise_multiplier=0.0)


def slopes_of(loss, scores, y):
    """Return the derivatives of the loss by the scores [C] of one row."""
    if loss == "squared":
        return 2 * (scores - y)
    if loss == "huber":
        return 2 * np.clip(scores - y, -1, 1)
    if loss == "poisson":
        return np.exp(scores) - y
    if loss == "logistic":
        return 1 / (1 + np.exp(-scores)) - y
    exponentials = np.exp(scores - scores.max())
    return exponentials / exponentials.sum() - (np.arange(len(scores)) == y)


def clipped_gradients(problem, w, rows, clip_norm):
    """Return the clipped gradient of every row: [rows, P]."""
    outputs, features = problem.model.widths[-1], problem.model.widths[0]
    weights, bias = w[: outputs * features].reshape(outputs, features), w[outputs * features :]
    gradients = []
    for x, y in zip(problem.data.x[rows], problem.data.y[rows], strict=True):
        slopes = slopes_of(problem.loss.name, weights @ x + bias, y)
        gradient = np.concatenate([np.outer(slopes, x).ravel(), slopes])
        gradients.append(gradient * min(1, clip_norm / np.linalg.norm(gradient)))
    return np.array(gradients)


@pytest.fixture
def one_step(make_problem, make_algorithm, cohorts_of, make_hparams):
    """Return the messages of one round of FedAvg in which every client takes one step, its problem and its cohort."""

    def send(loss="squared", start=0.0, rate=1.0, backend="numba", problem=None, seed=0, **numbers):
        problem = problem or make_problem(loss=loss, outputs=3 if loss == "softmax" else 1)
        algorithm = make_algorithm("fedavg", problem, rate, transform=RowClipNoise(**numbers))
        algorithm = numpy_clients(algorithm) if backend == "numpy" else algorithm
        (cohort,) = cohorts_of(problem, make_hparams(clients_per_round=3, batch_size=20), 1)
        w = np.full((1, problem.layout.size), start)
        return algorithm.round({"w": w}, replace(cohort, seed=seed)).messages[:, 0, 0], problem, cohort

    return send


@pytest.mark.parametrize(
    "backend", ["numba", "numpy", pytest.param("machine", marks=[pytest.mark.ci, pytest.mark.machine_code])]
)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_step_is_the_sum_of_clipped_row_gradients_and_noise(loss, backend, one_step):
    sent, problem, cohort = one_step(loss, 0.3, 0.5, backend, clip_norm=1.5, noise_multiplier=0.7)
    w = np.full(problem.layout.size, 0.3)
    norms = np.linalg.norm(clipped_gradients(problem, w, np.arange(20), 1.5), axis=1)
    assert 0 < (norms < 1.4999).sum() < 20
    for i, m in enumerate(cohort.clients):
        rows = np.arange(*problem.data.offsets[m : m + 2])
        clipped = clipped_gradients(problem, w, rows, 1.5)
        noise = row_noise(0, 0, m, 1, problem.layout.size)[0]
        expected = -0.5 * (clipped.sum(axis=0) + 0.7 * 1.5 * noise) / len(rows)
        np.testing.assert_allclose(sent[i], expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", ["sparse", "float32"])
def test_sparse_rows_and_single_precision(kind, one_step, make_problem):
    dense = make_problem()
    dense.data.x[np.abs(dense.data.x) < 0.5] = 0
    expected = one_step(problem=dense, start=0.3, clip_norm=1.5, noise_multiplier=0.7)[0]
    if kind == "float32":
        data = replace(dense.data, x=dense.data.x.astype("float32"), y=dense.data.y.astype("float32"))
        other = replace(dense, training=data)
    else:
        data = replace(dense.data, x=as_sparse_rows(csr_array(dense.data.x), csr_array(dense.data.x).data))
        other = replace(dense, training=data, model=SparseLinear(6))
    sent = one_step(problem=other, start=0.3, clip_norm=1.5, noise_multiplier=0.7)[0]
    np.testing.assert_allclose(sent, expected, rtol=1e-12 if kind == "sparse" else 1e-5)


@pytest.fixture
def suited(make_problem, psi_for):
    return lambda name: make_problem(psi_for(name))


@pytest.mark.parametrize("name", PRIVATE)
def test_both_backends_give_equal_iterates(name, suited, make_algorithm, cohorts_for, drive):
    problem = suited(name)
    transform = RowClipNoise(clip_norm=0.8, noise_multiplier=0.3)
    algorithm = make_algorithm(name, problem, [0.05, 0.02], transform=transform)
    models = drive(algorithm, cohorts_for(name, problem))[0]
    expected = drive(numpy_clients(algorithm), cohorts_for(name, problem))[0]
    np.testing.assert_allclose(models, expected, rtol=1e-11, atol=1e-12)
    assert np.ptp(models, axis=0).max() > 1e-3


@pytest.mark.parametrize("name", PRIVATE)
def test_without_clipping_and_noise_the_iterates_are_bitwise_those_of_the_plain_method(
    name, suited, make_algorithm, cohorts_for, drive
):
    problem = suited(name)
    plain, exact = (make_algorithm(name, problem, [0.02, 0.01], transform=each) for each in (None, EXACT))
    models = [drive(algorithm, cohorts_for(name, problem))[0] for algorithm in (plain, exact)]
    np.testing.assert_array_equal(*models)


@pytest.mark.ci
@pytest.mark.machine_code
@pytest.mark.parametrize("name", ["fedavg", "feddualavg"])
def test_without_clipping_and_noise_machine_code_agrees_with_the_plain_method(
    name, suited, make_algorithm, cohorts_for, drive
):
    """Up to rounding: the compiler contracts the products of the two texts differently."""
    problem = suited(name)
    plain, exact = (make_algorithm(name, problem, [0.02, 0.01], transform=each) for each in (None, EXACT))
    models = [drive(algorithm, cohorts_for(name, problem))[0] for algorithm in (plain, exact)]
    np.testing.assert_allclose(*models, rtol=1e-13)


@pytest.mark.machine_code
def test_machine_code_gives_the_same_bits_alone_in_a_stack_and_with_sampled_batches(
    make_problem, regularizer, make_algorithm, drive, make_hparams
):
    """Batches may be empty."""
    from fco_cli.simulation.clients import Sampler

    problem = make_problem(regularizer("l1", strength=0.01), sizes=(40, 9, 25))
    sampler = Sampler(problem.data.sizes, make_hparams(batch_size=2), 3, sample_rows=True)
    cohorts = [sampler.cohort(r) for r in range(6)]
    assert min(np.diff(cohort.edges).min() for cohort in cohorts) == 0
    transforms = [RowClipNoise(clip_norm=c, noise_multiplier=s) for c, s in ((0.5, 0.2), (1.0, 0.4), (2.0, 0.1))]
    method = all_algorithms()["feddualavg"]().with_transform(transforms[0])
    psi, options = (np.repeat(each.numbers, 3).view(np.recarray) for each in (problem.regularizer, method))
    numbers = np.concatenate([each.numbers for each in transforms]).view(np.recarray)
    varying = Varying(np.array([0.01, 0.02, 0.03]), np.ones(3), psi, options, numbers)
    stacked = drive(method.bind(problem, varying), cohorts)[0]
    for j in range(3):
        alone = drive(method.bind(problem, varying.take(np.arange(3) == j)), cohorts)[0]
        np.testing.assert_array_equal(np.array(stacked)[:, j], np.array(alone)[:, 0])
    reference = drive(numpy_clients(method.bind(problem, varying)), cohorts)[0]
    np.testing.assert_allclose(stacked, reference, rtol=1e-10, atol=1e-12)


# Sensitivity.


@pytest.mark.parametrize("loss", LOSSES)
def test_no_value_of_a_row_changes_a_sum_by_more_than_twice_the_norm(loss, one_step, make_problem):
    """By brute force: every row of a client, replaced by ordinary, huge and opposite values."""
    outputs = 3 if loss == "softmax" else 1
    clip_norm, largest = 0.7, 0.0
    before, problem, cohort = one_step(loss, 0.2, clip_norm=clip_norm, noise_multiplier=0.3)
    m = int(cohort.clients[0])
    low, high = problem.data.offsets[m : m + 2]
    for row in range(low, high):
        for factor in (-1.0, 1e3, -1e3, 1e160, -1e160, 0.0):
            for label in {0.0, 1.0, outputs - 1.0}:
                changed = make_problem(loss=loss, outputs=outputs)
                changed.data.x[row] = factor * np.sign(problem.data.x[row] + 0.1)
                changed.data.y[row] = label
                after = one_step(problem=changed, start=0.2, clip_norm=clip_norm, noise_multiplier=0.3)[0]
                assert np.isfinite(after).all()
                np.testing.assert_array_equal(after[1:], before[1:])
                largest = max(largest, np.linalg.norm(after[0] - before[0]) * (high - low))
    assert clip_norm < largest <= 2 * clip_norm * (1 + 1e-12)


# Noise.


def test_noise_has_the_specified_deviation_and_differs_between_steps_clients_rounds_and_seeds(
    make_problem, make_algorithm, cohorts_of, make_hparams
):
    problem = make_problem(features=400, sizes=(6, 6, 6))
    hparams = make_hparams(clients_per_round=3)
    draws = {}
    for multiplier in (0.0, 3.0):
        transform = RowClipNoise(clip_norm=0.5, noise_multiplier=multiplier)
        algorithm = make_algorithm("fedavg", problem, 1e-9, transform=transform)  # the steps start at equal points
        for seed in (0, 1):
            for cohort in cohorts_of(problem, hparams, 3):
                w = np.zeros((1, 401))
                order = np.argsort(cohort.clients)
                sent = algorithm.round({"w": w}, replace(cohort, seed=seed)).messages[order, 0, 0]
                draws[multiplier, seed, cohort.round] = sent / 1e-9
    noise = np.array([draws[3.0, s, r] - draws[0.0, s, r] for s in (0, 1) for r in range(3)]).reshape(-1, 401)
    deviation = np.sqrt(2) * 3 * 0.5 / 3  # two steps with batches of 3 rows
    assert noise.std() == pytest.approx(deviation, rel=5 / np.sqrt(2 * noise.size))
    assert abs(noise.mean()) < 5 * deviation / np.sqrt(noise.size)
    correlations = np.corrcoef(noise) - np.eye(len(noise))
    assert np.abs(correlations).max() < 5 / np.sqrt(401)
    first, second = row_noise(0, 0, 0, 2, 401)
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(401)
    np.testing.assert_array_equal(row_noise(0, 0, 0, 5, 401)[:2], [first, second])


def test_secret_noise_is_standard_normal_and_never_the_same():
    draws = secret_noise(3, 2, 5001)
    assert draws.shape == (3, 2, 5001)
    flat = draws.ravel()
    assert flat.mean() == pytest.approx(0, abs=5 / np.sqrt(flat.size))
    assert flat.std() == pytest.approx(1, rel=5 / np.sqrt(2 * flat.size))
    assert (flat**4).mean() == pytest.approx(3, abs=0.4)
    assert not np.isin(secret_noise(1, 1, 100), flat).any()


def test_noise_is_used_once(make_problem, make_algorithm, full_cohort):
    """A text that takes two gradients with the noise of one gets NaN, which is never sent."""
    problem = make_problem()
    algorithm = make_algorithm("fedavg", problem, transform=RowClipNoise())
    cohort = full_cohort(problem)
    noise = algorithm.cohort_noise(cohort)
    own = {"w": np.zeros((1, 7))}, np.zeros((0, 1, 7)), problem.data.client(0), np.arange(7), np.array([0, 7]), None
    assert np.isfinite(algorithm.client_update(*own, noise)[0]).all()
    assert np.isnan(algorithm.client_update(*own, noise)[0]).all()


def test_methods_that_take_several_gradients_are_detected():
    kinds = {name: kind.row_sums for name, kind in all_algorithms().items() if kind.federated}
    several = {"ditto", "fednl", "fedred", "prox_newton", "s_dane"}
    assert {name for name, sums in kinds.items() if sums is None} == several
    assert {name for name, sums in kinds.items() if sums == "all_rows"} == {"fista", "fedfw", "quasi_newton", "sppm_as"}


# Sampled batches.


def test_a_batch_contains_every_row_independently_with_the_same_probability():
    sizes, steps = np.array([40, 10, 3]), np.array([6000, 3000, 5])
    order, edges, first = sampled_batches(1, 2, np.array([4, 0, 9]), sizes, 8, steps)
    assert np.diff(first).tolist() == steps.tolist()
    used = np.zeros((6000, 40), bool)
    for k in range(6000):
        rows = order[edges[k] : edges[k + 1]]
        assert (np.diff(rows) > 0).all()
        used[k, rows] = True
    np.testing.assert_allclose(used.mean(axis=0), 0.2, atol=5 * np.sqrt(0.16 / 6000))
    assert np.abs(np.corrcoef(used.T) - np.eye(40)).max() < 5 / np.sqrt(6000)  # rows
    assert np.abs(np.corrcoef(used[:-1].ravel(), used[1:].ravel())[0, 1]) < 5 / np.sqrt(used.size)  # steps
    assert np.bincount(order[edges[6000] : edges[9000]]) / 3000 == pytest.approx(0.8, abs=5 * np.sqrt(0.16 / 3000))
    assert order[edges[9000] :].tolist() == [0, 1, 2] * 5  # fewer rows than a batch: all of them
    alone = sampled_batches(1, 2, np.array([0]), sizes[1:2], 8, steps[1:2])
    np.testing.assert_array_equal(alone[0], order[edges[6000] : edges[9000]])


# Refusals.


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("needs a linear model", lambda p: replace(p, model=Network(6, (3,), 1, 0))),
        ("does not support task.site_intercept", lambda p: replace(p, model=Linear(6, site_bias=True))),
        ("does not support the cox loss", lambda p: replace(p, loss=all_losses()["cox"]())),
        (
            "does not support row weights",
            lambda p: replace(p, training=replace(p.data, row_weights=np.ones(20))),
        ),
    ],
)
def test_problems_without_bounded_row_gradients_are_refused(reason, change, make_problem, make_algorithm):
    problem: Problem = change(make_problem(all_regularizers()["none"]()))
    with pytest.raises(UserError, match=f"^transform: got 'row_clip_noise', must be another: it {reason}"):
        make_algorithm("fedavg", problem, transform=RowClipNoise())


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"clip_norm": 0.0}, "transform.clip_norm: got 0.0, must be a number > 0"),
        ({"clip_norm": np.inf}, "transform.clip_norm: got inf, must be finite, because it scales the noise"),
        ({"noise_multiplier": -1.0}, "transform.noise_multiplier: got -1.0, must be 0, or a number from 1e-6 to 1e6"),
        ({"delta": 1.0}, "transform.delta: got 1.0, must be above 0, below 1"),
    ],
)
def test_invalid_numbers(numbers, message):
    with pytest.raises(UserError, match=f"^{message}$".replace(".", r"\.")):
        RowClipNoise(**numbers)


def test_a_missing_library_is_reported_with_its_extra(monkeypatch, make_algorithm, make_problem):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    algorithm = make_algorithm("fedavg", make_problem(), transform=RowClipNoise())
    with pytest.raises(UserError, match=r"^transform: row_clip_noise needs dp-accounting: run pip install '\.\[priv"):
        algorithm.check_transform("uniform")
    make_algorithm("fedavg", make_problem(), transform=EXACT).check_transform("uniform")


def test_messages_are_sent_as_they_are(make_problem, make_algorithm, full_cohort):
    problem = make_problem()
    algorithm = make_algorithm("scaffold_prox", problem, transform=RowClipNoise())
    made = algorithm.round(algorithm.initial_state(np.zeros((1, 7))), full_cohort(problem), np.zeros((3, 1, 1, 7)))
    change = views(algorithm.sent, made.messages[0])["c"]
    np.testing.assert_array_equal(made.memory[0, 0], change)  # memory is updated by the message that is sent
    assert algorithm.costs(full_cohort(problem)).bytes_up == 3 * 2 * 7 * 8


# Shared noise.

SHARING = [name for name in PRIVATE if all_algorithms()[name]().can_share_noise]


def test_methods_that_share_noise():
    assert {"fedavg", "feddualavg", "fista", "moments"} <= set(SHARING)
    assert not {"fedmid", "scaffold", "scaffold_prox", "fedadmm", "fedfw", "fedavg_subgrad"} & set(SHARING)


@pytest.mark.parametrize("name", SHARING)
def test_messages_of_methods_that_share_noise_are_affine_in_it(name, make_problem, psi_for, make_algorithm):
    """A nonlinear function of a client's noisy sum, such as a prox, would not let the noise of several clients add."""
    problem = make_problem(psi_for(name), sizes=(12,))
    algorithm = make_algorithm(name, problem, 0.5, transform=RowClipNoise(clip_norm=2.0, noise_multiplier=3.0))
    start = algorithm.initial_state(np.full((1, problem.layout.size), 0.2))
    state = start | {key: values + 0.3 for key, values in start.items() if key in ("z", "w", "query")}
    vectors = int(algorithm.noise_vectors(np.ones(1, int))[0])
    noise = np.random.default_rng(0).standard_normal((2, vectors, 1, problem.layout.size))

    def message(noise):
        cohort_noise = CohortNoise(noise.copy(), np.array([0, vectors]), 12)
        memory = algorithm.initial_client_arrays(start["w"] if "w" in start else start["z"])
        return algorithm.client_update(
            state, memory, problem.data, np.arange(12), np.array([0, 12]), np.zeros(1, np.uint64), cohort_noise
        )[0].copy()

    first, second, middle = message(noise[0]), message(noise[1]), message(noise.mean(axis=0))
    np.testing.assert_allclose(middle, (first + second) / 2, rtol=1e-12, atol=1e-12)
    assert np.abs(first - second).max() > 0.1


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize("name", ["fedavg", "fista", "moments"])
def test_the_noise_of_shares_hides_a_row_of_every_client(name, weighting, make_problem, make_algorithm, make_hparams):
    """In a weighted sum, `shares` clients have the deviation that a row of the client with the largest effect needs."""
    problem, shares = make_problem(sizes=(4, 10, 7, 5)), 2
    transform = RowClipNoise(clip_norm=2.0, noise_multiplier=3.0, noise_shares=shares)
    algorithm = make_algorithm(name, problem, 1.0, transform=transform)
    hparams = make_hparams(clients_per_round=4, batch_size=10, weighting=weighting)
    cohort = Sampler(problem.data.sizes, hparams, 0, sample_rows=True).cohort(0)
    scales = algorithm.noise_scales(cohort.weights, problem.data.sizes[cohort.clients], 10, cohort.steps)
    effect = cohort.weights / problem.data.sizes[cohort.clients]  # of a row, or of a noise vector, on the sum
    noises = np.sort(scales * effect)
    assert np.sqrt((noises[:shares] ** 2).sum()) == pytest.approx(effect.max(), rel=1e-12)
    drawn = algorithm.cohort_noise(cohort)
    for i, client in enumerate(cohort.clients):
        vectors = drawn.noise[drawn.starts[i] : drawn.starts[i + 1], 0]
        own = row_noise(0, 0, client, len(vectors), problem.layout.size)
        np.testing.assert_allclose(vectors, scales[i] * own, rtol=1e-12)


def test_several_local_steps_cannot_share_noise(make_problem, make_algorithm, cohorts_of, make_hparams):
    problem = make_problem()
    algorithm = make_algorithm("fedavg", problem, 0.1, transform=RowClipNoise(noise_shares=2))
    (cohort,) = cohorts_of(problem, make_hparams(clients_per_round=3, batch_size=3), 1)
    with pytest.raises(UserError, match=r"^hparams\.batch_size: .* noise is shared in one local step per round"):
        algorithm.cohort_noise(cohort)


@pytest.mark.parametrize("name", ["fedmid", "scaffold"])
def test_a_method_whose_noise_does_not_add_up_is_refused(name):
    method = all_algorithms()[name]().with_transform(RowClipNoise(noise_shares=2))
    with pytest.raises(UserError, match=rf"^transform\.noise_shares: got 2, must be 1 for {name}, whose messages are"):
        method.check_transform("examples")
