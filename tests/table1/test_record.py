"""experiment=table1: the record, the printed table, numbers and refusals."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from fco_cli.api import table1
from fco_cli.table1.differences import category_difference, number_difference


@pytest.fixture
def clinics(tmp_path):
    """A table of three clinics: numbers, texts, a binary code, missing values, and a column that one does not have."""
    random = np.random.default_rng(3)
    rows = 240
    clinic = np.array(["east", "north", "west"])[np.arange(rows) % 3]
    age = random.normal(60, 9, rows).round(1)
    sex = random.integers(0, 2, rows)
    stage = np.array(["I", "II", "III", "IV"])[random.choice(4, rows, p=[0.45, 0.35, 0.17, 0.03])]
    lactate = np.where((random.random(rows) < 0.2) | (clinic == "west"), np.nan, random.gamma(2, 1, rows)).round(2)
    sick = (random.random(rows) < 0.4).astype(int)
    path = tmp_path / "clinics.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "sex", "stage", "lactate", "sick", "clinic"])
        for line in zip(age, sex, stage, lactate, sick, clinic, strict=True):
            writer.writerow(["" if value != value else value for value in line])
    return path


def overrides(path, *more):
    words = (f"task.path={path}", "task.client=clinic", "task.label=sick")
    return (*words, f"output_dir={path.parent / 'out'}", *more)


def test_record(clinics):
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(clinics)
    record = table1(*overrides(clinics, "table1.min_cell=0", "table1.p=true"))
    table = record.table
    assert list(table.columns) == ["all clients", "east", "north", "west", "SMD", "p"]
    assert table.loc[("rows", "n"), "all clients"] == "240"
    for client in ("east", "north", "west"):
        own = frame[frame.clinic == client]
        assert table.loc[("age", "mean (SD)"), client] == f"{own.age.mean():.1f} ({own.age.std():.1f})"
        low, middle, high = own.age.quantile([0.25, 0.5, 0.75])
        assert table.loc[("age", "median [quartiles]"), client] == f"{middle:.4g} [{low:.4g}, {high:.4g}]"
        assert table.loc[("sex", "1, n (%)"), client] == f"{own.sex.sum()} ({100 * own.sex.mean():.1f})"
        assert table.loc[("sick", "1, n (%)"), client] == f"{own.sick.sum()} ({100 * own.sick.mean():.1f})"
        second = (own.stage == "II").sum()
        assert table.loc[("stage", "II, n (%)"), client] == f"{second} ({100 * second / len(own):.1f})"
        missing = own.lactate.isna().sum()
        assert table.loc[("lactate", "missing, n (%)"), client] == f"{missing} ({100 * missing / len(own):.1f})"
    assert table.loc[("lactate", "mean (SD)"), "west"] == ""
    scipy = pytest.importorskip("scipy.stats")
    p = scipy.chi2_contingency(pandas.crosstab(frame.stage, frame.clinic), correction=False).pvalue
    assert table.loc[("stage", "I, n (%)"), "p"] == f"{p:.3f}"
    anova = scipy.f_oneway(*(frame.age[frame.clinic == client] for client in ("east", "north", "west")))
    assert table.loc[("age", "mean (SD)"), "p"] == f"{anova.pvalue:.3f}"
    files = {path.name for path in record.folder.iterdir()}
    assert {"config.yaml", "result.json", "table1.csv", "table1.tex", "table1.html"} <= files
    assert "Characteristics of 240 rows of 3 clients" in record.summary()
    assert table1(*overrides(clinics, "table1.min_cell=0", "table1.p=true")).result == record.result


def test_doubtful_columns_are_reported(clinics, caplog):
    """Table 1 is often the first command on a table."""
    clinics.write_text(clinics.read_text().replace(",II,", ",ii,", 30))
    with caplog.at_level("WARNING", logger="fco_cli"):
        table1(*overrides(clinics))
    assert "warning: column 'stage': II, ii differ only in case: --fold-case or task.fold_case=true" in caplog.text


def test_no_file_of_the_record_has_a_small_count(clinics):
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(clinics)
    record = table1(*overrides(clinics))
    counts = pandas.crosstab(frame.stage, frame.clinic).loc["IV"]
    assert (counts < 10).all()
    assert (record.table.loc[("stage", "IV, n (%)")][["east", "north", "west"]] == "–").all()
    known = record.table.loc["stage"][["east", "north", "west"]]
    assert ((known == "–").sum() >= 2).all()  # of a column whose sum is published
    assert not any("(" in cell and cell.startswith(f"{count} ") for cell, count in zip(
        record.table.loc[("stage", "IV, n (%)")][["east", "north", "west"]], counts, strict=True))  # fmt: skip
    assert record.table.loc[("stage", "I, n (%)"), "SMD"] == ""
    lines = json.loads((record.folder / "result.json").read_text())["lines"]
    assert next(line["cells"] for line in lines if line["statistic"] == "IV, n (%)")[1:] == ["–"] * 3


def test_columns_and_pooled_clients(clinics):
    record = table1(*overrides(clinics, "table1.columns=[age,stage]", "table1.clients=2", "table1.quartiles=false"))
    assert record.result["heads"] == ["all clients", "east", "2 other clients"]
    assert set(record.table.index.get_level_values(0)) == {"rows", "age", "stage"}
    assert record.table.loc[("rows", "n"), "2 other clients"] == "160"


def test_survival_labels(tmp_path):
    random = np.random.default_rng(0)
    path = tmp_path / "trial.csv"
    lines = ["age,days,dead,site"]
    for k in range(120):
        days, dead = int(random.integers(10, 900)), int(random.random() < 0.5)
        lines.append(f"{random.normal(60, 5):.1f},{days},{dead},{'ab'[k % 2]}")
    path.write_text("\n".join(lines))
    words = ["task.client=site", "task.label=days", "task.event=dead", f"output_dir={tmp_path}"]
    record = table1(f"task.path={path}", *words)
    assert record.table.loc[("dead", "1, n (%)")].notna().all()
    assert ("days", "median [quartiles]") in record.table.index


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["table1.columns=[agee]"], "table1.columns: got 'agee'"),
        (["table1.min_cell=-1"], "table1.min_cell"),
        (["task.weights=age"], "task.weights"),
        (["task=lasso"], "must be a task on a table"),
    ],
)
def test_refusals(clinics, words, message):
    base = [] if words == ["task=lasso"] else overrides(clinics)
    with pytest.raises(ValueError, match=message) as refusal:
        table1(*base, *words, f"output_dir={clinics.parent / 'out'}")
    assert "\n" not in str(refusal.value)


def test_differences():
    """Standardized differences by their definitions; p-values of Pearson's test."""
    means, deviations = np.array([1.0, 2.0, 4.0]), np.array([9.0, 19.0, 29.0])
    smd, _ = number_difference(np.array([10, 20, 30]), means, deviations)
    assert smd == pytest.approx(np.mean([1.0, 3.0, 2.0]))  # all variances are 1
    shares, p = category_difference(np.array([[40, 30], [60, 70]]))
    assert shares == pytest.approx(0.1 / np.sqrt((0.24 + 0.21) / 2))
    assert p == pytest.approx(0.138208, abs=1e-5)
    assert category_difference(np.array([[10, 0], [0, 10]]))[0] is None  # the clients have no category in common
    assert number_difference(np.array([5, 5]), np.array([1.0, 1.0]), np.zeros(2)) == (None, None)


@pytest.mark.parametrize("unit", ["e-310", "e-200", "e200"])
def test_numbers_whose_squares_have_no_digits_are_not_two_values(tmp_path, unit):
    """Sums of squares that underflow or overflow do not show that a column has two values; no warning is printed."""
    rows = "".join(f"{'ab'[i % 2]},{i}{unit},{i // 2 % 2}\n" for i in range(20))
    (tmp_path / "t.csv").write_text(f"client,size,y\n{rows}")
    table = table1(f"task.path={tmp_path / 't.csv'}", f"output_dir={tmp_path / 'out'}", "table1.min_cell=0").table
    assert ("size", "median [quartiles]") in table.index
