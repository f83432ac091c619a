from __future__ import annotations

import csv
import errno
import json
import os

import numpy as np
import pytest

from fco_cli.errors import UserError
from fco_cli.problem.models.linear import Linear
from fco_cli.simulation.engine import Job
from fco_cli.simulation.evaluate import History
from fco_cli.simulation.record import Record, replace_folder, write_atomically

LAYOUT = Linear(3).layout
CODE = "0123456789ab"
DETAILS = {
    "run_id": CODE, "identity": {"family": CODE, "problem": CODE, "run": CODE}, "task": "lasso", "algo": "zhj",
    "federated": True, "uses": ["rounds"], "main_metric": "objective", "seed": 0, "smoothness": None, "versions": {},
    "python": "3.11", "git_revision": None, "finished_at": "2026-03-01T12:00:00+01:00",
}  # fmt: skip


@pytest.fixture
def record(tmp_path):
    record = Record(tmp_path / "run")
    record.create()
    return record


@pytest.fixture
def job():
    columns = {"round": [0, 1, 2], "objective": [3.0, 0.1 + 0.2, 1e-300], "vectors_up": [0, 3, 6]}
    state = {"z": np.array([1.0, 2, 3, 4]), "t": np.array(0.25)}
    memory = {"clients": np.array([3]), "rows": np.ones((1, 1, 4))}
    return Job(2, state, memory, np.arange(6), History.of(columns), 1.5, model=np.array([1.0, 2, 3, 4]))


def files(record):
    return sorted(path.name for path in record.folder.iterdir())


def test_checkpoint_reads_back_exactly(record, job):
    record.save_checkpoint(job, CODE)
    again = record.checkpoint(CODE)
    assert (again.round, again.seconds, again.history) == (2, 1.5, job.history)
    np.testing.assert_array_equal(again.counters, job.counters)
    assert again.state.keys() == job.state.keys()
    for name in job.state:
        np.testing.assert_array_equal(again.state[name], job.state[name])
    for name in job.memory:
        np.testing.assert_array_equal(again.memory[name], job.memory[name])
    assert type(again.history["vectors_up"][0]) is int  # "3", not "3.0", in the table


def test_finish_writes_a_complete_record_and_drops_the_checkpoint(record, job):
    record.save_checkpoint(job, CODE)
    record.finish(job, LAYOUT, DETAILS)
    assert files(record) == ["metrics.csv", "model.npz", "result.json"]
    result = record.result()
    assert (result["status"], result["rounds"], result["run_id"]) == ("finished", 2, CODE)
    assert result["final"] == {"objective": 1e-300, "vectors_up": 6}
    np.testing.assert_allclose(result["summary"]["vectors_up"], 4.5)  # of rounds 1 and 2: round 0 is the start
    rows = list(csv.DictReader((record.folder / "metrics.csv").read_text().splitlines()))
    assert [float(row["objective"]) for row in rows] == job.history["objective"]  # every digit
    with np.load(record.folder / "model.npz", allow_pickle=False) as model:
        np.testing.assert_array_equal(model["weights"], [1, 2, 3])
        np.testing.assert_array_equal(model["bias"], [4])


def test_local_models_keep_their_client_axis(record, job):
    job.model = np.arange(8.0).reshape(2, 4)
    record.finish(job, LAYOUT, DETAILS)
    with np.load(record.folder / "model.npz") as model:
        assert (model["weights"].shape, model["bias"].shape) == ((2, 3), (2, 1))


def test_personal_models_and_their_metrics(record, job):
    """The last of three clients has no held-out rows; all digits can be read back."""
    everyone, some = (np.arange(3), np.array([0.1, 0.2, 0.1 + 0.2])), (np.array([1, 0]), np.array([5.0, 1e-300]))
    job.own = {"own_train_loss": everyone, "own_validation_loss": some}
    record.finish(job, LAYOUT, DETAILS, personal=np.arange(12.0).reshape(3, 4))
    rows = list(csv.reader((record.folder / "personal.csv").read_text().splitlines()))
    assert rows == [
        ["client", "own_train_loss", "own_validation_loss"],
        ["0", "0.1", "1e-300"], ["1", "0.2", "5.0"], ["2", "0.30000000000000004", ""],
    ]  # fmt: skip
    with np.load(record.folder / "personal.npz", allow_pickle=False) as models:
        np.testing.assert_array_equal(models["weights"], [[0, 1, 2], [4, 5, 6], [8, 9, 10]])
        np.testing.assert_array_equal(models["bias"], [[3], [7], [11]])
    with np.load(record.folder / "model.npz", allow_pickle=False) as model:
        assert model["weights"].shape == (3,)  # the shared one


def test_numbers_that_are_not_finite_become_null(record, job):
    job.history = History.of({**job.history, "objective": [3.0, 0.3, np.inf]})
    job.diverged = 3
    record.finish(job, LAYOUT, DETAILS)
    result = json.loads((record.folder / "result.json").read_text())
    assert (result["status"], result["diverged_round"]) == ("diverged", 3)
    assert result["final"]["objective"] is None
    assert result["summary"]["objective"] is None


def test_summary_is_the_mean_of_the_last_hundred_rounds(record, job):
    job.round = 250
    job.history = History.of({"round": range(251), "objective": [float(n) for n in range(251)]})
    assert record.finish(job, LAYOUT, DETAILS)["summary"]["objective"] == np.mean(range(151, 251))


def test_summary_of_a_run_that_diverged_long_after_its_last_evaluation(record, job):
    job.round, job.diverged, job.history = 149, 150, History.of({"round": [0], "objective": [7.0]})
    assert record.finish(job, LAYOUT, DETAILS)["summary"]["objective"] == 7.0


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"status": "half"}',
        b"\xff\xfe",
        b'{"status": []}',
        b'{"status": "finished"}',
        b"[" * 10**6,
        b'{"status": NaN}',
    ],
)
def test_a_damaged_result_is_moved_aside(record, caplog, damage):
    (record.folder / "result.json").write_bytes(damage)
    assert record.result() is None
    (aside,) = files(record)
    assert aside.startswith("result.json.corrupt-")
    assert (record.folder / aside).read_bytes() == damage  # nothing is lost
    assert "result.json is not used" in caplog.text


def test_a_damaged_checkpoint_is_moved_aside(record, job, caplog):
    """A truncated or corrupted checkpoint is either read back correctly or refused."""
    record.save_checkpoint(job, CODE)
    path = record.folder / "checkpoint.npz"
    content = path.read_bytes()
    random = np.random.default_rng(0)
    damaged = [content[:length] for length in (0, 1, 10, len(content) // 2, len(content) - 1)]
    for place in random.integers(len(content), size=200):
        damaged.append(content[:place] + bytes([content[place] ^ int(random.integers(1, 256))]) + content[place + 1 :])
    refused = 0
    for bytes_on_disk in damaged:
        path.write_bytes(bytes_on_disk)
        again = record.checkpoint(CODE)
        if again is None:
            refused += 1
            assert not path.exists()
        else:
            np.testing.assert_array_equal(again.state["z"], job.state["z"])
            assert (again.round, again.history) == (job.round, job.history)
    assert refused > 100
    assert "the run starts over" in caplog.text


def test_a_checkpoint_without_its_parts_is_damaged(record):
    np.savez(record.folder / "checkpoint.npz", round=np.array(3))
    assert record.checkpoint(CODE) is None
    (record.folder / "checkpoint.npz").write_bytes(b"not a checkpoint")
    assert record.checkpoint(CODE) is None


def test_a_checkpoint_names_the_code_that_has_written_it(record, job, caplog):
    record.save_checkpoint(job, "other code")
    assert record.checkpoint(CODE) is None
    assert [name for name in files(record) if name.startswith("checkpoint.npz.corrupt-")]
    assert "written by other code" in caplog.text


@pytest.mark.parametrize("name", ["metrics.csv", "model.npz"])
@pytest.mark.parametrize("listed", [True, False])
def test_a_record_that_lacks_a_file_is_not_done(record, job, caplog, name, listed):
    """Records with a list of files, and those of earlier versions without one."""
    result = record.finish(job, LAYOUT, DETAILS)
    assert result["files"] == {name: (record.folder / name).stat().st_size for name in ("metrics.csv", "model.npz")}
    if not listed:
        del result["files"]
        (record.folder / "result.json").write_text(json.dumps(result))
    assert record.result() == result
    (record.folder / name).unlink()
    assert record.result() is None
    assert f"result.json is not used (incomplete: {name} is missing): moved to result.json.corrupt-" in caplog.text


def test_a_record_with_a_file_that_was_cut_short_is_not_done(record, job, caplog):
    record.finish(job, LAYOUT, DETAILS)
    (record.folder / "metrics.csv").write_text("round")
    assert record.result() is None
    assert "incomplete: metrics.csv has 5 bytes of" in caplog.text


def test_a_result_that_cannot_be_renamed_is_reported_in_one_line(record, monkeypatch):
    (record.folder / "result.json").write_text("{")
    monkeypatch.setattr("pathlib.Path.rename", full_disk)
    with pytest.raises(UserError, match=r"result\.json: not used .* and cannot be renamed: No space"):
        record.result()


def test_an_empty_folder_has_nothing(record):
    assert record.result() is None
    assert record.checkpoint(CODE) is None


# A full disk.


def full_disk(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_no_half_written_file(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    write_atomically(path, b"old")
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(UserError, match=r"result\.json: cannot be written: No space left on device"):
        write_atomically(path, b"new and longer")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_full_disk_while_finishing_keeps_the_checkpoint(record, job, monkeypatch, failing):
    """After a failure at any file there is no result.json, and the checkpoint is kept."""
    record.save_checkpoint(job, CODE)
    real, calls = os.fsync, []

    def fsync(number):
        calls.append(number)
        return full_disk() if len(calls) == failing else real(number)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(UserError, match="No space left"):
        record.finish(job, LAYOUT, DETAILS)
    assert "result.json" not in files(record)
    assert record.checkpoint(CODE) is not None
    assert not [name for name in files(record) if name.startswith(".")]
    monkeypatch.undo()
    record.finish(job, LAYOUT, DETAILS)
    assert record.result()["status"] == "finished"


def test_a_full_disk_while_logging_is_reported_in_one_line(record, monkeypatch):
    monkeypatch.setattr("pathlib.Path.open", full_disk)
    with pytest.raises(UserError, match=r"run\.log: cannot be written: No space"):
        record.note("a line")


# Folders.


def test_a_folder_below_a_file_is_refused_by_name(tmp_path):
    (tmp_path / "file").write_text("")
    record = Record(tmp_path / "file" / "run")
    with pytest.raises(UserError, match=r"^output_dir: .*file/run.*Not a directory"):
        record.result()
    with pytest.raises(UserError, match=r"^output_dir: .*file/run.*Not a directory"):
        record.create()


def test_one_process_at_a_time(record):
    other = Record(record.folder)
    with record.lock(wait=False) as mine, other.lock(wait=False) as theirs:
        assert mine
        assert not theirs
    with other.lock(wait=False) as theirs:
        assert theirs


def test_a_run_that_is_refused_leaves_no_folder(tmp_path):
    record = Record(tmp_path / "run")
    with pytest.raises(UserError), record.lock(wait=False):
        raise UserError("no such column")
    assert list(tmp_path.iterdir()) == []
    with record.lock(wait=False):
        record.note("started")
    assert {path.name for path in record.folder.iterdir()} == {".lock", "run.log"}


def test_replace_folder(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "name").write_text(folder.name)
    replace_folder(old, new)
    assert (old / "name").read_text() == "new"
    assert list(tmp_path.iterdir()) == [old]
