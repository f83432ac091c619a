"""Tests of the Python interface: the arguments, records and error messages of the command line."""

from __future__ import annotations

import logging
import multiprocessing.spawn
import os
import signal

import numpy as np
import pytest
from matplotlib import pyplot

from fco_cli import api
from fco_cli.simulation import execute as execution
from fco_cli.sweeps import starting

SMALL = (
    "task=lasso", "task.clients=4", "task.samples=6", "task.dimension=5", "task.ones=2", "hparams.rounds=3",
    "hparams.clients_per_round=2", "threads=1",
)  # fmt: skip
ONE_PROCESS = "hydra.launcher.n_jobs=1"


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    pyplot.close("all")


def test_a_run_is_the_command_s(here, caplog):
    record = api.run(*SMALL, "algo=zhj")
    written = record.folder / "result.json"
    before = written.stat().st_mtime_ns
    caplog.set_level(logging.INFO, logger="fco_cli.experiments")
    again = api.run(*SMALL, "algo=zhj")
    assert "already done" in caplog.text
    assert "already done" in here(*SMALL, "algo=zhj").err
    assert written.stat().st_mtime_ns == before
    assert again.final == record.final
    assert record.model["weights"].shape == (5,)
    assert record.curves["round"].tolist() == [0, 1, 2, 3]


def test_a_function_receives_every_evaluated_round_while_the_run_proceeds(monkeypatch):
    monkeypatch.setattr(execution, "BATCH_SECONDS", 0.0)  # a round at a time
    rows, stopped = [], []

    def stop_after_two_rounds(row):
        stopped.append(row["round"])
        if row["round"] == 2:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        api.run(*SMALL, on_round=stop_after_two_rounds)
    assert stopped == [0, 1, 2]
    record = api.run(*SMALL, on_round=rows.append)
    assert [row["round"] for row in rows] == [0, 1, 2, 3]
    assert all(isinstance(row["round"], int) for row in rows)
    assert [row["objective"] for row in rows] == record.curves["objective"].tolist()
    api.run(*SMALL, on_round=rows.append)
    assert len(rows) == 4  # a finished run is not repeated


def test_an_interrupted_call_continues_with_the_same_bits(monkeypatch):
    whole = api.run(*SMALL, "output_dir=whole")
    advance = execution.Simulation.advance

    def interrupted(self, patience):
        moved = advance(self, patience)
        if self.round == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return moved

    with monkeypatch.context() as patched:
        patched.setattr(execution.Simulation, "advance", interrupted)
        with pytest.raises(KeyboardInterrupt, match="the same call continues"):
            api.run(*SMALL)
    rest = api.run(*SMALL)
    assert "continued from round" in (rest.folder / "run.log").read_text()
    assert np.array_equal(rest.model["weights"], whole.model["weights"])


def test_a_sweep_is_the_command_s(here):
    words = (*SMALL, "algo=feddualavg,fedmid", "hparams.client_lr=0.001,0.01", "seeds=2", ONE_PROCESS)
    results = api.sweep(*words)
    table = results.table()
    assert len(table) == 8
    assert sorted(set(zip(table["algo.name"], table["hparams.client_lr"], table["seed"], strict=True))) == [
        (algo, rate, seed) for algo in ("feddualavg", "fedmid") for rate in (0.001, 0.01) for seed in (0, 1)
    ]
    before = {path: path.stat().st_mtime_ns for path in results.studies[0].runs[0].folder.glob("result.json")}
    here("-m", *words)
    assert all(path.stat().st_mtime_ns == then for path, then in before.items())
    alone = api.run(*SMALL, "algo=fedmid", "hparams.client_lr=0.01", "seed=1")
    assert alone.run_id in set(table["run_id"])

    loaded = api.load("outputs")
    assert set(loaded["run_id"]) == set(table["run_id"])
    rounds = api.load("outputs", per="round")
    assert len(rounds) == 8 * 4
    ends = rounds[rounds["round"] == 3].set_index("run_id")["objective"]
    assert ends.to_dict() == loaded.set_index("run_id")["objective"].to_dict()

    axis = api.plot(results)  # at the learning rates that a report selects
    assert [line.get_label() for line in axis.get_lines()] == ["FedDualAvg", "FedMiD"]
    for line, band, algo in zip(axis.get_lines(), axis.collections, ("feddualavg", "fedmid"), strict=True):
        mine = rounds[rounds["algo"] == algo]
        ends_by_rate = mine[mine["round"] == 3].groupby("client_lr")["objective"].mean()
        spread = mine[mine["client_lr"] == ends_by_rate.idxmin()].groupby("round")["objective"]
        assert line.get_ydata().tolist() == spread.median().tolist()
        heights = band.get_paths()[0].vertices[:, 1]
        assert (heights.min(), heights.max()) == (spread.min().min(), spread.max().max())


def test_a_line_of_a_plot_has_one_setting():
    words = (*SMALL, "algo=feddualavg,fedmid", "hparams.client_lr=0.001,0.01", "seeds=2", ONE_PROCESS)
    results, loaded, rounds = api.sweep(*words), api.load("outputs"), api.load("outputs", per="round")

    def labels(*arguments, **options):
        return [line.get_label() for line in api.plot(*arguments, **options).get_lines()]

    pairs = [f"{algo}, client_lr {rate}" for algo in ("FedDualAvg", "FedMiD") for rate in ("0.001", "0.01")]
    assert labels(rounds) == pairs
    assert labels(results, by="hparams.client_lr") == [
        f"{rate}, algo {algo}" for rate in ("0.001", "0.01") for algo in ("feddualavg", "fedmid")
    ]
    assert labels(results, x="hparams.client_lr", y="f1") == ["FedDualAvg", "FedMiD"]
    other = api.plot(loaded[loaded["algo"] == "fedmid"], x="hparams.client_lr", y="f1", by="seed")
    assert [line.get_label() for line in other.get_lines()] == ["0", "1"]
    assert other.get_lines()[0].get_xdata().tolist() == [0.001, 0.01]


def test_a_plot_against_a_column_with_auto():
    """Rows without `auto` are drawn as numbers, although one `auto` makes texts of the whole column."""
    api.run(*SMALL, "algo=zhj", "hparams.client_lr=auto")
    api.sweep(*SMALL, "algo=fedmid", "hparams.client_lr=0.001,0.01", ONE_PROCESS)
    table = api.load("outputs")
    assert set(table["hparams.client_lr"]) == {"auto", "0.001", "0.01"}
    (line,) = api.plot(table[table["algo"] == "fedmid"], x="hparams.client_lr", y="f1").get_lines()
    assert line.get_xdata().tolist() == [0.001, 0.01]
    with pytest.raises(ValueError, match=r"^x: column hparams.client_lr has values .* such as auto; .* use client_lr,"):
        api.plot(table, x="hparams.client_lr", y="f1")
    (zhj,) = (line for line in api.plot(table, x="client_lr", y="f1").get_lines() if line.get_label() == "ZHJ")
    assert 0 < zhj.get_xdata()[0] < 1


def test_a_path_is_that_of_a_sweep_and_of_the_command(place, here):
    rng = np.random.default_rng(0)
    rows = [f"{i % 3},{a:.3f},{b:.3f},{a - b + c:.3f}" for i, (a, b, c) in enumerate(rng.standard_normal((30, 3)))]
    (place / "rows.csv").write_text("\n".join(["client,a,b,y", *rows]) + "\n")
    words = ("task.path=rows.csv", "path.strengths=4", "path.folds=2")
    path = api.path(*words)
    assert path.names == ["a", "b"]
    assert len(path.table) == 4
    written = (path.folder / "result.json").stat().st_mtime_ns
    assert api.path("experiment=path", *words).folder == path.folder
    (in_sweep,) = api.sweep("experiment=path", *words, ONE_PROCESS).paths
    assert in_sweep.folder == path.folder
    assert f"record: {path.folder}" in here("-m", "experiment=path", *words).out
    assert (path.folder / "result.json").stat().st_mtime_ns == written


@pytest.mark.ci
def test_a_check_of_the_theorems_is_that_of_a_sweep():
    words = ("theory.rounds=[4,8]", "theory.steps=[1,2]", "theory.clients=[2]", "theory.rates=[0.0625]")
    checked = api.theory(*words, "theory.seeds=2", "theory.dimension=4")
    assert all(violated == 0 for _, violated, _ in checked.statements.values())
    assert checked.figure().startswith(b"\x89PNG")
    again = api.sweep("experiment=theory", *words, "theory.seeds=2", "theory.dimension=4", ONE_PROCESS)
    assert again.theory == checked


@pytest.mark.parametrize("call", [api.path, api.theory])
@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("experiment=lasso_i", "experiment: got 'lasso_i', must be (path|theory) or omitted"),
        ("dry_run=true", "dry_run: got True"),
        (3, "overrides: got 3, must be strings"),
    ],
)
def test_an_experiment_refuses_overrides_in_one_line(call, word, line):
    with pytest.raises(ValueError, match=line) as raised:
        call(word, *(["task.path=rows.csv"] if call is api.path else []))
    assert "\n" not in str(raised.value)


WRONG = {
    "task: got 'lassoo'.*did you mean lasso": ("task=lassoo",),
    "overrides: got 3, must be strings": (3,),
    "hparams.rounds: got 0": ("hparams.rounds=0",),
    "task: cannot be read as key=value": ("task",),
    "dry_run: got True": ("dry_run=true",),
}


@pytest.mark.parametrize("line", WRONG)
@pytest.mark.parametrize("call", [api.run, api.sweep])
def test_what_is_wrong_is_a_value_error_of_one_line(call, line):
    with pytest.raises(ValueError, match=line) as raised:
        call(*WRONG[line])
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("algo=zhj,fedmid",), "in Python: sweep"),
        (("experiment=lasso_i",), "experiment: lasso_i is a sweep"),
        (("experiment=path",), r"experiment: path is not a run; call path\("),
        (("experiment=theory",), r"experiment: theory is not a run; call theory\("),
        (("seeds=2",), "seeds: got 2"),
    ],
)
def test_many_runs_are_a_sweep(words, line):
    with pytest.raises(ValueError, match=line):
        api.run(*words)


def test_a_launcher_that_only_the_command_uses():
    with pytest.raises(ValueError, match="fco-run -m"):
        api.sweep(*SMALL, "hydra/launcher=basic")


def test_a_folder_without_records(place, caplog):
    with pytest.raises(ValueError, match="folder: got 'nowhere'"):
        api.load("nowhere")
    with pytest.raises(ValueError, match="no finished records"):
        api.load(place)
    with pytest.raises(ValueError, match="per: got 'client'"):
        api.load(place, per="client")
    (place / "torn").mkdir()
    (place / "torn" / "result.json").write_text("{")
    with pytest.raises(ValueError, match="no finished records"):
        api.load(place)
    assert "left out" in caplog.text


def test_hydra_of_an_application_is_left_as_it_was(tmp_path):
    from hydra import compose, initialize_config_dir

    (tmp_path / "theirs.yaml").write_text("a: 1\n")
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        api.run(*SMALL)
        assert compose("theirs").a == 1


def test_a_worker_does_not_run_the_script_that_called(monkeypatch):
    import __main__

    monkeypatch.setattr(__main__, "__file__", "script.py", raising=False)
    monkeypatch.setattr(__main__, "__spec__", None)
    assert "init_main_from_path" in multiprocessing.spawn.get_preparation_data("worker")
    with starting._without_main():
        told = multiprocessing.spawn.get_preparation_data("worker")
    assert not [key for key in told if key.startswith("init_main")]
