"""Tables: delimiters, missing values, categories, labels, weights, inconsistent files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fco_cli.data.readers import read, read_features, read_raw_tables
from fco_cli.data.readers.source import Columns
from fco_cli.errors import UserError

TABLE = """\
hospital,age,ward,"blood, pressure",num
north,63,red,145,0
north,?,blue,NA,2
south,41, red ,120,1
south,,,-999,0
"""


def write(folder: Path, text: str, name: str = "t.csv") -> Path:
    (folder / name).write_text(text, encoding="utf-8", newline="")
    return folder / name


def columns(**changes) -> Columns:
    return Columns(**({"client": "hospital", "label": "num>0", "missing": ("-999",)} | changes))


def cells(text: str) -> str:
    """Return the table with another delimiter, a BOM and Windows line endings."""
    return "\ufeff" + text.replace('"blood, pressure"', "blood pressure").replace("\n", "\r\n")


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_delimiters_missing_values_categories_and_conditions(tmp_path, mark):
    text = TABLE if mark == "," else cells(TABLE).replace(",", mark)
    data = read(write(tmp_path, text), columns())
    assert data.feature_names == ["age", "ward", "blood, pressure" if mark == "," else "blood pressure"]
    nan = np.nan
    np.testing.assert_array_equal(data.x, [[63, 1, 145], [nan, 0, nan], [41, 1, 120], [nan, nan, nan]])
    assert data.levels == {1: ["blue", "red"]}
    assert data.y.tolist() == [0, 1, 1, 0]
    assert data.classes.tolist() == ["not num>0", "num>0"]


def test_parquet_gives_the_same_table_as_csv(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = {
        "hospital": ["north", "north", "south", "south"],
        "age": ["63", "?", "41", ""],
        "ward": pa.array(["red", "blue", " red ", None]).dictionary_encode(),
        "blood, pressure": [145, None, 120, -999],
        "num": [0, 2, 1, 0],
    }
    parquet.write_table(pa.table(table), tmp_path / "t.parquet")
    ours, theirs = read(tmp_path / "t.parquet", columns()), read(write(tmp_path, TABLE), columns())
    np.testing.assert_array_equal(ours.x, theirs.x)
    assert (ours.levels, ours.feature_names) == (theirs.levels, theirs.feature_names)
    assert ours.y.tolist() == theirs.y.tolist()


def test_a_table_without_a_header_needs_names(tmp_path):
    path = write(tmp_path, TABLE.split("\n", 1)[1])
    names = ("hospital", "age", "ward", "pressure", "num")
    assert read(path, columns(names=names)).feature_names == ["age", "ward", "pressure"]
    with pytest.raises(Exception, match=r"line 1 has 5 cells, but 4 column names are given \(names\)"):
        read(path, columns(names=names[:-1]))


def test_a_number_can_mark_missing_values_in_one_column(tmp_path, error_message):
    text = "client,chol,age,y\na,0,0,0\na,200,30,1\nb,210.5,0,0\nb,0.0,3,1\n"
    data = read(write(tmp_path, text), Columns(missing=("chol:0",)))
    np.testing.assert_array_equal(data.x, [[np.nan, 0], [200, 30], [210.5, 0], [np.nan, 3]])
    assert "missing: got 'cholesterol:0', must be a text, a number, or a column" in error_message(
        tmp_path / "t.csv", columns=Columns(missing=("cholesterol:0",))
    )


def test_numeric_categories_must_be_declared(tmp_path):
    path = write(tmp_path, "client,cp,y\na,1.0,0\na,2,1\nb,1,0\nb,asymptomatic,1\n")
    data = read(path, Columns(categorical=("cp",)))
    assert data.levels == {0: ["1", "2", "asymptomatic"]}
    assert data.x[:, 0].tolist() == [0, 1, 0, 2]


@pytest.mark.parametrize(
    ("changes", "label", "y", "classes"),
    [
        ({}, "num", [0, 2, 1, 0], None),
        ({}, "num>=2", [0, 1, 0, 0], ["not num>=2", "num>=2"]),
        ({}, "num < 1", [1, 0, 0, 1], ["not num<1", "num<1"]),
        ({}, "num!=0", [0, 1, 1, 0], ["not num!=0", "num!=0"]),
        ({",0\n": ",no\n", ",1\n": ",a bit\n", ",2\n": ",much\n"}, "num", [2, 1, 0, 2], ["a bit", "much", "no"]),
        ({",0\n": ",no\n"}, "num==no", [1, 0, 0, 1], ["not num==no", "num==no"]),
    ],
)
def test_labels(tmp_path, changes, label, y, classes):
    text = TABLE
    for old, new in changes.items():
        text = text.replace(old, new)
    data = read(write(tmp_path, text), columns(label=label))
    assert data.y.tolist() == y
    assert (data.classes if data.classes is None else data.classes.tolist()) == classes


@pytest.mark.parametrize(
    ("old", "new", "label", "expected_message"),
    [
        (",2\n", ",NA\n", "num>0", "client 'north', line 3: column 'num' is empty; every row must have a label"),
        (",2\n", ",many\n", "num>0", "label: got 'num>0', but the column holds texts"),
        ("", "", "num==many", "label: got 'num==many', but the column holds numbers"),
        ("", "", "num>many", "label: got 'num>many'; > must be followed by a number"),
        ("", "", "nmu>0", "column 'nmu' not found"),
        (
            ",41,",
            ",2024-01-31,",
            "num>0",
            "client 'south', line 4: column 'age' is '2024-01-31'; dates are not numbers",
        ),
        (
            ",41,",
            ",old,",
            "num>0",
            "column 'age' is 'old'; 1 of 4 rows have a number there; a column must hold numbers or",
        ),
    ],
)
def test_invalid_cells_and_labels(tmp_path, error_message, old, new, label, expected_message):
    assert expected_message in error_message(
        write(tmp_path, TABLE.replace(old, new) if old else TABLE), columns=columns(label=label)
    )


@pytest.mark.parametrize("weight", ["-1", "", "much", "inf"])
def test_weights_are_nonnegative_numbers(tmp_path, error_message, weight):
    text = "client,h,w,y\na,1,0.5,0\na,2,2,1\nb,3,{},0\nb,4,1,1\n"
    assert read(write(tmp_path, text.format(0)), Columns(weights="w")).weights.tolist() == [0.5, 2, 0, 1]
    message = error_message(write(tmp_path, text.format(weight)), columns=Columns(weights="w"))
    assert "line 4: column 'w' is" in message
    assert message.endswith("a weight must be a number >= 0")


TIMES = "client,age,days,status\na,1,5,2\na,2,7.5,1\nb,3,9,1\nb,4,2,2\n"


@pytest.mark.parametrize(("event", "status"), [("status==2", "2"), ("status>=2", "2"), ("status==dead", "dead")])
def test_censored_times_are_negative(tmp_path, event, status):
    data = read(write(tmp_path, TIMES.replace(",2\n", f",{status}\n")), Columns(label="days", event=event))
    assert data.y.tolist() == [5, -7.5, -9, 2]
    assert (data.feature_names, data.classes) == (["age"], None)


def test_an_event_of_0_and_1_needs_no_condition(tmp_path):
    text = TIMES.replace(",1\n", ",0\n").replace(",2\n", ",1\n")
    assert read(write(tmp_path, text), Columns(label="days", event="status")).y.tolist() == [5, -7.5, -9, 2]
    assert read_features(write(tmp_path, text), Columns(label="days", event="status")).names == ["age"]


@pytest.mark.parametrize(
    ("old", "new", "label", "event", "expected_message"),
    [
        ("", "", "days", "status", "line 2: column 'status' is '2.0'; the event must be 0 (censored) or 1"),
        (",9,1", ",9,", "days", "status==2", "line 4: column 'status' is 'nan'; the event must be 0 (censored) or 1"),
        (",9,", ",0,", "days", "status==2", "line 4: column 'days' is '0.0'; a time must be a number > 0"),
        (",9,", ",-9,", "days", "status==2", "line 4: column 'days' is '-9.0'; a time must be a number > 0"),
        (",9,", ",,", "days", "status==2", "line 4: column 'days' is empty; every row must have a label"),
        (",9,", ",soon,", "days", "status==2", "with event 'status==2', the label must be a time > 0"),
        (
            "",
            "",
            "days>5",
            "status==2",
            "column 'days>5' is '5.0'; with event 'status==2', the label must be a time > 0",
        ),
        ("", "", "days", "days", "event and patient: given more than once: days"),
        ("", "", "days", "dead", "column 'dead' not found"),
    ],
)
def test_invalid_times_and_events(tmp_path, error_message, old, new, label, event, expected_message):
    path = write(tmp_path, TIMES.replace(old, new) if old else TIMES)
    assert expected_message in error_message(path, columns=Columns(label=label, event=event))


def test_files_of_clients_may_differ_in_column_order_and_categories(tmp_path):
    write(tmp_path, "age,ward,y\n1,red,0\n2,blue,1\n", "a.csv")
    write(tmp_path, "ward,y,age\n,0,3\ngreen,1,4\n", "b.csv")
    write(tmp_path, "age;ward;y\n5;;0\n6;;1\n", "c.csv")
    data = read(tmp_path)
    nan = np.nan
    assert data.levels == {1: ["blue", "green", "red"]}
    np.testing.assert_array_equal(data.x, [[1, 2], [2, 0], [3, nan], [4, 1], [5, nan], [6, nan]])


@pytest.mark.parametrize(
    ("other", "expected_message"),
    [
        (
            "years,ward,y\n3,red,0\n4,red,1\n",
            "b.csv: its columns differ from those of a.csv: missing columns age; additional columns years"
            "; if they are the same column, rename it (--map 'years=age' or task.map=[years=age])",
        ),
        ("age,y\n3,0\n4,1\n", "b.csv: its columns differ from those of a.csv: missing columns ward"),
        (
            "age,ward,y\n3,1,0\n4,2,1\n",
            "b.csv: column 'ward' holds numbers, that of a.csv texts: declare it as categorical",
        ),
        ("age,age,ward,y\n3,3,1,0\n4,4,2,1\n", "b.csv: columns: given more than once: age"),
    ],
)
def test_files_of_clients_with_different_columns_are_refused(tmp_path, error_message, other, expected_message):
    write(tmp_path, "age,ward,y\n1,red,0\n2,blue,1\n", "a.csv")
    write(tmp_path, other, "b.csv")
    assert expected_message in error_message(tmp_path)


def test_rows_to_predict_need_neither_label_nor_client(tmp_path):
    text = TABLE.replace(",num", "").replace("hospital,", "")
    bare = "\n".join(line.split(",", 1)[1].rsplit(",", 1)[0] for line in text.splitlines()[1:2])
    table = read_features(write(tmp_path, f"{text.splitlines()[0]}\n{bare}\n"), columns())
    assert table.names == ["age", "ward", "blood, pressure"]
    assert table.levels == {1: ["red"]}
    assert table.x.tolist() == [[63, 0, 145]]
    assert read_features(write(tmp_path, TABLE), columns()).names == table.names


def test_the_raw_table_has_the_types_of_invalid_columns(tmp_path):
    text = "client,number,word,mixed,date,none,y\n" + "".join(
        f"{client},{k},w{k},{'x' if k else 7},2024-01-0{k + 1},?,\n" for client in "ab" for k in range(2)
    )
    (table,) = read_raw_tables(write(tmp_path, text))
    assert [table.kind(k) for k in range(5)] == ["number", "category", "mixed", "date", "empty"]
    assert np.isnan(table.label).all()


def test_a_table_of_a_million_columns(tmp_path, error_message):
    names = ",".join(f"x{k}" for k in range(10**6))
    path = write(tmp_path, f"client,y,{names}\n")
    with path.open("a") as file:
        for row in range(2):
            file.write(f"a,{row},{','.join(['1.5'] * 10**6)}\n")
    assert "has 1 client; at least 2 are required" in error_message(path)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_texts_of_numbers_are_converted_in_every_format(tmp_path, suffix):
    """Decimal commas and units are recognized by column; a unit becomes part of the column's name."""
    path = tmp_path / f"t{suffix}"
    content = {
        "client": ["a", "a ", " b", "b"],
        "crea": ["85,3 µmol/l", "1.085,25 µmol/L", "", "70 umol/l"],
        "spo2": ["95%", "97 %", "98%", "?"],
        "crp": ["1,6", "2", "-999", ",5"],
        "y": ["0,5", "1", "2,25", "3"],
    }
    if suffix == ".csv":
        pd.DataFrame(content).to_csv(path, sep=";", index=False)
    else:
        pytest.importorskip("pyarrow")
        pd.DataFrame(content).to_parquet(path)
    data = read(path, Columns(missing=("-999",)))
    nan = np.nan
    assert data.clients.tolist() == ["a", "b"]
    assert data.feature_names == ["crea [µmol/l]", "spo2 [%]", "crp"]
    expected = [[85.3, 95, 1.6], [1085.25, 97, 2], [nan, 98, nan], [70, nan, 0.5]]
    np.testing.assert_array_equal(data.x, expected)
    assert data.y.tolist() == [0.5, 1, 2.25, 3]
    assert read(path, Columns(categorical=("crp",), missing=("-999",))).levels == {2: [",5", "1,6", "2"]}


@pytest.mark.parametrize(
    ("cells", "expected_message"),
    [
        (["1,6", "<1", "2,5", "3"], "line 3: column 'u' is '<1'; 1 of 4 rows have a number there; a column must hold"),
        (
            ["1,6", "1.5", "2,5", "3"],
            "column 'u' is '1,6'; 2 of 4 rows have a number there; other cells have a decimal",
        ),
        (["1,600", "2", "3", "4"], "the comma may separate decimals or thousands: state the decimal separator"),
        (["5 mg", "5 g", "6 g", "7 g"], "column 'u' is '5 mg'; cells have the units 'g' and 'mg': convert them to one"),
        (["5 mg", "5", "6", "7"], "column 'u' is '5 mg'; 3 of 4 rows have a number there; cells have the units none"),
        (
            ["none", "5 mg", "6 mg", "7 mg"],
            "declare the text as missing (--missing none or task.missing=[none]), write a number",
        ),
    ],
)
def test_a_refused_column_is_named_with_a_cell_and_an_option(tmp_path, error_message, cells, expected_message):
    rows = "".join(f"{client};{cell};{k % 2}\n" for k, (client, cell) in enumerate(zip("aabb", cells, strict=True)))
    message = error_message(write(tmp_path, f"client;u;y\n{rows}"))
    assert expected_message in message
    assert "task.categorical=[u]" in message or "--decimal ','" in message


def test_the_decimal_separator_can_be_stated(tmp_path, error_message):
    path = write(tmp_path, "client;u;y\na;1.600;1,5\na;2;2\nb;3,25;0\nb;4;1.000\n")
    data = read(path, Columns(decimal=","))
    assert data.x[:, 0].tolist() == [1600, 2, 3.25, 4]
    assert data.y.tolist() == [1.5, 2, 0, 1000]
    path = write(tmp_path, 'client,u,y\na,"1,600",0\na,2,1\nb,"3,250.5",0\nb,4.5,1\n')
    assert read(path, Columns(decimal=".")).x[:, 0].tolist() == [1600, 2, 3250.5, 4.5]
    with pytest.raises(UserError, match=r"decimal: got ';', must be one of '\.', ','"):
        Columns(decimal=";")


def test_a_text_among_numeric_labels_is_refused(tmp_path, error_message):
    """Otherwise every number would silently become a class."""
    path = write(tmp_path, "client,x,y\na,1,0.5\na,2,high\nb,3,2.5\nb,4,3\n")
    message = error_message(path)
    assert (
        "client 'a', line 3: column 'y' is 'high'; labels must be all numbers or all texts: correct the cell" in message
    )
    assert read(path, Columns(categorical=("y",))).classes.tolist() == ["0.5", "2.5", "3", "high"]
    assert "a label must not have a unit (d)" in error_message(write(tmp_path, "client,x,y\na,1,5 d\nb,2,6 d\n"))


def test_numeric_codes_can_be_declared_as_classes(tmp_path):
    path = write(tmp_path, "client,x,y\na,1,1\na,2,2.0\nb,3,2\nb,4,1\n")
    data = read(path, Columns(categorical=("y",), map=("y:1=alive", "y:2=dead")))
    assert data.classes.tolist() == ["alive", "dead"]
    assert data.y.tolist() == [0, 1, 1, 0]
    assert read_features(write(tmp_path, "x\n1\n"), Columns(categorical=("y",))).names == ["x"]


SEXES = "Klinik;Geschlecht;y\nNorth;Male;Sick\nNorth ;male;sick\nsouth;M;well\nSouth;Female;well\n"


def test_columns_and_texts_are_renamed(tmp_path, error_message):
    rules = ("Klinik=client", "Geschlecht=sex", "sex:M=male")
    data = read(write(tmp_path, SEXES), Columns(map=rules, fold_case=True))
    assert data.feature_names == ["sex"]
    assert data.levels == {0: ["female", "male"]}
    assert data.clients.tolist() == ["north", "south"]
    assert data.classes.tolist() == ["sick", "well"]
    assert "map: got 'sex', must be old=new, or column:old=new" in error_message(
        tmp_path / "t.csv", columns=Columns(map=("sex",))
    )
    assert "there are columns 'Klinik' and 'y'" in error_message(tmp_path / "t.csv", columns=Columns(map=("Klinik=y",)))


def test_files_of_clients_may_name_their_columns_differently(tmp_path):
    write(tmp_path, "age,crea,y\n1,80,0\n2,90,1\n", "a.csv")
    write(tmp_path, "Alter;Kreatinin;y\n3;70,5;0\n4;85;1\n", "b.csv")
    data = read(tmp_path, Columns(map=("Alter=age", "Kreatinin=crea")))
    np.testing.assert_array_equal(data.x, [[1, 80], [2, 90], [3, 70.5], [4, 85]])


def test_files_of_clients_with_different_units_are_refused(tmp_path, error_message):
    write(tmp_path, "crea,y\n80 µmol/l,0\n90 µmol/l,1\n", "a.csv")
    write(tmp_path, "crea,y\n0.9 mg/dl,0\n1.1 mg/dl,1\n", "b.csv")
    expected = "missing columns crea [µmol/l]; additional columns crea [mg/dl]"
    assert error_message(tmp_path).endswith(expected)
    write(tmp_path, "crea,y\n75,0\n95,1\n", "b.csv")
    rule = "if the unit is the same, state it (--map 'crea=crea [µmol/l]' or"
    assert rule in error_message(tmp_path)
    data = read(tmp_path, Columns(map=("crea=crea [µmol/l]",)))
    assert data.feature_names == ["crea [µmol/l]"]
    assert data.x[:, 0].tolist() == [80, 90, 75, 95]


STAYS = """\
client,patient,birth,admission,death,x,y
a,1,1950-03-01,2020-03-01,2020-03-11,1,0
a,1,1.3.1960,2020-03-01 12:00,2020-03-02,2,1
b,2,19700301,43891,2021-03-01,3,0
b,3,,2020-03-01,2020-04-01,4,1
"""


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_intervals_between_dates(tmp_path, suffix):
    path = write(tmp_path, STAYS)
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
        frame = pd.read_csv(path, dtype={"birth": "str", "admission": "str"})
        path = tmp_path / "t.parquet"
        frame["death"] = pd.to_datetime(frame["death"])
        frame.to_parquet(path)
    derive = ("age=years_between(birth, admission)", "days=days_between(admission, death)")
    columns = Columns(derive=derive, patient="patient", drop=("y",), label="days")
    data = read(path, columns)
    assert data.feature_names == ["x", "age"]
    np.testing.assert_allclose(data.x[:, 1], [25568 / 365.25, 21915.5 / 365.25, 18263 / 365.25, np.nan])
    assert data.y.tolist() == [10, 0.5, 365, 31]
    assert data.patient.tolist() == ["1", "1", "2", "3"]
    new = read_features(write(tmp_path, "x,birth,admission\n1,2000-01-01,2001-01-01\n", "new.csv"), columns)
    assert new.names == ["x", "age"]
    assert new.x[0, 1] == 366 / 365.25


@pytest.mark.parametrize(
    ("rule", "expected_message"),
    [
        ("age", "derive: got 'age', must be an interval such as age=years_between(birth, admission)"),
        ("x=days_between(birth, admission)", "but the table has a column 'x'"),
        ("age=days_between(birth, now)", "the arguments must be two columns; columns are client, patient, birth"),
        ("age=days_between(birth, x)", "line 3: column 'birth' is '1.3.60'; must be a date such as 2024-01-31"),
    ],
)
def test_invalid_derivations(tmp_path, error_message, rule, expected_message):
    text = STAYS.replace("1.3.1960", "1.3.60") if "birth, x" in rule else STAYS
    assert expected_message in error_message(write(tmp_path, text), columns=Columns(derive=(rule,), drop=("death",)))


def test_dates_and_identifiers_are_no_features(tmp_path, error_message):
    rows = [f"{'ab'[k % 2]},{k % 3},{{}},{k % 2}" for k in range(40)]

    def message(name: str, cells: list[object]) -> str:
        text = "\n".join([f"client,x,{name},y", *(row.format(cell) for row, cell in zip(rows, cells, strict=True))])
        return error_message(write(tmp_path, text))

    assert "column 'patient_id' is '1000'; an identifier is not a feature" in message(
        "patient_id", [1000 + 7 * k for k in range(40)]
    )
    assert "column 'dob' is '20000'; the column holds serial dates of a spreadsheet; dates are not numbers: derive" in (
        message("dob", [20000 + 31 * k for k in range(40)])
    )
    assert "column 'seen' is '20240110'; the column holds dates as YYYYMMDD" in message(
        "seen", [20240110 + k % 9 for k in range(40)]
    )
    assert "column 'note' is 'text 0'; every row has another text" in message("note", [f"text {k}" for k in range(40)])
