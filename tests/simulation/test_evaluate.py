from __future__ import annotations

import numpy as np

from fco_cli.problem.numbers import stack_numbers
from fco_cli.problem.regularizers.penalties import L1
from fco_cli.simulation.evaluate import evaluate


def test_local_models_are_summarised_by_median_and_quartiles(make_setup):
    setup = make_setup("lasso", "local")
    problem = setup.problem
    models = np.random.default_rng(0).standard_normal((2, 5, problem.layout.size))
    numbers = stack_numbers([L1(strength=0.5), L1(strength=2.0)])
    metrics = evaluate(setup.task, problem, models, numbers)
    for j in range(2):
        each = evaluate(setup.task, problem, models[j], np.repeat(numbers[j : j + 1], 5))
        for name, values in each.items():
            assert metrics[name][j] == np.median(values)
            assert metrics[f"{name}_q25"][j] == np.quantile(values, 0.25)
            assert metrics[f"{name}_q75"][j] == np.quantile(values, 0.75)


def test_the_numbers_every_run_carries(make_setup, regularizer):
    setup = make_setup("lasso", "fedavg")
    problem = setup.problem
    w = np.random.default_rng(0).standard_normal((1, problem.layout.size))
    metrics = evaluate(setup.task, problem, w, regularizer("l1", strength=0.5).numbers)
    psi = 0.5 * np.abs(w[0, :-1]).sum()
    np.testing.assert_allclose(metrics["objective"] - metrics["train_loss"], psi)
    np.testing.assert_allclose(metrics["validation_objective"] - metrics["validation_loss"], psi)
    data = problem.data  # equal clients: F is the mean over all rows
    np.testing.assert_allclose(metrics["train_loss"], np.mean((data.x @ w[0, :-1] + w[0, -1] - data.y) ** 2))
    assert metrics["kkt_residual"][0] > 0
    assert "train_accuracy" not in metrics
