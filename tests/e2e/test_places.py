"""The command in places that are not made for it: closed pipes, no home, signals, a folder that goes away."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = str(Path(sys.executable).parent / "fco-run")
TINY = ["task.dimension=20", "task.ones=5", "task.clients=6", "task.samples=15", "hparams.clients_per_round=3"]
LONG = [*TINY, "hparams.rounds=1000000", "hparams.eval_every=1000000", "output_dir=out"]


@pytest.fixture
def started(tmp_path):
    """A long run that has begun its rounds; it is ended with the test."""
    processes = []

    def start() -> subprocess.Popen:
        process = subprocess.Popen([COMMAND, *LONG], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        wait_for(lambda: list(tmp_path.rglob("checkpoint.npz")), process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stderr.close()


def wait_for(what, process, seconds=120):
    end = time.monotonic() + seconds
    while not what():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)


def ours(text):
    return [line for line in text.splitlines() if line.startswith("fco-run: ")]


@pytest.mark.ci
@pytest.mark.parametrize("how", [signal.SIGHUP, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_saves_a_checkpoint(started, tmp_path, how):
    """SIGHUP is a terminal that was closed. Before it the run is stopped and continued, as by Ctrl-Z and fg."""
    process = started()
    process.send_signal(signal.SIGSTOP)
    process.send_signal(signal.SIGCONT)
    (checkpoint,) = tmp_path.rglob("checkpoint.npz")
    checkpoint.unlink()  # so that the one found below is the signal's
    process.send_signal(how)
    assert process.wait(60) == 128 + how
    assert ours(process.stderr.read()) == ["fco-run: stopped; the same command continues from what is saved"]
    assert sorted(path.name for path in checkpoint.parent.iterdir()) == [
        ".lock", "checkpoint.npz", "config.yaml", "run.log",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_folder_that_goes_away_is_one_line(started, tmp_path):
    process = started()
    shutil.rmtree(tmp_path / "out")
    assert process.wait(60) == 2
    (line,) = ours(process.stderr.read())
    assert "cannot be written: No such file or directory" in line


def test_whoever_stops_reading_does_not_harm_the_record(tmp_path):
    """As `fco-run ... | head -1` does; and there is no home, and the terminal knows ASCII only."""
    environment = {key: value for key, value in os.environ.items() if key not in ("HOME", "XDG_CACHE_HOME")}
    environment |= {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    command = [COMMAND, *TINY, "hparams.rounds=2", "output_dir=out"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(120) in (0, 141), errors  # 141: closed pipe
    assert "Traceback" not in errors
    assert "Exception ignored" not in errors
    (record,) = [path.parent for path in tmp_path.rglob("result.json")]
    assert not list(record.glob("checkpoint*"))


@pytest.mark.slow
@pytest.mark.parametrize("moment", [0.1, 0.2, 0.4, 0.8, 1.2])
def test_ctrl_c_at_any_moment_of_the_start_is_no_traceback(tmp_path, moment):
    """But for the first instants, in which Python itself is not ready."""
    process = subprocess.Popen([COMMAND, *LONG], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    time.sleep(moment)
    process.send_signal(signal.SIGINT)
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) in (130, -2), errors
    assert "Traceback" not in errors or "fco_cli/" not in errors, errors
