"""Tests with the real packages."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from fco_cli.errors import UserError
from fco_cli.tracking import Sweep, Upload, all_trackings
from fco_cli.tracking.tensorboard import TensorboardTracking

PNG = (
    b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + (head := struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))
    + struct.pack(">I", zlib.crc32(b"IHDR" + head))
    + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in ((b"IDAT", zlib.compress(b"\0\xff\0\0")), (b"IEND", b""))
    )
)  # fmt: skip


def upload_to(tracking, runs, ids=None):
    upload = Upload(tracking, Sweep.of(["lasso"], ids or [run.run_id for run in runs]))
    upload.add(runs)
    upload.close(lambda: [("curves", PNG)])
    assert not upload.failed
    return upload.count


def test_a_tracker_whose_package_is_missing_is_one_line(monkeypatch):
    monkeypatch.setattr("fco_cli.tracking.base.find_spec", lambda name: None)
    for name, package in {"mlflow": "mlflow", "tensorboard": "tensorboardX", "wandb": "wandb"}.items():
        with pytest.raises(UserError, match=f"tracking: {name} needs {package}, which is not installed; run pip"):
            all_trackings()[name]().check()
    all_trackings()["csv"]().check()


def scalars_of(path: Path):
    """Return (tag, step, value) of all scalars of an event file, and the other tags."""
    from tensorboardX.proto.event_pb2 import Event

    content, at, scalars, others = path.read_bytes(), 0, [], set()
    while at < len(content):
        (length,) = struct.unpack("<Q", content[at : at + 8])
        event = Event.FromString(content[at + 12 : at + 12 + length])
        at += 16 + length
        for value in event.summary.value:
            if value.HasField("simple_value"):
                scalars.append((value.tag, event.step, value.simple_value))
            else:
                others.add(value.tag)
    return scalars, others


def test_tensorboard_events(tmp_path, make_run):
    tracking = TensorboardTracking(path=str(tmp_path / "tb"))
    runs = [make_run("a1"), make_run("b2")]
    assert upload_to(tracking, runs) == 2
    assert upload_to(tracking, runs) == 0
    (sweep,) = (tmp_path / "tb").iterdir()
    assert sorted(path.name for path in sweep.iterdir()) == ["feddualavg-a1", "feddualavg-b2", "figures"]
    (file,) = (sweep / "feddualavg-a1").iterdir()
    scalars, others = scalars_of(file)
    assert [(tag, step) for tag, step, _ in scalars] == [("objective", step) for step in range(5)]
    assert scalars[4][2] == pytest.approx(0.2)
    assert others == {"config/text_summary", "model/weights"}
    (file,) = (sweep / "figures").iterdir()
    assert scalars_of(file)[1] == {"curves"}


def test_an_interrupted_tensorboard_run_is_sent_again(tmp_path, make_run):
    tracking = TensorboardTracking(path=str(tmp_path / "tb"))
    sweep = tmp_path / "tb" / "lasso"
    (sweep / ".part-feddualavg-a1").mkdir(parents=True)
    (sweep / ".part-feddualavg-a1" / "events.out").write_bytes(b"half")
    assert upload_to(tracking, [make_run("a1")]) == 1
    assert [path.name for path in sweep.iterdir() if path.name != "figures"] == ["feddualavg-a1"]


@pytest.mark.ci
def test_mlflow_runs_are_nested_and_complete(tmp_path, make_run):
    pytest.importorskip("mlflow")
    pytest.importorskip("alembic")
    from mlflow.tracking import MlflowClient

    from fco_cli.tracking.mlflow_store import MlflowTracking

    tracking = MlflowTracking(uri=f"sqlite:///{tmp_path}/ml.db")
    runs = [make_run("a1"), make_run("b2", status="diverged"), make_run("c3")]
    assert upload_to(tracking, runs) == 3
    assert upload_to(tracking, runs) == 0
    client = MlflowClient(tracking.uri)
    found = client.get_experiment_by_name("fco")
    experiment = found.experiment_id
    assert found.tags["mlflow.experimentKind"] == "custom_model_development"
    children = client.search_runs([experiment], "tags.`fco.run_id` != ''")
    (parent,) = client.search_runs([experiment], "tags.`mlflow.runName` = 'lasso'")
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    assert [one.path for one in client.list_artifacts(parent.info.run_id, "figures")] == ["figures/curves.png"]
    (own,) = [run for run in children if run.data.tags["fco.run_id"] == "a1"]
    assert own.data.params == {"task.name": "lasso", "hparams.client_lr": "0.1"}
    history = client.get_metric_history(own.info.run_id, "objective")
    assert sorted((one.step, one.value) for one in history) == [(step, 1 / (1 + step)) for step in range(5)]
    files = sorted(one.path for one in client.list_artifacts(own.info.run_id))
    assert files == ["config.yaml", "metrics.csv", "model.npz", "result.json"]
    assert sorted(run.info.status for run in children) == ["FAILED", "FINISHED", "FINISHED"]
    # An upload that was killed leaves a running run, which the next one replaces.
    client.update_run(own.info.run_id, status="RUNNING")
    assert upload_to(tracking, runs) == 1
    assert len(client.search_runs([experiment], "tags.`fco.run_id` = 'a1'")) == 1


@pytest.mark.ci
def test_wandb_runs_offline(tmp_path, make_run, monkeypatch):
    pytest.importorskip("wandb")
    from fco_cli.tracking.weights_and_biases import WandbTracking

    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    tracking = WandbTracking(path=str(tmp_path / "w"))
    runs = [make_run("a1"), make_run("b2")]
    assert upload_to(tracking, runs) == 2
    assert upload_to(tracking, runs) == 0
    folders = [path.name.rpartition("-")[2] for path in (tmp_path / "w" / "wandb").glob("offline-run-*")]
    assert {"a1", "b2"} < set(folders)
    for run_id in ("a1", "b2"):
        (file,) = (tmp_path / "w" / "wandb").glob(f"offline-run-*-{run_id}/run-{run_id}.wandb")
        assert b"objective" in file.read_bytes()
