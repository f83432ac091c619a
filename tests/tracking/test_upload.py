from __future__ import annotations

import logging

import pytest

from fco_cli.tracking import Sender, Sweep, Tracking, Upload
from fco_cli.tracking.tables import CsvTracking, _read


class Fake(Sender):
    """Tracker in memory that fails at a given call."""

    def __init__(self, store, fail_at):
        self.store, self.fail_at = store, fail_at

    def sent(self):
        return set(self.store)

    def send(self, run):
        if len(self.store) == self.fail_at:
            raise ConnectionError("the server has gone away\nsecond line")
        self.store.append(run.run_id)

    def send_figures(self, figures):
        self.store += [name for name, _ in figures]


class FakeTracking(Tracking):
    destination = "fake"

    def __init__(self, store, fail_at=None):
        self.store, self.fail_at, self.name = store, fail_at, "fake"

    def open(self, sweep):
        return Fake(self.store, self.fail_at)


def test_a_run_is_sent_once(make_run):
    store = []
    for _ in range(2):
        upload = Upload(FakeTracking(store), Sweep.of(["lasso"], ["a1", "b2"]))
        upload.add([make_run("a1")])
        upload.add([make_run("b2"), make_run("a1")])
        upload.close(lambda: [("curves", b"")])
    assert store == ["a1", "b2", "curves"]


def test_a_failure_is_one_warning_and_the_rest_is_sent_by_repeating(make_run, caplog):
    store, runs = [], [make_run(run_id) for run_id in ("a1", "b2", "c3")]
    upload = Upload(FakeTracking(store, fail_at=1), Sweep.of(["lasso"], ["a1", "b2", "c3"]))
    with caplog.at_level(logging.WARNING):
        upload.add(runs)
        upload.close(lambda: [("curves", b"")])
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("tracking: fake failed (ConnectionError: the server has gone away; second line)")
    assert "\n" not in line
    assert store == ["a1"]
    again = Upload(FakeTracking(store), Sweep.of(["lasso"], ["a1", "b2", "c3"]))
    again.add(runs)
    again.close()
    assert store == ["a1", "b2", "c3"]


def test_a_sweep_is_the_same_in_any_order():
    assert Sweep.of(["b", "a"], ["2", "1"]) == Sweep.of({"a", "b"}, ("1", "2"))
    assert Sweep.of(["a"], ["1"]).sweep_id is None
    assert Sweep.of(["a"], ["1", "2"]).sweep_id != Sweep.of(["a"], ["1", "3"]).sweep_id


def test_points_are_thinned_with_both_ends(make_run):
    run = make_run("a1", rounds=1000)
    assert [step for step, _ in run.points(3)] == [0, 500, 1000]
    assert len(run.points(5000)) == 1001
    assert all("nan_metric" not in values for _, values in run.points(10))


def test_tables_have_every_run_once_with_all_columns(tmp_path, make_run):
    tracking = CsvTracking(path=str(tmp_path / "t"), points=2)
    for ids in (["a1"], ["a1", "b2"]):
        upload = Upload(tracking, Sweep.of(["lasso"], ids))
        upload.add([make_run(run_id, settings={"hparams.client_lr": 0.1, f"own.{run_id}": 1}) for run_id in ids])
        upload.close()
    runs, rounds = (_read(tmp_path / "t" / f"{name}.csv") for name in ("runs", "rounds"))
    assert [(row["run_id"], row["own.a1"], row["own.b2"]) for row in runs] == [("a1", "1", ""), ("b2", "", "1")]
    assert [(row["run_id"], row["round"]) for row in rounds] == [("a1", "0"), ("a1", "4"), ("b2", "0"), ("b2", "4")]
    assert float(rounds[1]["objective"]) == 1 / 5


def test_two_processes_that_send_the_same_run_write_it_once(tmp_path, make_run):
    tracking = CsvTracking(path=str(tmp_path), points=2)
    uploads = [Upload(tracking, Sweep.of(["lasso"], ["a1"])) for _ in range(2)]
    for upload in uploads:
        upload.add([make_run("a1")])
    for upload in uploads:
        upload.close()
    assert [len(_read(tmp_path / f"{name}.csv")) for name in ("runs", "rounds")] == [1, 2]


def test_a_killed_write_of_tables_is_repeated(tmp_path, make_run, monkeypatch):
    """rounds.csv was written, runs.csv was not: the rounds are not there twice after a repetition."""
    tracking = CsvTracking(path=str(tmp_path), points=2)
    upload = Upload(tracking, Sweep.of(["lasso"], ["a1"]))
    upload.add([make_run("a1")])
    upload.close()
    (tmp_path / "runs.csv").unlink()
    again = Upload(tracking, Sweep.of(["lasso"], ["a1"]))
    again.add([make_run("a1")])
    again.close()
    assert len(_read(tmp_path / "rounds.csv")) == 2


@pytest.mark.parametrize("kind", ["csv", "tensorboard"])
def test_a_folder_that_cannot_be_written_is_one_warning(tmp_path, make_run, caplog, kind):
    from fco_cli.tracking.tensorboard import TensorboardTracking

    (tmp_path / "file").write_text("")
    path = str(tmp_path / "file" / "below")
    upload = Upload({"csv": CsvTracking, "tensorboard": TensorboardTracking}[kind](path=path), Sweep.of(["l"], ["a1"]))
    with caplog.at_level(logging.WARNING):
        upload.add([make_run("a1"), make_run("b2")])
        upload.close()
    (line,) = [record.getMessage() for record in caplog.records]
    assert "NotADirectoryError" in line
