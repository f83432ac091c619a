"""Tests of `hparams.client_lr=auto`: text in the configuration, a number in the record."""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import pytest
from hydra import compose, initialize_config_module

from fco_cli.algorithms import all_algorithms
from fco_cli.config import Run, register
from fco_cli.errors import Interrupted
from fco_cli.problem.losses import Logistic
from fco_cli.problem.mirror_maps import Entropy
from fco_cli.simulation import engine, problems, smoothness
from fco_cli.simulation.execute import code_of, execute
from fco_cli.simulation.process import Stop
from fco_cli.simulation.record import Record
from fco_cli.simulation.smoothness import warning_of_large_steps
from fco_cli.sweeps.run import Sweep
from fco_cli.sweeps.stacks import group_into_stacks

register()
SMALL = [
    "task=lasso", "task.dimension=6", "task.ones=2", "task.clients=4", "task.samples=8",
    "hparams.clients_per_round=2", "hparams.batch_size=4", "hparams.rounds=6",
]  # fmt: skip


class Silent:
    """Observer that does nothing."""

    on_start = on_round = on_outcome = lambda *_: None


def run_of(folder, *overrides):
    with initialize_config_module("fco_cli.conf", version_base="1.3"):
        return Run.of(compose("config", overrides=[*SMALL, f"output_dir={folder}", *overrides]))


def metrics(run):
    with (run.folder / "metrics.csv").open() as file:
        return list(csv.reader(file))


@pytest.mark.ci
@pytest.mark.parametrize("psi", ["l1", "l2_ball"])
def test_a_stack_of_auto_and_numbers(tmp_path, psi):
    """auto gives the results of the corresponding number, in a stack with other rates and strengths."""
    overrides = [f"regularizer={psi}", "hparams.client_lr=auto"]
    runs = [
        run_of(tmp_path, *overrides),
        run_of(tmp_path, *overrides, "hparams.server_lr=0.3"),
        run_of(tmp_path, overrides[0]),
    ]
    assert len(group_into_stacks(runs)) == 1
    auto, slower, plain = execute(runs, Silent(), Stop())
    taken = auto.result["client_lr"]
    assert (slower.result["client_lr"], plain.result["client_lr"]) == (taken, 0.001)
    assert "client_lr: auto" in (runs[0].folder / "config.yaml").read_text()
    assert f"client_lr auto: {taken:g}, 1/L" in (runs[0].folder / "run.log").read_text()
    (same,) = execute([number := run_of(tmp_path, overrides[0], f"hparams.client_lr={taken}")], Silent(), Stop())
    assert same.result["final"] == auto.result["final"]
    assert metrics(number) == metrics(runs[0])
    assert number.run_id != runs[0].run_id


@pytest.mark.parametrize("algo", ["centralized", "local"])
def test_baselines_with_full_batches_have_larger_rates(tmp_path, algo):
    batches, whole = (run_of(tmp_path, "hparams.client_lr=auto", f"algo={name}") for name in ("fedavg", algo))
    assert problems.client_lr_of(whole) > problems.client_lr_of(batches)
    assert problems.client_lr_of(run_of(tmp_path, "hparams.client_lr=auto", "algo=optimum")) == 1.0  # has no rate


def test_a_resumed_run_has_the_same_rate(tmp_path, monkeypatch):
    overrides = ["hparams.client_lr=auto", "algo=scaffold", "regularizer=none"]
    (whole,) = execute([run_of(tmp_path / "whole", *overrides)], Silent(), Stop())
    run, stop, advance = run_of(tmp_path / "cut", *overrides), Stop(), engine.Simulation.advance

    def ask_to_stop(simulation, seconds):
        stop.signal_number = 2 if simulation.round == 3 else None
        return advance(simulation, seconds)

    with monkeypatch.context() as patch:
        patch.setattr(engine.Simulation, "advance", ask_to_stop)
        with pytest.raises(Interrupted):
            execute([run], Silent(), stop)
    assert Record(run.folder).checkpoint(code_of(run)).round == 4
    for cache in (problems._automatic_rate, problems._problem, problems._data):
        cache.cache_clear()  # as in another process
    (outcome,) = execute([run], Silent(), Stop())
    assert outcome.result["client_lr"] == whole.result["client_lr"]
    assert metrics(run) == metrics(whole.run)


def test_a_dry_run_with_auto(tmp_path):
    from fco_cli.sweeps.run import describe_plan

    run = run_of(tmp_path, "hparams.client_lr=auto")
    sweep = Sweep([], [], n_jobs=1, memory_mb=512, backend="local", address=None)
    assert "1 run to do (0 done already) in 1 stack," in describe_plan([run], 0, sweep.options)


ALL = "hparams.clients_per_round=4"


def warning(run):
    smoothness = problems.smoothness_for(run, problems.problem_of(run))
    return warning_of_large_steps(problems.client_lr_of(run), smoothness, run.algo.uses_mean_gradient)


@pytest.fixture(scope="module")
def composed(tmp_path_factory):
    """Return `run_of`, composed once for the same overrides."""
    return lru_cache(partial(run_of, tmp_path_factory.mktemp("auto")))


@pytest.mark.parametrize("name", all_algorithms())
def test_auto_is_not_above_the_limit_of_its_own_algorithm(composed, psi_for, name):
    """Batches of one row have a far larger L than the mean of all rows."""
    run = composed(f"regularizer={psi_for(name).name}", "hparams.batch_size=1", ALL, "hparams.client_lr=auto")
    assert warning(replace(run, algo=all_algorithms()[name]())) is None


@pytest.mark.parametrize(("name", "rows"), [("fista", None), ("fedfw", 8), ("zhj", 1)])
def test_the_warning_uses_the_l_of_the_algorithm(tmp_path, psi_for, name, rows):
    """L is that of grad F, of all rows of a client, or of a batch."""
    overrides = [f"algo={name}", f"regularizer={psi_for(name).name}", "hparams.batch_size=1", ALL]
    problem = problems.problem_of(run_of(tmp_path, *overrides))
    with_bias = np.hstack([problem.data.x, np.ones((len(problem.data.x), 1))])
    clients = with_bias.reshape(4, 8, -1)
    if rows is None:
        exact = np.linalg.eigvalsh(2 * with_bias.T @ with_bias / 32)[-1]
    elif rows == 8:
        exact = max(np.linalg.eigvalsh(2 * x.T @ x / 8)[-1] for x in clients)
    else:
        exact = problems.smoothness_for(run_of(tmp_path, *overrides), problem)
        assert exact <= 2 * (with_bias**2).sum(axis=1).max() * (1 + 1e-9)
    below, above = (run_of(tmp_path, *overrides, f"hparams.client_lr={times / exact}") for times in (1.9, 2.2))
    assert warning(below) is None
    assert "may diverge" in warning(above)


def test_steps_of_other_geometries_and_bounded_slopes_cause_no_warning(make_problem):
    problem = make_problem(sizes=(30, 30), regularizer=None)
    assert smoothness.can_diverge(problem)
    assert not smoothness.can_diverge(replace(problem, mirror=Entropy()))
    assert not smoothness.can_diverge(replace(problem, loss=Logistic()))


def test_auto_is_below_the_limit_that_its_warning_states(monkeypatch, make_problem):
    """Batches of the warning that are much steeper than those of auto lower the rate."""
    problem = make_problem(sizes=(30, 30), regularizer=None)
    monkeypatch.setattr(smoothness, "largest_curvature", lambda *_: 2.0)
    monkeypatch.setattr(smoothness, "estimate_smoothness", lambda *_: 8.0)
    assert smoothness.automatic_rate(problem, 0, 5) == 1 / 8
    assert warning_of_large_steps(1 / 8, 8.0) is None
    monkeypatch.setattr(smoothness, "estimate_smoothness", lambda *_: 3.0)
    assert smoothness.automatic_rate(problem, 0, 5) == 1 / 2  # within the margin
