"""Tests of exported models: they agree with fco-predict, and need nothing of this package."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fco_cli.api import export
from fco_cli.commands.export import main
from fco_cli.data.expressions import Call, Column
from fco_cli.data.fitted import LinearModel
from fco_cli.data.formula import parse
from fco_cli.data.preparation import Recipe, prepared
from fco_cli.data.readers import read
from fco_cli.data.readers.source import Columns
from fco_cli.data.subsets import restrict_roles, select_columns
from fco_cli.data.terms import prepared_by_formula
from fco_cli.estimators import FederatedClassifier, FederatedRegressor
from fco_cli.problem.losses import all_losses

TRAINING = """client,age,chol,color,ward,sex,y
a,1,180,red,1,m,0
a,2,0,blue,2,f,1
b,3,210,red,1,f,0
b,?,240,,2,m,1
b,5,-999,green,3,F,1
b,6,230,red,,m,0
"""
NEW = """age,chol,color,ward,sex
1.5,200,red,1,m
77,200,red,8,none
?,0,blue,2,F
-999,199.5,purple,9,f
4,?,,,?
7,-999,green,3,x
2.25,250,?,2,m
"""
COLUMNS = Columns(
    categorical=("ward",), missing=("-999", "chol:0"), map=("sex:F=f", "sex:none=NA", "ward:8=NA", "age:77=NA")
)
OUTPUTS = {"softmax": 3}


def frame_of(text: str, texts: tuple[str, ...] = ("color", "sex")) -> pd.DataFrame:
    """Return a table as a receiver would read it with pandas."""
    return pd.read_csv(io.StringIO(text), na_values=["?"], dtype=dict.fromkeys(texts, "str"))


def write_record(folder: Path, loss: str, **recipe: object) -> Path:
    """Write a model with random weights."""
    (folder / "t.csv").write_text(TRAINING)
    data = read(folder / "t.csv", COLUMNS)
    preparation = replace(prepared(data, Recipe(**recipe)), table=COLUMNS)  # type: ignore[arg-type]
    random, outputs = np.random.default_rng(3), OUTPUTS.get(loss, 1)
    weights = random.standard_normal((outputs, len(preparation.features)))
    classes = [f"class {k}" for k in range(max(2, outputs))] if all_losses()[loss]().classification else None
    record = folder / "record"
    record.mkdir()
    LinearModel(all_losses()[loss](), classes, preparation).write(record, weights, random.standard_normal(outputs))
    return record


@pytest.mark.parametrize("loss", ["squared", "huber", "logistic", "softmax", "poisson", "cox"])
@pytest.mark.parametrize(
    "recipe",
    [
        {"min_count": 1},
        {"min_count": 2, "flag_missing": True},
        {"min_count": 1, "fill": "median", "flag_missing": True},
    ],
    ids=["mean", "other and flags", "median"],
)
def test_exports_agree_with_predictions(tmp_path, check_exports, loss, recipe):
    record = write_record(tmp_path, loss, **recipe)
    (tmp_path / "new.csv").write_text(NEW)
    assert check_exports(record, tmp_path / "new.csv", frame_of(NEW)) == ["numpy.dtype"]  # of SimpleImputer


def test_sparse_rows_are_a_matrix(tmp_path, check_exports):
    """A text file of sparse numbers has no preparation."""
    weights = np.array([[0.5, 0.0, -2.0, 1e-3]])
    LinearModel(all_losses()["logistic"](), None, None).write(tmp_path, weights, np.array([0.3]))
    (tmp_path / "new.svm").write_text("0 qid:1 0:2.5 2:1\n1 qid:2 3:7\n0 qid:2 1:1\n")
    frame = pd.DataFrame([[2.5, 0, 1, 0], [0, 0, 0, 7.0], [0, 1, 0, 0]], columns=["x0", "x1", "x2", "x3"])
    assert check_exports(tmp_path, tmp_path / "new.svm", frame) == []


def test_two_classes_of_a_softmax_loss(tmp_path, check_exports, monkeypatch):
    monkeypatch.setitem(OUTPUTS, "softmax", 2)
    record = write_record(tmp_path, "softmax", min_count=1)
    (tmp_path / "new.csv").write_text(NEW)
    check_exports(record, tmp_path / "new.csv", frame_of(NEW))


def test_terms_without_weight_and_their_columns_are_left_out(tmp_path, check_exports):
    record = write_record(tmp_path, "squared", min_count=1)
    arrays = dict(np.load(record / "linear_model.npz"))
    arrays["coef"][:, 1:] = 0
    np.savez(record / "linear_model.npz", **arrays)
    (tmp_path / "new.csv").write_text(NEW)
    check_exports(record, tmp_path / "new.csv", frame_of(NEW)[["age"]])
    arrays["coef"][:] = 0  # a constant prediction
    np.savez(record / "linear_model.npz", **arrays)
    check_exports(record, tmp_path / "new.csv", frame_of(NEW))


def test_texts_in_any_case(tmp_path):
    """JSON and pipelines fold the case; ONNX has no operator for it."""
    record = write_record(tmp_path, "squared", min_count=1)
    plain = json.loads((record / "preparation.json").read_text())
    plain["table"]["fold_case"] = True
    (record / "preparation.json").write_text(json.dumps(plain))
    import skops.io

    path = export(record, tmp_path / "model.skops")
    pipeline = skops.io.load(path, trusted=skops.io.get_untrusted_types(file=path))
    frame = frame_of(NEW)
    upper = frame.assign(color=frame["color"].str.upper())
    np.testing.assert_array_equal(pipeline.predict(upper), pipeline.predict(frame))
    assert json.loads(export(record, tmp_path / "model.json").read_text())["fold_case"] is True
    with pytest.raises(ValueError, match="onnx cannot compare texts in any case"):
        export(record, tmp_path / "model.onnx")


def test_site_intercepts_are_listed_and_other_clients_get_their_mean(tmp_path, check_exports):
    weights = np.array([[0.5, -1.0]])
    (tmp_path / "t.csv").write_text("client,u,v,y\na,1,2,0\na,3,5,1\nb,2,2,1\nb,9,1,0\n")
    preparation = prepared(read(tmp_path / "t.csv"), Recipe())
    model = LinearModel(all_losses()["logistic"](), None, preparation, ["a", "b"])
    model.write(tmp_path, weights, np.zeros(1), np.array([1.0, -3.0]), np.array([0.25, 0.75]))
    (tmp_path / "new.csv").write_text("u,v\n1,2\n4,4\n")
    check_exports(tmp_path, tmp_path / "new.csv", frame_of("u,v\n1,2\n4,4\n", ()))
    plain = json.loads((tmp_path / "model.json").read_text())
    assert plain["site_intercepts"]["a"] - plain["site_intercepts"]["b"] == pytest.approx(4)
    assert plain["intercept"][0] == pytest.approx(
        0.25 * plain["site_intercepts"]["a"] + 0.75 * plain["site_intercepts"]["b"]
    )


@pytest.mark.parametrize("named", [False, True])
def test_estimators(tmp_path, named, predictors):
    random = np.random.default_rng(0)
    x = random.standard_normal((60, 3))
    rows = pd.DataFrame(x, columns=["u", "v", "w"]) if named else x
    y = np.array(["low", "middle", "high"])[np.digitize(x[:, 0], [-0.5, 0.5])]
    classifier = FederatedClassifier(regularizer="l2_squared", regularizer_options={"strength": 0.1}).fit(rows, y)
    counts = FederatedRegressor("poisson", "l2_squared", {"strength": 0.1}).fit(rows, random.poisson(2, 60))
    for model in (classifier, counts):
        expected = model.predict_proba(rows) if model is classifier else model.predict(rows)[:, None]
        frame = pd.DataFrame(rows)
        for name, predict in predictors.items():
            values, first = predict(export(model, tmp_path / f"m.{name}"), frame)[:2]
            np.testing.assert_allclose(values, expected, rtol=1e-12, atol=1e-12)
            if model is classifier:
                assert first.tolist() == model.predict(rows).tolist()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["record", "-o", "model.txt"], "must be a file that ends in .skops or .onnx or .json"),
        (["record", "-o", "model.json", "--format", "pmml"], "format: got 'pmml', must be one of skops, onnx, json"),
        (["nowhere", "-o", "model.json"], "linear_model.json not found"),
        (["record"], "--output"),
        (["record", "-o", "no/such/folder/model.json"], "no/such/folder"),
    ],
)
def test_wrong_input_is_one_line(tmp_path, monkeypatch, capsys, arguments, words):
    write_record(tmp_path, "squared", min_count=1)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_the_models_of_a_path_are_in_its_folders(tmp_path, capsys):
    record = write_record(tmp_path, "squared", min_count=1)
    (tmp_path / "path").mkdir()
    record.rename(tmp_path / "path" / "1se")
    with pytest.raises(SystemExit):
        main([str(tmp_path / "path"), "-o", str(tmp_path / "m.json")])
    assert "give " in capsys.readouterr().err


def test_what_is_not_a_model(tmp_path):
    with pytest.raises(ValueError, match="got int, must be a record, its folder, or a fitted estimator"):
        export(3, tmp_path / "m.json")  # type: ignore[arg-type]


@pytest.mark.parametrize("loss", ["logistic", "softmax", "poisson"])
def test_terms_of_a_formula(tmp_path, check_exports, loss):
    """Interactions, splines and functions; skops needs the type of this package for them."""
    (tmp_path / "t.csv").write_text(TRAINING)
    columns = replace(COLUMNS, categorical=("ward", "sex"))
    formula = parse("age * C(sex) + ns(chol, knots=[205, 225]) + bs(age, df=3):ward + poly(chol, 2) + log10(chol) + "
                    "I(-abs(age - 3)**2 / 7) + sqrt(exp(age) + log2(chol))")  # fmt: skip
    data = read(tmp_path / "t.csv", columns)
    preparation = replace(prepared_by_formula(data, formula, Recipe(min_count=1, flag_missing=True)), table=columns)
    random, outputs = np.random.default_rng(3), OUTPUTS.get(loss, 1)
    record = tmp_path / "record"
    record.mkdir()
    weights = random.standard_normal((outputs, len(preparation.features))) / 4
    LinearModel(all_losses()[loss](), None, preparation).write(record, weights, random.standard_normal(outputs))
    (tmp_path / "new.csv").write_text(NEW)
    assert check_exports(record, tmp_path / "new.csv", frame_of(NEW)) == ["fco_cli.export.terms.TermTransformer"]


@pytest.mark.parametrize("offset", ["column", "logarithm"])
@pytest.mark.parametrize("formula", [None, "age:chol"])
def test_offsets(tmp_path, check_exports, offset, formula):
    (tmp_path / "t.csv").write_text(TRAINING)
    data = read(tmp_path / "t.csv", COLUMNS)
    data = select_columns(data, ["age", "chol", "color"], "task.offset")
    preparation = prepared(data, Recipe()) if formula is None else prepared_by_formula(data, parse(formula), Recipe())
    own = Column("years") if offset == "column" else Call("log", (Column("years"),))
    preparation = replace(preparation, table=restrict_roles(COLUMNS, data.feature_names), offset=own)
    weights = np.random.default_rng(1).standard_normal((1, len(preparation.features)))
    LinearModel(all_losses()["poisson"](), None, preparation).write(tmp_path, weights, np.ones(1))
    new = "age,chol,color,years\n1,200,red,2\n?,0,blue,0.5\n3,199.5,?,1\n"
    (tmp_path / "new.csv").write_text(new)
    check_exports(tmp_path, tmp_path / "new.csv", frame_of(new, ("color",)))
