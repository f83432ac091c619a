"""SQL queries as tables, on SQLite."""

from __future__ import annotations

import sqlite3

import numpy as np
import pytest

from fco_cli.data.readers import fingerprint, read
from fco_cli.data.readers.source import Columns

pytest.importorskip("sqlalchemy")


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "stays.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE stays (hospital TEXT, age REAL, ward TEXT, seen DATE, born DATE, num INT)")
        rows = [
            ("n", 63, "red", "2020-01-01", "1957-01-01", 0), ("n", None, "blue", "2020-01-01", "1960-01-01", 2),
            ("s", 41.5, "red", "2020-01-01", "1978-07-01", 1), ("s", 7, None, "2020-01-01", "2013-01-01", 0),
        ]  # fmt: skip
        connection.executemany("INSERT INTO stays VALUES (?, ?, ?, ?, ?, ?)", rows)
    connection.close()
    return path


def query(folder, database, text="SELECT * FROM stays ORDER BY rowid;"):
    path = folder / "stays.sql"
    path.write_text(f"-- url: sqlite:///{database}\n-- all stays\n{text}\n")
    return path


def test_a_query_gives_the_same_table_as_a_csv_file(tmp_path, database):
    columns = Columns(client="hospital", label="num>0", derive=("years=years_between(born, seen)",))
    (tmp_path / "stays.csv").write_text(
        "hospital,age,ward,seen,born,num\nn,63,red,2020-01-01,1957-01-01,0\nn,,blue,2020-01-01,1960-01-01,2\n"
        "s,41.5,red,2020-01-01,1978-07-01,1\ns,7,,2020-01-01,2013-01-01,0\n"
    )
    ours, theirs = read(query(tmp_path, database), columns), read(tmp_path / "stays.csv", columns)
    np.testing.assert_array_equal(ours.x, theirs.x)
    assert (ours.levels, ours.feature_names) == (theirs.levels, theirs.feature_names)
    assert ours.y.tolist() == theirs.y.tolist()


def test_the_fingerprint_is_that_of_the_rows(tmp_path, database):
    path = query(tmp_path, database)
    columns = Columns(client="hospital", label="num>0")
    first = fingerprint(path, columns)
    path.write_text(path.read_text() + "-- a comment\n")
    assert fingerprint(path, columns) == first
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE stays SET age = 64 WHERE age = 63")
    connection.close()
    path.write_text(path.read_text() + "-- another comment\n")
    assert fingerprint(path, columns) != first


def test_the_url_may_refer_to_the_environment(tmp_path, database, monkeypatch, error_message):
    path = query(tmp_path, "${STAYS}")
    columns = Columns(client="hospital", label="num>0", drop=("seen", "born"))
    assert "the environment variable STAYS, which is not set" in error_message(path, columns=columns)
    monkeypatch.setenv("STAYS", str(database))
    assert read(path, columns).x.shape == (4, 2)


@pytest.mark.parametrize(
    ("text", "expected_message"),
    [
        ("SELECT * FROM nowhere", "the query failed: no such table: nowhere"),
        ("DROP TABLE stays", "after the first line there must be one SELECT query"),
        ("SELECT 1; DROP TABLE stays", "after the first line there must be one SELECT query"),
        ("SELECT * FROM stays WHERE age > 1000", "the query returns no rows"),
        (
            "SELECT hospital, num, seen FROM stays",
            "row 0: column 'seen' is '2020-01-01'; dates are not numbers: derive",
        ),
    ],
)
def test_invalid_queries(tmp_path, database, error_message, text, expected_message):
    columns = Columns(client="hospital", label="num>0")
    assert expected_message in error_message(query(tmp_path, database, text), columns=columns)
    with sqlite3.connect(database) as connection:
        assert connection.execute("SELECT COUNT(*) FROM stays").fetchone() == (4,)
    connection.close()


def test_a_database_is_not_created_and_a_url_is_required(tmp_path, error_message):
    assert "none.db does not exist" in error_message(query(tmp_path, tmp_path / "none.db"))
    assert not (tmp_path / "none.db").exists()
    (tmp_path / "stays.sql").write_text("SELECT 1")
    assert "its first line must be the URL of the database" in error_message(tmp_path / "stays.sql")
    (tmp_path / "stays.sql").write_text("-- url: nonsense\nSELECT 1")
    assert "the URL in its first line is invalid" in error_message(tmp_path / "stays.sql")
