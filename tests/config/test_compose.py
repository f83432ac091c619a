"""Tests of the quoting of conditions and column names."""

from __future__ import annotations

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from fco_cli.config.compose import quote_texts


@pytest.mark.parametrize("label", ["num>0", "num >= 2", "grade<3", "diagnosis==sick", "ward!=red", "y"])
def test_a_condition_needs_no_quotes(label):
    override = OverridesParser.create().parse_override(quote_texts(f"task.label={label}"))
    assert str(override.value()) == label


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("client", "subject#", "subject#"),
        ("client", "'subject#'", "subject#"),
        ("patient", "it's", "it's"),
        ("event", "status==2", "status==2"),
        ("decimal", ",", ","),
        ("drop", "[heart rate,a/b (%)]", ["heart rate", "a/b (%)"]),
        ("drop", "['a,b',c#]", ["a,b", "c#"]),
        ("map", "[old=new,sex:M=male]", ["old=new", "sex:M=male"]),
        ("derive", "[age=years_between(birth, seen),d=days_between(a,b)]",
         ["age=years_between(birth, seen)", "d=days_between(a,b)"]),
        ("missing", "[unknown,-999]", ["unknown", -999]),
    ],
)  # fmt: skip
def test_column_names_need_no_quotes_for_hydra(key, text, value):
    override = OverridesParser.create().parse_override(quote_texts(f"task.{key}={text}"))
    assert override.value() == value


@pytest.mark.parametrize("word", ["task.label='num>0'", "task.label=num,age", "-m"])
def test_other_overrides_are_unchanged(word):
    assert quote_texts(word) == word


def test_an_output_folder_needs_no_quotes():
    for folder in ("a b/ü 名", "out/Köln (2)", "plain/folder"):
        override = OverridesParser.create().parse_override(quote_texts(f"output_dir={folder}"))
        assert override.value() == folder
