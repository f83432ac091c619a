"""Sweeps on a real Dask cluster: its processes are killed at any time, and the records are those of a local sweep."""

import filecmp
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from glob import glob
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("distributed", reason="the extra fco-cli[dask] is not installed")

BIN = Path(sys.executable).parent
LONG = [
    "task=lasso", "task.dimension=64", "task.ones=8", "task.clients=20", "task.samples=40",
    "hparams.eval_every=10", "threads=1",
]  # fmt: skip


class Cluster:
    """A scheduler and workers, which have a folder and, where asked, an environment of their own."""

    def __init__(self, folder, workers=2, environment=None):
        self.folder, self.count, self.environment, self.workers = folder, workers, environment, []
        folder.mkdir(exist_ok=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"

    def __enter__(self):
        self.scheduler = self._start("scheduler", "--host", self.address, "--dashboard-address", "127.0.0.1:0")
        for _ in range(self.count):
            self.add_worker()
        return self

    def add_worker(self):
        words = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory", str(self.folder))
        self.workers.append(self._start("worker", self.address, *words))

    def _start(self, *words):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen([BIN / "dask", *words], cwd=self.folder, env=self.environment, **quiet)

    def kill_worker(self):
        kill(self.workers.pop(0))
        self.add_worker()

    def __exit__(self, *_):
        for process in (*self.workers, self.scheduler):
            kill(process)
        self.workers = []


def kill(process):
    process.kill()
    process.wait()


class Sweep:
    """A sweep and its folders; `start` runs it on a cluster, `straight` here."""

    def __init__(self, folder, *words):
        self.folder, self.words = folder, ["-m", *LONG, *words]

    def start(self, cluster, *more):
        words = [*self.words, "hydra.launcher.backend=dask", f"hydra.launcher.address={cluster.address}"]
        command = [BIN / "fco-run", *words, "output_dir=cluster", *more]  # a relative path: workers have another folder
        return subprocess.Popen(command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def straight(self):
        command = [BIN / "fco-run", *self.words, "output_dir=straight"]
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True)

    def sign_of_life(self, process):
        """Wait until something new comes back from the workers, or the end."""
        seen = self._stamps()
        wait_for(lambda: self._stamps() != seen or process.poll() is not None, 600, "a sign of life")

    def _stamps(self):
        files = glob(f"{self.folder}/cluster/**/*.npz", recursive=True)
        with suppress(FileNotFoundError):  # just replaced: ask again
            return {path: os.stat(path).st_mtime_ns for path in files}
        return self._stamps()

    def assert_same(self, runs):
        mine, others = (records(self.folder / name) for name in ("cluster", "straight"))
        assert len(mine) == runs
        assert mine.keys() == others.keys()
        for run_id, record in mine.items():
            assert {path.name for path in record.iterdir()} == {path.name for path in others[run_id].iterdir()}
            for name in ("metrics.csv", "model.npz"):
                assert filecmp.cmp(record / name, others[run_id] / name, shallow=False), (run_id, name)
            ours, theirs = (json.loads((path / "result.json").read_text()) for path in (record, others[run_id]))
            for timely in ("seconds", "finished_at"):
                del ours[timely], theirs[timely]
            assert ours == theirs
            assert (record / "run.log").read_text().count("client_lr") >= 1


def records(folder):
    return {path.parent.name: path.parent for path in folder.rglob("result.json")}


def wait_for(condition, seconds, what):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen in {seconds} s"
        time.sleep(0.05)


def finish(process, code=0):
    _, errors = process.communicate(timeout=600)
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    return errors


@pytest.mark.ci
@pytest.mark.machine_code
def test_a_sweep_survives_the_death_of_a_worker(tmp_path):
    sweep = Sweep(tmp_path, "hparams.client_lr=0.0005,0.001,1", "seed=0,1", "hparams.rounds=8000")
    with Cluster(tmp_path / "workers") as cluster:
        process = sweep.start(cluster)
        wait_for(lambda: list(tmp_path.glob("cluster/**/run.log")) or process.poll() is not None, 300, "a slice")
        kill(cluster.workers.pop(0))
        finish(process)
    sweep.straight()
    sweep.assert_same(6)


@pytest.mark.slow
@pytest.mark.machine_code
def test_a_sweep_on_dask_that_is_asked_to_stop_has_saved_its_checkpoints(tmp_path):
    sweep = Sweep(tmp_path, "hparams.client_lr=0.0005,0.001", "seed=0,1", "hparams.rounds=40000")
    with Cluster(tmp_path / "workers") as cluster:
        process = sweep.start(cluster)
        wait_for(lambda: len(list(tmp_path.glob("cluster/**/checkpoint.npz"))) == 4, 300, "the checkpoints")
        asked = time.monotonic()
        process.send_signal(signal.SIGTERM)
        errors = finish(process, 128 + signal.SIGTERM)
        assert time.monotonic() - asked < 25
        assert errors.splitlines()[-1] == "fco-run: stopped; the same command continues from what is saved"


KILLS = 10


@pytest.mark.slow
@pytest.mark.machine_code
@pytest.mark.parametrize("what", ["worker", "scheduler", "client"])
def test_nothing_is_lost_by_kill_9_at_any_time(what, tmp_path):
    """Ten times each, at random times between two signs of life; as many sweeps as that takes."""
    sweep = Sweep(tmp_path, "hparams.client_lr=0.0005,0.001,1", "hparams.rounds=30000")
    sweep.straight()
    times, kills, sweeps = random.Random(what), 0, 0
    with Cluster(tmp_path / "workers", 1) as cluster:
        while kills < KILLS:
            process = sweep.start(cluster)
            while process.poll() is None:
                sweep.sign_of_life(process)
                time.sleep(times.uniform(0, 6))
                if process.poll() is not None or kills == KILLS:
                    break
                kills += 1
                if what == "worker":
                    cluster.kill_worker()
                elif what == "client":
                    kill(process)
                    process.communicate()  # closes its pipes
                    process = sweep.start(cluster)
                else:
                    cluster.__exit__()
                    _, errors = process.communicate(timeout=600)
                    assert process.returncode in (0, 1), errors  # 0: it had just ended
                    assert "Traceback" not in errors
                    assert process.returncode == 0 or errors.splitlines()[-1].startswith("fco-run: the scheduler at ")
                    cluster.__enter__()
                    process = sweep.start(cluster)
            finish(process)
            sweep.assert_same(3)
            shutil.rmtree(tmp_path / "cluster")
            sweeps += 1
    print(f"{what}: {kills} kills in {sweeps} sweeps")


@pytest.mark.slow
@pytest.mark.machine_code
def test_a_worker_with_other_software_or_other_data_is_refused(tmp_path):
    """Its numba says another version; its file of the same name, seen from its own folder, holds other rows."""
    site = tmp_path / "site" / "numba-0.0.1.dist-info"
    site.mkdir(parents=True)
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: numba\nVersion: 0.0.1\n")
    sweep = Sweep(tmp_path, "hparams.client_lr=0.0005,0.001", "hparams.rounds=2")
    with Cluster(tmp_path / "workers", 1, os.environ | {"PYTHONPATH": str(site.parent)}) as cluster:
        (line,) = finish(sweep.start(cluster), 2).splitlines()[-1:]
        assert line.startswith("fco-run: hydra.launcher.address: the worker tcp://")
        assert "has numba 0.0.1 instead of" in line
    for folder, seed in ((tmp_path, 0), (tmp_path / "workers", 1)):
        values = np.random.default_rng(seed).standard_normal((30, 3))
        np.savez(folder / "data.npz", x=values, y=values.sum(axis=1), client=np.repeat(["a", "b", "c"], 10))
    custom = ["task=custom", "task.loss=squared", "hparams.clients_per_round=2", "hparams.rounds=2"]
    own = Sweep(tmp_path, "hparams.client_lr=0.01,0.02")
    own.words = ["-m", *custom, "hparams.client_lr=0.01,0.02"]
    with Cluster(tmp_path / "workers", 1) as cluster:
        (line,) = finish(own.start(cluster, "task.path=/proc/self/cwd/data.npz"), 2).splitlines()[-1:]
        assert "has other data for custom than this machine" in line
        finish(own.start(cluster, "task.path=data.npz"))  # ours, by its absolute path
    assert len(records(tmp_path / "cluster")) == 2


@pytest.mark.ci
def test_a_worker_without_the_module_of_a_plug_in_is_named_in_one_line(tmp_path):
    """The module is importable for the command only; the scheduler needs it neither here nor there."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "my_cube.py").write_text(
        "from dataclasses import dataclass\n"
        "from fco_cli.problem.regularizers.penalties import L1\n\n\n"
        "@dataclass(kw_only=True)\nclass Cube(L1):\n    name: str = 'my_cube'\n"
    )
    sweep = Sweep(tmp_path, "plugins=[my_cube]", "regularizer=my_cube", "hparams.client_lr=0.001,0.002")
    with Cluster(tmp_path / "workers", 1) as cluster:
        command = [BIN / "fco-run", *sweep.words, "hydra.launcher.backend=dask"]
        command += [f"hydra.launcher.address={cluster.address}", "hparams.rounds=2", "output_dir=cluster"]
        environment = os.environ | {"PYTHONPATH": str(tmp_path / "mine")}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2, done.stderr
    last = done.stderr.splitlines()[-1]
    assert "my_cube" in last
    assert f"(host {socket.gethostname()})" in last
