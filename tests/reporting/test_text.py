"""Tests of escaping text from records."""

from __future__ import annotations

import csv
import json
import re

import pandas as pd
import pytest
import yaml

from fco_cli.commands.report import main
from fco_cli.reporting.page import tables
from fco_cli.reporting.records.runs import read_record
from fco_cli.reporting.records.select import choose
from fco_cli.reporting.records.studies import collect
from fco_cli.reporting.text import as_csv, for_figure, for_latex, for_markdown, printable

HOSTILE = "\\input{/etc/passwd} $\\write18{rm}$ <script>alert(1)</script> \x1b]0;title\x07 | `x` %&#_^~{}"


def edit_config(folder, **changes):
    path = folder / "config.yaml"
    path.write_text(json.dumps(yaml.safe_load(path.read_text()) | changes))


@pytest.mark.usefixtures("quick_figures")
def test_malicious_title_is_escaped_everywhere(records, monkeypatch, capfd):
    folder = records.add()
    experiment = yaml.safe_load((folder / "config.yaml").read_text())["experiment"]
    edit_config(folder, experiment=experiment | {"title": HOSTILE})
    records.add("fedmid", experiment="lasso_ii")
    monkeypatch.chdir(records.root.parent)
    main(["--csv", "runs.csv", "--claims"])
    captured = capfd.readouterr()
    assert "\x1b" not in captured.out + captured.err
    made = records.root / "report"
    latex = (made / "tables" / "lasso_i.tex").read_text()
    assert not re.findall(r"\\(?:input|write)", latex)
    assert not re.findall(r"(?<!\\)[%#^~]|(?<!\\)\$(?!\\psi|\\partial|\W)", latex)
    assert r"\textbackslash{}input\{/etc/passwd\}" in latex
    page = (made / "index.html").read_text()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    markdown = (made / "tables" / "lasso_i.md").read_text()
    assert r"\<script>" in markdown
    for path in made.rglob("*.*"):
        assert b"\x1b]0;" not in path.read_bytes()


@pytest.mark.parametrize("name", ["../../../pwn", "/pwn", "..", ".pwn", "a/b", "a\\b", "", "a\n", "a" * 300])
@pytest.mark.parametrize("key", ["experiment", "profile", "task", "algo"])
def test_names_of_files_must_be_plain(records, key, name):
    folder = records.add()
    config = yaml.safe_load((folder / "config.yaml").read_text())
    edit_config(folder, **{key: config[key] | {"name": name}})
    ((_, reason),) = collect([records.root]).left_out
    assert f"config.yaml: {key}.name: expected text of the form " in reason


def test_cells_are_escaped_as_formulas(records):
    folder = records.add()
    edit_config(folder, regularizer={"name": "l1", "strength": "=cmd|'/c calc'!A0"})
    table = collect([records.root]).table()
    assert table["strength"].tolist() == ["=cmd|'/c calc'!A0"]
    (row,) = csv.DictReader(as_csv(table).splitlines())
    assert row["strength"] == "'=cmd|'/c calc'!A0"
    hostile = pd.DataFrame({"=1+1": ["+1", "-1", "@x", "\t=1", "\r=1", "plain"], "n": [-1.5, 2, 3, 4, 5, 6]})
    rows = list(csv.reader(as_csv(hostile).splitlines()))
    assert [row[0] for row in rows] == ["'=1+1", "'+1", "'-1", "'@x", "\\x09=1", "\\x0d=1", "plain"]
    assert rows[1][1] == "-1.5"  # numbers are not escaped


def test_options_of_an_algorithm_are_escaped_in_tables(records):
    for option in ("=1+1", "\\input{x}", "$x^{"):
        records.add(options={"kind": option}, f1=(0, 0, 1, len(option)))
    (study,) = collect([records.root]).studies
    table = tables.best_table(study, choose(study))
    assert table["options"].tolist() == ["kind \\input{x}"]
    assert r"kind \textbackslash{}input\{x\}" in tables.as_latex(table, "")


@pytest.mark.usefixtures("quick_figures")
def test_any_folder_name_is_escaped(records, monkeypatch, capfd):
    """Test names with escape sequences and names that are not valid UTF-8."""
    good = records.add()
    for i, name in enumerate((b"\x1b[31mred", b"caf\xe9", b"=cmd()")):
        place = records.root / name.decode(errors="surrogateescape")
        (records.add("fedmid", 0.01 * (i + 1))).rename(place)
    (records.root / b"\x1b[31mbad".decode()).mkdir()
    (records.root / b"\x1b[31mbad".decode() / "result.json").write_text("{")
    monkeypatch.chdir(records.root.parent)
    main(["--csv", "runs.csv"])
    captured = capfd.readouterr()
    assert "left out outputs/\\x1b[31mbad: result.json is not JSON" in captured.err
    assert "\x1b" not in captured.out + captured.err
    assert len((records.root.parent / "runs.csv").read_text().splitlines()) == 1 + 4
    assert read_record(good).algo == "feddualavg"


def test_escaping():
    assert printable("a\x1b[0m\n\ud800") == "a\\x1b[0m\\x0a\\xd800"
    assert printable("x" * 1000).endswith("x…")
    assert printable({"a": 1}) == "{'a': 1}"
    assert for_latex("50% of a_b ∂ψ") == r"50\% of a\_b $\partial$$\psi$"
    assert for_markdown("a|b<c\n") == r"a\|b\<c"
    assert for_figure("$x$\x07") == r"\$x\$"


def test_an_empty_table_is_written():
    """All runs of a sweep may have diverged."""
    assert as_csv(pd.DataFrame()).strip() == ""
    assert as_csv(pd.DataFrame({"a": [], "b": []})) == "a,b\n"
