"""Sweeps by the installed command: resume, kill -9, two at once, other launchers, full disks."""

import filecmp
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fco_cli.reporting.records.select import choose
from fco_cli.reporting.records.studies import collect

BIN = Path(sys.executable).parent
CONF = Path(__file__).parents[2] / "conf"
TINY = [
    "task=lasso", "task.dimension=12", "task.ones=4", "task.clients=6", "task.samples=15",
    "hparams.clients_per_round=3", "hparams.batch_size=3",
]  # fmt: skip
GRID = ["hparams.client_lr=0.001,0.01,1", "hparams.server_lr=0.3,1"]
# Long enough to be interrupted: a few seconds of rounds, the heavy part being the many evaluations.
LONG = ["task=lasso", "task.dimension=64", "task.ones=8", "task.clients=20", "task.samples=40", "hparams.rounds=12000"]


def fco(*arguments, cwd, check=True, **options):
    done = subprocess.run([BIN / "fco-run", *arguments], cwd=cwd, capture_output=True, text=True, **options)
    if check:
        assert done.returncode == 0, done.stderr
    return done


def records(folder):
    return {path.parent.name: path.parent for path in folder.rglob("metrics.csv")}


def assert_same_records(folder, other):
    mine, others = records(folder), records(other)
    assert mine.keys() == others.keys()
    assert mine
    for run_id, record in mine.items():
        for name in ("metrics.csv", "model.npz"):
            assert filecmp.cmp(record / name, others[run_id] / name, shallow=False), (run_id, name)
        ours, theirs = (json.loads((path / "result.json").read_text()) for path in (record, others[run_id]))
        timely = {"seconds", "finished_at"}
        assert {k: v for k, v in ours.items() if k not in timely} == {
            k: v for k, v in theirs.items() if k not in timely
        }
        assert not (record / "checkpoint.npz").exists()


@pytest.mark.slow
@pytest.mark.machine_code
def test_launchers_and_workers_agree_file_by_file(tmp_path):
    sweep = ["-m", *TINY, *GRID, "algo=feddualavg,fedmid", "hparams.rounds=60"]
    fco(*sweep, "hydra.launcher.n_jobs=2", f"output_dir={tmp_path}/two", cwd=tmp_path)
    fco(*sweep, "hydra.launcher.n_jobs=1", f"output_dir={tmp_path}/one", cwd=tmp_path)
    assert len(records(tmp_path / "two")) == 12
    assert_same_records(tmp_path / "one", tmp_path / "two")
    few = ["-m", *TINY, "hparams.client_lr=0.01,1", "algo=feddualavg", "hparams.rounds=60"]
    for launcher in ("basic", "joblib", "submitit_local"):
        done = fco(*few, f"hydra/launcher={launcher}", f"output_dir={tmp_path}/{launcher}", cwd=tmp_path)
        assert done.returncode == 0
        assert "2 jobs: " in done.stdout
        assert done.stdout.splitlines()[-1] == f"next: fco-report {tmp_path}/{launcher}"
        for run_id, record in records(tmp_path / launcher).items():
            assert filecmp.cmp(record / "metrics.csv", records(tmp_path / "two")[run_id] / "metrics.csv", shallow=False)
        assert len(records(tmp_path / launcher)) == 2


def test_another_launcher_ends_with_the_number_of_its_jobs(tmp_path, here):
    few = ["-m", *TINY, "hparams.client_lr=0.01,0.02", "hparams.rounds=2", "hydra/launcher=basic"]
    *_, jobs, following = here(*few, cwd=tmp_path).out.splitlines()
    assert jobs.startswith("2 jobs: 2 finished, 0 diverged, smallest value ")
    assert following == "next: fco-report outputs"


def test_a_second_call_does_only_what_is_missing(tmp_path, here):
    few = ["-m", *TINY, "hydra.launcher.n_jobs=1", "hparams.rounds=5"]
    sweep = [*few, "hparams.client_lr=0.01,0.02"]
    here(*sweep, cwd=tmp_path)
    before = {run_id: (path / "result.json").stat().st_mtime_ns for run_id, path in records(tmp_path).items()}
    more = here(*few, "hparams.client_lr=0.01,0.02,0.03")
    after = {run_id: (path / "result.json").stat().st_mtime_ns for run_id, path in records(tmp_path).items()}
    assert len(after) == 3
    assert {run_id: after[run_id] for run_id in before} == before
    assert "3 finished" in more.err
    edited = here(*sweep, "hparams.rounds=6")  # another number of rounds is another run
    assert len(records(tmp_path)) == 5
    assert {run_id: (records(tmp_path)[run_id] / "result.json").stat().st_mtime_ns for run_id in before} == before
    assert "best by training loss + ψ, at the last round" in edited.out
    assert edited.out.splitlines()[-1] == "next: fco-report outputs"


def test_every_job_has_its_record_and_hydra_output(tmp_path, here):
    here("-m", *TINY, *GRID, "hydra.launcher.n_jobs=1", "hparams.rounds=3", "algo=feddualavg,optimum", cwd=tmp_path)
    folders = records(tmp_path)
    assert len(folders) == 7  # six pairs, and an optimum that knows no learning rate
    for folder in folders.values():
        assert (folder / ".hydra" / "overrides.yaml").read_text().count("\n") >= 4
        assert (folder / "config.yaml").exists()


@pytest.mark.parametrize("name", ["x[/y]", "[red]x", "[/]"])
def test_a_folder_in_brackets_is_a_folder(tmp_path, here, name):
    """Text in brackets is not interpreted as markup of the final table."""
    done = here("-m", *TINY, "hparams.rounds=1", "hparams.client_lr=0.01", f"output_dir='{name}'", cwd=tmp_path)
    assert f"next: fco-report {name}\n" in done.out
    assert f"{name}/lasso/feddualavg/" in done.out


def test_the_table_at_the_end_chooses_as_the_report_does(tmp_path, here):
    """Over the experiment's window of rounds: here the last 10 of 30."""
    rates = ["hparams.client_lr=0.0005,0.002,0.01", "hparams.server_lr=0.1,1"]
    job = ["experiment=lasso_i", "profile=quick", "algo=fedmid", *TINY, *rates, "hparams.rounds=30"]
    job = [*job, "experiment.select.last=10"]
    said = here("-m", *job, "hydra.launcher.n_jobs=1", f"output_dir={tmp_path}/o", cwd=tmp_path).out
    (study,) = collect([tmp_path / "o"]).studies
    best = choose(study)["fedmid"].best
    assert study.rule.last == 10
    assert str(best.runs[0].folder) in said


def start(*arguments, cwd):
    return subprocess.Popen(
        [BIN / "fco-run", *arguments], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def wait_for(condition, seconds=120, what="it"):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(f"{what} did not happen in {seconds} s")


def alive(group):
    """Return True if a process of the group is alive."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def checkpoints(folder):
    return list(folder.rglob("checkpoint.npz"))


@pytest.mark.slow
@pytest.mark.machine_code
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_continues_to_the_same_files(how, tmp_path):
    sweep = ["-m", *LONG, "hparams.client_lr=0.0005,0.001,1", "algo=feddualavg,fedmid"]
    process = start(*sweep, f"output_dir={tmp_path}/interrupted", cwd=tmp_path)
    if how == signal.SIGKILL:
        wait_for(lambda: checkpoints(tmp_path / "interrupted"), what="a checkpoint")
    else:
        wait_for(lambda: list((tmp_path / "interrupted").rglob("run.log")), what="a start")
        time.sleep(3)
    process.send_signal(how)
    process.communicate(timeout=120)
    wait_for(lambda: not alive(process.pid), 20, "the end of all its processes")
    assert process.returncode == (-9 if how == signal.SIGKILL else 128 + how)
    unfinished = 6 - len(list((tmp_path / "interrupted").rglob("result.json")))
    assert unfinished > 0
    assert checkpoints(tmp_path / "interrupted")
    fco(*sweep, f"output_dir={tmp_path}/interrupted", cwd=tmp_path)
    fco(*sweep, f"output_dir={tmp_path}/straight", cwd=tmp_path)
    assert_same_records(tmp_path / "interrupted", tmp_path / "straight")


@pytest.mark.ci
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing loads early")
@pytest.mark.parametrize("how", ["refused", "killed"])
def test_a_sweep_that_ends_while_its_workers_load_leaves_none_of_them(how, tmp_path):
    """The last rate is wrong: by then workers draw data for the jobs before it."""
    process = start("-m", *TINY, "algo=feddualavg,fedmid", "hparams.client_lr=0.01,-1", cwd=tmp_path)
    if how == "killed":
        wait_for(lambda: Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(), what="a process of it")
        process.kill()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == {"refused": 2, "killed": -9}[how]
    assert len(errors.splitlines()) == (how == "refused")
    wait_for(lambda: not alive(process.pid), 20, "the end of all its processes")


@pytest.mark.slow
@pytest.mark.machine_code
@pytest.mark.skipif(os.name != "posix", reason="the limit is set by a Unix shell")
def test_a_stack_needs_no_more_files_than_a_process_may_open(tmp_path):
    """Every run under way holds a lock file open."""
    rates = ",".join(str(1e-6 * i) for i in range(1, 301))
    words = ["-m", *TINY, f"hparams.client_lr={rates}", "hparams.rounds=1", "hydra.launcher.n_jobs=1"]
    limited = ["bash", "-c", 'ulimit -n 256; exec "$0" "$@"', BIN / "fco-run", *words]
    done = subprocess.run(limited, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.rglob("result.json"))) == 300


@pytest.mark.slow
@pytest.mark.machine_code
def test_two_sweeps_at_once_share_the_work(tmp_path):
    sweep = ["-m", *LONG, "hparams.client_lr=0.0005,0.001", "algo=feddualavg"]
    first, second = start(*sweep, cwd=tmp_path), start(*sweep, cwd=tmp_path)
    for process in (first, second):
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
    assert len(records(tmp_path)) == 2
    fco(*sweep, f"output_dir={tmp_path}/straight", cwd=tmp_path)
    shutil.move(tmp_path / "straight", tmp_path.with_name(f"{tmp_path.name}-straight"))
    assert_same_records(tmp_path, tmp_path.with_name(f"{tmp_path.name}-straight"))


def test_a_failed_run_is_listed_and_the_others_go_on(tmp_path, here):
    """An optimum that cannot reach its certificate is the failure that a user can provoke."""
    done = here(
        "-m", *TINY, "hydra.launcher.n_jobs=1", "algo=optimum", "algo.max_iterations=1,1000",
        "hparams.rounds=3", cwd=tmp_path, code=1,
    )  # fmt: skip
    assert "1 of 2 runs failed" in done.err
    assert "did not reach its certificate" in done.err.splitlines()[-1]
    assert "Traceback" not in done.err
    assert len(records(tmp_path)) == 1
    assert any("Traceback" in path.read_text() for path in tmp_path.rglob("run.log"))


def test_data_that_are_not_there_are_said_once(tmp_path, here):
    done = here("-m", *GRID, "task=custom", "task.path=no.npz", "task.loss=squared", cwd=tmp_path, code=2)
    assert done.err.splitlines() == ["fco-run: no.npz: no such file or folder"]
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "notes.txt").write_text("no data")
    done = here("-m", *GRID, "task=custom", f"task.path={folder}", "task.loss=squared", cwd=tmp_path, code=2)
    assert done.err.count("holds no known format") == 1
    assert "Traceback" not in done.err


def test_a_dry_run_tells_and_writes_nothing(tmp_path, here):
    done = here("-m", *TINY, *GRID, "algo=feddualavg,optimum", "hparams.rounds=5", "dry_run=true", cwd=tmp_path)
    assert "7 runs to do (0 done already) in 2 stacks" in done.out
    assert "MB" in done.out
    assert "without optimum, whose one round is the whole work" in done.out
    assert not list(tmp_path.iterdir())


def test_wrong_launcher_options_are_one_line(tmp_path, here):
    for wrong in ("hydra.launcher.n_jobs=0", "hydra.launcher.backend=slurm", "hydra.launcher.backend=dask"):
        done = here("-m", *TINY, wrong, cwd=tmp_path, code=2)
        assert done.err.startswith("fco-run: hydra.launcher.")
        assert done.err.count("\n") == 1


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 150 kB, where we may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=150k", "tmpfs", folder]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no right to mount a file system")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.slow
@pytest.mark.machine_code
@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_is_one_line_and_loses_nothing(small_disk, tmp_path, workers):
    sweep = ["-m", *TINY, "algo=feddualavg,fedmid", "hparams.client_lr=0.001,0.002,0.003", "hparams.rounds=200"]
    words = [*sweep, f"output_dir={small_disk}", f"hydra.launcher.n_jobs={workers}"]
    done = fco(*words, cwd=tmp_path, check=False)
    assert done.returncode in (1, 2)
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 5  # counts, and three lines at most
    subprocess.run(["mount", "-o", "remount,size=8m", small_disk], check=True)
    fco(*words, cwd=tmp_path)
    fco(*sweep, f"output_dir={tmp_path}/straight", cwd=tmp_path)
    assert_same_records(small_disk, tmp_path / "straight")


@pytest.mark.slow
@pytest.mark.machine_code
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    for folder in ("/dev/null", "/proc/x", "/dev/null/x", "/sys/x"):
        done = fco("-m", *TINY, *GRID, f"output_dir={folder}", cwd=tmp_path, check=False)
        assert done.returncode == 2
        assert done.stderr.startswith(f"fco-run: output_dir: {folder}")
        assert done.stderr.count("\n") == 1
