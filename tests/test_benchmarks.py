"""The benchmarks' plain loop computes what the engine computes; otherwise the ratios would mean nothing."""

from pathlib import Path

import numpy as np
import pytest

from fco_cli.algorithms import ALGORITHMS, Jobs
from fco_cli.problem.regularizers import all_regularizers
from fco_cli.simulation.engine import Experiment, Job, Simulation
from fco_cli.simulation.settings import Settings

ROUNDS, RATE = 4, 0.03


@pytest.fixture
def plain(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    from benchmarks import plain

    return plain


def by_the_engine(problem):
    """All clients, one batch each: nothing is random."""
    clients, batch = problem.data.clients, int(problem.data.sizes.max())
    settings = Settings(RATE, 1.0, ROUNDS, clients, batch, local_epochs=2, eval_every=1, dtype="float64")
    experiment = Experiment(None, problem, settings, 0, ALGORITHMS["feddualavg"])
    jobs = Jobs(np.array([RATE]), np.ones(1), problem.regularizer.parameters[None])
    simulation = Simulation(experiment, [job := Job()], jobs)
    while simulation.advance():
        pass
    return job.model


def by_the_loop(plain, problem, gradient, prox):
    clients = [(client.x, client.y) for client in map(problem.data.client, range(problem.data.clients))]
    start, batch = problem.model.start(), int(problem.data.sizes.max())
    return plain.feddualavg(
        clients, start, gradient, prox, lambda w: None, RATE, ROUNDS, per_round=len(clients), batch=batch, epochs=2
    )


@pytest.fixture(autouse=True)
def _no_task(monkeypatch):
    monkeypatch.setattr("fco_cli.simulation.engine.evaluate", lambda *_: {})


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_lasso(plain, make_problem, loss):
    problem = make_problem(all_regularizers()["l1"](strength=0.2), loss=loss)
    loop = by_the_loop(plain, problem, getattr(plain, f"{loss}_gradient"), plain.soft_threshold(0.2))
    np.testing.assert_allclose(loop, by_the_engine(problem), rtol=1e-10, atol=1e-13)


def test_nuclear_norm(plain, make_problem):
    problem = make_problem(all_regularizers()["nuclear"](strength=0.3), kernel_shape=(2, 3))
    loop = by_the_loop(plain, problem, plain.squared_gradient, plain.singular_threshold(0.3, (2, 3)))
    np.testing.assert_allclose(loop, by_the_engine(problem), rtol=1e-10, atol=1e-13)


def test_softmax_in_a_ball(plain, make_problem):
    problem = make_problem(all_regularizers()["l1_ball"](radius=0.1), loss="softmax", outputs=3)
    balls = plain.l1_balls(0.1, [problem.layout.slices["kernel"]])
    loop = by_the_loop(plain, problem, plain.network_gradient(problem.model.widths.tolist()), balls)
    np.testing.assert_allclose(loop, by_the_engine(problem), rtol=1e-10, atol=1e-13)
    assert np.abs(loop[problem.layout.slices["kernel"]]).sum() == pytest.approx(0.1)
