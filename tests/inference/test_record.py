"""experiment=glm: record, printed table, Python interface, refusals."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from fco_cli.api import glm
from fco_cli.reporting.coefficients import as_html, as_latex, format_p


@pytest.fixture
def table(tmp_path):
    """A table of three clinics: a binary label, a count, an exposure, a category of three levels."""
    random = np.random.default_rng(1)
    rows = 150
    age, dose = random.normal(60, 9, rows), random.normal(0, 1, rows)
    stage = np.array(["I", "II", "III"])[random.integers(0, 3, rows)]
    years = random.uniform(0.5, 4, rows)
    score = 0.05 * (age - 60) + 0.7 * dose + 0.5 * (stage == "III")
    sick = (random.random(rows) < 1 / (1 + np.exp(-score))).astype(int)
    falls = random.poisson(years * np.exp(0.4 * dose))
    path = tmp_path / "clinics.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "dose", "stage", "years", "sick", "falls", "clinic"])
        for k, row in enumerate(zip(age, dose, stage, years, sick, falls, strict=True)):
            writer.writerow([*row, f"clinic {k % 3}"])
    return path


def overrides(table, *more):
    output = f"output_dir={table.parent / 'out'}"
    return (f"task.path={table}", "task.client=clinic", "task.label=sick", "task.drop=[falls]", output, *more)


def design(table):
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(table)
    x = np.column_stack([np.ones(len(frame)), frame.age, frame.dose, frame.stage == "II", frame.stage == "III"])
    return frame, x.astype(float)


def test_record(table):
    sm = pytest.importorskip("statsmodels.api")
    record = glm(*overrides(table, "glm.drop=[years]"))
    frame, x = design(table)
    theirs = sm.GLM(frame.sick, x, family=sm.families.Binomial()).fit(tol=1e-14, maxiter=100)
    assert list(record.table.index) == ["(Intercept)", "age", "dose", "stage=II", "stage=III"]
    np.testing.assert_allclose(record.table["estimate"], theirs.params, rtol=1e-8)
    np.testing.assert_allclose(record.table["error"], theirs.bse, rtol=1e-8)
    np.testing.assert_allclose(record.table["p"], theirs.pvalues, rtol=1e-6)
    np.testing.assert_allclose(record.table[["low", "high"]], theirs.conf_int(), rtol=1e-7)
    np.testing.assert_allclose(record.table["ratio_low"], np.exp(theirs.conf_int()[0]), rtol=1e-7)
    robust = sm.GLM(frame.sick, x, family=sm.families.Binomial()).fit(cov_type="HC0", tol=1e-14, maxiter=100)
    np.testing.assert_allclose(np.diag(record.covariance("hc0")), robust.bse**2, rtol=1e-7)
    np.testing.assert_allclose(record.with_covariance("hc0").table["error"], robust.bse, rtol=1e-8)
    assert list(record.terms.index) == ["age", "dose", "stage"]
    assert record.terms.loc["stage", "numerator"] == 2
    assert "odds ratio" in record.summary()
    assert "robust (HC1)" in record.summary("hc1")
    assert "reference categories: stage=I" in record.result["notes"]
    files = {path.name for path in record.folder.iterdir()}
    wanted = {"coefficients.csv", "coefficients.tex", "coefficients.html", "covariance.npz", "terms.csv", "meta.csv"}
    assert wanted | {"clients.csv", "forest.png", "linear_model.json"} <= files
    assert (record.folder / "forest.png").read_bytes()[:4] == b"\x89PNG"
    assert set(record.clients["client"]) <= {"clinic 0", "clinic 1", "clinic 2"}
    assert len(record.forest(["dose"]).axes) == 1
    again = glm(*overrides(table, "glm.drop=[years]"))
    assert again.result == record.result
    with pytest.raises(ValueError, match="covariance: got 'hc9'"):
        record.covariance("hc9")
    assert {"performance.csv", "predictions.csv", "coefficients.png", "model_card.md"} <= files
    performance = record.performance.set_index("client")
    fitted = 1 / (1 + np.exp(-x @ record.table["estimate"].to_numpy()))
    metrics = pytest.importorskip("sklearn.metrics")
    assert performance.loc["all clients", "auc"] == pytest.approx(metrics.roc_auc_score(frame.sick, fitted), abs=1e-12)
    own = (frame.clinic == "clinic 1").to_numpy()
    assert performance.loc["clinic 1", "loss"] == pytest.approx(
        metrics.log_loss(frame.sick[own], fitted[own]), rel=1e-9
    )
    assert record.coefficient_plot().axes


def test_standardization_is_undone(table):
    """Coefficients and covariance matrices do not depend on task.standardize."""
    one, other = (glm(*overrides(table, "glm.meta=false", f"task.standardize={flag}")) for flag in ("true", "false"))
    np.testing.assert_allclose(one.table["estimate"], other.table["estimate"], rtol=1e-8)
    for kind in ("model", "hc1", "cluster"):
        np.testing.assert_allclose(one.covariance(kind), other.covariance(kind), rtol=1e-6, atol=1e-10)


def test_exposure(table):
    sm = pytest.importorskip("statsmodels.api")
    words = ["task.label=falls", "task.loss=poisson", "task.drop=[sick]", "glm.exposure=years", "glm.meta=false"]
    record = glm(*overrides(table, *words))
    frame, x = design(table)
    model = sm.GLM(frame.falls, x, family=sm.families.Poisson(), exposure=frame.years)
    theirs = model.fit(tol=1e-14, maxiter=100)
    np.testing.assert_allclose(record.table["estimate"], theirs.params, rtol=1e-8)
    np.testing.assert_allclose(record.table["error"], theirs.bse, rtol=1e-8)
    assert record.result["deviance"] == pytest.approx(theirs.deviance, rel=1e-8)
    assert record.result["test"]["statistic"] == pytest.approx(theirs.null_deviance - theirs.deviance, rel=1e-6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["regularizer=l1", "glm.method=wald"], "the same rows have selected reject too often"),
        (["glm.method=debiased"], "must be wald with regularizer=none"),
        (["regularizer=l2_squared"], "must be none, or l1"),
        (["hparams.weighting=uniform"], "counts every row once"),
        (["glm.drop=[agee]"], "glm.drop: got 'agee'"),
        (["glm.exposure=years"], "null for the logistic loss"),
        (["task.class_weight=balanced"], "reweighted classes"),
        (["glm.covariance=hc7"], "glm.covariance"),
    ],
)
def test_refusals(table, words, message):
    with pytest.raises(ValueError, match=message) as refusal:
        glm(*overrides(table, *words))
    assert "\n" not in str(refusal.value)


def test_debiased_record(table):
    record = glm(*overrides(table, "regularizer=l1", "regularizer.strength=0.02"))
    assert record.result["method"] == "debiased"
    assert record.result["test"] is None
    assert record.meta.empty
    with pytest.raises(ValueError, match="no meta-analysis"):
        record.forest()
    assert json.loads((record.folder / "result.json").read_text())["selected"]


def test_texts_are_escaped():
    head, rows = ["", "estimate"], [["a_b & <c>", "1.5"]]
    assert r"a\_b \& \textless{}c\textgreater{} & 1.5" in as_latex(head, rows, "50 %")
    assert "a_b &amp; &lt;c&gt;" in as_html(head, rows, "50 %", ["<note>"])
    assert [format_p(p) for p in (1e-9, 0.0312, None)] == ["<0.001", "0.031", ""]


def test_a_model_with_intercepts_only(table):
    """The forest plot and the report show the intercept."""
    drop = "glm.drop=[age,dose,stage,years]"
    record = glm(*overrides(table, drop))
    frame, _ = design(table)
    share = frame.sick.mean()
    np.testing.assert_allclose(record.table["estimate"], [np.log(share / (1 - share))], rtol=1e-8)
    assert (record.folder / "forest.png").read_bytes()[:4] == b"\x89PNG"
    assert len(record.forest().axes) == 1
