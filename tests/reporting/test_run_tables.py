"""Tests of the tables of runs and rounds."""

from __future__ import annotations

import csv
import json

import pytest
import yaml

from fco_cli.commands.report import main
from fco_cli.reporting.records.runs import flatten
from fco_cli.reporting.records.studies import collect


def test_nested_keys_become_dotted_names():
    assert flatten({"a": 1, "b": {"c": None, "d": {"e": [1, "x"]}}, "f": {}}) == {
        "a": 1,
        "b.c": None,
        "b.d.e": '[1, "x"]',
    }


@pytest.mark.usefixtures("quick_figures")
def test_the_csv_has_every_key(records, monkeypatch):
    folder = records.add("fedmid", options={"rho": 0.5})
    records.add("fedavg", seed=3)
    monkeypatch.chdir(records.root.parent)
    main(["--csv", "runs.csv"])
    with (records.root.parent / "runs.csv").open() as file:
        rows = {row["run_id"]: row for row in csv.DictReader(file)}
    config = yaml.safe_load((folder / "config.yaml").read_text())
    row = rows[folder.name]
    assert len(rows) == 2
    for key, value in flatten(config).items():
        assert row[key] == str(value), key
    assert json.loads(row["experiment.panels"]) == ["f1", "density"]
    others = next(row for row in rows.values() if row["run_id"] != folder.name)
    assert (others["algo.rho"], others["seed"]) == ("", "3")  # a key of another run, and its own seed


@pytest.mark.usefixtures("quick_figures")
def test_keys_and_values_are_escaped_as_formulas(records, monkeypatch):
    folder = records.add()
    path = folder / "config.yaml"
    hostile = {"task": {"name": "lasso", "path": "=cmd()", "list": ["@x"]}, "=1+1": "-2+3", "\x1b[0m": "\t=1"}
    path.write_text(json.dumps(yaml.safe_load(path.read_text()) | hostile))
    monkeypatch.chdir(records.root.parent)
    main(["--csv", "runs.csv"])
    text = (records.root.parent / "runs.csv").read_text()
    (row,) = csv.DictReader(text.splitlines())
    assert row["task.path"] == "'=cmd()"
    assert row["'=1+1"] == "'-2+3"
    assert row["\\x1b[0m"] == "\\x09=1"
    assert row["task.list"] == '["@x"]'
    assert not [cell for cell in (*row, *row.values()) if cell.startswith(("=", "+", "@", "\t"))]


def test_a_run_of_several_studies_is_one_row(records):
    records.add(hparams={"rounds": 500})
    records.add("fedmid", hparams={"rounds": 400})
    records.add("optimum")
    results = collect([records.root])
    assert sum(len(study.runs) for study in results.studies) == 4  # the optimum is in both
    assert sorted(results.table()["algo"]) == ["feddualavg", "fedmid", "optimum"]


def test_rounds_table_repeats_the_columns_of_the_run(records):
    records.add(f1=(0, 0.25, 0.5, 0.75), rounds=(0, 5, 10, 15))
    records.add("fedmid", f1=(0, 0.5), precision=(1, 1))
    table = collect([records.root]).rounds()
    assert table[["algo", "round", "f1"]].to_numpy().tolist() == [
        *(["feddualavg", r, f] for r, f in ((0, 0), (5, 0.25), (10, 0.5), (15, 0.75))),
        *(["fedmid", r, f] for r, f in ((0, 0), (1, 0.5))),
    ]
    assert table["precision"].isna().tolist() == [True] * 4 + [False] * 2
    assert (table["hparams.rounds"] == 500).all()
    assert collect([]).rounds().empty


def test_tables_of_rates_relative_to_the_data_can_be_written(records, tmp_path):
    """A column of numbers and text, which Parquet does not have, becomes text; rounds are whole numbers."""
    records.add(client_lr=0.5)
    records.add(client_lr="auto", seed=1, smoothness=2.0, taken=0.5)
    results = collect([records.root])
    for table in (results.table(), results.rounds()):
        assert sorted(set(table["hparams.client_lr"])) == ["0.5", "auto"]
        assert set(table["client_lr"]) == {0.5}
        table.to_parquet(tmp_path / "table.parquet")
    assert results.rounds()["round"].dtype == "int64"
