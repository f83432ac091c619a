"""Tests of reading records: valid ones are read unchanged, invalid ones are listed and left out."""

from __future__ import annotations

import json

import pytest

from fco_cli.reporting.records.studies import collect


def test_curves_round_trip(records):
    records.add(f1=(0.1, 1 / 3), density=(float("inf"), float("nan")))
    run = collect([records.root]).studies[0].runs[0]
    assert run.curves["f1"].tolist() == [0.1, 1 / 3]
    assert run.curves["density"][0] == float("inf")
    assert run.megabytes.tolist() == [0.0, 2.0]


def _truncate(folder):
    text = (folder / "metrics.csv").read_text()
    (folder / "metrics.csv").write_text(text[:-5])


def _drop_a_round(folder):
    lines = (folder / "metrics.csv").read_text().splitlines(keepends=True)
    (folder / "metrics.csv").write_text("".join(lines[:-1]))


def _drop_a_value(folder):
    lines = (folder / "metrics.csv").read_text().splitlines()
    lines[2] = lines[2].rsplit(",", 1)[0]
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")


def _edit_result(**changes):
    def edit(folder):
        result = json.loads((folder / "result.json").read_text())
        (folder / "result.json").write_text(json.dumps(result | changes))

    return edit


DAMAGE = {
    "unfinished": lambda folder: (folder / "result.json").unlink(),
    "is not JSON": lambda folder: (folder / "result.json").write_text('{"status": "fin'),
    "result.json: status: invalid enum value 'happy'": _edit_result(status="happy"),
    "truncated": _truncate,
    "ends at round 2 of 3": _drop_a_round,
    "columns": _drop_a_value,
    "metrics.csv: No such file": lambda folder: (folder / "metrics.csv").unlink(),
    "config.yaml: No such file": lambda folder: (folder / "config.yaml").unlink(),
    "config.yaml: object missing required field `task`": lambda folder: (folder / "config.yaml").write_text(
        "seed: 0\n"
    ),
    "could not find expected": lambda folder: (folder / "config.yaml").write_text("task: {name\nx: [1"),
}


@pytest.mark.parametrize("reason", DAMAGE)
def test_damaged_record_is_listed_and_left_out(records, reason):
    damaged = records.add("fedmid")
    records.add("feddualavg")
    DAMAGE[reason](damaged)
    results = collect([records.root])
    assert [run.algo for study in results.studies for run in study.runs] == ["feddualavg"]
    ((path, message),) = results.left_out
    assert path == damaged
    if reason != "could not find expected":  # the message differs between the C and Python parsers
        assert reason in message
    assert "\n" not in message


def test_record_of_the_first_format_must_be_recreated(records):
    folder = records.add()
    result = json.loads((folder / "result.json").read_text())
    for key in ("identity", "federated", "uses"):
        del result[key]
    (folder / "result.json").write_text(json.dumps(result | {"config_hash": result["run_id"]}))
    assert collect([records.root]).left_out == [(folder, "made by an older version; run it again")]


def test_rates_are_those_that_the_algorithm_uses(records):
    records.add("feddualavg")
    records.add("centralized")
    records.add("optimum", f1=(0, 1))
    rates = {run.algo: (run.client_lr, run.server_lr) for run in collect([records.root]).studies[0].runs}
    assert rates == {"feddualavg": (0.001, 1.0), "centralized": (0.001, None), "optimum": (None, None)}


def test_a_record_without_the_selection_metric_is_left_out(records):
    records.add(select={"metric": "rank", "mode": "min", "last": 1})
    results = collect([records.root])
    assert results.studies == []
    assert "no column 'rank'" in results.left_out[0][1]


def test_hidden_folders_are_ignored(records):
    folder = records.add()
    hidden = folder / ".hydra"
    hidden.mkdir()
    (hidden / "config.yaml").write_text("task: something else")
    results = collect([records.root])
    assert len(results.studies[0].runs) == 1
    assert results.left_out == []


def test_a_run_whose_loss_exploded_has_diverged(records):
    records.add(train_loss=(8, 1e3, 1e6, 1e9))
    records.add("fedmid", train_loss=(8, 1e3, 1e6, float("nan")))
    records.add("fedmid_osp", train_loss=(8, 100, 50, 9))
    runs = collect([records.root]).studies[0].runs
    assert {run.algo: run.diverged for run in runs} == {"feddualavg": True, "fedmid": True, "fedmid_osp": False}
