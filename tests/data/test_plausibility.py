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
    assert doubts(with_values(MEASURED, [*range(0, ROWS, 2)], np.nan)) == []


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


@pytest.mark.parametrize("factor", [88.4, 1 / 88.4, 18, 10, 2.54])
def test_another_unit_at_one_client(factor):
    (line,) = doubts(np.where(CLIENT == "b", MEASURED * factor, MEASURED))
    assert line.startswith("column 'u': median ")
    assert line.endswith("at the others: is its unit the same? [b 40]")
    assert " at client 'b', " in line


def test_names_that_differ_in_case_or_are_abbreviations():
    levels = {"categories": np.array(["Female", "M", "Male", "male"]), "category_of": np.ones(4, dtype=int)}
    lines = doubts(np.arange(ROWS) % 4.0, **levels, client=np.repeat(["North", "north"], ROWS // 2))
    assert lines == [
        "column 'u': Male, male differ only in case: --fold-case or task.fold_case=true [North 30, north 30]",
        "column 'u': is 'M' short for 'Male'? --map 'u:M=Male' or task.map=[u:M=Male] [North 15, north 15]",
        "client names: North, north differ only in case: --fold-case or task.fold_case=true",
    ]


def test_fahrenheit_at_one_client():
    celsius = RANDOM.normal(37, 0.4, ROWS).round(1)
    (line,) = doubts(np.where(CLIENT == "b", celsius * 1.8 + 32, celsius).round(1))
    assert line.startswith("column 'u': median 99 at client 'b', 37 at the others")


@pytest.mark.parametrize(("column", "value"), [(MEASURED, 10000), (RANDOM.normal(37, 0.4, ROWS), 98.2), (PLAIN, -500)])
def test_values_far_from_all_others(column, value):
    """A typing error, or another unit in a few rows; a long tail is none."""
    (line,) = doubts(with_values(column, [1, 41], value))
    assert line.startswith(f"column 'u': 2 rows have {value:g}, the others ")
    assert line.endswith(": is this a typing error, or another unit? [a 1, b 1]")
    assert doubts(np.exp(RANDOM.normal(4, 2, ROWS)).round(2)) == []


def test_columns_without_values():
    (line,) = doubts(np.full(ROWS, np.nan))
    assert line == "columns without values: u: drop them (--drop u or task.drop=[u])"
    (line,) = doubts(np.where(CLIENT == "a", MEASURED, np.nan))
    assert line.startswith("no values at some clients: u (at b, c); their values there are filled from the other")


def test_equal_columns():
    (line,) = doubts(PLAIN)
    assert line == "columns 'plain' and 'u' are equal: drop one (--drop u or task.drop=[u])"


@pytest.mark.parametrize(
    ("y", "start"),
    [
        (LABEL + 1, "label: every label is 1 or 2: for classes, use the condition 'LABEL==2'"),
        (with_values(LABEL, [1, 41], 9), "label: 2 rows have 9, all others 0 or 1: correct or remove them"),
        (with_values(LABEL, [5], 31), "label: 1 row has 31, all others 0 or 1: correct or remove them"),
        (np.arange(ROWS) % 3.0, "label: few whole numbers (0, 1, 2), used as a measurement: declare the label as cat"),
        (with_values(PLAIN[::-1], [7], -999), "label: 1 row has -999, which may mean missing: remove them"),
    ],
)
def test_doubtful_labels(y, start):
    data = data_of(MEASURED, y=y)
    (line,) = [finding.text for finding in find_doubts(data)]
    assert line.startswith(start)
    assert find_doubts(data, labels_are_numbers=True) == []  # a loss for numbers is declared


def test_labels_of_numbers_or_two_classes_are_not_doubtful():
    for y in (LABEL, PLAIN[::-1], RANDOM.poisson(40, ROWS).astype(float)):
        assert doubts(MEASURED, y=y) == []


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
        (
            "heart",
            "heart_disease",
            [
                "few whole numbers, used as measurements: ca (0, 1, 2, 3)",
                "no values at some clients: chol (at switzerland); their values there are filled from the other",
            ],
        ),
        ("crime", "communities_crime", ["column 'LemasSwFTFieldOps': 3 rows have 0, the others at least 0.37"]),
        (
            "eicu",
            "eicu_demo",
            [
                "few whole numbers, used as measurements: eyes (1, 2, 3, 4), motor (1,",
                "no values at some clients: urine (at 29 clients), temperature (at 350), ph (at 50 clients)",
            ],
        ),
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
