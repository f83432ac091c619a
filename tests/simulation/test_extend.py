"""A run with more rounds continues from the final state of a shorter one, with the bits of an uninterrupted run."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli import api

SMALL = (
    "task=lasso", "task.clients=6", "task.samples=6", "task.dimension=5", "task.ones=2",
    "hparams.clients_per_round=2", "hparams.client_lr=0.01", "threads=1",
)  # fmt: skip


def log_of(record):
    return (record.folder / "run.log").read_text()


def assert_same(first, second):
    for name in ("metrics.csv", "model.npz"):
        assert (first.folder / name).read_bytes() == (second.folder / name).read_bytes()
    assert first.result["summary"] == second.result["summary"]


@pytest.mark.parametrize(
    "keys",
    [
        ("algo=feddualavg",),
        ("algo=zhj",),  # with client memory
        ("algo=feddualavg", "hparams.eval_every=3"),  # the last round of the shorter run is not one of the longer
        ("algo=fedmid", "participation=dropout", "participation.probability=0.3"),
        ("algo=centralized",),
    ],
)
def test_a_longer_run_continues_with_the_same_bits(keys, tmp_path):
    whole = api.run(*SMALL, *keys, "hparams.rounds=8", f"output_dir={tmp_path}/whole")
    short = api.run(*SMALL, *keys, "hparams.rounds=4", f"output_dir={tmp_path}/two")
    before = (short.folder / "result.json").read_bytes()
    longer = api.run(*SMALL, *keys, "hparams.rounds=8", f"output_dir={tmp_path}/two")
    assert "continued from round 4" in log_of(longer)
    assert "continued" not in log_of(whole)
    assert_same(longer, whole)
    assert (short.folder / "result.json").read_bytes() == before
    assert longer.result["seconds"] >= short.result["seconds"]


def test_the_longest_shorter_run_is_continued_and_never_a_longer_one(tmp_path):
    for rounds in (2, 5, 9):
        api.run(*SMALL, f"hparams.rounds={rounds}", f"output_dir={tmp_path}")
    assert "continued from round 5" in log_of(api.run(*SMALL, "hparams.rounds=7", f"output_dir={tmp_path}"))
    assert "continued" not in log_of(api.run(*SMALL, "hparams.rounds=1", f"output_dir={tmp_path}"))


@pytest.mark.parametrize(
    "keys", [("seed=1",), ("hparams.client_lr=0.02",), ("hparams.eval_every=2",), ("force=true",)], ids=str
)
def test_other_settings_start_over(keys, tmp_path):
    api.run(*SMALL, "hparams.rounds=2", f"output_dir={tmp_path}")
    assert "continued" not in log_of(api.run(*SMALL, "hparams.rounds=4", *keys, f"output_dir={tmp_path}"))


def test_a_damaged_or_foreign_state_is_not_used(tmp_path, caplog):
    whole = api.run(*SMALL, "hparams.rounds=6", f"output_dir={tmp_path}/whole")
    short = api.run(*SMALL, "hparams.rounds=3", f"output_dir={tmp_path}/one")
    (path,) = short.folder.glob("state-*.npz")
    with np.load(path) as old:
        arrays = dict(old)
    size = path.stat().st_size
    arrays["written_by"] = np.array(str(arrays["written_by"])[:-1] + "?")  # other versions
    np.savez(path, **arrays)
    assert path.stat().st_size == size
    longer = api.run(*SMALL, "hparams.rounds=6", f"output_dir={tmp_path}/one")
    assert "continued" not in log_of(longer)
    assert_same(longer, whole)
    path.write_bytes(b"0" * size)
    again = api.run(*SMALL, "hparams.rounds=7", f"output_dir={tmp_path}/one")
    assert "continued from round 6" in log_of(again)  # of the other one


def test_large_states_and_hidden_rows_are_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("fco_cli.simulation.extend.LARGEST_STATE", 10)
    record = api.run(*SMALL, "hparams.rounds=2", f"output_dir={tmp_path}")
    assert not list(record.folder.glob("state-*.npz"))


def test_snapshots_of_another_number_of_rounds_start_over_or_agree(tmp_path):
    """The rounds with snapshots depend on the number of rounds; the bits are always those of an uninterrupted run."""
    keys = ("record_path=true", "hparams.rounds=90")
    whole = api.run(*SMALL, *keys, f"output_dir={tmp_path}/whole")
    api.run(*SMALL, *keys[:1], "hparams.rounds=60", f"output_dir={tmp_path}/two")
    longer = api.run(*SMALL, *keys, f"output_dir={tmp_path}/two")
    assert_same(longer, whole)
    assert (longer.folder / "path.npz").read_bytes() == (whole.folder / "path.npz").read_bytes()
