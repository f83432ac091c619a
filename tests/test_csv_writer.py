"""Tests of the CSV writer: exact numbers, no formulas, and no other writer of CSV in the package."""

from __future__ import annotations

import ast
import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fco_cli
from fco_cli.csv_writer import as_csv
from fco_cli.path.record import _as_csv
from fco_cli.reporting import text

PACKAGE = Path(fco_cli.__file__).parent


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", " =1", '=HYPERLINK("http://x")'])
def test_a_text_that_begins_like_a_formula_is_marked_as_text(name):
    header, row = csv.reader(as_csv([name], [[name]]).splitlines())
    assert header == row
    assert row[0].startswith("'")


def test_a_client_whose_name_is_a_formula_is_text_in_the_table_of_clients():
    """`selection` writes this table as clients.csv."""
    lines = _as_csv([{"client": "=1+1", "loss": -0.5}, {"client": "north", "loss": 2, "auc": 0.5}]).decode()
    assert lines == "client,loss,auc\n'=1+1,-0.5,\nnorth,2,0.5\n"


def test_numbers_read_back_exactly_and_are_never_marked():
    numbers = [*np.random.default_rng(0).standard_normal(100).tolist(), -1e-300, 1e300, -5e-324, -0.0, 0.1]
    rows = list(csv.reader(as_csv(["x"], [[value] for value in numbers]).splitlines()))[1:]
    assert [float(cell) for (cell,) in rows] == numbers
    assert as_csv(["x"], [[-0.1], [np.float64(-3)], [-2], [True]], ".17g") == "x\n-0.10000000000000001\n-3\n-2\nTrue\n"


def test_control_characters_and_lone_surrogates_are_escaped():
    assert as_csv(["a"], [["\x1b]0;x\x07\n\udc80"]]).encode() == b"a\n\\x1b]0;x\\x07\\x0a\\xdc80\n"


def test_a_frame_is_written_as_pandas_writes_it():
    frame = pd.DataFrame(
        {
            "rate": [0.1, np.nan, 1e-17], "count": [1, 2, 3], "some": pd.array([1, None, 3], dtype="Int64"),
            "good": [True, False, True], "mixed": [1, None, "a,b"], "quoted": ['"', "'", "é"],
        }
    )  # fmt: skip
    assert text.as_csv(frame) == frame.to_csv(index=False)


def test_no_other_module_writes_csv():
    functions = {"writer", "DictWriter", "to_csv"}
    writers = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in functions:
                writers.add(path.relative_to(PACKAGE).as_posix())
    assert writers == {"csv_writer.py"}
