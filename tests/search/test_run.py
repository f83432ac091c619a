"""Searches from the command line: batches, halving, several metrics, reuse, and wrong input in one line."""

from __future__ import annotations

import csv
import json
import shlex
import shutil
import sys

import numpy as np
import pytest
import yaml

from fco_cli.api import sweep
from fco_cli.commands import run
from fco_cli.errors import SweepFailed

pytest.importorskip("optuna")

TINY = [
    "task=lasso", "task.dimension=12", "task.ones=4", "task.clients=6", "task.samples=15",
    "hparams.clients_per_round=3", "hparams.batch_size=3", "hparams.server_lr=1",
]  # fmt: skip
RATES = "hparams.client_lr=tag(log,interval(1e-4,10))"
SEARCH = ["-m", "hydra/sweeper=search", *TINY, RATES]


def trials(folder):
    """The rows of the only search below a folder."""
    (path,) = folder.glob("search/*/trials.csv")
    with path.open() as file:
        return list(csv.DictReader(file))


def best(folder):
    (path,) = folder.glob("search/*/best.yaml")
    return yaml.safe_load(path.read_text())


def metrics(folder):
    """metrics.csv of every finished run below a folder, by run id."""
    return {path.parent.name: path.read_bytes() for path in folder.glob("lasso/*/*/metrics.csv")}


@pytest.mark.ci
def test_a_search_is_reproducible_and_reuses_finished_runs(here, tmp_path):
    keys = ["hparams.rounds=4", "search.budget=6", "search.batch=3", "hydra.launcher.n_jobs=1"]
    output = here(*SEARCH, *keys, f"output_dir={tmp_path}/one").out
    here(*SEARCH, *keys, f"output_dir={tmp_path}/two", "threads=1")
    assert trials(tmp_path / "one") == trials(tmp_path / "two")
    assert metrics(tmp_path / "one") == metrics(tmp_path / "two")
    assert len(trials(tmp_path / "one")) == 6
    assert "best by minimize objective" in output
    first, *rest = sorted((tmp_path / "one").glob("lasso/*/*/result.json"))
    before = {path: path.stat().st_mtime_ns for path in rest}
    shutil.rmtree(first.parent)  # as if the search had been killed
    here(*SEARCH, *keys, f"output_dir={tmp_path}/one")
    assert {path: path.stat().st_mtime_ns for path in rest} == before
    assert trials(tmp_path / "one") == trials(tmp_path / "two")
    more = here(*SEARCH, *keys, "search.budget=7", f"output_dir={tmp_path}/one")
    assert "7 settings" in more.out
    assert trials(tmp_path / "one")[:6] == trials(tmp_path / "two")


def test_the_command_of_the_best_run_reproduces_it(here, tmp_path):
    here(*SEARCH, "hparams.rounds=4", "search.budget=4", f"output_dir={tmp_path}/one")
    (entry,) = best(tmp_path / "one")["best"]
    command = shlex.split(entry["command"])
    here(*[word for word in command[1:] if not word.startswith("output_dir=")], f"output_dir={tmp_path}/two")
    ((name, content),) = metrics(tmp_path / "two").items()
    assert metrics(tmp_path / "one")[name] == content
    result = json.loads(next((tmp_path / "two").glob("lasso/*/*/result.json")).read_text())
    finished = [float(row["objective"]) for row in trials(tmp_path / "one") if row["state"] == "finished"]
    assert entry["values"]["objective"] == result["final"]["objective"] == min(finished)


@pytest.mark.ci
def test_halving_stops_bad_runs_early_without_changing_the_others(here, tmp_path):
    keys = ["hparams.rounds=27", "search.budget=9", "search.batch=9", "search.pruning=halving"]
    output = here(*SEARCH, *keys, f"output_dir={tmp_path}/one").out
    here(*SEARCH, *keys, f"output_dir={tmp_path}/two")
    here(*SEARCH, *keys, f"output_dir={tmp_path}/one")  # from the checkpoints of pruned runs
    rows = trials(tmp_path / "one")
    assert rows == trials(tmp_path / "two")
    states = [row["state"] for row in rows]
    assert states.count("finished") == 1
    assert f"{states.count('pruned')} pruned" in output
    running = [row for row in rows if row["state"] != "diverged"]
    assert {row["pruned_after"] for row in running} == {"", "3", "9"}
    records = metrics(tmp_path / "one")
    assert len(records) == 9 - states.count("pruned")
    here(*SEARCH[1:], *keys[:3], "-m", f"output_dir={tmp_path}/whole")
    whole = metrics(tmp_path / "whole")
    assert {name: whole[name] for name in records} == records
    pruned = next(row for row in rows if row["pruned_after"] == "9")
    alone = [*TINY, keys[0], f"hparams.client_lr={pruned['hparams.client_lr']}"]
    here(*alone, f"output_dir={tmp_path}/one")
    (continued,) = metrics(tmp_path / "one").keys() - records.keys()
    assert metrics(tmp_path / "one")[continued] == whole[continued]
    assert "continued from round 9" in (tmp_path / "one" / "lasso" / "feddualavg" / continued / "run.log").read_text()


@pytest.mark.ci
def test_every_combination_of_options_has_a_search_and_every_setting_its_seeds(here, tmp_path):
    keys = ["algo=fedmid,optimum", "seeds=2", "hparams.rounds=2", "search.budget=4", "search.batch=2"]
    here(*SEARCH[:-1], "hparams.client_lr=0.001,0.002,0.003", "hparams/grid=paper", *keys, f"output_dir={tmp_path}")
    tables = sorted(tmp_path.glob("search/*/trials.csv"), key=lambda path: len(path.read_text().splitlines()))
    assert [len(path.read_text().splitlines()) - 1 for path in tables] == [2, 2]
    assert len(list(tmp_path.glob("lasso/fedmid/*/result.json"))) == 4
    content = yaml.safe_load((tables[-1].parent / "best.yaml").read_text())["best"][0]
    assert "-m" in content["command"]
    assert "seed=0,1" in content["command"]


def test_several_metrics_have_a_pareto_front(here, tmp_path):
    keys = ["search.metric=[recovery_error,density]", "search.budget=6", "hparams.rounds=6"]
    here(*SEARCH[:-1], "hparams.client_lr=tag(log,interval(1e-4,1e-2))", *keys, f"output_dir={tmp_path}")
    rows = [(float(row["recovery_error"]), float(row["density"])) for row in trials(tmp_path)]
    front = {tuple(entry["values"].values()) for entry in best(tmp_path)["best"]}
    assert front == {one for one in rows if not any(two != one and np.less_equal(two, one).all() for two in rows)}


def test_a_search_in_which_everything_diverges_ends_in_one_line(here, tmp_path, capfd):
    wild = ["hparams.client_lr=interval(1e3,1e4)", "hparams.rounds=6", "search.budget=4", f"output_dir={tmp_path}"]
    with pytest.raises(SystemExit) as end:
        sys.argv = ["fco-run", *SEARCH[:-1], *wild]
        run.main()
    printed = capfd.readouterr()
    assert end.value.code == 1
    assert "fco-run: all 4 settings diverged, so there is no best one" in printed.err
    assert "inf" not in printed.out
    assert not list(tmp_path.glob("search/*/best.yaml"))
    with pytest.raises(SweepFailed, match="all 4 settings diverged"):
        sweep("hydra/sweeper=search", *TINY, *wild)


def test_a_search_from_python_returns_its_records(tmp_path):
    keys = ["hparams.rounds=3", "search.budget=4", "search.metric=f1", f"output_dir={tmp_path}"]
    table = sweep("hydra/sweeper=search", *TINY, "hparams.client_lr=tag(log,interval(1e-4,1e-2))", *keys).table()
    assert len(table) == 4
    assert table["f1"].max() == best(tmp_path)["best"][0]["values"]["f1"]


@pytest.mark.ci
def test_other_launchers_run_a_search(here, tmp_path):
    keys = ["hparams.rounds=2", "search.budget=4", "hydra.job_logging.root.handlers=[]"]
    rates = "hparams.client_lr=tag(log,interval(1e-4,1e-2))"
    here(*SEARCH[:-1], rates, *keys, "hydra/launcher=basic", f"output_dir={tmp_path}/basic")
    here(*SEARCH[:-1], rates, *keys[:2], f"output_dir={tmp_path}/fused")
    assert trials(tmp_path / "basic") == trials(tmp_path / "fused")


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        (
            ["search.metric=nosuch", "search.direction=minimize"],
            "search.metric: got 'nosuch', must be one of objective",
        ),
        (["search.budget=0"], "search.budget: got 0"),
        (["search.nosuch=1"], "nosuch"),
        (["hparams.client_lr=interval(2,1)"], "hparams.client_lr: got 'interval(2,1)'"),
        (["regularizer.strength=interval(0.1,1)"], "search.metric: must not be objective, which regularizer.strength"),
        (["dry_run=true"], "dry_run: must be false with hydra/sweeper=search"),
        (["search.pruning=halving", "hparams.rounds=auto"], "hparams.rounds: got 'auto', must be a whole number with"),
        (["search.pruning=halving", "hydra/launcher=basic"], "search.pruning: got halving, must be none unless"),
        (["search.until=3"], "search.until: got 3, must be null"),
        (["experiment=path"], "hydra/sweeper: got 'search', must be grid with experiment=path"),
        (["search.sampler=grid"], "must be a list of values or range(...) with search.sampler=grid"),
        (["hydra.sweeper.nosuch=1"], "nosuch"),
    ],
)
def test_wrong_keys_are_one_line(keys, complaint, here, tmp_path):
    printed = here(*SEARCH, "hparams.rounds=2", *keys, f"output_dir={tmp_path}", code=2)
    assert complaint in printed.err
    assert len(printed.err.strip().splitlines()) <= 2


def test_a_single_run_has_no_search_until(here, tmp_path):
    printed = here(*TINY, "hparams.rounds=4", "search.until=2", f"output_dir={tmp_path}", code=2)
    assert "search.until: got 2, must be null" in printed.err
