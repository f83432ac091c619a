"""The digits task with label skew and a constraint."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fco_cli.errors import UserError
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.models.network import Network


@pytest.fixture
def build(build_task):
    return lambda *overrides: build_task("task=digits", *overrides)[1]


def test_every_image_is_dealt_once_and_small_concentrations_skew_the_labels(build):
    problem, alike = build("task.concentration=0.1"), build("task.concentration=1000")
    assert problem.data.clients == alike.data.clients == 20
    assert len(problem.data.y) == 1797 - 359
    assert problem.data.sizes.min() >= 2
    assert problem.data.x.max() == 1

    def classes(data):
        return np.mean([len(np.unique(data.client(m).y)) for m in range(data.clients)])

    assert classes(problem.data) < 5 < 9.5 < classes(alike.data)
    rows = {bytes(row) for row in problem.data.x} | {bytes(row) for row in problem.held_out.x}
    assert len(rows) > 1700  # training and test rows are the whole data set, with a few duplicate images


def test_the_model_is_linear_or_a_network(build):
    assert isinstance(build().model, Linear)
    assert build("task.hidden=[32]").model == Network(64, (32,), 10, seed=0)


def test_too_much_skew_for_the_number_of_clients_is_refused(build):
    with pytest.raises(UserError, match=r"task\.concentration: got 0\.001"):
        build("task.concentration=0.001", "task.clients=300")


@pytest.mark.parametrize("key", ["clients=1", "concentration=0", "test_fraction=1", "hidden=[0]"])
def test_values_out_of_range_are_refused(make_run, key):
    with pytest.raises(UserError, match=f"task.{key.split('=')[0]}"):
        make_run("task=digits", f"task.{key}")


@pytest.mark.slow
@pytest.mark.machine_code
def test_feddualavg_reaches_nine_of_ten_and_every_checkpoint_is_feasible(run_stack):
    (outcome,) = run_stack([["task=digits", "hparams.rounds=40", "hparams.eval_every=4"]])
    metrics = pd.read_csv(outcome.run.folder / "metrics.csv")
    assert metrics.validation_accuracy.iloc[-1] >= 0.9
    assert (metrics.constraint_violation <= 1e-9).all()
    kernel = np.load(outcome.run.folder / "model.npz")["weights"].astype(float)
    assert 99.9 < np.abs(kernel).sum() <= 100 * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.machine_code
@pytest.mark.parametrize("regularizer", ["l1_ball", "l2_ball"])
@pytest.mark.parametrize("algo", ["feddualavg", "fedmid"])
def test_the_network_learns_under_either_ball(run_stack, regularizer, algo):
    """Two learning rates in one stack: the best reaches 90 % accuracy, and both stay feasible."""
    common = ["task=digits", "task.hidden=[32]", f"algo={algo}", f"regularizer={regularizer}"]
    radius = "regularizer.radius=200" if regularizer == "l1_ball" else "regularizer.radius=10"
    stack = [
        [*common, radius, "hparams.rounds=60", "hparams.server_lr=1", f"hparams.client_lr={rate}"]
        for rate in (0.03, 0.1)
    ]
    finals = [outcome.result["final"] for outcome in run_stack(stack)]
    assert max(final["validation_accuracy"] for final in finals) >= 0.9
    assert max(final["constraint_violation"] for final in finals) <= 1e-9
