"""Tests of the proximal Newton method: few rounds to the certified optimum, line search, working sets and refusals."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest

from fco_cli.algorithms import all_algorithms
from fco_cli.algorithms.arrays import Symmetric, by_job
from fco_cli.errors import UserError
from fco_cli.problem.curvature import pack, packed_size
from fco_cli.problem.losses import all_losses
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers import all_regularizers
from fco_cli.testing.problems import bind, make_problem, make_regularizer, run_rounds

ProxNewton = all_algorithms()["prox_newton"]


def regularized(psi="l1", **numbers):
    return make_regularizer(all_regularizers()[psi], **numbers)


def labels_of(loss, count):
    random = np.random.default_rng(7)
    times = np.round(random.exponential(size=count), 1) + 0.1
    return {
        "squared": random.standard_normal(count),
        "huber": 2 * random.standard_normal(count),
        "poisson": random.poisson(3, count).astype(float),
        "logistic": random.integers(2, size=count).astype(float),
        "softmax": np.append(2.0, random.integers(3, size=count - 1)),
        "cox": times * np.where(random.random(count) < 0.7, 1, -1),
    }[loss]


def problem_of(loss="logistic", psi=None, sizes=(17, 24, 19), features=5) -> Problem:
    psi = psi or regularized(strength=0.02)
    return make_problem(psi, all_losses()[loss](), sizes, features, labels_of(loss, sum(sizes)))


def residuals(problem, models):
    numbers = problem.regularizer.numbers
    return [float(problem.kkt_residual(w, problem.risk(w).gradient, numbers)[0]) for w in models]


@pytest.fixture
def solved(full_cohort):
    def solve(problem, rounds=12, **options):
        algorithm = bind(ProxNewton(**options), problem)
        models, state, _ = run_rounds(algorithm, [full_cohort(problem)] * rounds)
        return algorithm, models, state

    return solve


@pytest.mark.parametrize("loss", ["squared", "huber", "poisson", "logistic", "softmax", "cox"])
@pytest.mark.parametrize("psi", ["l1", "none", "l2_squared", "l1_ball"])
def test_twelve_rounds_give_the_optimum(loss, psi, solved):
    problem = problem_of(loss, regularized(psi, strength=0.02, radius=0.3))
    _, models, state = solved(problem)
    assert residuals(problem, models)[-1] < 1e-10
    objective = problem.risk(models[-1]).value + problem.psi(models[-1], problem.regularizer.numbers)
    np.testing.assert_allclose(state["objective"], objective, rtol=1e-12)


def test_for_the_squared_loss_one_round_is_the_optimum(solved):
    problem = problem_of("squared")
    assert residuals(problem, solved(problem, rounds=1)[1])[-1] < 1e-12


@pytest.mark.parametrize("loss", ["logistic", "poisson"])
def test_without_a_penalty_the_model_is_the_generalized_linear_model_of_statsmodels(loss, solved):
    api = pytest.importorskip("statsmodels.api")
    problem = problem_of(loss, regularized("none"))
    problem = replace(problem, weighting="examples")
    family = api.families.Binomial() if loss == "logistic" else api.families.Poisson()
    x = np.column_stack([problem.data.x, np.ones(len(problem.data.y))])
    expected = api.GLM(problem.data.y, x, family=family).fit(tol=1e-14, maxiter=100).params
    np.testing.assert_allclose(solved(problem)[1][-1][0], expected, rtol=0, atol=1e-8)


def test_accepted_objectives_decrease_also_from_a_bad_start(full_cohort):
    """Means of 1 for counts of about 300: whole Newton steps overshoot."""
    problem = problem_of("poisson", regularized("none"))
    problem.data.y[:] *= 100
    algorithm, cohort = bind(ProxNewton(), problem), full_cohort(problem)
    state = algorithm.initial_state(np.zeros((1, 6)))
    objectives, was_shortened = [], False
    for _ in range(40):
        state = algorithm.round(state, cohort).state
        was_shortened |= bool(state["trials"].any())
        objectives.append(float(state["objective"][0]))
    assert was_shortened
    assert (np.diff(objectives) <= 1e-12 * np.abs(objectives[:-1])).all()
    assert residuals(problem, [algorithm.output(state)])[-1] < 1e-8  # of gradients of about 300


def test_a_step_on_which_a_client_overflows_is_shortened(full_cohort):
    problem = problem_of("poisson", regularized("none"))
    algorithm, cohort = bind(ProxNewton(), problem), full_cohort(problem)
    state = algorithm.round(algorithm.initial_state(np.zeros((1, 6))), cohort).state
    far = state | {"step": np.full((1, 6), 900.0), "query": state["w"] + 900.0, "decrease": np.array([-1.0])}
    after = algorithm.round(far, cohort)
    assert after.dropped[0] > 0
    np.testing.assert_array_equal(after.state["w"], state["w"])
    assert np.abs(after.state["step"]).max() < 100
    for _ in range(25):
        after = algorithm.round(after.state, cohort)
    assert residuals(problem, [algorithm.output(after.state)])[-1] < 1e-10


def test_the_optimum_is_a_fixed_point(solved, full_cohort):
    problem = problem_of()
    algorithm, _, state = solved(problem)
    after = algorithm.round(state, full_cohort(problem)).state
    np.testing.assert_allclose(after["query"], state["query"], rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(after["query"] == 0, state["query"] == 0)


@pytest.mark.parametrize("loss", ["logistic", "softmax", "cox"])
def test_clients_send_value_gradient_and_packed_hessian(loss, full_cohort):
    problem = problem_of(loss)
    algorithm = bind(ProxNewton(), problem, [0.1, 0.1])
    state = algorithm.initial_state(np.random.default_rng(1).standard_normal((2, problem.layout.size)))
    made = algorithm.round(state, full_cohort(problem))
    (hessian,) = (array for array in algorithm.sent if array.name == "hessian")
    for m in range(3):
        own = replace(problem, training=problem.data.client(m))
        sent, at = by_job(algorithm.sent, made.messages[m]), own.curvature(state["query"])
        np.testing.assert_allclose(sent["value"], at.value, rtol=1e-13)
        np.testing.assert_allclose(sent["gradient"], at.gradient, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(hessian.triangles(sent["hessian"]), pack(at.hessian), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("features", [5, 6])  # with and without padding
def test_costs_count_the_triangle(features, full_cohort):
    problem, size = problem_of(features=features), features + 1
    costs = bind(ProxNewton(), problem).costs(full_cohort(problem))
    assert costs.bytes_up == 3 * 8 * (packed_size(size) + size + 4)
    assert (costs.bytes_down, costs.queries) == (3 * 8 * 2 * size, 3)
    squared = problem_of("squared", features=features)
    costs = bind(all_algorithms()["moments"](), squared).costs(full_cohort(squared))
    assert (costs.bytes_up, costs.queries) == (3 * 8 * (packed_size(size) + size), 3)


@pytest.mark.parametrize(("most", "size"), [(None, 6), (None, 7), (3, 7), (500, 2001), (5, 5), (9, 4)])
def test_a_symmetric_array_holds_its_triangle(most, size):
    array = Symmetric("H", most=most)
    columns = array.columns(size)
    assert packed_size(columns) <= array.slots(size) * size
    assert min(size, most or size) <= columns <= size
    assert array.shape(2, size) == (2, array.slots(size), size)


@pytest.mark.parametrize("loss", ["logistic", "squared", "cox"])
def test_a_working_set_gives_the_same_solution(loss, solved):
    problem = problem_of(loss, regularized(strength=0.4 if loss == "squared" else 0.08), features=19)
    whole = solved(problem, hessian="full")[1][-1]
    algorithm, models, _ = solved(problem, rounds=25, hessian="working_set", working_set=10)
    assert algorithm._columns < 20
    assert 1 < np.count_nonzero(whole) <= algorithm._columns
    assert residuals(problem, models)[-1] < 1e-10
    np.testing.assert_allclose(models[-1], whole, rtol=1e-7, atol=1e-10)


def test_the_size_of_messages_is_logged(solved, caplog):
    with caplog.at_level(logging.INFO):
        solved(problem_of(), rounds=1)
    assert "prox_newton: a client sends " in caplog.text


def test_separated_classes_without_a_penalty_have_no_finite_solution(solved, caplog):
    problem = problem_of(psi=regularized("none"))
    problem.data.y[:] = problem.data.x[:, 0] > 0
    solved(problem, rounds=25)
    assert caplog.text.count("there is no finite solution without a penalty") == 1


def test_more_weights_than_rows_without_a_penalty(solved):
    """The Hessian is singular; the model interpolates."""
    problem = problem_of("squared", regularized("none"), sizes=(3, 4), features=12)
    _, models, _ = solved(problem, rounds=3)
    assert problem.risk(models[-1]).value[0] < 1e-20


def test_an_indefinite_matrix_ends_its_job_and_no_other(full_cohort, caplog):
    problem = problem_of()
    algorithm, cohort = bind(ProxNewton(), problem, [0.1, 0.1]), full_cohort(problem)
    state = algorithm.initial_state(np.zeros((2, 6)))
    made = algorithm.round(state, cohort)
    messages = made.messages.copy()
    by_job(algorithm.sent, messages[1])["hessian"][0] *= -100
    after = algorithm.finish_round(state, cohort, messages, None).state
    assert np.isnan(algorithm.output(after)[0]).all()
    for name, values in made.state.items():
        np.testing.assert_array_equal(after[name][1], values[1])
    (line,) = (record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)
    assert line.startswith("algo: prox_newton: the sum of the clients' Hessians has the eigenvalue -")


def test_a_message_that_is_not_finite_is_dropped_and_no_other(full_cohort):
    problem = problem_of()
    algorithm, cohort = bind(ProxNewton(), problem, [0.1, 0.1]), full_cohort(problem)
    state = algorithm.initial_state(np.zeros((2, 6)))
    made = algorithm.round(state, cohort)
    messages = made.messages.copy()
    by_job(algorithm.sent, messages[1])["hessian"][0] = np.nan
    after = algorithm.finish_round(state, cohort, messages, None)
    assert after.dropped.tolist() == [1, 0]
    assert np.isfinite(after.state["query"]).all()
    np.testing.assert_array_equal(after.state["query"][1], made.state["query"][1])


def test_what_is_not_supported_is_refused():
    with pytest.raises(UserError, match=r"^algo\.hessian: got 'sketch', must be one of auto, full, working_set"):
        ProxNewton(hessian="sketch")
    with pytest.raises(UserError, match=r"^algo\.hessian: got 'working_set', must be full, or use algo=fista"):
        bind(ProxNewton(hessian="working_set", working_set=3), problem_of(psi=regularized("l1_ball")))
    with pytest.raises(UserError, match=r"^algo\.hessian: got 'working_set', must be full, or use algo=fista"):
        bind(ProxNewton(hessian="working_set", working_set=3), problem_of("softmax"))
    wide = make_problem(features=3_000_000, sizes=(2,))
    with pytest.raises(UserError, match=r"^algo: prox_newton: the Hessians of 3,000,001 weights would take"):
        bind(ProxNewton(hessian="full"), wide)
