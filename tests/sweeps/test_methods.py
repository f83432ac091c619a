"""Tests of every method on every kind of problem, with the shipped configuration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hydra import compose, initialize_config_module

from fco_cli.algorithms import all_algorithms
from fco_cli.config import Run, register
from fco_cli.errors import UserError
from fco_cli.problem import proximal_model
from fco_cli.simulation.engine import Job, Setup, Simulation
from fco_cli.simulation.problems import _data, _problem, problem_of, varying_of

register()
FEW = [
    "hparams.rounds=2",
    "hparams.eval_every=2",
    "hparams.local_epochs=1",
    "hparams.client_lr=0.001",
    "hparams.server_lr=1",
    "threads=1",
]
TASKS = {
    "lasso": ["task.dimension=6", "task.ones=2", "task.clients=3", "task.samples=6", "hparams.clients_per_round=3"],
    "nuclear": ["task.dimension=3", "task.rank=1", "task.clients=3", "task.samples=6", "hparams.clients_per_round=3"],
    "digits": ["task.test_fraction=0.5", "task.clients=3", "hparams.clients_per_round=3", "hparams.batch_size=100"],
    "custom": ["task.loss=logistic", "hparams.clients_per_round=3"],
}
# Tasks that a method does not support: the regularizers of lasso, nuclear, digits and custom are l1, the nuclear norm,
# the l1 ball and l1.
SEPARABLE_ONLY = {name: {"nuclear", "digits"} for name in ("fedadam", "fedyogi", "fedadagrad")}
REFUSED = SEPARABLE_ONLY | {
    "scaffold": set(TASKS),  # supports no regularizer
    "fedfw": {"lasso", "nuclear", "custom"},  # constraints only
    "mc_fedda": {"nuclear", "digits"},  # l1 only
    "fedavg_subgrad": {"digits"},  # penalties only
}


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
    """Return a function that creates a small run of each task; only the algorithm is replaced, to save compositions."""
    folder, runs = tmp_path_factory.mktemp("methods"), {}
    random = np.random.default_rng(0)
    labels = np.tile([0, 1], 9)
    np.savez(folder / "own.npz", x=random.standard_normal((18, 4)), y=labels, client=np.repeat([0, 1, 2], (4, 6, 8)))

    def make(task: str) -> Run:
        if task not in runs:
            options = [*TASKS[task], f"task.path={folder}/own.npz"] if task == "custom" else TASKS[task]
            with initialize_config_module("fco_cli.conf", version_base="1.3"):
                config = compose("config", overrides=[f"task={task}", *options, *FEW, f"output_dir={folder}/out"])
            runs[task] = Run.of(config)
        return runs[task]

    return make


@pytest.fixture(scope="module", autouse=True)
def few_digits():
    """Use 20 digits instead of 1797 and few steps of inner solvers, since kernels run as plain Python."""
    from sklearn import datasets

    x, y = datasets.load_digits(return_X_y=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "load_digits", lambda return_X_y: (x[:20], y[:20]))
        for steps in ("GRADIENT_STEPS", "ROUNDS"):
            patch.setattr(proximal_model, steps, 2)
        yield
    _data.cache_clear()
    _problem.cache_clear()


HESSIANS_OF_DIGITS = (("digits", "fednl"), ("digits", "prox_newton"))  # of 650 weights; other tasks have small ones
CASES = [
    pytest.param(task, name, marks=pytest.mark.ci if (task, name) in HESSIANS_OF_DIGITS else ())
    for task in TASKS
    for name, kind in all_algorithms().items()
    if kind.federated
]


@pytest.mark.parametrize(("task", "name"), CASES)
def test_every_method_runs_on_every_task(task, name, run_of):
    run = replace(run_of(task), algo=all_algorithms()[name]())
    if task in REFUSED.get(name, ()):
        with pytest.raises(UserError, match=r"^(regularizer|algo): got '.*', must be [^\n]+$"):
            run.algo.check_pair(run.regularizer, run.mirror)
        return
    run.algo.check_pair(run.regularizer, run.mirror)
    setup = Setup(run.task, problem_of(run), run.hparams, run.seed, run.algo)
    if name == "moments" and task == "digits":
        with pytest.raises(UserError, match=r"^task\.loss: got 'softmax', must be squared or logistic"):
            Simulation(setup, [Job()], varying_of([run]))
        return
    simulation = Simulation(setup, [job := Job()], varying_of([run]))
    while simulation.advance():
        pass
    assert (job.round, job.diverged) == (1 if run.algo.one_shot else 2, None)
    assert np.isfinite(job.history["objective"]).all()
    assert np.abs(job.model).max() > 0
