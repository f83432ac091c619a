"""The metrics of a job are bitwise independent of its stack and of the number of BLAS threads."""

from __future__ import annotations

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from fco_cli.simulation.evaluate import evaluate

pytestmark = [pytest.mark.ci, pytest.mark.machine_code]

CUSTOM = "task=custom task.path={path} task.loss="
SMALL_BRAIN = (
    "task=fmri_sim task.resolution=16 task.train_subjects=2 task.validation_subjects=1 task.sessions=5"
    " hparams.clients_per_round=5"
)
TASKS = {
    # Sizes at which BLAS with one thread and with two threads give different bits.
    "lasso": "task=lasso task.dimension=400 task.ones=8 task.clients=20 task.samples=40",
    "nuclear": "task=nuclear task.dimension=20 task.rank=3 task.clients=20 task.samples=40",
    "digits": "task=digits task.clients=12",
    "fmri_sim": SMALL_BRAIN,
    **{f"custom, {loss}": CUSTOM + loss for loss in ("squared", "logistic", "softmax")},
}


@pytest.fixture(scope="module")
def clients(tmp_path_factory):
    """Return 19 clients of unequal sizes, wide enough for different summation orders."""
    random, path = np.random.default_rng(1), tmp_path_factory.mktemp("clients") / "clients.npz"
    client = np.repeat(np.arange(19), 3 + 2 * np.arange(19))
    x = random.standard_normal((len(client), 37))
    np.savez(path, x=x, y=random.integers(0, 2, len(client)), client=client)
    return path


@pytest.fixture(params=TASKS)
def options(request, clients) -> list[str]:
    return TASKS[request.param].format(path=clients).split()


def metrics_of(built, jobs: slice = slice(None)) -> dict[str, np.ndarray]:
    """Return the metrics of seven random models, or of some of them."""
    run, problem = built
    w = problem.model.initial() + 0.3 * np.random.default_rng(0).standard_normal((7, problem.layout.size))
    w, numbers = w.astype(problem.dtype), np.repeat(run.regularizer.numbers, 7)
    return evaluate(run.task, problem, w[jobs].copy(), numbers[jobs])


def test_alone_and_in_a_stack(build_task, options):
    built = build_task(*options)
    together = metrics_of(built)
    assert len(together) >= 5
    for first, last in ((0, 1), (4, 5), (6, 7), (0, 2), (3, 5), (4, 7)):
        for name, values in metrics_of(built, slice(first, last)).items():
            np.testing.assert_array_equal(values, together[name][first:last], err_msg=name)


def test_with_any_number_of_threads(build_task, options):
    results = []
    for threads in (1, 2):
        with threadpool_limits(threads, user_api="blas"):
            results.append(metrics_of(build_task(*options)))
    for name in results[0]:
        np.testing.assert_array_equal(results[0][name], results[1][name], err_msg=name)
