"""Tests of task.offset and task.exposure: agreement with statsmodels, in estimates, paths, runs and predictions."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fco_cli.api import glm, path, run
from fco_cli.commands.predict import predictions
from fco_cli.data.fitted import FittedModel
from fco_cli.errors import UserError

ROWS = 150


@pytest.fixture
def table(tmp_path) -> tuple[Path, pd.DataFrame]:
    """Return a table of three clients: counts during years of observation, a binary label and a number."""
    random = np.random.default_rng(5)
    frame = pd.DataFrame(
        {
            "client": np.array(["a", "b", "c"])[random.integers(0, 3, ROWS)],
            "u": random.standard_normal(ROWS).round(3),
            "v": random.standard_normal(ROWS).round(3),
            "years": random.uniform(0.2, 8, ROWS).round(2),
        }
    )
    score = 0.4 * frame.u - 0.3 * frame.v - 0.5
    frame["falls"] = random.poisson(frame.years * np.exp(score))
    frame["sick"] = (random.random(ROWS) < 1 / (1 + np.exp(-score))).astype(int)
    frame["level"] = (score + random.standard_normal(ROWS)).round(4)
    frame["logs"] = np.log(frame.years)
    frame.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv", frame


def words(file: Path, label: str, *others: str) -> list[str]:
    labels = {"falls", "sick", "level"} - {label}
    unused = {"years", "logs"} - {other.partition("=")[2] for other in others}
    return [f"task.path={file}", f"task.label={label}", f"task.drop=[{','.join(sorted(labels | unused))}]",
            f"output_dir={file.parent / 'outputs'}", *others]  # fmt: skip


@pytest.mark.parametrize(
    ("label", "loss", "offset"),
    [("falls", "poisson", "task.exposure=years"), ("falls", "poisson", "task.offset=logs"),
     ("falls", "poisson", "glm.exposure=years"), ("sick", "logistic", "task.offset=logs"),
     ("level", "squared", "task.offset=logs")],
)  # fmt: skip
def test_estimates_are_those_of_statsmodels(table, label, loss, offset, tmp_path):
    sm = pytest.importorskip("statsmodels.api")
    file, frame = table
    ours = glm(*words(file, label, offset), f"task.loss={loss}")
    x = sm.add_constant(frame[["u", "v"]])
    if loss == "squared":
        theirs = sm.OLS(frame[label] - frame.logs, x).fit()
    else:
        family = sm.families.Poisson() if loss == "poisson" else sm.families.Binomial()
        theirs = sm.GLM(frame[label], x, family=family, offset=frame.logs).fit(tol=1e-14, maxiter=100)
        clients = ours.clients.set_index(["client", "coefficient"])
        own = frame.client == "b"
        alone = sm.GLM(frame[label][own], x[own], family=family, offset=frame.logs[own]).fit(tol=1e-14, maxiter=100)
        np.testing.assert_allclose(clients.loc["b"]["estimate"], alone.params, rtol=1e-8)
        np.testing.assert_allclose(clients.loc["b"]["error"], alone.bse, rtol=1e-7)
    np.testing.assert_allclose(ours.table["estimate"], theirs.params, rtol=1e-8)
    np.testing.assert_allclose(ours.table["error"], theirs.bse, rtol=1e-8)
    column = offset.partition("=")[2]
    frame[[column, "v", "u"]].to_csv(tmp_path / "new.csv", index=False)
    model = FittedModel.read(ours.folder)
    scores = model.scores_of(tmp_path / "new.csv")[:, 0]
    np.testing.assert_allclose(scores, x @ theirs.params + frame.logs, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("offset", ["task.exposure=years", "task.offset=logs"])
def test_a_sparse_model_of_counts_is_optimal(table, offset, tmp_path):
    """The optimality conditions of the lasso hold for the likelihood with the offset."""
    file, frame = table
    strength = 0.05
    record = run(
        "task=custom", *words(file, "falls", offset), "task.loss=poisson", "algo=optimum", "hparams.weighting=examples",
        "hparams.dtype=float64", f"regularizer.strength={strength}", "task.standardize=false", "task.holdout=none",
    )  # fmt: skip
    model = FittedModel.read(record.folder)
    mean = frame.years * np.exp(frame[["u", "v"]] @ model.coef[0] + model.intercept[0])
    residual = (frame.falls - mean).to_numpy()
    assert residual.mean() == pytest.approx(0, abs=1e-6)
    gradient = residual @ frame[["u", "v"]].to_numpy() / ROWS
    assert model.coef[0].all()
    np.testing.assert_allclose(gradient, strength * np.sign(model.coef[0]), rtol=1e-5)
    ours = [float(row["prediction"]) for row in csv.DictReader(predictions(record.folder, file).splitlines())]
    np.testing.assert_allclose(ours, mean, rtol=1e-8)


def test_a_path_with_an_exposure(table):
    """Its model predicts counts for the exposure of every row."""
    file, frame = table
    record = path(*words(file, "falls", "task.exposure=years"), "task.loss=poisson", "path.folds=3", "path.strengths=6")
    model = record.folder / "min"
    rate = FittedModel.read(model)
    expected = frame.years * np.exp(frame[["u", "v"]] @ rate.coef[0] + rate.intercept[0])
    ours = [float(row["prediction"]) for row in csv.DictReader(predictions(model, file).splitlines())]
    np.testing.assert_allclose(ours, expected, rtol=1e-8)
    assert record.result["loss"] == "poisson"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["task.offset=logs", "task.exposure=years"], "task.offset: got 'logs', must be null with task.exposure"),
        (["task.offset=logs", "task.ranges={default:[0,1]}"], "must be null with task.ranges"),
    ],
)
def test_wrong_settings(table, make_run, given, message):
    with pytest.raises(UserError, match=message):
        make_run("task=custom", f"task.path={table[0]}", *given)


@pytest.mark.parametrize(
    ("label", "loss", "given", "message"),
    [
        ("sick", "logistic", "task.exposure=years", "must be null for the logistic loss; counts have an exposure"),
        ("sick", "logistic", "task.offset=logs", "must be null for the logistic loss, except with experiment=glm"),
        ("falls", "poisson", "task.exposure=v", "column 'v' .task.exposure. must be a number > 0 in every row"),
        ("falls", "poisson", "task.exposure=yeers", "task.exposure: column 'yeers' not found"),
    ],
)
def test_wrong_columns(table, make_run, label, loss, given, message):
    task = make_run("task=custom", *words(table[0], label, given), f"task.loss={loss}").task
    with pytest.raises(UserError, match=message):
        task.data(0, "float64")


def test_a_new_table_needs_the_offset(table, tmp_path):
    file, frame = table
    record = glm(*words(file, "falls", "task.exposure=years"), "task.loss=poisson", "glm.meta=false").folder
    frame[["u", "v"]].to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(UserError, match=r"column 'years' of the offset \(task.exposure\) not found"):
        predictions(record, tmp_path / "new.csv")
