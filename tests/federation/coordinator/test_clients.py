"""Runs between sites are bitwise equal to simulations: every algorithm, loss and participation, also resumed."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from fco_cli import conf
from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.algorithms.transforms.compression import Quantize, TopK
from fco_cli.errors import UserError
from fco_cli.federation.coordinator.clients import remote_clients
from fco_cli.federation.coordinator.task import CustomAtSites
from fco_cli.simulation.clients import ClientsLost
from fco_cli.simulation.engine import Job, Setup, Simulation
from fco_cli.simulation.evaluate import evaluate_test
from fco_cli.tasks.tabular import Custom

NAMES = ["east", "north", "south"]
FEDERATED = sorted(name for name, kind in all_algorithms().items() if kind.federated)


def task_of(folder: Path, loss: str, **changes: Any) -> Custom:
    options: dict[str, Any] = {}
    for file in ("base/tabular.yaml", "task/custom.yaml"):
        options |= OmegaConf.to_container(OmegaConf.load(Path(conf.__path__[0]) / file).task)  # type: ignore[operator]
    changes = {"path": str(folder / "pooled.npz"), "loss": loss, "holdout": "rows", **changes}
    return Custom(**{**options, **changes})


@pytest.fixture
def both(hospitals, make_sites, psi_for, make_hparams) -> Callable[..., tuple[Setup, Setup, Varying]]:
    """Return setups of one run: simulated, and between sites."""

    def make(algo: str, loss: str = "logistic", full_participation: bool = False, **changes: Any):
        folder, algorithm, psi = hospitals(loss), all_algorithms()[algo](), psi_for(algo)
        sampled = 3 if full_participation or algorithm.full_participation else 2
        hparams = make_hparams(clients_per_round=sampled, batch_size=4, **changes)
        task = task_of(folder, loss)
        remote = CustomAtSites.of(task, make_sites(folder))
        setups = []
        for one in (task, remote):
            problem = one.data(0, hparams.dtype).to_problem(psi, weighting=hparams.weighting)
            setups.append(Setup(one, problem, hparams, 0, algorithm))
        rows = setups[1].problem.data
        setups[1] = dataclasses.replace(setups[1], clients=remote_clients(rows, hparams, 0))
        rates = np.array([0.05, 0.02], hparams.dtype)
        return *setups, Varying.from_rates(algorithm, psi, rates, np.ones_like(rates))

    return make


def run(setup: Setup, varying: Varying, jobs: list[Job] | None = None) -> list[Job]:
    jobs = [Job() for _ in varying.client_lr] if jobs is None else jobs
    simulation = Simulation(setup, jobs, varying)
    while simulation.advance():
        pass
    return jobs


def assert_same(one: list[Job], other: list[Job]) -> None:
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a.model, b.model)
        np.testing.assert_array_equal(a.counters, b.counters)
        assert a.history.keys() == b.history.keys()
        for name, column in b.history.items():
            if name == "validation_auc":
                continue  # binned, see test_metrics.py
            rtol = 1e-9 if a.model.dtype == float else 1e-4  # single-precision sums in another order
            np.testing.assert_allclose(column, a.history[name], rtol=rtol, atol=rtol / 1e3, err_msg=name)


@pytest.mark.parametrize("full_participation", [True, False], ids=["full", "sampled"])
@pytest.mark.parametrize("algo", FEDERATED)
def test_every_algorithm_equals_the_simulation(both, algo, full_participation):
    local, remote, varying = both(algo, full_participation=full_participation)
    assert_same(run(local, varying), run(remote, varying))


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize("loss", ["logistic", "squared", "softmax"])
def test_every_loss(both, loss, weighting):
    local, remote, varying = both("zhj", loss=loss, weighting=weighting, dtype="float32")
    assert_same(run(local, varying), run(remote, varying))


@pytest.mark.ci
@pytest.mark.machine_code
def test_machine_code(both):
    local, remote, varying = both("feddualavg")
    assert_same(run(local, varying), run(remote, varying))


@pytest.mark.parametrize("algo", ["feddualavg", "zhj", "feddr"])
def test_a_resumed_run_equals_the_simulation(both, algo):
    """The coordinator and all sites restart from round 2; round 3 is discarded."""
    local, remote, varying = both(algo, rounds=5)
    jobs = [Job(), Job()]
    simulation = Simulation(remote, jobs, varying)
    for _ in range(2):
        simulation.advance()
    saved = [dataclasses.replace(job, history=copy.deepcopy(job.history)) for job in simulation.snapshot()]
    simulation.advance()
    remote.task.connection.disconnect()
    assert_same(run(local, varying), run(remote, varying, saved))


def test_a_job_that_diverges_leaves_the_stack(both):
    local, remote, varying = both("zhj", loss="squared", rounds=40)
    varying = dataclasses.replace(varying, client_lr=np.array([0.01, 50.0]))
    one, other = run(local, varying), run(remote, varying)
    assert one[1].diverged is not None
    assert one[1].diverged == other[1].diverged
    assert_same(one, other)


@pytest.mark.parametrize("algo", ["feddualavg", "zhj"])
def test_a_silent_site_is_dropped_from_the_round(both, algo):
    """The simulation drops a client whose message is not finite; models and client state agree."""
    local, remote, varying = both(algo, full_participation=True)
    remote.task.connection.min_sites = 2
    simulation, pooled = (Simulation(setup, [Job(), Job()], varying) for setup in (remote, local))
    link, messages = remote.task.connection.link, pooled.algorithm._messages
    for silent in (None, 1, 2, None):

        def without(state, cohort, *others, silent=silent):
            sent, kept = messages(state, cohort, *others)
            sent[cohort.clients == silent] = np.nan
            return sent, kept

        pooled.algorithm._messages = without
        link.silent_in_training = None if silent is None else NAMES[silent]
        pooled.advance()
        simulation.advance()
    assert_same(pooled.finished, simulation.finished)


def test_too_few_responses_raise_clients_lost(both):
    _, remote, varying = both("feddualavg", full_participation=True)
    simulation = Simulation(remote, [Job(), Job()], varying)
    remote.task.connection.link.silent_in_training = "north"
    with pytest.raises(ClientsLost, match="north"):
        simulation.advance()


@pytest.mark.parametrize("fill", ["mean", "median"])
def test_tables_are_prepared_from_summaries_of_the_sites(tmp_path, make_site_on, psi_for, make_hparams, fill):
    """With categories, missing values and a test split, features and results equal the simulation's."""
    random = np.random.default_rng(5)
    lines = []
    for name, rows in zip(NAMES, (23, 31, 18), strict=True):
        values = [
            (f"{random.normal():.3f}", random.choice(["red", "blue", "?"]), random.choice(["1", "2", ""]), str(k % 2))
            for k in range(rows)
        ]
        table = [",".join(row) for row in values]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,color,size,y", *table]))
        lines += [f"{name},{row}" for row in table]
    (tmp_path / "pooled.csv").write_text("\n".join(["client,age,color,size,y", *lines]))
    task = task_of(tmp_path, "logistic", path=str(tmp_path / "pooled.csv"), fill=fill, test="rows", flag_missing=True)
    remote = CustomAtSites.of(task, make_site_on(tmp_path))
    algorithm, psi, hparams = all_algorithms()["zhj"](), psi_for("zhj"), make_hparams(clients_per_round=3)
    jobs = []
    for one in (task, remote):
        data = one.data(0, "float64")
        problem = data.to_problem(psi)
        setup = Setup(one, problem, hparams, 0, algorithm)
        if one is remote:
            setup = dataclasses.replace(setup, clients=remote_clients(problem.data, hparams, 0))
        assert data.description.preparation.features[:3] == ["age", "color=red", "color is missing"]
        jobs.append(run(setup, Varying.from_rates(algorithm, psi, np.array([0.05]), np.ones(1))))
        assert evaluate_test(one, problem, jobs[-1][0].model)["test_loss"] > 0
    assert_same(*jobs)


@pytest.mark.parametrize("transform", [TopK(share=0.4), Quantize(bits=4)])
def test_transforms_equal_the_simulation(both, transform):
    local, remote, varying = both("zhj")
    local, remote = (
        dataclasses.replace(one, algorithm=one.algorithm.with_transform(transform)) for one in (local, remote)
    )
    assert_same(run(local, varying), run(remote, varying))


def test_a_stack_is_no_larger_than_a_message(both, monkeypatch):
    """Three sites, six parameters of eight bytes, and methods that send one or two vectors."""
    rows = both("zhj")[1].problem.data
    monkeypatch.setattr("fco_cli.federation.coordinator.remote_rows.MAX_MESSAGE_BYTES", 1000)
    assert [rows.max_jobs_per_round(1, sent, 6) for sent in (1, 2)] == [6, 3]
    assert rows.max_jobs_per_round(broadcast=20, sent=1, size=6) == 1
    with pytest.raises(UserError, match=r"3 vectors of 100 parameters are 0.0 GB; the limit of a message is 0.0 GB"):
        rows.max_jobs_per_round(1, 1, 100)
