"""The installed command: what it leaves on disk, how it refuses, how it stops and continues."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

from fco_cli.algorithms import all_algorithms
from fco_cli.commands.run import main

COMMAND = str(Path(sys.executable).parent / "fco-run")
TINY = [
    "task.dimension=20", "task.ones=5", "task.clients=6", "task.samples=15",
    "hparams.rounds=3", "hparams.clients_per_round=3",
]  # fmt: skip
SIMILAR = ["task.samples=200", "task.heterogeneity=0"]  # clients whose own estimates are close to those of all
TINY_NUCLEAR = ["task=nuclear", "task.dimension=4", "task.rank=2", *TINY[2:]]


def fco_run(*words, cwd=None, code=0, env=None):
    done = subprocess.run([COMMAND, *map(str, words)], capture_output=True, text=True, cwd=cwd, env=env, timeout=300)
    assert done.returncode == code, done.stderr
    return done


def the_record(folder):
    """The one run folder below an output folder."""
    (record,) = [path.parent for path in Path(folder).rglob("config.yaml")]
    return record


def assert_one_clear_line(stderr, key):
    """Exactly one line is ours, it names the key, and there is no traceback."""
    ours = [line for line in stderr.splitlines() if line.startswith("fco-run: ")]
    assert len(ours) == 1, stderr
    assert ours[0].startswith(f"fco-run: {key}"), stderr
    assert "Traceback" not in stderr


def test_a_path_without_a_task_names_the_task(here):
    said = here("task.path=heart.csv", code=2).err
    assert_one_clear_line(said, "task.path: no such key; allowed: ")
    assert said.endswith("; for your own table, add task=custom\n")


def test_scaffold_refuses_a_regularizer(tmp_path, here):
    said = here(*TINY, "algo=scaffold", f"output_dir={tmp_path}", code=2).err
    assert_one_clear_line(said, "regularizer: got 'l1', must be none: scaffold has no prox")


@pytest.mark.parametrize("algo", sorted(all_algorithms()))
def test_every_algorithm_leaves_a_record(tmp_path, algo, here):
    everybody = ["hparams.clients_per_round=6"] if getattr(all_algorithms()[algo], "full_participation", False) else []
    own_settings = {"scaffold": ["regularizer=none"], "csl": SIMILAR, "dlsa": SIMILAR}.get(algo, [])
    said = here(*TINY, f"algo={algo}", *everybody, *own_settings, f"output_dir={tmp_path}").out
    record = the_record(tmp_path)
    assert f"record: {record}\nnext: fco-report {tmp_path}/lasso\n" in said
    kind = all_algorithms()[algo]
    own = {"personal.csv"} if kind.personal else set()
    own |= {"personal.npz"} if kind.personal in [array.name for array in kind.remembered] else set()
    usual = {".lock", "config.yaml", "metrics.csv", "model.npz", "result.json", "run.log"}
    result = json.loads((record / "result.json").read_text())
    own |= set() if kind.one_shot else {f"state-{result['identity']['trajectory']}.npz"}
    assert {path.name for path in record.iterdir()} == usual | own
    assert record.parent == tmp_path / "lasso" / algo
    assert (result["status"], result["algo"], result["run_id"]) == ("finished", algo, record.name)
    rows = list(csv.DictReader((record / "metrics.csv").read_text().splitlines()))
    rounds = 1 if kind.one_shot else 3
    seen = [0, 3] if algo == "local" else list(range(rounds + 1))  # every client's model is evaluated rarely
    assert [int(row["round"]) for row in rows] == seen
    assert float(rows[-1]["objective"]) == result["final"]["objective"]
    assert {"objective", "kkt_residual", "vectors_up", "bytes_down", "prox_calls", "f1", "density"} <= rows[0].keys()
    config = yaml.safe_load((record / "config.yaml").read_text())
    assert config["task"]["dimension"] == 20
    assert config["hparams"]["rounds"] == 3
    with np.load(record / "model.npz", allow_pickle=False) as model:
        assert model["weights"].shape == ((6, 20) if algo == "local" else (20,))


def test_again_from_another_folder_and_by_force(tmp_path, here):
    words = [*TINY, "output_dir=out"]
    first = here(*words, cwd=tmp_path)
    record = the_record(tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in record.iterdir()}

    again = here(*words, cwd=tmp_path)
    assert "already done" in again.err
    assert again.out == first.out  # the same table
    assert {path: path.stat().st_mtime_ns for path in record.iterdir()} == before

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    here(*words, cwd=elsewhere)
    assert the_record(elsewhere / "out").name == record.name  # the id knows no paths

    metrics = (record / "metrics.csv").read_bytes()
    forced = here(*words, "force=true", cwd=tmp_path)
    assert "already done" not in forced.err
    assert the_record(tmp_path / "out") == record  # in place of the old one, nothing beside it
    assert [path.name for path in record.parent.iterdir()] == [record.name]
    assert (record / "result.json").stat().st_mtime_ns > before[record / "result.json"]
    assert (record / "metrics.csv").read_bytes() == metrics


@pytest.mark.slow
@pytest.mark.machine_code
def test_the_number_of_threads_changes_no_bit(tmp_path):
    """Nor does it change the run's id."""
    with_threads = {key: value for key, value in os.environ.items() if key != "NUMBA_NUM_THREADS"}
    for threads in (1, 2):
        fco_run(*TINY, f"threads={threads}", f"output_dir={tmp_path / str(threads)}", env=with_threads)
    one, two = the_record(tmp_path / "1"), the_record(tmp_path / "2")
    assert one.name == two.name
    assert (one / "metrics.csv").read_bytes() == (two / "metrics.csv").read_bytes()


@pytest.mark.slow
@pytest.mark.machine_code
def test_nuclear(tmp_path):
    fco_run(*TINY_NUCLEAR, f"output_dir={tmp_path}")
    with np.load(the_record(tmp_path) / "model.npz") as model:
        assert model["weights"].shape == (4, 4)


def test_divergence_is_a_result(tmp_path, here):
    done = here(*TINY, "hparams.client_lr=100", "hparams.rounds=100", f"output_dir={tmp_path}")
    result = json.loads((the_record(tmp_path) / "result.json").read_text())
    assert result["status"] == "diverged"
    assert 1 <= result["diverged_round"] <= 100
    (line,) = [line for line in done.err.splitlines() if line.startswith("diverged in round")]
    assert "2/L = " in line
    assert "Warning" not in done.err


def test_help_shows_the_groups():
    text = fco_run("--help").stdout
    for group in ("task", "algo", "regularizer", "hparams"):
        assert f"{group}: " in text


# Bad input. Through the real command where the way there differs, through `main` where it is the same.


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("hparams.client_lr: got -1.0, must be a number > 0", ["hparams.client_lr=-1"]),
        ("algo: got 'nosuch', must be one of c_fedda, centralized, ", ["algo=nosuch"]),
    ],
)
def test_bad_input_through_the_command(tmp_path, key, words):
    done = fco_run(*TINY, *words, f"output_dir={tmp_path / 'out'}", code=2)
    assert_one_clear_line(done.stderr, key)
    assert done.stdout == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("hparams.client_lr: got 0.0,", "hparams.client_lr=0"),
        ("hparams.client_lr: got nan,", "hparams.client_lr=nan"),
        ("hparams.client_lr: got 'fast', must be a number", "hparams.client_lr=fast"),
        ("hparams.client_lr: got '',", "hparams.client_lr="),
        ("hparams.client_lr: got null,", "hparams.client_lr=null"),
        ("hparams.client_lr: got several values, 0.1,0.2: -m", "hparams.client_lr=0.1,0.2"),
        ("hparams.server_lr: got -0.1,", "hparams.server_lr=-0.1"),
        ("hparams.server_lr: got 'x', must be a number", "hparams.server_lr=x"),
        ("hparams.rounds: got 0, must be a whole number >= 1", "hparams.rounds=0"),
        ("hparams.rounds: got '1.5', must be a whole number", "hparams.rounds=1.5"),
        ("hparams.clients_per_round: got 7, must be at most 6, the task's clients", "hparams.clients_per_round=7"),
        ("hparams.batch_size: got 0,", "hparams.batch_size=0"),
        ("hparams.dtype: got 'float16',", "hparams.dtype=float16"),
        ("hparams.weighting: got 'x',", "hparams.weighting=x"),
        ("hparams.nosuch: no such key; allowed: client_lr, ", "hparams.nosuch=1"),
        ("hparams.nosuch: no such key;", "+hparams.nosuch=1"),
        ("nosuch: no such key; allowed: task, algo,", "nosuch=1"),
        ("nosuch: no such key; allowed: task, algo,", "+nosuch=1"),
        ("task.nosuch: no such key;", "task.nosuch=1"),
        ("algo.tolerance: no such key; allowed: name", "algo.tolerance=1"),
        ("algo.tolerance: got 0.0,", "algo=optimum algo.tolerance=0"),
        ("regularizer.radius: no such key; allowed: name, strength", "regularizer.radius=1"),
        ("no/such: no such key;", "no/such=1"),
        ("path: got 5, must be null: experiment=path brings it", "path=5"),
        ("theory: got '', must be null; experiment=theory sets it", "theory="),
        ("task: got 'nosuch', must be one of", "task=nosuch"),
        ("task.name: got 'a/b', must be a folder name of letters", "task.name=a/b"),
        ("regularizer: got 'nosuch', must be one of", "regularizer=nosuch"),
        ("hparams: got 'nosuch', must be one of", "hparams=nosuch"),
        ("experiment: got 'nosuch', must be one of", "experiment=nosuch"),
        ("hparams/grid: got 'nosuch', must be one of", "hparams/grid=nosuch"),
        ("algo.name: got 'nosuch', must be feddualavg, as set by", "algo.name=nosuch"),
        ("regularizer.strength: got -0.5, must be a number >= 0", "regularizer.strength=-0.5"),
        ("record_path: got 2, must be true or false", "record_path=2"),
        ("task: got null, must be one of ", "task=null"),
        ("algo: got 2 options, must be one", "algo=[fedmid,fedavg]"),
        ("regularizer.strength: got -0.5, must be a number >= 0", "task.strength=-0.5"),
        ("regularizer.radius: got 0.0, must be a number > 0", "regularizer=l1_ball regularizer.radius=0"),
        ("regularizer.radius: got -1.0, must be a number > 0", "regularizer=l2_ball regularizer.radius=-1"),
        ("regularizer: got 'nuclear',", "regularizer=nuclear"),
        ("algo: got 'fedavg_subgrad',", "algo=fedavg_subgrad regularizer=l1_ball"),
        ("task.ones: got 21,", "task.ones=21"),
        ("task.dimension: got 0,", "task.dimension=0"),
        ("seed: got -1,", "seed=-1"),
        ("seed: got 'x', must be a whole number", "seed=x"),
        ("threads: got 0,", "threads=0"),
        ("force: got 'maybe', must be true or false", "force=maybe"),
        ("output_dir: got null,", "output_dir=null"),
        ("output_dir: ", "output_dir=FILE/below"),
        ("hparams.rounds: ", "hparams.rounds=${nosuch}"),
        ("algo: cannot be removed", "~algo"),
        ("task.dimension: cannot be read as key=value", "task.dimension"),
        ("hparams.client_lr=[1: cannot be read as key=value", "hparams.client_lr=[1"),
        ("seed=1/ü: cannot be read as key=value: quote its value", "seed=1/ü"),
        ("algo: optimum did not reach its certificate", "algo=optimum algo.max_iterations=2"),
    ],
)
def test_bad_input(tmp_path, monkeypatch, capfd, key, words):
    (tmp_path / "file").write_text("not a folder")
    words = words.replace("FILE", str(tmp_path / "file")).split()
    monkeypatch.setattr(sys, "argv", ["fco-run", *TINY, f"output_dir={tmp_path}", *words])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert_one_clear_line(capfd.readouterr().err, key)
    assert not list(tmp_path.rglob("result.json"))


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("client_lr=1", "did you mean hparams.client_lr?"),
        ("strength=1", "did you mean task.strength or regularizer.strength?"),
        ("hparam.client_lr=1", "did you mean hparams?"),
        ("tsk=lasso", "did you mean task?"),
        ("rundos=3", "did you mean hparams.rounds?"),
        ("+hparams.client_rl=1", "did you mean hparams.client_lr?"),
        ("task.dimensoin=3", "did you mean task.dimension?"),
        ("regularizer.strenght=1", "did you mean regularizer.strength?"),
        ("algo=fedualavg", "did you mean feddualavg?"),
        ("task=laso", "did you mean lasso?"),
        ("-m algo=fedmid,fedualavg", "did you mean feddualavg?"),
        ("-m client_lr=1,2", "did you mean hparams.client_lr?"),
        ("hydra/launcher=jobib", "did you mean joblib?"),
        ("-m hydra.launcher.njobs=2", "did you mean hydra.launcher.n_jobs?"),
        ("task lasso", "cannot be read as key=value: it has no =; did you mean task=lasso?"),
        ("lasso", "did you mean task=lasso?"),
        ("task=custom", "task.path: has no value and needs one: task.path=..."),
        (
            "experiment=path task.path=t.csv seeds=3",
            "which is several runs; use fco-run -m ..., or seed=... for one run",
        ),
        (
            "experiment=lasso_i",
            "lasso_i is a sweep; fco-run -m experiment=lasso_i runs "
            "7 hparams.client_lr x 7 hparams.server_lr x 5 algo (dry_run=true estimates the time)",
        ),
    ],
)
def test_bad_input_comes_with_what_was_meant(tmp_path, monkeypatch, capfd, words, hint):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fco-run", f"output_dir={tmp_path}", *words.split()])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("fco-run: ")
    assert line.endswith(hint)


def test_a_far_name_brings_no_guess(monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", ["fco-run", "zzzzzz=1"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(SystemExit):
        main()
    assert "did you mean" not in capfd.readouterr().err


def test_a_sweep_says_a_repeated_warning_once(tmp_path, monkeypatch, capfd):
    """Three damaged checkpoints; -m may stand anywhere."""
    words = [*TINY, "hparams.client_lr=0.01,0.02,0.03", "-m", "hydra.launcher.n_jobs=1", f"output_dir={tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["fco-run", *words])
    main()
    first = capfd.readouterr()
    assert "warnings" not in first.err
    for result in tmp_path.rglob("result.json"):
        result.unlink()
        result.with_name("checkpoint.npz").write_bytes(b"half a fi")
    monkeypatch.setattr(sys, "argv", ["fco-run", *words])
    main()
    again = capfd.readouterr()
    (line,) = [line for line in again.err.splitlines() if "checkpoint.npz" in line]
    assert line.endswith("the run starts over (3 such warnings)")
    assert again.out == first.out  # the same table of the best


@pytest.mark.parametrize("name", ["result.json", "checkpoint.npz"])
def test_a_corrupt_file_is_moved_aside_and_the_run_starts_over(tmp_path, name, here):
    here(*TINY, f"output_dir={tmp_path}")
    record = the_record(tmp_path)
    metrics = (record / "metrics.csv").read_bytes()
    (record / "result.json").unlink()
    (record / "metrics.csv").unlink()
    (record / name).write_bytes(b"half a fi")
    done = here(*TINY, f"output_dir={tmp_path}")
    assert f"{name} is not used" in done.err
    assert "Traceback" not in done.err
    assert (record / "metrics.csv").read_bytes() == metrics
    (aside,) = record.glob(f"{name}.corrupt-*")
    assert aside.read_bytes() == b"half a fi"


# Stopping and continuing.

LONG = [*TINY[:4], "hparams.clients_per_round=3", "hparams.rounds=1500", "hparams.eval_every=10", "threads=1"]


def interrupt(words, number, earlier_starts):
    """Start the command and send it a signal once its run is under way; its exit code and what it said."""
    process = subprocess.Popen([COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    folder = Path(words[-1].removeprefix("output_dir="))
    for _ in range(2400):
        logs = [path.read_text() for path in folder.rglob("run.log")]
        if sum(text.count("\n") for text in logs) > earlier_starts:  # a line per start
            break
        time.sleep(0.05)
    time.sleep(0.3)  # a few rounds
    process.send_signal(number)
    stderr = process.communicate(timeout=120)[1]
    return process.returncode, stderr


@pytest.mark.ci
def test_stopped_twice_and_continued_is_as_never_stopped(tmp_path):
    whole, parts = [*LONG, f"output_dir={tmp_path / 'whole'}"], [*LONG, f"output_dir={tmp_path / 'parts'}"]
    rounds = []
    for times, (number, code) in enumerate([(signal.SIGINT, 130), (signal.SIGTERM, 143)]):
        returned, stderr = interrupt(parts, number, earlier_starts=times)
        assert returned == code, stderr
        assert_one_clear_line(stderr, "stopped; the same command continues from what is saved")
        record = the_record(tmp_path / "parts")
        assert not (record / "result.json").exists()
        with np.load(record / "checkpoint.npz", allow_pickle=False) as checkpoint:
            rounds.append(int(checkpoint["round"]))
    assert 0 < rounds[0] < rounds[1] < 1500
    fco_run(*parts)
    fco_run(*whole)
    one, other = the_record(tmp_path / "whole"), the_record(tmp_path / "parts")
    assert (one / "metrics.csv").read_bytes() == (other / "metrics.csv").read_bytes()
    assert not (other / "checkpoint.npz").exists()
    for name in ("weights", "bias"):
        with np.load(one / "model.npz") as a, np.load(other / "model.npz") as b:
            np.testing.assert_array_equal(a[name], b[name])
