"""Tests of fco-predict: models of tables applied to other tables."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from fco_cli.commands.predict import main, predictions
from fco_cli.data.fitted import FittedModel, LinearModel
from fco_cli.data.preparation import Recipe, prepared
from fco_cli.data.readers import read
from fco_cli.errors import UserError
from fco_cli.problem.losses import Logistic

TABLE = "client,age,color,y\na,1,red,no\na,2,blue,yes\nb,3,red,no\nb,?,blue,yes\nb,5,green,yes\n"


@pytest.fixture
def record(tmp_path):
    """Return a model with known weights and the data that it was prepared with."""
    (tmp_path / "t.csv").write_text(TABLE)
    data = read(tmp_path / "t.csv")
    preparation = prepared(data, Recipe(min_count=1))
    folder = tmp_path / "record"
    folder.mkdir()
    weights = np.arange(1.0, len(preparation.features) + 1)[None]
    LinearModel(Logistic(), data.classes.tolist(), preparation).write(folder, weights, np.array([0.25]))
    return folder, preparation, weights[0]


def table_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_predictions_equal_those_of_the_prepared_rows(record, tmp_path):
    folder, preparation, weights = record
    (tmp_path / "new.csv").write_text("color,age\nblue,4\nred,?\npurple,1\n")  # another order, missing, unseen
    rows = table_of(predictions(folder, tmp_path / "new.csv"))
    (tmp_path / "again.csv").write_text("client,age,color,y\na,4,blue,no\na,?,red,no\nb,1,purple,no\nb,1,red,yes\n")
    again = read(tmp_path / "again.csv")
    scores = preparation.apply(again.raw)[:3] @ weights + 0.25
    shares = [float(row["probability of yes"]) for row in rows]
    np.testing.assert_allclose(shares, 1 / (1 + np.exp(-scores)), rtol=1e-8)
    assert [row["prediction"] for row in rows] == ["yes" if score > 0 else "no" for score in scores]
    assert [row["row"] for row in rows] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("age\n1\n", "missing columns color"),
        ("age,color,size\n1,red,2\n", "unknown columns size"),
        ("agee,color\n1,red\n", "did you mean"),
    ],
)
def test_columns_must_be_those_of_the_model(record, tmp_path, content, words):
    (tmp_path / "new.csv").write_text(content)
    with pytest.raises(UserError, match=words):
        predictions(record[0], tmp_path / "new.csv")


@pytest.mark.parametrize("name", ["preparation.json", "linear_model.json", "linear_model.npz"])
def test_an_incomplete_or_damaged_record_gives_one_line(record, tmp_path, capsys, name):
    folder = record[0]
    (folder / name).write_bytes(b"\x00nonsense")
    with pytest.raises(UserError):
        FittedModel.read(folder)
    (folder / name).unlink()
    with pytest.raises(SystemExit) as ended:
        main([str(folder), str(tmp_path / "t.csv")])
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_command_writes_a_file(record, tmp_path, capsys):
    (tmp_path / "new.csv").write_text("color,age\nblue,4\n")
    main([str(record[0]), str(tmp_path / "new.csv"), "--output", str(tmp_path / "out.csv")])
    assert len(table_of((tmp_path / "out.csv").read_text())) == 1
    assert "1 predictions" in capsys.readouterr().out


def test_a_path_needs_the_name_of_one_of_its_models(record, tmp_path):
    folder = tmp_path / "path"
    folder.mkdir()
    record[0].rename(folder / "min")
    with pytest.raises(UserError, match=f"{folder}: is a regularization path .* give {folder}/min"):
        FittedModel.read(folder)
