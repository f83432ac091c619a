"""Tests of records of the previous version, which had no list of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from fco_cli import api
from fco_cli.commands.predict import predictions
from fco_cli.reporting.records.paths import RecordedPath
from fco_cli.reporting.records.runs import read_record
from fco_cli.results import PathResult, RunResult
from fco_cli.simulation.record import Record

OLD = Path(__file__).parent / "old_records"


def test_an_old_run_is_complete():
    result = Record(OLD / "run").result(RunResult)
    assert result["final"]["objective"] == 0.6735359136196197
    assert "files" not in result


def test_an_old_path_is_complete():
    assert Record(OLD / "path").result(PathResult)["chosen"]["1se"]["place"] == 0


def test_a_report_reads_old_records():
    assert read_record(OLD / "run").final["nonzeros"] == 4
    path = RecordedPath.read(OLD / "path")
    assert path.weights.shape == (4, 6)
    assert path.names == ["x0", "x1", "x2", "color=other", "color=blue", "color=red"]
    assert list(api.load(OLD)["run_id"]) == ["f490c779aab0"]


@pytest.mark.parametrize("folder", ["run", "path/min", "path/1se"])
def test_old_models_predict(folder):
    assert predictions(OLD / folder, OLD / "new.csv").startswith("row,prediction,probability of 1\n0,0,0.4")
