"""The readers of JSON models in docs/export.md give the scores of fco-predict."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fco_cli.api import export
from fco_cli.data.fitted import FittedModel, LinearModel
from fco_cli.data.formula import parse
from fco_cli.data.preparation import Recipe, prepared
from fco_cli.data.readers import read
from fco_cli.data.readers.source import Columns
from fco_cli.data.terms import prepared_by_formula
from fco_cli.problem.losses import Softmax

DOCUMENT = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")
TABLE = "client,age,color,ward,y\na,1,red,1,u\na,2,blue,2,v\nb,-9,red,1,w\nb,4,,2,u\nb,5,green,3,v\n"
ROWS: list[dict[str, Any]] = [
    {"age": 1.5, "color": "red", "ward": 2},
    {"age": None, "color": "purple", "ward": 9},
    {"age": -9, "color": None, "ward": None},
    {"age": 3, "color": "?", "ward": 3},
]
COLUMNS = Columns(categorical=("ward",), missing=("-9",))


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)


def write_model(folder: Path, formula: str | None) -> np.ndarray:
    """Write a JSON model of three classes to `model.json`, and return its scores of ROWS."""
    (folder / "t.csv").write_text(TABLE)
    data, recipe = read(folder / "t.csv", COLUMNS), Recipe(min_count=1, flag_missing=True)
    own = prepared(data, recipe) if formula is None else prepared_by_formula(data, parse(formula), recipe)
    weights = np.random.default_rng(0).standard_normal((3, len(own.features)))
    LinearModel(Softmax(), None, replace(own, table=COLUMNS)).write(folder, weights, np.arange(3.0))
    export(folder, folder / "model.json")
    lines = [",".join("" if cell is None else str(cell) for cell in row.values()) for row in ROWS]
    (folder / "new.csv").write_text("\n".join(["age,color,ward", *lines]) + "\n")
    return FittedModel.read(folder).scores_of(folder / "new.csv")


@pytest.mark.parametrize("formula", [None, "age * ward + bs(age, df=3):color + I(age**2 - 1)"])
def test_python(tmp_path, monkeypatch, formula):
    expected = write_model(tmp_path, formula)
    monkeypatch.chdir(tmp_path)
    (code,) = [block for block in blocks("python") if "def scores" in block]
    names: dict[str, Any] = {}
    exec(code, names)
    ours = [names["scores"](names["model"], row) for row in ROWS]
    np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-12)
    assert math.isfinite(np.sum(ours))


def test_r(tmp_path):
    has_r = shutil.which("Rscript") is not None
    check = ["Rscript", "-e", 'cat(requireNamespace("jsonlite", quietly = TRUE))']
    if not has_r or subprocess.run(check, capture_output=True, text=True, check=False).stdout != "TRUE":
        pytest.skip("R with jsonlite is not here")
    expected = write_model(tmp_path, None)
    (code,) = blocks("r")
    rows = ", ".join(
        "list("
        + ", ".join(f"{name} = {'NA' if cell is None else json.dumps(cell)}" for name, cell in row.items())
        + ")"
        for row in ROWS
    )
    script = f'{code}\nfor (row in list({rows})) cat(format(scores(row), digits = 17), "\\n")\n'
    (tmp_path / "reader.R").write_text(script)
    done = subprocess.run(["Rscript", "reader.R"], cwd=tmp_path, capture_output=True, text=True, check=True)
    ours = [[float(one) for one in line.split()] for line in done.stdout.splitlines()]
    np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-12)
