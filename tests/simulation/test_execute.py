"""Tests of the execution of runs: checkpoints that match or do not match, times, read-only disks."""

from __future__ import annotations

import csv
import shutil
import subprocess
import time

import numpy as np
import pytest
from hydra import compose, initialize_config_module
from numba.core.compiler_lock import global_compiler_lock

from fco_cli.config import Run, register
from fco_cli.simulation import memory
from fco_cli.simulation.engine import Job, Setup, Simulation
from fco_cli.simulation.execute import code_of, execute
from fco_cli.simulation.problems import problem_of, varying_of
from fco_cli.simulation.process import Stop
from fco_cli.simulation.record import Record

register()
SMALL = [
    "task=lasso", "task.dimension=6", "task.ones=2", "task.clients=4", "task.samples=8", "algo=zhj",
    "hparams.clients_per_round=2", "hparams.batch_size=4", "hparams.rounds=6",
]  # fmt: skip


class Silent:
    """Observer that does nothing."""

    on_start = on_round = on_outcome = lambda *_: None


def run_in(folder):
    with initialize_config_module("fco_cli.conf", version_base="1.3"):
        return Run.of(compose("config", overrides=[*SMALL, f"output_dir={folder}"]))


def metrics(run):
    return list(csv.reader((run.folder / "metrics.csv").read_text().splitlines()))


def interrupted(run, rounds=3):
    """Return the record of a run and its job after some rounds."""
    record = Record(run.folder)
    record.create()
    setup = Setup(run.task, problem_of(run), run.hparams, run.seed, run.algo)
    simulation = Simulation(setup, [job := Job()], varying_of([run]), [run.folder])
    for _ in range(rounds):
        simulation.advance()
    simulation.snapshot()
    return record, job


@pytest.mark.parametrize("large", [False, True])
def test_memory_of_another_shape_starts_a_run_over(tmp_path, monkeypatch, caplog, large):
    """A checkpoint with two remembered arrays per client causes a warning and the results of a fresh run."""
    if large:
        monkeypatch.setattr(memory, "LARGE", 1)
    whole, run = run_in(tmp_path / "whole"), run_in(tmp_path / "half")
    execute([whole], Silent(), Stop())
    record, job = interrupted(run)
    if large:
        job.memory["row"] = job.memory["row"] * [2, 1, 1]
    else:
        job.memory["rows"] = np.repeat(job.memory["rows"], 2, axis=1)
    record.save_checkpoint(job, code_of(run))
    execute([run], Silent(), Stop())
    assert "client memory has another shape or precision; the stack starts over" in caplog.text
    assert metrics(run) == metrics(whole)


def test_a_run_continues_from_its_checkpoint(tmp_path, caplog):
    whole, run = run_in(tmp_path / "whole"), run_in(tmp_path / "half")
    execute([whole], Silent(), Stop())
    record, job = interrupted(run)
    record.save_checkpoint(job, code_of(run))
    execute([run], Silent(), Stop())
    assert "starts over" not in caplog.text
    assert "continued from round 3" in (run.folder / "run.log").read_text()
    assert metrics(run) == metrics(whole)


def test_a_checkpoint_of_other_code_starts_a_run_over(tmp_path, caplog):
    whole, run = run_in(tmp_path / "whole"), run_in(tmp_path / "half")
    execute([whole], Silent(), Stop())
    record, job = interrupted(run)
    job.state = {name: values + 1 for name, values in job.state.items()}  # other code may compute other values
    record.save_checkpoint(job, "other code")
    execute([run], Silent(), Stop())
    assert "checkpoint.npz is not used (written by other code): moved to checkpoint.npz.corrupt-" in caplog.text
    assert metrics(run) == metrics(whole)


def test_the_time_of_a_run_excludes_compilation(tmp_path, monkeypatch):
    advance = Simulation.advance

    def compile_first(simulation, seconds):
        with global_compiler_lock:  # as Numba holds it while it compiles or loads a kernel
            time.sleep(0.1)
        return advance(simulation, seconds)

    monkeypatch.setattr(Simulation, "advance", compile_first)
    (outcome,) = execute([run_in(tmp_path)], Silent(), Stop())
    assert outcome.result["seconds"] < 0.4  # of six rounds


@pytest.fixture
def disk(tmp_path):
    """Return a file system that can be made read-only; skip without the right to mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no right to mount a file system")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_finished_run_on_a_read_only_disk_is_done(disk):
    run = run_in(disk)
    execute([run], Silent(), Stop())
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    (outcome,) = execute([run], Silent(), Stop())
    assert outcome.was_done


def test_a_round_that_does_not_fit_into_memory_is_refused_under_its_key(monkeypatch):
    from fco_cli.errors import UserError
    from fco_cli.simulation import problems

    register()
    with initialize_config_module("fco_cli.conf", version_base="1.3"):
        run = Run.of(compose("config", overrides=["task.dimension=12", "task.ones=4", "task.clients=12"]))
    monkeypatch.setattr(problems, "bytes_per_job", lambda run, problem: 2**60)
    with pytest.raises(
        UserError, match=r"hparams.clients_per_round=\d+: a round of \d+ clients and 13 weights would take"
    ):
        problems.checked_problem_of(run)
