"""The documented use of a user's own data, from a CSV file to predictions in another program."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from scipy.special import huber
from sklearn.linear_model import PoissonRegressor

from fco_cli.commands.predict import predictions
from fco_cli.data.fitted import LinearModel
from fco_cli.data.preparation import Preparation
from fco_cli.data.readers import read
from fco_cli.errors import UserError
from fco_cli.problem.losses import Softmax, all_losses
from fco_cli.tasks.tabular import Custom

PYTHON = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
ARGUMENTS = (
    "task=custom", "task.path=hospitals.csv", "task.client=hospital", "task.label=diagnosis",
    "regularizer.strength=0.05", "hparams.clients_per_round=4",
)  # fmt: skip


@pytest.fixture
def table(tmp_path) -> Path:
    """Write a table of six hospitals with two informative features out of eight, on very different scales."""
    random = np.random.default_rng(0)
    x = random.standard_normal((300, 8))
    sick = 3 * x[:, 1] - 2 * x[:, 4] + 0.3 * random.standard_normal(300) > 0
    frame = pd.DataFrame(x * 10.0 ** np.arange(-4, 4) + 5, columns=[f"marker{k}" for k in range(8)])
    frame["hospital"] = random.choice(["north", "south", "east", "west", "lake", "hill"], 300)
    frame["diagnosis"] = np.where(sick, "sick", "healthy")
    frame.to_csv(tmp_path / "hospitals.csv", index=False)
    return tmp_path / "hospitals.csv"


@pytest.mark.ci
def test_from_a_csv_file_to_predictions(table, tmp_path):
    command = Path(sys.executable).with_name("fco-run")
    subprocess.run([command, *ARGUMENTS], cwd=tmp_path, check=True, capture_output=True)
    (record,) = (tmp_path / "outputs" / "custom" / "feddualavg").iterdir()

    *weights, intercept = csv.DictReader((record / "model.csv").read_text().splitlines())
    assert intercept["feature"] == "(intercept)"
    sizes = [abs(float(row["weight"])) for row in weights]
    assert {row["feature"] for row in weights[:2]} == {"marker1", "marker4"}
    assert sizes == sorted(sizes, reverse=True)
    assert len(weights) < 8
    assert 0 not in sizes

    frame = pd.read_csv(table)
    frame.drop(columns=["hospital", "diagnosis"]).to_csv(tmp_path / "new.csv", index=False)
    predicted = pd.read_csv(io.StringIO(predictions(record, tmp_path / "new.csv")))["prediction"]
    result = json.loads((record / "result.json").read_text())["final"]
    held_out = round(0.2 * 300)  # the accuracy over all rows is between those over the two parts
    right = result["train_accuracy"] * (300 - held_out) + result["validation_accuracy"] * held_out
    assert abs((predicted == frame["diagnosis"]).sum() - right) <= 4  # sizes of the parts are rounded per client
    assert right / 300 > 0.9


@pytest.mark.ci
@pytest.mark.machine_code
def test_the_documented_estimator(table):
    frame = pd.read_csv(table)
    features = frame.drop(columns=["hospital", "diagnosis"])
    y = (frame["diagnosis"] == "sick").astype(int)
    scope = {"X": (features - features.mean()) / features.std(), "y": y, "hospital": frame["hospital"]}
    exec(re.search(r"## Estimators\n\n```python\n(.*?)```", PYTHON, re.DOTALL).group(1), scope)
    for model in (scope["lasso"], scope["chosen"]):
        assert set(np.argsort(-abs(np.ravel(model.coef_)))[:2]) == {1, 4}
    assert scope["chosen"].score(scope["X"], y) > 0.9


def test_standardized_features_have_mean_0_and_deviation_1_on_the_training_rows(build, data):
    _, problem = build(data, "task.loss=logistic")
    np.testing.assert_allclose(problem.data.x.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(problem.data.x.std(axis=0), 1)
    assert not np.allclose(problem.held_out.x.std(axis=0), 1)  # standardized with the moments of the training rows
    _, raw = build(data, "task.loss=logistic", "task.standardize=false")
    assert set(raw.data.x[:, 0]) | set(raw.held_out.x[:, 0]) == set(np.load(data)["x"][:, 0])


@pytest.mark.parametrize(
    "setting",
    [
        "loss=hinge",
        "loss=huber task.huber_delta=0",
        "loss=huber task.loss_options={width:1}",
        "loss=squared task.loss_options={delta:1}",
        "loss_options=[1]",
        "loss_options={delta:much}",
        "loss=squared task.holdout=some",
        "loss=squared task.holdout_fraction=1",
        "loss=squared task.test=some",
        "loss=squared task.test_fraction=0",
        "fill=zero",
        "min_count=0",
        "min_samples=-1",
        "class_weight=even",
        "partition=stripes",
        "partition=labels task.partition_clients=1",
        "partition=labels task.partition_concentration=0",
    ],
)
def test_settings_out_of_range_are_refused(make_run, data, setting):
    with pytest.raises(UserError, match=f"task.{setting.split('task.')[-1].split('=')[0]}"):
        make_run("task=custom", f"task.path={data}", *f"task.{setting}".split())


@pytest.mark.parametrize(("loss", "allowed"), [("logistic", "0 or 1"), ("poisson", "whole numbers >= 0")])
def test_labels_that_do_not_fit_the_loss_are_refused(build, data, loss, allowed, with_changes):
    y = np.load(data)["y"]
    y[30] = -3
    with pytest.raises(UserError, match=rf"d\.npz: client 'c', row 30: label -3; the {loss} loss needs {allowed}"):
        build(with_changes(data, y=y), f"task.loss={loss}")


@pytest.mark.parametrize("loss", ["squared", "huber", "poisson", "logistic", "softmax"])
def test_metrics_fit_the_loss(build, data, loss):
    """Metrics of the weights, and of the loss on held-out rows; multi-output losses have none."""
    task, problem = build(data, f"task.loss={loss}")
    w = np.random.default_rng(3).standard_normal((2, problem.layout.size))
    w[0, 1] = 0
    metrics, held_out = task.metrics(problem, w), problem.held_out
    own = task.held_out_metrics(problem, held_out, w)
    weights = problem.layout.regularized.sum()
    assert metrics.pop("nonzeros").tolist() == [weights - 1, weights]
    assert metrics.pop("density").tolist() == [(weights - 1) / weights, 1]
    expected = (
        [problem.loss.metrics(held_out.x @ v[:3] + v[3], held_out.y, held_out.offsets) for v in w]
        if loss != "softmax"
        else [{}]
    )
    assert metrics == {}
    assert set(own) == set(expected[0])
    for name in expected[0]:
        np.testing.assert_allclose(own[name], [job[name] for job in expected], rtol=1e-9)


@pytest.mark.parametrize("loss", ["huber", "poisson"])
def test_the_optimum_is_that_of_other_software(run_stack, data, tmp_path, loss, with_changes):
    """Equal row weights, no regularizer; references are scikit-learn (Poisson) and SciPy (Huber)."""
    x, random = np.random.default_rng(2).standard_normal((60, 3)), np.random.default_rng(4)
    mean = x @ [0.5, -0.3, 0] + 1
    y = random.poisson(np.exp(mean)) if loss == "poisson" else mean + random.standard_t(1, 60)
    with_changes(data, x=x, y=y)
    options = ["task=custom", f"task.path={data}", f"task.loss={loss}", "task.huber_delta=0.7", "task.holdout=none"]
    run_stack([[*options, "algo=optimum", "regularizer=none", "hparams.weighting=examples", "hparams.dtype=float64"]])
    (record,) = (tmp_path / "outputs" / "custom" / "optimum").iterdir()
    with np.load(record / "linear_model.npz") as ours:
        found = np.append(ours["coef"], ours["intercept"])
    if loss == "poisson":
        theirs = PoissonRegressor(alpha=0, solver="newton-cholesky", tol=1e-12).fit(x, y)
        expected = np.append(theirs.coef_, theirs.intercept_)
    else:
        expected = minimize(lambda w: huber(0.7, x @ w[:3] + w[3] - y).sum(), np.zeros(4), method="BFGS", tol=1e-9).x
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_number_of_another_loss_is_no_part_of_the_identity(make_run, data):
    def identity(*overrides: str) -> dict:
        return make_run("task=custom", f"task.path={data}", *overrides).task.identity()

    assert identity("task.loss=squared") == identity("task.loss=squared", "task.huber_delta=2")
    assert identity("task.loss=huber") != identity("task.loss=huber", "task.huber_delta=2")


def test_every_number_of_a_loss_has_its_key():
    keys = {f"{name}_{number.name}" for name, kind in all_losses().items() for number in fields(kind)}
    assert keys <= {field.name for field in fields(Custom)}


def test_the_exported_model_gives_the_same_scores_for_features_as_given(build, data, tmp_path, with_changes):
    with_changes(
        data, y=np.arange(60) % 3, classes=np.array(["low", "mid", "high"]), features=np.array(["p", "q", "r"])
    )
    task, problem = build(data, "task.loss=softmax", "task.holdout=none")
    model = np.random.default_rng(3).standard_normal(12)
    model[4] = 0  # class mid, feature q
    task.export(problem, model, tmp_path)
    with np.load(tmp_path / "linear_model.npz") as arrays:
        given = np.load(data)["x"] @ arrays["coef"].T + arrays["intercept"]
    standardized = problem.data.x @ model[:9].reshape(3, 3).T + model[9:]
    np.testing.assert_allclose(given, standardized, atol=1e-10)
    rows = pd.read_csv(tmp_path / "model.csv")
    assert list(rows.columns) == ["feature", "class", "weight", "weight_per_unit"]
    assert rows["feature"][-3:].tolist() == ["(intercept)"] * 3
    assert rows["class"][-3:].tolist() == ["low", "mid", "high"]
    with np.load(tmp_path / "linear_model.npz") as arrays:
        np.testing.assert_allclose(rows["weight_per_unit"][-3:], arrays["intercept"], rtol=1e-6)
    np.testing.assert_allclose(rows["weight"][-3:], model[9:], rtol=1e-6)
    rows = rows[:-3]
    assert len(rows) == 8
    assert not ((rows["feature"] == "q") & (rows["class"] == "mid")).any()
    assert (rows["weight"].abs().diff().dropna() <= 0).all()
    preparation = Preparation.of_json((tmp_path / "preparation.json").read_text(), "here")
    np.testing.assert_allclose(preparation.apply(read(data).raw), problem.data.x, atol=1e-12)
    names = json.loads((tmp_path / "linear_model.json").read_text())
    classes = ["low", "mid", "high"]
    assert names == {
        "loss": "softmax",
        "link": "softmax",
        "features": ["p", "q", "r"],
        "classes": classes,
        "sparse": False,
    }


def test_values_without_room_in_the_precision_are_refused(build, data, with_changes):
    x = np.load(data)["x"]
    x[7, 1] = 1e300
    with_changes(data, x=x)
    with pytest.raises(UserError, match=r"values of up to 1e\+300 are too large for float32 \(hparams.dtype\)"):
        build(data, "task.loss=logistic", "task.holdout=none", "task.standardize=false", "hparams.dtype=float32")
    with pytest.raises(UserError, match=r"column 'x1': its values are too large to be standardized"):
        build(data, "task.loss=logistic", "task.holdout=none", "hparams.dtype=float64")


def test_rows_that_do_not_fit_into_memory_are_refused_before_they_are_copied(build, data, monkeypatch):
    monkeypatch.setattr("fco_cli.memory_limit.machine_memory", lambda: 4000)  # the file takes 1.4 kB for x
    with pytest.raises(UserError, match=r"d.npz: its rows in float64 would take 4.32 kB of memory"):
        build(data, "task.loss=logistic", "hparams.dtype=float64", "hparams.rounds=1")


def test_a_file_is_looked_at_before_it_is_hashed(make_run, tmp_path):
    with (tmp_path / "sparse.csv").open("wb") as file:
        file.truncate(40 << 30)
    run = make_run("task=custom", f"task.path={tmp_path / 'sparse.csv'}", "task.loss=logistic")
    with pytest.raises(UserError, match=r"sparse.csv: "):
        run.task.contents()


def test_names_are_no_formulas_in_a_spreadsheet(tmp_path):
    model = LinearModel(Softmax(), ["@no", "yes"], Preparation(["=cmd()", "age"], [0, 0], {}, []))
    model.write(tmp_path, np.array([[4.0, 3.0], [2.0, 1.0]]), np.zeros(2))
    rows = list(csv.reader((tmp_path / "model.csv").read_text().splitlines()))
    assert [row[:2] for row in rows[1:-2]] == [["'=cmd()", "'@no"], ["age", "'@no"], ["'=cmd()", "yes"], ["age", "yes"]]


def test_a_table_is_run_as_it_is(build, tmp_path):
    """Missing values, categories and a condition for the label, in one command."""
    random = np.random.default_rng(5)
    frame = pd.DataFrame({"age": random.normal(50, 9, 90), "ward": random.choice(["red", "blue", "?"], 90)})
    frame["hospital"], frame["num"] = random.choice(["n", "s"], 90), random.integers(0, 4, 90)
    frame.loc[frame.index % 5 == 0, "age"] = np.nan
    frame.to_csv(tmp_path / "t.csv", index=False, sep=";")
    task, problem = build(tmp_path / "t.csv", "task.client=hospital", "task.label='num>1'", "task.flag_missing=true")
    assert problem.loss.name == "logistic"
    assert problem.description.preparation.features == ["age", "age is missing", "ward=red", "ward is missing"]
    assert problem.data.clients == 2
    task.export(problem, np.ones(5), tmp_path)
    assert json.loads((tmp_path / "linear_model.json").read_text())["classes"] == ["not num>1", "num>1"]


@pytest.mark.parametrize(
    ("y", "loss"),
    [([0, 1], "logistic"), ([1, 2, 3], "squared"), (["no", "yes"], "logistic"), (["a", "b", "c"], "softmax")],
)
def test_labels_choose_the_loss(build, tmp_path, y, loss):
    rows = "".join(f"{client},{k},{y[k % len(y)]}\n" for client in "ab" for k in range(12))
    (tmp_path / "t.csv").write_text(f"client,x,y\n{rows}")
    _, problem = build(tmp_path / "t.csv")
    assert problem.loss.name == loss


def test_weights_are_carried_to_the_clients_rows(build, data, with_changes):
    given = np.arange(60) % 4 / 2
    with_changes(data, weights=given)
    _, problem = build(data, "task.holdout=none")
    np.testing.assert_allclose(problem.data.row_weights, given / given.mean())  # the file is sorted by client
    np.testing.assert_allclose(problem.data.client(2).row_weights, (given / given.mean())[24:35])
    _, problem = build(data)
    assert problem.data.row_weights.mean() == pytest.approx(1)
    assert len(problem.held_out.row_weights) == len(problem.held_out.y)


def test_balanced_classes_count_alike(build, data, with_changes):
    with_changes(data, y=np.arange(60) % 5 == 0)
    _, problem = build(data, "task.class_weight=balanced")
    weights, y = problem.data.row_weights, problem.data.y
    assert weights.mean() == pytest.approx(1)
    assert weights[y == 1].sum() == pytest.approx(weights[y == 0].sum())
    _, plain = build(data)
    assert plain.data.row_weights is None
    with pytest.raises(UserError, match=r"task.class_weight: got 'balanced', must be null for the squared loss"):
        build(data, "task.class_weight=balanced", "task.loss=squared")


def test_rows_without_clients_are_partitioned(build, tmp_path):
    rows = "".join(f"{k},{k % 7},{k % 2}\n" for k in range(80))
    (tmp_path / "t.csv").write_text(f"x,client,y\n{rows}")
    _, problem = build(tmp_path / "t.csv", "task.partition=quantity", "task.partition_clients=5", "task.holdout=none")
    assert problem.data.clients == 5
    assert problem.data.sizes.sum() == 80
    assert problem.description.preparation.features == ["x"]  # the client column is not a feature


def test_two_numbers_as_labels_are_refused_unless_the_loss_is_given(build, tmp_path):
    """Labels 1 and 2 are mostly classes; a regression that is not asked for would predict 1.27."""
    rows = "".join(f"{client},{k},{k % 2 + 1}\n" for client in "ab" for k in range(12))
    (tmp_path / "t.csv").write_text(f"client,x,y\n{rows}")
    with pytest.raises(UserError, match=r"t.csv: every label is 1 or 2, .*: set task.label='y==2' for classes"):
        build(tmp_path / "t.csv")
    assert build(tmp_path / "t.csv", "task.loss=squared")[1].loss.name == "squared"
    assert build(tmp_path / "t.csv", "task.label='y==2'")[1].loss.name == "logistic"
    assert build(tmp_path / "t.csv", "task.categorical=[y]")[1].loss.name == "logistic"


def test_new_rows_are_read_with_the_options_of_the_training_data(build, tmp_path):
    """Renamed columns and texts, decimal commas, units and dates; the new table has neither label nor client."""
    random = np.random.default_rng(5)
    rows = [
        f"{'Nn'[k % 2]};{random.normal(90, 9):.1f} mg/l;{'MF'[k // 3 % 2]};1960-03-01;{2000 + k % 20}-03-01;{k % 2 + 1}"
        for k in range(60)
    ]
    header = "Klinik;Kreatinin;sex;birth;seen;status"
    (tmp_path / "t.csv").write_text("\n".join([header, *rows]).replace(".", ","))
    options = [
        "task.client=site", "task.label='status==2'", "task.fold_case=true", "task.partition=quantity",
        "task.partition_clients=2", "task.derive=['age=years_between(birth, seen)']",
        "task.map=['Klinik=site','Kreatinin=crea','sex:M=male','sex:F=female','status:2=2']",
    ]  # fmt: skip
    task, problem = build(tmp_path / "t.csv", *options)
    assert problem.features == ("crea [mg/l]", "sex=male", "age")
    task.export(problem, np.array([1.0, 0, 0, 0]), tmp_path)
    text = "Kreatinin;sex;birth;seen\n80,5 mg/l;M;1960-03-01;2000-03-01\n100 mg/l;F;1.3.1960;1.3.2010\n"
    (tmp_path / "new.csv").write_text(text)
    table = pd.read_csv(io.StringIO(predictions(tmp_path, tmp_path / "new.csv")))
    scale = problem.description.preparation
    scores = (np.array([80.5, 100]) - scale.mean[0]) / scale.scale[0]
    np.testing.assert_allclose(table["probability of status==2"], 1 / (1 + np.exp(-scores)), rtol=1e-9)
    (tmp_path / "new.csv").write_text(text.replace("mg/l", "g/l"))
    with pytest.raises(UserError, match=r"missing columns crea \[mg/l\]; unknown columns crea \[g/l\]"):
        predictions(tmp_path, tmp_path / "new.csv")


def test_words_for_labels_are_no_numbers(build, tmp_path):
    """Declared classes, whose indices must not be used for regression."""
    (tmp_path / "t.csv").write_text(
        "x,client,y\n" + "".join(f"{k},{'ab'[k % 2]},{k}\n" for k in range(8)) + "9,a,high\n"
    )
    with pytest.raises(UserError, match=r"t.csv: the labels are the classes 0, 1, .*; the squared loss needs numbers"):
        build(tmp_path / "t.csv", "task.loss=squared", "task.categorical=[y]")


def test_labels_that_are_all_the_same_are_refused(build, data, with_changes):
    for loss in ("logistic", "squared"):
        with pytest.raises(UserError, match=r"d.npz: every label is 1; at least two different labels are required"):
            build(with_changes(data, y=np.ones(60)), f"task.loss={loss}")
    y = np.load(data)["client"] != "c"  # labels may be constant at one client
    build(with_changes(data, y=y), "task.loss=logistic")


def test_a_refused_table_leaves_nothing_behind(run_stack, tmp_path):
    (tmp_path / "t.csv").write_text("client,x,y\na,1,0\na,tall,1\nb,3,0\nb,4,1\n")
    with pytest.raises(UserError, match="column 'x' is 'tall'"):
        run_stack([["task=custom", f"task.path={tmp_path / 't.csv'}"]])
    assert {path.name for path in (tmp_path / "outputs").rglob("*") if path.is_file()} <= {".lock"}


def test_site_intercepts(build, table, tmp_path):
    """The record has the intercept of each client; other clients get the mean over the rows."""
    task, problem = build(table, "task.client=hospital", "task.label=diagnosis", "task.site_intercept=true")
    task.export(problem, np.zeros(problem.layout.size), tmp_path)
    own = pd.read_csv(tmp_path / "site_intercepts.csv", index_col="client")["intercept"]
    assert list(own.index) == sorted(["north", "south", "east", "west", "lake", "hill"])
    shares = np.array([problem.data.client(m).y.mean() for m in range(6)])
    np.testing.assert_allclose(own, np.log(shares) - np.log1p(-shares), atol=1e-9)
    with np.load(tmp_path / "linear_model.npz") as arrays:
        assert arrays["intercept"] == pytest.approx(np.average(own, weights=problem.data.sizes))


@pytest.mark.slow
def test_a_table_of_a_million_columns(build, tmp_path):
    wide = 10**6
    rows = [f"{'ab'[k // 2]},{k % 2}," + ",".join(["0", "1"][j % (k + 2) > 0] for j in range(wide)) for k in range(4)]
    header = "client,y," + ",".join(f"x{j}" for j in range(wide))
    (tmp_path / "wide.csv").write_text("\n".join([header, *rows]) + "\n")
    _, problem = build(tmp_path / "wide.csv", "task.holdout=none")
    assert problem.layout.size == wide + 1


def test_times_until_an_event_are_learnt_by_the_cox_loss(build, tmp_path):
    (tmp_path / "t.csv").write_text("client,age,days,dead\na,1,5,1\na,2,7.5,0\nb,3,9,0\nb,4,2,1\n")
    _, problem = build(tmp_path / "t.csv", "task.label=days", "task.event=dead", "task.holdout=none")
    assert problem.loss.name == "cox"
    assert problem.data.y.tolist() == [5, -7.5, -9, 2]
    with pytest.raises(UserError, match=r"task\.event: got 'dead', must be null unless task\.loss=cox"):
        build(tmp_path / "t.csv", "task.label=days", "task.event=dead", "task.loss=squared")


def test_only_tables_have_a_column_for_the_event(build, data):
    with pytest.raises(UserError, match="this format has no event column; use negative labels for censored times"):
        build(data, "task.event=dead")
