from __future__ import annotations

import csv

import numpy as np
import pandas as pd
import pytest

from fco_cli.reporting.page import tables
from fco_cli.reporting.page.render import render_section
from fco_cli.reporting.page.sections import study_sections
from fco_cli.reporting.records.select import arrival, choose, in_order, target
from fco_cli.reporting.records.studies import Results, collect
from fco_cli.studies.yuan2021 import Yuan2021


@pytest.fixture
def study(records):
    records.add("feddualavg", f1=(0, 0.5, 0.92, 1.0, 1.0))
    records.add("fedavg_subgrad", f1=(0, 0.1, 0.2, 0.3, 0.3))
    records.add("fedmid", diverged=2)
    records.add("optimum", f1=(0, 1.0))
    (study,) = collect([records.root]).studies
    return study


def test_table_has_rates_metrics_and_rounds_to_target(study):
    table = tables.best_table(study, choose(study)).set_index("algorithm")
    assert target(study, choose(study)) == pytest.approx(0.9)
    best = table.loc["FedDualAvg"]
    assert (best["client lr"], best["server lr"], best["F1"].median) == (0.001, 1.0, 1.0)
    assert (best["rounds to target"], best["MB to target"]) == (2, 4.0)
    assert best["diverged"] == "0 of 1"
    assert table.loc["FedAvg(∂)"].isna()["rounds to target"]
    assert table.loc["FedMiD", "diverged"] == "1 of 1"
    assert table.loc["FedMiD"].isna()["F1"]


def test_the_target_of_a_minimum_lies_below_the_start(records):
    select = {"metric": "objective", "mode": "min", "last": 1}
    records.add(select=select, objective=(10, 5, 1, 0))
    (study,) = collect([records.root]).studies
    choices = choose(study)
    assert target(study, choices) == pytest.approx(1.0)
    assert arrival(choices["feddualavg"].best, 1.0) == 2


def test_markdown_csv_and_latex_have_the_same_content(study, tmp_path):
    section = study_sections([study], {study.slug: in_order(choose(study), Yuan2021.algorithms)}, "rounds", Results())[
        0
    ]
    (tmp_path / "tables").mkdir()
    section.figures.clear()
    render_section(tmp_path, section)
    markdown, comma, latex = (tmp_path / "tables" / f"lasso_i.{suffix}" for suffix in ("md", "csv", "tex"))
    rows = [line for line in markdown.read_text().splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 4
    assert len({row.count("|") for row in rows}) == 1
    assert "| FedDualAvg | 0.001 | 1 |" in markdown.read_text()
    with comma.open() as file:
        read = list(csv.DictReader(file))
    assert [row["algorithm"] for row in read] == ["FedDualAvg", "FedMiD", "FedAvg(∂)", "optimum"]
    text = latex.read_text()
    assert text.count(r"\\") == 1 + 4
    for word in (r"\toprule", r"\midrule", r"\bottomrule", r"FedAvg($\partial$)", r"90\%"):
        assert word in text
    assert "∂" not in text
    assert "lasso_i" not in text.replace(r"lasso\_i", "")


def test_several_seeds_show_median_and_range(records, tmp_path):
    for seed, f1 in enumerate((0.5, 0.6, 0.9)):
        records.add(seed=seed, f1=(0, f1, f1))
    (study,) = collect([records.root]).studies
    section = study_sections([study], {study.slug: in_order(choose(study), Yuan2021.algorithms)}, "rounds", Results())[
        0
    ]
    (tmp_path / "tables").mkdir()
    section.figures.clear()
    render_section(tmp_path, section)
    markdown, comma, latex = (tmp_path / "tables" / f"lasso_i.{suffix}" for suffix in ("md", "csv", "tex"))
    assert "| 0.6 (0.5–0.9) |" in markdown.read_text()
    assert "Metrics: median and range over 3 seeds." in markdown.read_text()
    assert "0.6 (0.5--0.9)" in latex.read_text()
    with comma.open() as file:
        (row,) = csv.DictReader(file)
    assert [float(row[f"F1 {part}"]) for part in ("median", "low", "high")] == [0.6, 0.5, 0.9]


def test_column_of_choices_on_the_edge(records):
    records.add(client_lr=0.001, f1=(0, 1))
    records.add(client_lr=0.01, f1=(0, 0.5))
    (study,) = collect([records.root]).studies
    table = tables.best_table(study, choose(study))
    assert table["on the edge of its grid"].tolist() == ["smallest client rate"]


def test_whole_numbers_have_all_digits():
    table = pd.DataFrame({"rounds": [20_000.0, 123_456_789], "loss": [0.123456, 1e-9], "none": [None, np.nan]})
    assert tables.as_text(table).to_numpy().tolist() == [["20000", "0.1235", "–"], ["123456789", "1e-09", "–"]]
