"""Tests of task.formula: estimates, paths, predictions and exports of models with terms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fco_cli.api import glm, path, run
from fco_cli.commands.predict import predictions
from fco_cli.data.fitted import FittedModel
from fco_cli.errors import UserError

ROWS = 160
FORMULA = "age * sex + bs(chol, knots=[4, 6.5], lower_bound=0, upper_bound=12) + C(cp) + log(bun):sex"


@pytest.fixture
def table(tmp_path) -> tuple[Path, pd.DataFrame]:
    """Return a table of three clients, with a column that the formulas do not use."""
    random = np.random.default_rng(7)
    frame = pd.DataFrame(
        {
            "client": np.array(["a", "b", "c"])[random.integers(0, 3, ROWS)],
            "age": random.normal(50, 10, ROWS).round(1),
            "sex": np.array(["f", "m"])[random.integers(0, 2, ROWS)],
            "chol": random.uniform(1, 11, ROWS).round(2),
            "cp": random.integers(1, 4, ROWS),
            "bun": random.exponential(10, ROWS).round(2) + 1,
            "unused": random.standard_normal(ROWS),
        }
    )
    score = 0.05 * (frame.age - 50) + np.sin(frame.chol) + 0.5 * (frame.sex == "m") - 0.4 * (frame.cp == 2)
    frame["y"] = (random.random(ROWS) < 1 / (1 + np.exp(-score))).astype(int)
    frame["n"] = random.poisson(np.exp(0.5 * score))
    frame.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv", frame


def words(file: Path, label: str, formula: str = FORMULA) -> list[str]:
    drop = {"y": "n", "n": "y"}[label]
    return [f"task.path={file}", f"task.label={label}", f"task.drop=[{drop}]", f"task.formula={formula}",
            f"output_dir={file.parent / 'outputs'}", "task.min_count=1"]  # fmt: skip


@pytest.mark.parametrize(("label", "loss"), [("y", "logistic"), ("n", "poisson"), ("n", "squared")])
def test_estimates_are_those_of_statsmodels(table, label, loss):
    patsy, sm = pytest.importorskip("patsy"), pytest.importorskip("statsmodels.api")
    file, frame = table
    ours = glm(*words(file, label), f"task.loss={loss}", "glm.meta=false")
    x = patsy.dmatrix(FORMULA.replace("log", "np.log"), frame, return_type="dataframe")
    if loss == "squared":
        theirs = sm.OLS(frame[label], x).fit()
    else:
        family = sm.families.Binomial() if loss == "logistic" else sm.families.Poisson()
        theirs = sm.GLM(frame[label], x, family=family).fit(tol=1e-14, maxiter=100)
    names = {
        "(Intercept)": "Intercept", "age": "age", "sex=m": "sex[T.m]", "age:sex=m": "age:sex[T.m]",
        "cp=2": "C(cp)[T.2]", "cp=3": "C(cp)[T.3]", "log(bun):sex=f": "np.log(bun):sex[f]",
        "log(bun):sex=m": "np.log(bun):sex[m]",
    }  # fmt: skip
    splines = [name for name in x if name.startswith("bs")]
    names |= {name: splines[int(name[-2]) - 1] for name in ours.table.index if name.startswith("bs")}
    assert sorted(names) == sorted(ours.table.index)
    for name, their_name in names.items():
        assert ours.table.loc[name, "estimate"] == pytest.approx(theirs.params[their_name], rel=1e-8)
        assert ours.table.loc[name, "error"] == pytest.approx(theirs.bse[their_name], rel=1e-8)
    tests = ours.terms
    assert {"age:sex", "C(cp)"} < set(tests.index)
    assert tests.loc["C(cp)", "numerator"] == 2
    if loss == "logistic":
        without = [name for name in x if not name.startswith("C(cp)")]
        restricted = sm.GLM(frame[label], x[without], family=sm.families.Binomial()).fit(tol=1e-14, maxiter=100)
        assert tests.loc["C(cp)", "statistic"] == pytest.approx(restricted.deviance - theirs.deviance, rel=1e-8)


@pytest.mark.parametrize("kind", ["glm", "path", "run"])
def test_a_new_table_needs_the_columns_of_the_formula_only(table, tmp_path, kind):
    file, frame = table
    formula = "age * C(cp) + ns(chol, df=3) + poly(bun, 2)"
    own = [*words(file, "y", formula), "task.categorical=[sex]", "task.missing=[unused:0]"]  # of other columns
    if kind == "glm":
        record = glm(*own, "glm.meta=false").folder
    elif kind == "path":
        record = path(*own, "path.folds=3", "path.strengths=5").folder / "min"
    else:
        record = run("task=custom", *own, "algo=optimum", "hparams.dtype=float64", "regularizer.strength=0.01").folder
    frame[["bun", "chol", "cp", "age"]].to_csv(tmp_path / "new.csv", index=False)
    ours = predictions(record, tmp_path / "new.csv")
    assert ours == predictions(record, file)
    assert ours.count("\n") == ROWS + 1
    model = FittedModel.read(record)
    assert model.preparation is not None
    assert model.preparation.columns == ["age", "cp", "chol", "bun"]


def test_another_formula_is_another_run(table, make_run):
    file, _ = table
    common = ["task=custom", f"task.path={file}"]
    ids = {make_run(*common, *own).run_id for own in ([], ["task.formula='age'"], ["task.formula='age+chol'"])}
    assert len(ids) == 3


def test_folds_have_their_own_knots(table, make_run):
    file, _ = table
    task = make_run("task=custom", f"task.path={file}", "task.drop=[n]", "task.formula='bs(chol, df=5)'").task
    task = task.cross_validated()
    data, _, folds = task.with_folds(0, "float64", 2, "rows")
    knots = [one.description.preparation.terms[0].factors[0].breaks for one in (data, *folds)]
    assert len(set(knots)) == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["task.formula='age + '"], "is not a formula"),
        (["task.formula=age", "task.ranges={default:[0,1]}"], "task.formula: got 'age', must be null with task.ranges"),
        (["task.formula=''"], "must be the right side of a formula"),
    ],
)
def test_wrong_settings(table, make_run, given, message):
    with pytest.raises(UserError, match=message):
        make_run("task=custom", f"task.path={table[0]}", *given)
