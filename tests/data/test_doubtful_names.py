"""Doubts about names of categories, clients and classes."""

from __future__ import annotations

import pytest

from fco_cli.data.doubtful_names import find_name_doubts, find_text_doubts


def lines(*names: str) -> list[str]:
    return [text for text, _ in find_name_doubts("column 'u'", "u", sorted(names))]


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (("Male", "male"), "Male, male differ only in case: --fold-case or task.fold_case=true"),
        (("M", "Male", "Female"), "is 'M' short for 'Male'? --map 'u:M=Male' or task.map=[u:M=Male]"),
        (("St Mary", "St. Mary"), "St Mary, St. Mary differ only in spaces: --map 'u:St. Mary=St Mary' or "
         "'task.map=[u:St. Mary=St Mary]'"),
        (("ICU_1", "icu 1"), "ICU_1, icu 1 differ only in spaces: --map 'u:icu 1=ICU_1' or 'task.map=[u:icu 1=ICU_1]'"),
        (("1", "1.0", "2"), "1, 1.0 are the same number: --map 'u:1.0=1' or task.map=[u:1.0=1]"),
        (("ja", "yes"), "ja, yes may be the same: --map 'u:yes=ja' or task.map=[u:yes=ja]"),
        (("f", "w", "m"), "f, w may be the same: --map 'u:w=f' or task.map=[u:w=f]"),
        (("-", "red"), "'-' may mean missing: --missing='-' or task.missing=[-]"),
        (("Unknown", "red"), "'Unknown' may mean missing: --missing Unknown or task.missing=[Unknown]"),
    ],
)  # fmt: skip
def test_doubtful_names(names, line):
    assert lines(*names) == [f"column 'u': {line}"]


@pytest.mark.parametrize(
    "names",
    [
        ("A", "AB", "B", "0"), ("A+", "A-", "B+"), ("none", "mild", "severe"), ("1.5", "15"), ("007", "8"),
        ("m", "f"), ("y", "n"), ("I", "II", "III", "IV"), ("<5", ">5", "5-10"), ("Na", "K"),
    ],
)  # fmt: skip
def test_plausible_names(names):
    assert lines(*names) == []


def test_texts_that_are_no_categories():
    pressures = [f"{100 + k}/{60 + k}" for k in range(12)]
    ((text, _),) = find_text_doubts("column 'bp'", "bp", pressures, 500)
    drop = "drop it (--drop bp or task.drop=[bp])"
    assert text == f"column 'bp': its cells hold two numbers (100/60): write them to two columns, or {drop}"
    ((text, _),) = find_text_doubts("column 'name'", "name", [f"Smith {k}" for k in range(30)], 60)
    assert text.startswith("column 'name': 30 different texts in 60 rows; names, identifiers and free text are no")
    assert not [*find_text_doubts("column 'code'", "code", [f"I{k}" for k in range(30)], 500)]
    assert not [*find_text_doubts("column 'age'", "age", ["10-19", "20-29", "30-39"], 500)]
