"""Tests of every transform with every algorithm."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.algorithms.arrays import names, slot_count, views
from fco_cli.algorithms.numba_backend import keep_memory
from fco_cli.algorithms.transforms import NoTransform, all_transforms
from fco_cli.errors import UserError
from fco_cli.help import options_of
from fco_cli.kernels.named import named
from fco_cli.problem.descent import Batches
from fco_cli.problem.layout import stack_numbers
from fco_cli.problem.streams import message_keys

FEDERATED = [name for name, kind in all_algorithms().items() if kind.federated]
TRANSFORMS = list(all_transforms())
# Servers track a sum of arrays that clients update from local steps, or from the transformed messages.
LOCAL_UPDATES = {"feddr", "fedadmm", "fedsplit", "fedfw"}
VARIATES = {"feddualavg_cv", "zhj", "ditto", "scaffold", "scaffold_osp", "scaffold_prox", "fednmap", "fedcef"}
OWN_MESSAGES = {"moments", "prox_newton", "quasi_newton", "fednl", "s_dane", "fedred"}  # no transform fits
REJECTED = {
    "topk": OWN_MESSAGES,
    "quantize": LOCAL_UPDATES | OWN_MESSAGES,
    "clip_noise": LOCAL_UPDATES | VARIATES | OWN_MESSAGES | {"scaffnew", "scaffnew_sampled", "sppm_as"},
    "row_clip_noise": {"ditto"} | OWN_MESSAGES - {"moments"},
}
REASONS = {
    "fednl": "fednl( compresses| takes several|'s server accumulates)",
    "s_dane": "s_dane (sends gradients|keeps a cohort|takes several)",
    "fedred": "fedred (sends gradients|keeps a cohort|takes several)",
    "sppm_as": "sppm_as keeps a cohort",
    "moments": "a transformed matrix",
    "prox_newton": "a transformed matrix|prox_newton takes several",
    "quasi_newton": "differences of transformed gradients",
    "ditto": "ditto( takes several gradients|'s server accumulates)",
}


def test_every_transform_is_an_option_and_has_examples(examples):
    assert set(TRANSFORMS) == set(options_of("transform")) == set(examples)
    assert all(kind().name == name for name, kind in all_transforms().items())


@pytest.mark.parametrize("name", FEDERATED)
def test_differences_are_sent_last_and_have_a_memory_update(name):
    kind = all_algorithms()[name]
    differences = [array.difference for array in kind.sent]
    assert differences == sorted(differences)
    assert any(differences) == (kind.remember is not keep_memory)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", FEDERATED)
def test_every_algorithm_is_supported_or_rejected(
    name, transform, suited, make_algorithm, cohorts_for, drive, examples
):
    problem = suited(name)
    algorithm = make_algorithm(name, problem, 0.01, transform=examples[transform][1])
    if name in REJECTED.get(transform, ()):
        reason = REASONS.get(name, f"{name}'s server accumulates")
        with pytest.raises(UserError, match=f"^transform: got '{transform}', must be [a-z_ ]*: ({reason})"):
            algorithm.check_transform("uniform")
        return
    algorithm.check_transform("uniform")
    models, _, memory = drive(algorithm, cohorts_for(name, problem))
    assert np.isfinite(models).all()
    assert memory.initial.shape[0] == slot_count(algorithm.client_arrays, problem.layout.size)
    assert algorithm.client_arrays[: len(algorithm.remembered)] == algorithm.remembered
    plain = drive(make_algorithm(name, problem, 0.01), cohorts_for(name, problem))[0]
    assert (transform == "none") == np.array_equal(models, plain)


@pytest.mark.parametrize("name", FEDERATED)
def test_none_is_local_steps_and_memory_update(name, suited, make_algorithm, cohorts_for):
    """Called directly one after the other."""
    problem = suited(name)
    algorithm = make_algorithm(name, problem, [0.01, 0.02])
    w = np.zeros((2, problem.layout.size))
    (cohort,) = cohorts_for(name, problem, 1)
    state = algorithm.start_round(algorithm.initial_state(w), cohort)
    memory = np.repeat(algorithm.initial_client_arrays(w)[None], len(cohort.clients), axis=0)
    made = algorithm.round(algorithm.initial_state(w), cohort, memory)
    for i, m in enumerate(cohort.clients):
        rows = problem.data.client(m)
        edges = cohort.edges[cohort.first[i] : cohort.first[i + 1] + 1]
        batches = Batches(rows.x, rows.y, cohort.order, edges, problem.model.widths, len(edges) - 1)
        sent = np.empty((slot_count(algorithm.sent, w.shape[1]), *w.shape))
        message = named(names(algorithm.sent))(**views(algorithm.sent, sent))
        own = named(names(algorithm.remembered))(**views(algorithm.remembered, memory[i]))
        common = (algorithm.varying.client_lr, algorithm.varying.options)
        algorithm.client_steps(algorithm.received(state), own, message, *common, batches, algorithm.geometry)
        remember = algorithm.bind_kernel(algorithm.remember)
        remember(algorithm.received(state), own, message, *common, batches.steps)
        np.testing.assert_array_equal(made.messages[i], sent)
        np.testing.assert_array_equal(made.memory[i], memory[i])


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", ["fedmid", "feddualavg_cv", "scaffold_prox"])
def test_client_update_gives_the_results_of_the_simulation(
    name, transform, suited, make_algorithm, cohorts_for, examples
):
    problem = suited(name)
    algorithm = make_algorithm(name, problem, 0.01, transform=examples[transform][0])
    state = algorithm.initial_state(np.zeros((1, problem.layout.size)))
    cohort = cohorts_for(name, problem, 3)[2]
    memory = np.random.default_rng(0).standard_normal((2, len(algorithm.client_arrays), 1, problem.layout.size))
    made = algorithm.round(state, cohort, memory)
    for i, m in enumerate(cohort.clients):
        edges = cohort.edges[cohort.first[i] : cohort.first[i + 1] + 1]
        keys = message_keys(0, 2, np.array([m]))
        noise = algorithm.cohort_noise(
            replace(cohort, clients=cohort.clients[i : i + 1], first=cohort.first[i : i + 2])
        )
        own = (problem.data.client(m), cohort.order, edges, keys, noise)
        message, kept = algorithm.client_update(state, memory[i], *own)
        np.testing.assert_array_equal(message, made.messages[i])
        np.testing.assert_array_equal(kept, made.memory[i])


def test_random_transforms_require_keys(suited, make_algorithm, examples):
    problem = suited("fedavg")
    algorithm = make_algorithm("fedavg", problem, transform=examples["quantize"][0])
    rows = problem.data.client(0)
    with pytest.raises(AssertionError):
        algorithm.client_update({"w": np.zeros((1, 7))}, {}, rows, np.arange(7), np.array([0, 7]))


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_jobs_of_a_stack_are_independent(transform, suited, cohorts_for, drive, examples):
    """Jobs with different rates and transform parameters, bit for bit; also after a job has left the stack."""
    problem = suited("scaffold_prox")
    several, rates, cohorts = examples[transform], np.array([0.01, 0.02]), cohorts_for("scaffold_prox", problem)
    method = all_algorithms()["scaffold_prox"]().with_transform(several[0])
    psi, options = stack_numbers([problem.regularizer] * 2), stack_numbers([method] * 2)
    varying = Varying(rates, np.ones(2), psi, options, stack_numbers(several))
    stacked = drive(method.bind(problem, varying), cohorts)[0][-1]
    for j, one in enumerate(several):
        alone = method.with_transform(one)
        from_rates = Varying.from_rates(alone, problem.regularizer, rates[j : j + 1], np.ones(1))
        expected = drive(alone.bind(problem, from_rates), cohorts)[0][-1]
        np.testing.assert_array_equal(stacked[j], expected[0])
        left = drive(method.bind(problem, varying.take(np.arange(2) == j)), cohorts)[0][-1]
        np.testing.assert_array_equal(left, expected)


def arrays(jobs=3, sent=2, size=257, dtype="float64"):
    random = np.random.default_rng(1)
    return [random.standard_normal((sent, jobs, size)).astype(dtype) for _ in range(2)]


@pytest.mark.machine_code
@pytest.mark.parametrize("transform", [name for name in TRANSFORMS if name not in ("none", "row_clip_noise")])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_compiled_code_gives_the_same_bits_alone_and_stacked_and_agrees_with_python(
    transform, dtype, examples, monkeypatch
):
    several = [*examples[transform], examples[transform][0]]
    numbers, key = stack_numbers(several), message_keys(3, 5, np.array([7]))[0]
    message, residual = arrays(dtype=dtype)
    as_text = [message.copy(), residual.copy()]
    alone = [(message[:, j : j + 1].copy(), residual[:, j : j + 1].copy()) for j in range(3)]
    encode = several[0].encode
    encode(message, residual, numbers, key)
    for j, (one, left) in enumerate(alone):
        encode(one, left, numbers[j : j + 1], key)
        np.testing.assert_array_equal(one[:, 0], message[:, j])
        np.testing.assert_array_equal(left[:, 0], residual[:, j])
    monkeypatch.setattr("numba.config.DISABLE_JIT", 1)
    encode(*as_text, numbers, key)
    np.testing.assert_allclose(message, as_text[0], rtol=1e-5 if dtype == "float32" else 1e-13)
    np.testing.assert_allclose(residual, as_text[1], rtol=1e-5 if dtype == "float32" else 1e-13)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_message_that_is_not_finite_is_ignored(
    transform, bad, make_problem, make_algorithm, cohorts_for, drive, examples
):
    """One client has a row that is not finite; the mean is that of the others."""
    problem = make_problem()
    algorithm = make_algorithm("scaffold_prox", problem, 0.01, transform=examples[transform][0])
    cohorts = [replace(cohort, min_steps=2.0) for cohort in cohorts_for("scaffnew", problem)]  # full participation
    models, _, before = drive(algorithm, cohorts[:2])
    rows = before.read(np.arange(3))
    problem.data.x[0, 0] = bad
    made = algorithm.round(algorithm.initial_state(models[-1]), cohorts[2], rows)
    assert len(algorithm.client_arrays) == 1 + (transform == "topk")
    assert made.arrived[:, 0].tolist() == [False, True, True]
    assert np.isfinite(algorithm.output(made.state)).all()
    before.write(np.arange(3), made.memory, made.arrived)
    np.testing.assert_array_equal(before.read(np.array([0]))[0], rows[0])
    assert not np.array_equal(before.read(np.array([1]))[0], rows[1])


# Client memory and server sums stay consistent, because both use the transformed message.
@pytest.mark.parametrize("transform", ["topk", "quantize"])
@pytest.mark.parametrize(
    ("name", "server", "client"),
    [*((name, "c", "c") for name in sorted(VARIATES)), ("scaffnew", "u", "u")],
)
def test_the_server_sum_equals_that_of_the_client_memories(
    name, server, client, transform, suited, make_algorithm, cohorts_for, drive, examples
):
    problem = suited(name)
    algorithm = make_algorithm(name, problem, 0.01, transform=examples[transform][0])
    _, state, memory = drive(algorithm, cohorts_for(name, problem, 8))
    own = memory.read(np.arange(3))[:, names(algorithm.client_arrays).index(client), 0]
    assert np.abs(own).max() > 0
    np.testing.assert_allclose(state[server][0], problem.weights @ own, rtol=1e-12, atol=1e-13 * np.abs(own).max())


@pytest.mark.parametrize("name", sorted(LOCAL_UPDATES))
def test_the_server_sum_differs_from_the_clients_only_by_residuals(
    name, suited, make_algorithm, cohorts_for, drive, examples
):
    """The sum is sum_m p_m x_m for fedfw and sum_m p_m (2 x_m - y_m) for splitting methods."""
    problem = suited(name)
    algorithm = make_algorithm(name, problem, 0.01, transform=examples["topk"][1])
    _, state, memory = drive(algorithm, cohorts_for(name, problem, 8))
    rows = dict(zip(names(algorithm.client_arrays), memory.read(np.arange(3))[:, :, 0].swapaxes(0, 1), strict=True))
    held = rows["x"] if name == "fedfw" else 2 * rows["x"] - rows["y"]
    (residuals,) = (values for key, values in rows.items() if key.startswith("left_of"))
    assert np.abs(residuals).max() > 1e-6
    total = state["w" if name == "fedfw" else "mean"][0]
    np.testing.assert_allclose(total, problem.weights @ (held - residuals), rtol=1e-12, atol=1e-14)


# Costs.
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_bytes_are_counted_per_job(transform, suited, cohorts_for, examples):
    problem = suited("scaffold_prox")
    several, size = examples[transform], problem.layout.size
    method = all_algorithms()["scaffold_prox"]().with_transform(several[0])
    psi, options = stack_numbers([problem.regularizer] * 2), stack_numbers([method] * 2)
    bound = method.bind(problem, Varying(np.full(2, 0.01), np.ones(2), psi, options, stack_numbers(several)))
    (cohort,) = cohorts_for("scaffold_prox", problem, 1)
    costs = bound.costs(cohort)
    assert (costs.vectors_up, costs.vectors_down, costs.bytes_down) == (4, 4, 4 * size * 8)
    each = np.broadcast_to(costs.bytes_up, 2).tolist()
    expected = {
        "topk": [4 * (3 * 8 + 2), 4 * (1 * 8 + 1)],  # indices of 3 bits
        "quantize": [4 * (3 + 8), 4 * (1 + 8)],
    }
    assert each == expected.get(transform, [4 * size * 8] * 2)


def test_none_is_the_default(suited, make_algorithm):
    algorithm = make_algorithm("fedavg", suited("fedavg"))
    assert isinstance(algorithm.transform, NoTransform)
    assert algorithm.client_arrays == algorithm.remembered
    baseline = all_algorithms()["centralized"]()
    assert baseline.with_transform(all_transforms()["topk"]()) is baseline


def test_error_messages_are_one_line():
    for name, rejected in REJECTED.items():
        for algo in rejected:
            with pytest.raises(UserError) as error:
                all_algorithms()[algo]().with_transform(all_transforms()[name]()).check_transform("uniform")
            assert not re.search(r"\n", str(error.value))
