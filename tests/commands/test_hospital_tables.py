"""Tables as hospitals have them: `fco-data` reads them, warns, or refuses them with a column, a cell and an option.

A table has three hospitals with twenty patients each; a case changes one column.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fco_cli.commands.data import main

ROWS = 60
RANDOM = np.random.default_rng(0)
AGE = RANDOM.integers(30, 90, ROWS)
CREATININE = RANDOM.normal(90, 15, ROWS).round(1)
SERIAL = RANDOM.integers(40000, 44000, ROWS)
COLUMNS = {
    "hospital": np.repeat(["North", "South", "East"], ROWS // 3).tolist(),
    "age": AGE.astype(str).tolist(),
    "crea": CREATININE.astype(str).tolist(),
    "sex": RANDOM.choice(["male", "female"], ROWS).tolist(),
    "died": (RANDOM.random(ROWS) < 1 / (1 + np.exp((60 - AGE) / 10))).astype(int).astype(str).tolist(),
}
Change = Callable[[int, str], str]


def table(column: str = "", change: Change | None = None, separator: str = ",", **more: list[str]) -> str:
    columns = COLUMNS | more
    if change is not None:
        columns = columns | {column: [change(row, cell) for row, cell in enumerate(columns[column])]}
    rows = zip(*columns.values(), strict=True)
    return "\n".join(separator.join(cells) for cells in [tuple(columns), *rows]) + "\n"


def call(path, capsys, command: str = "check", *options: str) -> tuple[int, list[str]]:
    """Return the exit code of `fco-data` and its lines on both streams."""
    code = 0
    try:
        main([command, str(path), "--client", "hospital", "--label", "died", *options])
    except SystemExit as end:
        code = int(end.code or 0)
    out, error = capsys.readouterr()
    assert error.count("\n") == (code != 0)
    return code, [*out.splitlines(), *error.splitlines()]


def scaled(factor: float) -> Change:
    return lambda row, cell: f"{float(cell) / factor:.2f}" if row < ROWS // 3 else cell


READ = {
    "a good table": (table(), "age 30 to 89"),
    "semicolons and decimal commas": (table("crea", lambda _, cell: cell.replace(".", ","), ";"), "crea number"),
    "a unit": (table("crea", lambda _, cell: f"{cell} µmol/l"), "crea [µmol/l] number"),
    "percent": (table("crea", lambda _, cell: f"{cell}%"), "crea [%] number"),
    "spaces": (table("hospital", lambda row, cell: cell + " " * (row % 2)), "clients 3"),
    "a byte order mark": ("\ufeff" + table(separator=";"), "clients 3"),
    "true and false": (table(icu=["TRUE", "FALSE"] * 30), "icu number"),
    "missing values": (
        table("crea", lambda row, cell: ["NA", "n/a", "", "#N/A"][row % 4] if row % 5 else cell),
        "crea number 80.0%",
    ),
}
WARNED = {
    "label coded 1 and 2": (table("died", lambda _, cell: str(int(cell) + 1)), "label: every label is 1 or 2"),
    "label 9 for unknown": (
        table("died", lambda row, cell: "9" if row == 7 else cell),
        "label: 1 row has 9, all others",
    ),
    "row numbers": (table(nr=[str(row) for row in range(ROWS)]), "column 'nr': increases from row to row"),
    "serial dates": (table(seen=SERIAL.astype(str).tolist()), "column 'seen': "),
    "-999": (
        table("crea", lambda row, cell: cell if row % 9 else "-999"),
        "column 'crea': 7 rows have -999, which may",
    ),
    "cholesterol 0": (table("crea", lambda row, cell: cell if row % 9 else "0"), "column 'crea': 7 rows have 0, the"),
    "mg/dl": (table("crea", scaled(88.4)), "at the others: is its unit the same? [North 20]"),
    "a typing error": (
        table("crea", lambda row, cell: cell if row != 5 else "9000"),
        "column 'crea': 1 row has 9000, the",
    ),
    "Male and male": (
        table("sex", lambda row, cell: cell.title() if row % 2 else cell),
        "Male, male differ only in case",
    ),
    "M": (table("sex", lambda row, cell: cell[:1].upper() if row % 2 else cell), "is 'M' short for 'male'?"),
    "ja and yes": (table(smoker=["yes", "no", "ja", "nein"] * 15), "ja, yes may be the same: --map 'smoker:yes=ja'"),
    "a missing category": (table("sex", lambda row, cell: "unknown" if row % 7 == 0 else cell), "'unknown' may mean"),
    "repeated rows": (table() + "".join(table().splitlines(True)[1:20]), "19 rows repeat another row in all features"),
    "a leak": (table(code=[str(3 * int(died) + 1) for died in COLUMNS["died"]]), "column 'code': predicts the label"),
    "one hospital only": (
        table(lactate=["1.5"] * 20 + [""] * 40),
        "no values at some clients: lactate (at East, South)",
    ),
    "no values": (
        table(empty=[""] * ROWS),
        "columns without values: empty: drop them (--drop empty or task.drop=[empty])",
    ),
    "equal columns": (table(years=COLUMNS["age"]), "columns 'age' and 'years' are equal: drop one (--drop years"),
    "codes": (table(pain=["1", "2", "3", "4"] * 15), "few whole numbers, used as measurements: pain (1, 2, 3, 4)"),
    "hospital 1 and 1.0": (table("hospital", lambda row, _: ["1", "1.0", "2"][row % 3]), "1, 1.0 are the same number"),
    "names": (table(name=[f"Smith {row // 2}" for row in range(ROWS)]), "column 'name': 30 different texts in 60 rows"),
}
REFUSED = {
    "an identifier": (
        table(patient_id=(7 * SERIAL).astype(str).tolist()),
        "line 2: column 'patient_id' is ",
        "(--drop patient_id or task.drop=[patient_id]), or declare it as the patient column (--patient patient_id or",
    ),
    "an admission date": (
        table(admission_date=SERIAL.astype(str).tolist()),
        "column 'admission_date' is '4",
        "--derive",
    ),
    "a stray word": (
        table("crea", lambda row, cell: cell if row != 7 else "hemolytic"),
        "line 9: column 'crea' is 'hemolytic'; 59 of 60 rows have a number there",
        "--missing hemolytic or",
    ),
    "a limit of detection": (
        table("crea", lambda row, cell: cell if row % 9 else "<5"),
        "column 'crea' is '<5'",
        "(--map 'crea:<5=NUMBER' or 'task.map=[crea:<5=NUMBER]')",
    ),
    "dashes": (
        table("crea", lambda row, cell: cell if row % 9 else "-.n"[row % 2]),
        "column 'crea' is '-'",
        "(--missing='-' --missing '.' or task.missing=[-,.])",
    ),
    "yes, ja and 1": (
        table(icu=["yes", "no", "ja", "nein", "1", "0"] * 10),
        "column 'icu' is 'ja'; 20 of 60 rows",
        "task.map=[icu:ja=NUMBER]",
    ),
    "two units": (
        table("age", lambda row, cell: f"{cell} months" if row == 5 else f"{cell} years"),
        "column 'age' is ",
        "cells have the units 'months' and 'years'",
    ),
    "dates": (
        table(birth=[f"{1 + row % 28:02d}.05.1950" for row in range(ROWS)]),
        "column 'birth' is '01.05.1950'",
        "age=years_between(birth, admission)",
    ),
    "free text": (
        table(note=[f"stable since day {row}" for row in range(ROWS)]),
        "column 'note' is 'stable since day 0'",
        "drop the column (--drop note or task.drop=[note])",
    ),
    "thousands": (
        table(
            "crea", lambda _, cell: cell.replace(".", ","), ";", plt=[f"{row % 9}.{100 + row}" for row in range(ROWS)]
        ),
        "column 'plt' is '0.1'; column 'crea' has decimal commas",
        "--decimal ','",
    ),
    "a total row": (table() + "Total,3600,5400.0,,31\n", "client 'Total'", "min_samples=2"),
    "a total without a hospital": (table() + ",,5400.0,,\n", "line 62: column 'hospital' is empty", ""),
    "a missing label": (
        table("died", lambda row, cell: cell if row != 3 else ""),
        "line 5: column 'died' is empty",
        "",
    ),
    "yes among labels": (
        table("died", lambda row, cell: "yes" if row == 3 else cell),
        "line 5: column 'died' is 'yes'",
        "task.categorical=[died]",
    ),
    "equal names": (table().replace("crea", "age", 1), "columns: given more than once: age", ""),
    "a title": ("Report of 2024\n" + table(), "column 'died' not found", "the first line must hold the column names"),
    "two header rows": ("Patient,,Laboratory,,\n" + table(), "column 'died' not found", "the first line must hold"),
}


@pytest.mark.parametrize("name", READ)
def test_tables_that_are_read(tmp_path, capsys, name):
    text, described = READ[name]
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    assert call(path, capsys) == (0, [f"{path}: OK: 60 samples of 3 clients"])
    code, lines = call(path, capsys, "describe")
    assert code == 0
    assert not [line for line in lines if line.startswith("warning:")]
    first, rest = described.rsplit(" ", 1) if described[-1].isdigit() else (described, "")
    words = [" ".join(line.split()) for line in lines]
    assert any(line.startswith(first.split(" 30")[0]) and rest in line for line in words)


@pytest.mark.parametrize("name", WARNED)
@pytest.mark.parametrize("command", ["check", "describe"])
def test_tables_with_warnings(tmp_path, capsys, name, command):
    text, warning = WARNED[name]
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    code, lines = call(path, capsys, command)
    assert code == 0
    expected = warning.partition(" [")[0]  # only `describe` prints the rows of every client
    assert any(line.startswith("warning: ") and expected in line for line in lines)
    if command == "describe":
        assert any(warning in line for line in lines)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("command", ["check", "describe"])
def test_tables_that_are_refused(tmp_path, capsys, name, command):
    text, problem, remedy = REFUSED[name]
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    code, lines = call(path, capsys, command)
    assert code == 2
    assert f"fco-data: {path}: " in lines[-1]
    assert problem in lines[-1]
    assert remedy in lines[-1]


def test_a_table_that_is_not_utf_8_is_refused(tmp_path, capsys):
    path = tmp_path / "t.csv"
    path.write_bytes(table("sex", lambda _, cell: cell.replace("male", "männlich")).encode("latin-1"))
    code, (line,) = call(path, capsys)
    assert code == 2
    assert line.endswith("t.csv: is not UTF-8 text: invalid byte 0xe4; save it as UTF-8 (`CSV UTF-8` in a spreadsheet)")


CELLS = st.sampled_from(
    [
        "",
        " ",
        "-",
        "NA",
        "n/a",
        "?",
        "<5",
        ">200",
        "1,5",
        "1.5",
        "1.234,5",
        "1,234",
        "85.3 µmol/l",
        "95%",
        "yes",
        "ja",
        "TRUE",
        "0",
        "1",
        "2",
        "-999",
        "1e400",
        "inf",
        "nan",
        "2024-01-31",
        "31.1.2024",
        "1/2/2024",
        "44000",
        "20240131",
        "Male",
        "M",
        "120/80",
        "hemolytic",
        "#DIV/0!",
        '"',
        '""',
        "'",
        ";",
        ",",
        "\t",
        "\x00",
        "\ufeff",
        "é",
        "９",
        "=1+1",
        "x" * 300,
        "\r",
    ]
)
DAMAGE = st.lists(st.tuples(st.integers(0, ROWS), st.integers(0, 4), CELLS), max_size=12)
LINES = st.sampled_from(
    ["", "Total,1,2,,3", ",,,,", "sep=;", "Report", "hospital,age,crea,sex,died", "North,1", "\ufeff"]
)
OPTIONS = st.lists(
    st.sampled_from(
        [
            "--missing=-",
            "--missing=--",
            "--decimal=,",
            "--decimal=.",
            "--fold-case",
            "--categorical=sex",
            "--categorical=age",
            "--map=sex:male=1",
            "--map=crea:<5=2.5",
            "--map=age=years",
            "--derive=d=days_between(age, crea)",
            "--patient=sex",
            "--event=died",
            "--drop=crea",
            "--weights=age",
            "--loss=logistic",
            "--min-samples=2",
            "--map=age:1=x",
        ]
    ),
    max_size=3,
    unique=True,
)


def damaged_tables_end_in_one_line(folder, capsys, damage, extra, separator, options):
    lines = [line.split(",") for line in table().splitlines()]
    for row, column, cell in damage:
        lines[row][column] = cell
    text = [separator.join(cells) for cells in lines]
    for place, line in extra:
        text.insert(place % (len(text) + 1), line)
    path = folder / "t.csv"
    path.write_text("\n".join(text) + "\n", encoding="utf-8", newline="")
    for command in ("check", "describe"):
        allowed = [one for one in options if command == "check" or not one.startswith("--loss")]
        code, printed = call(path, capsys, command, *allowed)
        assert code in (0, 2), printed
        assert all(line.isprintable() for line in printed)


EXTRA = st.lists(st.tuples(st.integers(0, ROWS + 1), LINES), max_size=2)
QUIET = [HealthCheck.function_scoped_fixture]  # `capsys` is emptied by every call


@settings(max_examples=15, suppress_health_check=QUIET)
@given(DAMAGE, EXTRA, st.sampled_from([",", ";", "\t"]), OPTIONS)
def test_damaged_tables(tmp_path_factory, capsys, damage, extra, separator, options):
    damaged_tables_end_in_one_line(tmp_path_factory.mktemp("t"), capsys, damage, extra, separator, options)


@pytest.mark.ci
@settings(max_examples=500, suppress_health_check=QUIET)
@given(DAMAGE, EXTRA, st.sampled_from([",", ";", "\t"]), OPTIONS)
def test_many_damaged_tables(tmp_path_factory, capsys, damage, extra, separator, options):
    damaged_tables_end_in_one_line(tmp_path_factory.mktemp("t"), capsys, damage, extra, separator, options)
