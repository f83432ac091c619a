"""fco-data, as a person calls it."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from dataclasses import asdict
from importlib.resources import files

import numpy as np
import pytest

from fco_cli.commands.data import main
from fco_cli.commands.shell import add_columns, columns_of
from fco_cli.data import FederatedData, read, save
from fco_cli.data.describe import Description
from fco_cli.data.readers import read_single_client
from fco_cli.data.readers.source import Columns

ADVICE = (
    "a column must hold numbers or categories: declare the text as missing (--missing old or task.missing=[old]), "
    "write a number for it (--map 'age:old=NUMBER' or task.map=[age:old=NUMBER]), or declare the column "
    "as categorical (--categorical age or task.categorical=[age])"
)
TABLE = "client,height,y\na,1,0\na,2,1\nb,3,0\nb,4,1\nc,5,1\n"


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(TABLE)
    return path


def test_convert_check_describe(table, tmp_path, capsys):
    target = tmp_path / "t.npz"
    main(["convert", str(table), str(target), "--min-samples", "2"])
    assert read(target).clients.tolist() == ["a", "b"]
    main(["check", str(target), "--loss", "logistic"])
    assert "OK: 4 samples of 2 clients" in capsys.readouterr().out
    main(["describe", str(target), "--picture", str(tmp_path / "t.png")])
    out = capsys.readouterr().out
    assert "samples per client" in out
    assert "label skew" in out
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")


def test_the_example_is_the_bundled_table_and_its_next_commands_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("hospitals.csv", "my table.csv"):
        main(["example"] if name == "hospitals.csv" else ["example", name])
        first, describe, run = capsys.readouterr().out.splitlines()
        assert first == f"{name}: 770 simulated patients of four hospitals. Next:"
        assert (tmp_path / name).read_bytes() == files("fco_cli.data.example").joinpath("hospitals.csv").read_bytes()
        command, *arguments = shlex.split(describe)
        assert command == "fco-data"
        main(arguments)
        assert re.search(r"samples +770", capsys.readouterr().out)
        assert shlex.split(run)[:4] == ["fco-run", "-m", "experiment=path", f"task.path={name}"]


def test_the_example_replaces_no_other_file(tmp_path, capsys):
    path = tmp_path / "hospitals.csv"
    main(["example", str(path)])
    changed = path.stat().st_mtime_ns
    main(["example", str(path)])  # the same content: left alone
    assert path.stat().st_mtime_ns == changed
    path.write_text("mine")
    for name, message in (
        (path, "exists and differs from the example; give another file name"),
        (tmp_path / "example.txt", "must have a printable name that ends in .csv"),
        (tmp_path / "none" / "example.csv", "none"),
    ):
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(["example", str(name)])
        assert end.value.code == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert path.read_text() == "mine"


def test_list_shows_the_available_data_sets(table, tmp_path, capsys):
    main(["convert", str(table), str(tmp_path / "mine.npz"), "--min-samples", "2"])
    main(["list", str(tmp_path)])
    out = capsys.readouterr().out
    for name in ("digits", "femnist10", "femnist62", "heart", "crime", "eicu", "mine"):
        assert name in out


def test_every_column_is_shown_before_anything_is_refused(tmp_path, capsys):
    path = tmp_path / "t.csv"
    path.write_text("hospital,age,ward,num\nn,63,red,0\nn,?,blue,2\ns,old,red,1\ns,41,,\n")
    options = ["--client", "hospital", "--positive", "num>0", "--table", str(tmp_path / "columns.csv")]
    with pytest.raises(SystemExit) as end:
        main(["describe", str(path), *options])
    out, error = capsys.readouterr()
    assert end.value.code == 2
    assert (
        error
        == f"fco-data: {path}: client 's', line 4: column 'age' is 'old'; 2 of 4 rows have a number there; {ADVICE}\n"
    )
    lines = [line.split() for line in out.splitlines()]
    assert lines[0][:5] == ["column", "type", "missing", "at", "n"]
    assert lines[1] == ["age", "mixed", "25.0%", "50.0%", "0.0%", "41", "to", "63", "old", "1"]
    assert lines[2] == ["ward", "category", "25.0%", "0.0%", "50.0%", "red", "2,", "blue", "1"]
    assert lines[3] == ["num", "(label)", "number", "25.0%", "0.0%", "50.0%", "0", "to", "2"]
    assert (tmp_path / "columns.csv").read_text().splitlines()[1] == "n,age,mixed,2,1,63.0,63.0,"


def test_a_refused_table_leaves_no_file(tmp_path):
    (tmp_path / "t.csv").write_text("client,x,y\na,1,0\na,2,1\nb,3,\nb,4,1\n")
    with pytest.raises(SystemExit):
        main(["convert", str(tmp_path / "t.csv"), str(tmp_path / "t.npz")])
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_a_converted_table_is_unchanged(tmp_path):
    path, target = tmp_path / "t.csv", tmp_path / "t.npz"
    path.write_text("site;age;ward;w;num\nn;63;red;1;0\nn;?;blue;2;2\ns;-9;red;1;1\ns;41;;.5;0\n")
    columns = Columns(label="num>0", client="site", weights="w", missing=("-9",))
    options = ["--client", "site", "--positive", "num>0", "--weights", "w", "--missing=-9"]
    main(["convert", str(path), str(target), *options])
    ours, theirs = read(path, columns), read(target)
    assert ours.levels == theirs.levels == {1: ["blue", "red"]}
    for name in ("x", "y", "client", "weights", "features", "classes"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["check", "{table}"], "client 'c', row 4: the client's only sample"),
        (["check", "{table}", "--min-samples", "2", "--label", "sick"], "column 'sick' not found"),
        (
            ["check", "{table}", "--min-samples", "2", "--positive", "y>9"],
            "every label is 0; at least two different labels are required",
        ),
        (["check", "nowhere.npz"], "nowhere.npz: no such file or folder"),
        (["check", "{table}", "--min-samples", "-1"], "--min-samples: got -1, must be a whole number >= 0"),
        (["convert", "{table}", "t.zip"], "t.zip: the output file must have a printable name that ends in .npz"),
        (["convert", "{table}", "t\udcff.npz"], "t\\udcff.npz: the output file must have a printable name"),
        (["describe", "{table}", "--picture", "t.gif"], "must end in .png, .pdf or .svg"),
        (["list", "nowhere"], "nowhere: no such folder"),
    ],
)
def test_invalid_input_gives_one_line_and_exit_code_2(table, capsys, arguments, says):
    with pytest.raises(SystemExit) as end:
        main([argument.format(table=table) for argument in arguments])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def of(y, client, x=None) -> Description:
    x = np.ones((len(y), 1)) if x is None else np.array(x, dtype=float)
    return Description(FederatedData("here", x, np.array(y), np.array(client)))


def test_label_skew_is_0_for_equal_and_large_for_disjoint_clients():
    assert of([0, 1, 0, 1], ["a", "a", "b", "b"]).label_skew == 0
    assert of([0, 0, 1, 1], ["a", "a", "b", "b"]).label_skew == 0.5  # from a pool that is half one's own
    assert of([0.5, 0.5, 2.5, 2.5], ["a", "a", "b", "b"]).label_skew == 1  # a regression


def test_feature_shift_is_the_share_of_variance_between_clients():
    assert of([0, 1, 0, 1], ["a", "a", "b", "b"], [[0], [1], [0], [1]]).feature_shift == 0
    assert of([0, 1, 0, 1], ["a", "a", "b", "b"], [[0], [0], [1], [1]]).feature_shift == 1


def test_a_regression_is_described_and_drawn(tmp_path):
    random = np.random.default_rng(0)
    save(
        FederatedData("here", random.random((40, 2)), random.random(40), np.repeat(["a", "b"], 20)),
        tmp_path / "r.npz",
    )
    main(["describe", str(tmp_path / "r.npz"), "--picture", str(tmp_path / "r.svg")])
    assert b"<svg" in (tmp_path / "r.svg").read_bytes()


def test_names_are_printed_without_markup_and_escape_sequences(tmp_path, capsys):
    for name in ("[b]", ":smile:", "\x1b[31mred"):
        (tmp_path / f"{name}.npz").touch()
    (tmp_path / "dangling.npz").symlink_to(tmp_path / "nowhere")
    main(["list", str(tmp_path)])
    out = capsys.readouterr().out
    assert "[b]" in out
    assert ":smile:" in out
    assert "\\x1b[31mred" in out
    assert "\x1b" not in out
    assert "dangling" not in out


def test_the_largest_numbers_are_described_without_a_warning(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("client,height,y\na,1e308,1e308\na,-1e308,0.5\nb,1e308,2\nb,0,-1e308\n")
    main(["describe", str(tmp_path / "t.csv")])
    assert "feature shift between clients" in capsys.readouterr().out


HOSPITAL = """\
Klinik;subject#;Kreatinin;sex;birth;admission;died
North;1;85,3;Male;1950-03-01;2020-03-01;0
North ;1;90,1;M;1950-03-01;2020-03-02;1
south;2;70;male;1960-03-01;2020-03-03;1
South;3;77,25;female;1961-03-01;2020-03-04;0
"""
OPTIONS = [
    "--label", "died", "--patient", "subject#", "--map", "Kreatinin=crea", "--map", "sex:M=male", "--fold-case",
    "--derive", "age=years_between(birth, admission)", "--decimal", ",",
]  # fmt: skip


def test_the_options_of_a_table(tmp_path, capsys):
    (tmp_path / "t.csv").write_text(HOSPITAL)
    arguments = [str(tmp_path / "t.csv"), str(tmp_path / "t.npz"), *OPTIONS, "--client", "Klinik"]
    main(["convert", *arguments])
    data = read(tmp_path / "t.npz")
    assert data.feature_names == ["crea", "sex", "age"]
    assert data.levels == {1: ["female", "male"]}
    assert data.x[:, 0].tolist() == [85.3, 90.1, 70, 77.25]
    assert data.patient.tolist() == ["1", "1", "2", "3"]
    assert data.clients.tolist() == ["north", "south"]
    (tmp_path / "options.txt").write_text("\n".join(arguments))
    main(["convert", f"@{tmp_path / 'options.txt'}"])
    np.testing.assert_array_equal(read(tmp_path / "t.npz").x, data.x)


def test_a_site_reads_its_table_with_the_same_options(tmp_path):
    """The options are stored as JSON in the site's folder."""
    (tmp_path / "t.csv").write_text(HOSPITAL)
    parser = argparse.ArgumentParser()
    add_columns(parser)
    columns = columns_of(parser.parse_args([*OPTIONS, "--drop", "Klinik"]))
    stored = json.loads(json.dumps(asdict(columns)))
    restored = Columns(**{key: tuple(value) if isinstance(value, list) else value for key, value in stored.items()})
    assert restored == columns
    data = read_single_client(tmp_path / "t.csv", "north", restored)
    assert data.feature_names == ["crea", "sex", "age"]
    assert data.patient.tolist() == ["1", "1", "2", "3"]


def test_warnings_are_printed_with_the_rows_of_every_client(tmp_path, capsys):
    random = np.random.default_rng(0)
    rows = [f"{'ab'[k % 2]},{-999 if k in (3, 4, 5) else random.normal(90, 5):.1f},{k // 2 % 2}" for k in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["client,crea,y", *rows]))
    line = "warning: column 'crea': 3 rows have -999, which may mean missing: --missing 'crea:-999' or task.missing="
    main(["describe", str(tmp_path / "t.csv")])
    assert f"{line}[crea:-999] [a 1, b 2]\n" in capsys.readouterr().out
    main(["check", str(tmp_path / "t.csv")])
    assert f"{line}[crea:-999]\n" in capsys.readouterr().out
    main(["check", str(tmp_path / "t.csv"), "--missing", "crea:-999"])
    assert "warning:" not in capsys.readouterr().out
