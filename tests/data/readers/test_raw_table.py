"""Texts among numbers: the error that lists the remedies, and the remedies themselves."""

from __future__ import annotations

import argparse
import shlex

import numpy as np
import pandas as pd
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from fco_cli.commands.shell import add_columns, columns_of
from fco_cli.config.compose import quote_texts
from fco_cli.data.readers import read, read_raw_tables
from fco_cli.data.readers.numerals import by_option
from fco_cli.data.readers.source import Columns

TABLE = "client;crea;diabetes;y\na;85;ja;yes\na;<5;0;0\nb;90;nein;1\nb;hemolytic;1;no\n"
RULES = ("crea:<5=2.5", "crea:hemolytic=NA", "diabetes:ja=1", "diabetes:nein=0", "y:yes=1", "y:no=0")


def write(folder, text, name="t.csv"):
    (folder / name).write_text(text)
    return folder / name


def test_a_text_may_be_renamed_to_a_number_or_to_missing(tmp_path):
    data = read(write(tmp_path, TABLE), Columns(map=RULES))
    np.testing.assert_array_equal(data.x, [[85, 1], [2.5, 0], [90, 0], [np.nan, 1]])
    assert data.y.tolist() == [1, 0, 1, 0]
    assert data.levels == {}
    text = "client,t,dead,x,sex\na,1,yes,1,f\na,2,0,2,?\nb,3,no,3,not asked\nb,4,1,4,m\n"
    columns = Columns(label="t", event="dead", map=("dead:yes=1", "dead:no=0", "sex:not asked=NA"))
    data = read(write(tmp_path, text), columns)
    assert data.y.tolist() == [1, -2, -3, 4]
    assert data.levels == {1: ["f", "m"]}
    np.testing.assert_array_equal(data.x[:, 1], [0, np.nan, np.nan, 1])


def test_all_texts_among_numbers_are_listed(tmp_path, error_message):
    path = write(tmp_path, "client,u,y\na,1,0\na,-,1\nb,n.a.,0\nb,<5,1\nb,a long remark about the sample,1\n")
    message = error_message(path)
    assert "line 3: column 'u' is '-'; 1 of 5 rows have a number there; a column must hold numbers or" in message
    assert (
        "4 different texts there are not numbers: declare the texts as missing (--missing='-' --missing '<5' "
        in message
    )
    assert "--missing n.a. or" not in message  # a point needs no quotes, but is not a word
    assert "write a number for it (--map 'u:-=NUMBER' or task.map=[u:-=NUMBER]), or declare the column" in message


@pytest.mark.parametrize(
    "texts",
    [["<5", "-", "n/a"], ["O'Neil"], ["1,5", 'a"b'], ["$HOME `x`"], ["#DIV/0!", "[x]"], ["--"], ["86.6*"], ["crea:-9"]],
)
def test_the_printed_options_can_be_copied(texts):
    """Into a shell: as arguments of fco-data, and as a key of fco-run."""
    arguments, key = by_option("missing", *texts).rsplit(" or ", 1)
    parser = argparse.ArgumentParser()
    add_columns(parser)
    assert columns_of(parser.parse_args(shlex.split(arguments))).missing == tuple(texts)
    (override,) = shlex.split(key)
    assert OverridesParser.create().parse_override(quote_texts(override)).value() == texts


def test_a_number_is_not_renamed_silently(tmp_path, error_message):
    path = write(tmp_path, "client,sex,y\na,1,1\na,2,2\nb,1,1\nb,2,2\n")
    rules = ("sex:1=male", "sex:2=female", "y:2=dead", "y:1=alive")
    message = error_message(path, columns=Columns(map=rules))
    assert "line 2: column 'sex' is '1'; a number cannot be renamed (map): declare it as missing" in message
    assert "or the column as categorical (--categorical sex or task.categorical=[sex])" in message
    data = read(path, Columns(map=("sex:2=NA",), label="y==2"))  # as with task.missing
    np.testing.assert_array_equal(data.x[:, 0], [1, np.nan, 1, np.nan])
    data = read(path, Columns(map=rules, categorical=("sex",)))  # labels that are all renamed are classes
    assert (data.levels, data.classes.tolist()) == ({0: ["female", "male"]}, ["alive", "dead"])
    pytest.importorskip("pyarrow")
    path = tmp_path / "t.parquet"
    pd.DataFrame({"client": [*"aabb"], "x": [1, 2, 3, 4], "y": [1, 2, 1, 2]}).to_parquet(path)
    message = error_message(path, columns=Columns(map=rules[2:]))
    assert "column 'y' is '2'; a number cannot be renamed (map)" in message
    assert read(path, Columns(map=rules[2:], categorical=("y",))).classes.tolist() == ["alive", "dead"]


def test_points_in_a_table_with_decimal_commas_are_refused(tmp_path, error_message):
    """1.234 may be 1234 there; columns of a Parquet file have numbers without a notation."""
    path = write(tmp_path, "client;crea;leuko;y\na;85,5;1.234;0\na;90;950;1\nb;70;12.300;0\nb;65;8.900;1\n")
    message = error_message(path)
    assert "line 2: column 'leuko' is '1.234'; column 'crea' has decimal commas (85,5), this one has points" in message
    assert "(--decimal ',' or task.decimal=',')" in message
    assert read_raw_tables(path)[0].kind(1) == "number"  # for `fco-data describe`
    data = read(path, Columns(decimal=","))
    assert data.x[:, 1].tolist() == [1234, 950, 12300, 8900]
    pytest.importorskip("pyarrow")
    pd.DataFrame(
        {"client": [*"aabb"], "crea": ["85,5", "90", "70", "65"], "leuko": [1.5, 2, 3, 4], "y": [0, 1, 0, 1]}
    ).to_parquet(tmp_path / "t.parquet")
    assert read(tmp_path / "t.parquet").x[:, :2].tolist() == [[85.5, 1.5], [90, 2], [70, 3], [65, 4]]
