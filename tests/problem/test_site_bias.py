"""A bias of every client's own: the same as a column of its own for every client, which psi leaves alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from fco_cli.problem.data import ClientData
from fco_cli.problem.losses import all_losses
from fco_cli.problem.models import Linear
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers.penalties import L1

LOSSES = ("squared", "logistic", "huber", "poisson")


def with_site_bias(problem: Problem) -> Problem:
    return replace(problem, model=replace(problem.model, site_bias=True))


@pytest.mark.parametrize("loss", LOSSES)
def test_the_loss_is_smallest_over_the_bias(make_problem, loss):
    problem = make_problem(loss=loss)
    w = 0.3 * np.random.default_rng(0).standard_normal((2, 7))
    own, data = with_site_bias(problem), problem.data
    biases, value = own.site_biases(w), all_losses()[loss]().bound("value").as_python
    for j in range(2):
        total = 0.0
        for m in range(data.clients):
            rows = data.client(m)
            scores = rows.x @ w[j, :6] + w[j, 6]

            def mean(b, scores=scores, y=rows.y):
                return np.mean([value(np.array([s + b]), label) for s, label in zip(scores, y, strict=True)])

            best = minimize_scalar(mean, bounds=(-20, 20), method="bounded", options={"xatol": 1e-10})
            assert biases[m, j] == pytest.approx(best.x, abs=1e-5)
            total += best.fun / data.clients
        assert own.risk(w).value[j] == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_the_solution_is_that_with_a_column_for_every_client(make_problem, make_algorithm, loss):
    problem = make_problem(L1(strength=0.05), loss, sizes=(9, 6, 12), features=4)
    data = problem.data
    columns = np.repeat(np.eye(3), data.sizes, axis=0)
    wide = Problem(
        ClientData(np.hstack([data.x, columns]), data.y, data.offsets), Linear(7), problem.loss,
        L1(strength=0.05, factors={"x4": 0, "x5": 0, "x6": 0}),
    )  # fmt: skip

    def solved(one: Problem) -> np.ndarray:
        solver = make_algorithm("optimum", one)
        return solver.round(solver.initial_state(one.initial_models(one.regularizer.numbers))).state["w"]

    own = with_site_bias(problem)
    w, w_wide = solved(own), solved(wide)
    np.testing.assert_allclose(w[0, :4], w_wide[0, :4], atol=1e-7)
    np.testing.assert_allclose(own.site_biases(w)[:, 0], w_wide[0, 4:7] + w_wide[0, 7], atol=1e-6)
    assert abs(w[0, 4]) < 1e-10  # the common bias has nothing to add


def test_rows_held_out_have_the_bias_of_training(make_problem):
    problem = make_problem(loss="logistic")
    held_out = ClientData(problem.data.x[:11], problem.data.y[:11], np.array([0, 5, 11]))
    held_out = replace(held_out, trained_as=np.array([2, -1]))
    own = replace(with_site_bias(problem), held_out=held_out)
    w = np.random.default_rng(0).standard_normal((1, 7))
    biases = own.site_biases(w)[:, 0]
    scores = held_out.x @ w[0, :6] + w[0, 6] + np.repeat([biases[2], biases.mean()], [5, 6])
    np.testing.assert_allclose(own.scores_on(held_out, w)[0, 0], scores, rtol=1e-12)
    losses = np.log1p(np.exp(scores)) - held_out.y * scores
    found = own.validation(w, gradient=False)
    assert found.value[0] == pytest.approx((losses[:5].mean() + losses[5:].mean()) / 2)
    assert found.accuracy[0] == pytest.approx(np.mean((scores > 0) == (held_out.y > 0.5)))


def test_a_client_whose_labels_are_all_alike_teaches_nothing(make_problem):
    problem = with_site_bias(make_problem(loss="logistic"))
    problem.data.y[problem.data.offsets[0] : problem.data.offsets[1]] = 1
    risk = problem.risk(np.zeros((1, 7)))
    assert np.isfinite(risk.value).all()
    assert problem.site_biases(np.zeros((1, 7)))[0, 0] >= 40
