"""Error messages for invalid CSV files."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fco_cli.data.readers import read, read_raw_tables
from fco_cli.data.readers.source import Columns

CSV = "client,height,weight,y\na,1,2,0\na,3,4,1\nb,5,6,0\nb,7,8,1\n"


@pytest.mark.parametrize(
    ("text", "expected_message"),
    [
        (CSV.replace("weight", "height"), "columns: given more than once: height"),
        (CSV.replace("weight", "y"), "columns: given more than once: y"),
        (CSV.replace("weight", ""), "column 3 has no name"),
        (CSV.replace(",4,", ",2024-01-31,"), "line 3: column 'weight' is '2024-01-31'; dates are not numbers"),
        (CSV.replace(",4,", ",31.1.2024 12:00,"), "dates are not numbers"),
        (
            CSV.replace(",4,", ",1_000,"),
            "column 'weight' is '1_000'; 3 of 4 rows have a number there; a column must hold",
        ),
        (
            CSV.replace(",4,", ',"4,500",'),
            "column 'weight' is '4,500'; 3 of 4 rows have a number there; the comma may separate decimals or thousands",
        ),
        (CSV.replace("client,height,weight,y\n", ""), "column 'y' not found; columns are a, 1, 2, 0"),
        ("1,2,3\n4,5,6\n", "its first line holds numbers: give the column names of a table without header (names)"),
        (CSV.replace(",4,", f",{'9' * 400},"), "feature 'weight' is inf; every value must be finite"),
        (CSV.replace(",4,", ",4,4,"), "line 3 has 5 cells, the header has 4"),
        (CSV.replace(",4,", ","), "line 3 has 3 cells, the header has 4"),
        (CSV.replace("a,1", ",1"), "line 2: column 'client' is empty"),
        (CSV.replace("a,1", '"a,1'), "is not a CSV file that can be read: unexpected end of data"),
        (CSV.replace("a,1", "a" * 2000 + ",1"), "has 2000 characters; at most 1000 are allowed"),
        (CSV.replace("a,1", "a\0,1"), "a name contains the character NUL"),
        (CSV.replace("client,", "client" + "x" * (1 << 17)), "field larger than field limit"),
        ("\n" + CSV, "its first line is empty"),
        ("client,height,y\n", "has no rows"),
        ("client,y\na,1\n", "no feature columns are left"),
        (CSV.replace("client", "\x1b[31mclient"), "column 'client' not found; columns are \\x1b[31mclient, height"),
    ],
)
def test_csv(tmp_path, text, expected_message, error_message, csv):
    assert expected_message in error_message(csv(tmp_path, text))


def test_text_that_is_not_utf_8_is_refused(tmp_path, error_message):
    (tmp_path / "t.csv").write_bytes(CSV.replace("b,5", "é,5").encode("latin-1"))
    assert "is not UTF-8 text: invalid byte 0x" in error_message(tmp_path / "t.csv")


def test_cells_of_a_csv_file_are_read_verbatim(tmp_path, csv):
    text = 'client,x_1,flag,y\r\n007,0.1, TRUE ,a_1\r\n\r\n"007",1e3,false,b\r\n7,2,True,b\n7,-3,0,a_1\n'
    data = read(csv(tmp_path, "\ufeff" + text))
    assert data.clients.tolist() == ["007", "7"]
    assert data.x.tolist() == [[0.1, 1], [1000, 0], [2, 1], [-3, 0]]
    assert data.classes.tolist() == ["a_1", "b"]
    assert data.feature_names == ["x_1", "flag"]


def test_columns_must_exist_and_be_unique(tmp_path, error_message, csv):
    path = csv(tmp_path)
    twice = error_message(path, columns=Columns(label="client"))
    assert "label, client, split, weights, event and patient: given more than once: client" in twice
    assert "column 'y' is both dropped and used" in error_message(path, columns=Columns(drop=("y",)))
    for absent in (
        Columns(drop=("note",)),
        Columns(categorical=("note",)),
        Columns(weights="note"),
        Columns(event="note"),
        Columns(split="note"),
        Columns(patient="note"),
        Columns(map=("note=age",)),
        Columns(map=("note:a=b",)),
    ):
        assert "column 'note' not found" in error_message(path, columns=absent)
    assert "column 'site' not found; columns are client, height, weight, y (task.partition assigns" in error_message(
        path, columns=Columns(client="site")
    )


def test_a_header_with_many_columns_fails_quickly(tmp_path, error_message, csv):
    names = ",".join(f"x{k}" for k in range(100_000))
    cells = ",".join(["1.5"] * 100_000)
    rows = "".join(f"{client},{cells},1\n" for client in "aabb")
    assert read(csv(tmp_path, f"client,{names},y\n{rows}")).x.shape == (4, 100_000)
    message = error_message(csv(tmp_path, f"klient,{names},y\n{rows}"))
    assert "columns are klient, x0" in message
    assert "and 99992 more" in message


WRITTEN = st.sampled_from(
    [
        *("", "?", "NA", "nan", "-nan", "1", "1.0", " 2.5", "007", "1e3", "1e400", "-.5", "5.", "1_0", "0x1p3", "True"),
        *("false", "red", " red", "blue", "inf", "1j", "１", "1,5", "#1", "\\N", "None", "9" * 26),
        "0.1000000000000000055511151231257827",
    ]
)


@settings(max_examples=100)
@given(st.lists(st.tuples(*[WRITTEN] * 3), min_size=4, max_size=9))
def test_pandas_and_the_cell_parser_read_the_same_table(tmp_path_factory, rows):
    """The files differ only in quotes around one cell of the last row."""
    folder = tmp_path_factory.mktemp("csv")
    raw = []
    for quote in ("", '"'):
        lines = [f"{'ab'[k % 2]};{';'.join(row)};{k}" for k, row in enumerate(rows)]
        text = "client;u;v;w;y\n" + "\n".join([*lines[:1], f"{quote}b{quote};1;1;1;1", "", *lines[1:]])
        (folder / "t.csv").write_text(text)
        (table,) = read_raw_tables(folder / "t.csv")
        raw.append(table)
    fast, slow = raw
    np.testing.assert_array_equal(fast.numbers, slow.numbers)
    for table in raw:
        table.texts = {k: (rows.tolist(), words.tolist()) for k, (rows, words) in table.texts.items()}
    assert fast.texts == slow.texts
    for name in ("lines", "client", "label"):
        assert getattr(fast, name).tolist() == getattr(slow, name).tolist()


def test_files_written_by_spreadsheets(tmp_path, csv, error_message):
    """A line that states the separator, and separators at the end of every line."""
    data = read(csv(tmp_path, 'sep=;\nclient;x;y;;\na;1;0;;\na;2;1;;\n"b";3;0;; \nb;4;1;;\n'))
    assert data.feature_names == ["x"]
    assert data.x[:, 0].tolist() == [1, 2, 3, 4]
    message = error_message(csv(tmp_path, "client,x,y,\na,1,0,\na,2,1,\nb,3,0,late\nb,4,1,\n"))
    assert "line 4: column 4 has no name, but holds 'late'; name it" in message
    message = error_message(csv(tmp_path, ",client,x,y\n0,a,1,0\n1,a,2,1\n2,b,3,0\n3,b,4,1\n"))
    assert "column 1 has no name: name it, or remove it if it holds row numbers" in message
    for first in ("Report of 12.03.2024", "Patient,,Laboratory,"):
        message = error_message(csv(tmp_path, f"{first}\nclient,x,y\na,1,0\n"))
        assert "; the first line must hold the column names, separated by commas, semicolons or tabs" in message
    (tmp_path / "t.csv").write_text("client,x,y\na,1,0\n", encoding="utf-16")
    assert "t.csv: is UTF-16; save it as UTF-8 (`CSV UTF-8` in a spreadsheet)" in error_message(tmp_path / "t.csv")
