"""Warnings about doubtful values, on made-up columns and on the real tables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fco_cli.data.format import FederatedData
from fco_cli.data.plausibility import find_doubts
from fco_cli.data.published import PUBLICATIONS

ROWS = 120
RANDOM = np.random.default_rng(0)
CLIENT = np.repeat(["a", "b", "c"], ROWS // 3)
LABEL = RANDOM.integers(0, 2, ROWS).astype(float)
PLAIN = RANDOM.normal(50, 9, ROWS)


def data_of(column: np.ndarray, **changes: object) -> FederatedData:
    x = np.column_stack([PLAIN, column])
    data = FederatedData("here", x, LABEL, CLIENT, features=np.array(["plain", "u"]))
    return replace(data, **changes)


def doubts(column: np.ndarray, **changes: object) -> list[str]:
    data = data_of(column, **changes)
    return [finding.by_client(data.client) for finding in find_doubts(data)]


def with_values(column: np.ndarray, rows: list[int], value: float) -> np.ndarray:
    changed = column.copy()
    changed[rows] = value
    return changed


MEASURED = RANDOM.normal(100, 15, ROWS).round(1)


def test_a_plausible_table_gives_no_warning():
    assert doubts(MEASURED) == []
    assert doubts(RANDOM.poisson(3, ROWS).astype(float)) == []  # zeros are plausible counts
    assert doubts((MEASURED > 100).astype(float)) == []
    assert doubts(with_values(MEASURED, [*range(50)], np.nan)) == []


@pytest.mark.parametrize("code", [-1, -9, -99, -999, 999, 9999, -9999, 99999])
def test_missing_value_codes(code):
    (line,) = doubts(with_values(MEASURED, [1, 41, 42], code))
    marker = f"--missing 'u:{code}' or task.missing=[u:{code}]"
    assert line == f"column 'u': 3 rows have {code}, which may mean missing: {marker} [a 1, b 2]"


def test_99_is_an_age():
    ages = RANDOM.integers(20, 100, ROWS).astype(float)
    assert doubts(with_values(ages, [0], 99)) == []


def test_zeros_among_positive_values():
    (line,) = doubts(with_values(MEASURED, [1], 0))
    assert line.startswith("column 'u': 1 row has 0, the others at least ")
    assert line.endswith("0 may mean missing: --missing 'u:0' or task.missing=[u:0] [a 1]")


def test_codes_as_numbers():
    (line,) = doubts(np.arange(ROWS) % 4 + 1.0)
    assert line.startswith(
        "few whole numbers, used as measurements: u (1, 2, 3, 4); declare the columns as categorical"
    )


def test_row_numbers_and_serial_dates():
    assert doubts(np.arange(1000.0, 1000 + ROWS))[0].startswith("column 'u': increases from row to row")
    (line,) = doubts(40000 + RANDOM.permutation(ROWS).astype(float))
    assert "may be a serial date of a spreadsheet" in line


@pytest.mark.parametrize("factor", [88.4, 1 / 88.4, 18, 10])
def test_another_unit_at_one_client(factor):
    (line,) = doubts(np.where(CLIENT == "b", MEASURED * factor, MEASURED))
    assert line.startswith("column 'u': median ")
    assert line.endswith("at the others: is its unit the same? [b 40]")
    assert " at client 'b', " in line


def test_names_that_differ_in_case_or_are_abbreviations():
    levels = {"categories": np.array(["Female", "M", "Male", "male"]), "category_of": np.ones(4, dtype=int)}
    lines = doubts(np.arange(ROWS) % 4.0, **levels, client=np.repeat(["North", "north"], ROWS // 2))
    assert lines == [
        "column 'u': Male, male differ only in case: --fold-case or task.fold_case=true",
        "column 'u': is 'M' short for 'Male'? --map 'u:M=Male' or task.map=[u:M=Male]",
        "client names: North, north differ only in case: --fold-case or task.fold_case=true",
    ]


def test_blood_types_are_no_abbreviations():
    levels = {"categories": np.array(["0", "A", "AB", "B"]), "category_of": np.ones(4, dtype=int)}
    assert doubts(np.arange(ROWS) % 4.0, **levels) == []


def test_repeated_rows_and_patients():
    data = data_of(MEASURED)
    rows = np.append(np.arange(ROWS), [3, 3, 50])
    (finding,) = find_doubts(data.take(rows))
    assert finding.text.startswith(
        "3 rows repeat another row in all features and the label: declare the patient column"
    )
    assert finding.rows.sum() == 5
    binary = data_of(LABEL).take(np.arange(ROWS))
    few = replace(binary, x=np.column_stack([LABEL, np.arange(ROWS) % 3]))
    assert not any("repeat" in finding.text for finding in find_doubts(few))  # chance
    patient = np.arange(ROWS).astype(str)
    assert doubts(MEASURED, patient=patient) == []
    patient[-1] = "0"
    assert doubts(MEASURED, patient=patient)[0].startswith("1 patients have rows at several clients")


def test_columns_that_determine_the_label():
    noise = RANDOM.normal(0, 0.1, ROWS)
    assert doubts(LABEL + noise)[0].startswith("column 'u': predicts the label alone (AUC 1.000): is it known before")
    assert doubts(-LABEL + noise)[0].startswith("column 'u': predicts the label alone (AUC 1.000)")
    (line,) = doubts(np.where(LABEL == 1, MEASURED, np.nan))
    assert line.startswith("column 'u': whether it is missing predicts 100.0% of the labels")
    levels = {"categories": np.array(["home", "morgue"]), "category_of": np.ones(2, dtype=int)}
    assert doubts(LABEL, **levels)[0].startswith("column 'u': predicts 100.0% of the labels alone")
    target = RANDOM.normal(0, 1, ROWS)
    (line,) = doubts(2 * target + 0.01 * noise, y=target)
    assert "predicts the label alone (correlation" in line
    assert doubts(target + RANDOM.normal(0, 0.5, ROWS), y=target) == []


def test_columns_that_determine_the_event_of_survival_times():
    times = RANDOM.exponential(5, ROWS) * np.where(LABEL == 1, 1, -1)
    (finding,) = find_doubts(data_of(LABEL + RANDOM.normal(0, 0.1, ROWS), y=times), censored=True)
    assert finding.text.startswith("column 'u': predicts the label alone (AUC 1.000)")


@pytest.mark.parametrize(
    ("name", "folder", "expected"),
    [
        ("heart", "heart_disease", ["few whole numbers, used as measurements: ca (0, 1, 2, 3)"]),
        ("crime", "communities_crime", ["column 'LemasSwFTFieldOps': 3 rows have 0, the others at least 0.37"]),
        ("eicu", "eicu_demo", ["few whole numbers, used as measurements: eyes (1, 2, 3, 4), motor (1,"]),
    ],
)
def test_few_warnings_about_declared_tables(name, folder, expected, real_data):
    data = PUBLICATIONS[name].read(str(real_data(folder)), 10)
    found = [finding.text for finding in find_doubts(data)]
    assert len(found) == len(expected)
    assert all(line.startswith(start) for line, start in zip(found, expected, strict=True))


def test_warnings_about_heart_without_declarations(real_data):
    """Cholesterol of 0 is missing, and the numbers of chest pain are codes."""
    heart = PUBLICATIONS["heart"]
    bare = replace(heart, columns=replace(heart.columns, categorical=(), missing=()))
    data = bare.read(str(real_data("heart_disease")), 0)
    pressure, chol, codes = (finding.by_client(data.client) for finding in find_doubts(data))
    assert pressure.startswith("column 'trestbps': 1 row has 0, the others at least 80; 0 may mean missing")
    assert chol.startswith("column 'chol': 172 rows have 0, the others at least 85; 0 may mean missing")
    assert chol.count("switzerland 123") == chol.count("va 49") == 1
    assert codes.startswith("few whole numbers, used as measurements: cp (1, 2, 3, 4), restecg (0, 1, 2), slope")
