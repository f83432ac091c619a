"""Public tables, if present: their content, and equality with a preparation of the pooled rows."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from fco_cli.data.preparation import Preparation
from fco_cli.data.published import PUBLICATIONS, verify
from fco_cli.data.readers import read_features
from fco_cli.errors import UserError

FOLDERS = {"heart": "heart_disease", "crime": "communities_crime", "eicu": "eicu_demo", "brca": "fed_tcga_brca"}
REGIONS = {"Canada": 51, "Europe": 162, "Midwest": 162, "Northeast": 311, "South": 196, "West": 206}  # in FLamby
HOSPITALS = {"cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200}


@pytest.fixture
def build(build_task, real_data):
    def build(name: str, *overrides: str):
        return build_task(f"task={name}", f"task.data_dir={real_data(FOLDERS[name])}", *overrides)[1]

    return build


def test_every_publication_is_a_task(make_run):
    for name in PUBLICATIONS:
        assert make_run(f"task={name}").task.publication == name


@pytest.mark.parametrize("task", ["custom task.path=t.csv", *PUBLICATIONS])
def test_rows_of_tables_have_equal_weights(make_run, task):
    """Sites of 4 patients would otherwise weigh like sites of 33, and reverse signs; the paper's tasks are uniform."""
    assert make_run(*f"task={task}".split()).hparams.weighting == "examples"
    assert make_run("task=lasso").hparams.weighting == "uniform"


def test_heart(real_data):
    data = PUBLICATIONS["heart"].read(str(real_data("heart_disease")), 0)
    assert dict(zip(*np.unique(data.client, return_counts=True), strict=True)) == HOSPITALS
    chol = data.x[:, data.feature_names.index("chol")]
    assert np.isnan(chol[data.client == "switzerland"]).all()  # all of them are coded as 0
    assert np.isnan(chol).sum() == 202
    assert {data.feature_names[k]: levels for k, levels in data.levels.items()} == {
        "cp": ["1", "2", "3", "4"], "restecg": ["0", "1", "2"], "slope": ["1", "2", "3"], "thal": ["3", "6", "7"],
    }  # fmt: skip
    assert data.y.mean() == pytest.approx(509 / 920)


def test_crime_and_eicu(real_data):
    crime = PUBLICATIONS["crime"].read(str(real_data("communities_crime")), 2)
    assert crime.x.shape[1] == 122
    assert crime.feature_names[0] == "population"
    police = np.isnan(crime.x).mean(axis=0) > 0.8
    assert police.sum() == 22
    eicu = PUBLICATIONS["eicu"].read(str(real_data("eicu_demo")), 10)
    assert (len(eicu.clients), eicu.x.shape[1]) == (157, 43)


def test_brca(real_data):
    folder = real_data("fed_tcga_brca")
    for file in PUBLICATIONS["brca"].files:
        verify(folder / file.name, file.sha256)
    data = PUBLICATIONS["brca"].read(str(folder), 0)
    assert data.x.shape == (1088 - 12, 39)  # 12 of the 1,088 patients are censored at time 0
    frame = pd.read_csv(folder / "brca.csv").merge(pd.read_csv(folder / "train_test_split.csv"), on="pid")
    assert frame["fold2"].str[-1].value_counts().sort_index().tolist() == [311, 196, 206, 162, 162, 51]
    frame = frame[frame["T"] > 0]
    sizes = dict(zip(*np.unique(data.client, return_counts=True), strict=True))
    assert sizes == REGIONS | {"Europe": 162 - 9, "Canada": 51 - 3}
    np.testing.assert_array_equal(data.split, frame["fold"])
    np.testing.assert_array_equal(np.abs(data.y), frame["T"])
    np.testing.assert_array_equal(data.y > 0, frame["E"] == 1)
    np.testing.assert_array_equal(data.x, frame.iloc[:, 1:40])


@pytest.fixture
def brca(tmp_path):
    """Return the folder of a table in the form of FLamby's: a patient censored at time 0, another in no center."""
    lines = ["pid,age,E,T", "a,50,1.0,3.0", "b,60,0.0,0.0", "c,70,0.0,9.0", "d,80,1.0,5.0", "e,90,1.0,7.0", "f,40,1,2"]
    (tmp_path / "brca.csv").write_text("\n".join(lines) + "\n")
    parts = "pid,fold,fold2\na,train,train_0\nb,train,train_0\nc,test,test_0\nd,train,train_5\nf,train,train_5\n"
    (tmp_path / "train_test_split.csv").write_text(parts)
    return tmp_path


def test_centers_of_survival_times(brca):
    data = PUBLICATIONS["brca"].read(str(brca), 0)
    assert data.y.tolist() == [3, -9, 5, 2]
    assert data.client.tolist() == ["Northeast", "Northeast", "Canada", "Canada"]
    assert data.split.tolist() == ["train", "test", "train", "train"]
    assert (data.x.ravel().tolist(), data.feature_names) == ([50, 70, 80, 40], ["age"])


@pytest.mark.parametrize("line", ["c,test,train_0", "c,val,val_0", "c,test,test_6", "c,test", "c,test,test"])
def test_a_damaged_list_of_centers(brca, line):
    path = brca / "train_test_split.csv"
    before = PUBLICATIONS["brca"].content(str(brca))
    path.write_text(path.read_text().replace("c,test,test_0", line))
    assert PUBLICATIONS["brca"].content(str(brca)) != before
    with pytest.raises(UserError, match=r"train_test_split.csv: line 4: must be a patient, train or test"):
        PUBLICATIONS["brca"].read(str(brca), 0)


@pytest.mark.parametrize(
    ("name", "clients", "loss"),
    [("heart", 4, "logistic"), ("crime", 35, "squared"), ("eicu", 157, "logistic"), ("brca", 6, "cox")],
)
def test_they_are_problems_without_another_word(build, name, clients, loss):
    problem = build(name)
    assert (problem.data.clients, problem.loss.name) == (clients, loss)
    for rows in (problem.data, problem.held_out):
        assert np.isfinite(rows.x).all()
    np.testing.assert_allclose(problem.data.x.mean(axis=0), 0, atol=1e-9)
    constant = problem.data.x.std(axis=0) < 1e-9
    np.testing.assert_allclose(problem.data.x.std(axis=0)[~constant], 1)


def test_the_optimum_on_heart_is_scikit_learns_on_the_pooled_table(run_stack, real_data, tmp_path):
    """lambda = 0.05, equal row weights; the pooled rows are imputed, encoded and scaled by pandas."""
    folder = real_data("heart_disease")
    run_stack(
        [["task=heart", f"task.data_dir={folder}", "task.holdout=none", "algo=optimum", "hparams.weighting=examples",
          "hparams.dtype=float64"]]
    )  # fmt: skip
    names = PUBLICATIONS["heart"].columns.names
    tables = [pd.read_csv(folder / f"processed.{name}.data", names=names, na_values="?") for name in HOSPITALS]
    table = pd.concat(tables, ignore_index=True)
    y = table.pop("num") > 0
    table[["chol", "trestbps"]] = table[["chol", "trestbps"]].replace(0, np.nan)
    parts = []
    for name in table:
        if name in PUBLICATIONS["heart"].columns.categorical:
            dummies = pd.get_dummies(
                table[name].astype("Int64").astype("string"), prefix=name, prefix_sep="=", dtype=float
            )
            dummies[table[name].isna()] = np.nan
            parts.append(dummies.fillna(dummies.mean()))
        else:
            parts.append(table[name].fillna(table[name].mean()))
    pooled = pd.concat(parts, axis=1)
    x = (pooled - pooled.mean()) / pooled.std(ddof=0)
    theirs = LogisticRegression(l1_ratio=1, C=1 / (0.05 * len(y)), solver="saga", tol=1e-10, max_iter=20_000).fit(x, y)
    (record,) = (tmp_path / "outputs" / "heart" / "optimum").iterdir()
    with np.load(record / "model.npz") as ours:
        found = ours["weights"].ravel()
    assert json.loads((record / "linear_model.json").read_text())["features"] == list(pooled.columns)
    np.testing.assert_allclose(found, theirs.coef_[0], atol=1e-5)
    np.testing.assert_array_equal(found != 0, np.abs(theirs.coef_[0]) > 1e-6)


def test_a_new_table_is_predicted_from_what_the_record_keeps(build, real_data, tmp_path):
    """The file may have a header."""
    problem = build("heart", "task.holdout=none")
    problem.description.write(tmp_path, np.ones((1, problem.data.x.shape[1])), np.zeros(1))
    preparation = Preparation.of_json((tmp_path / "preparation.json").read_text(), "here")
    given = (real_data("heart_disease") / "processed.va.data").read_text()
    (tmp_path / "new.csv").write_text(given)
    expected = problem.data.client(3).x  # va is the last
    np.testing.assert_allclose(preparation.apply(read_features(tmp_path / "new.csv", preparation.table)), expected)
    (tmp_path / "new.csv").write_text(",".join(preparation.table.names) + "\n" + given)
    np.testing.assert_allclose(preparation.apply(read_features(tmp_path / "new.csv", preparation.table)), expected)


def test_missing_data_are_a_user_error(make_run, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(
        UserError, match=r"task.data_dir: eicu_demo requires the folder with eicu_apache.csv \(docs/data.md\)"
    ):
        make_run("task=eicu").task.build(0, "float64")
    with pytest.raises(UserError, match=r"processed.cleveland.data: cannot be read: No such file or directory"):
        make_run("task=heart", f"task.data_dir={tmp_path}").task.contents()
    assert make_run("task=heart").task.missing_data() is not None
