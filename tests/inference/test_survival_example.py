"""Survival: the worked example of docs/inference.md, the record and its refusals."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from fco_cli.api import glm, path
from fco_cli.reporting.figures.paths import caption_of, figures_of
from fco_cli.reporting.page.tables import path_summary
from fco_cli.reporting.records.paths import RecordedPath

DOCUMENT = Path(__file__).parents[2] / "docs" / "inference.md"
EXPECTED = r"""
d <- read.csv("lung.csv")
for (v in c("ph.ecog", "wt.loss")) d[[v]][is.na(d[[v]])] <- mean(d[[v]], na.rm = TRUE)
fit <- coxph(Surv(time, status == 2) ~ age + sex + ph.ecog + wt.loss + strata(region), d, ties = "efron",
             control = coxph.control(eps = 1e-14, iter.max = 100))
zph <- cox.zph(fit)$table["GLOBAL", ]
score <- concordance(fit)
show <- function(...) cat(format(c(...), digits = 17), "\n")
show(coef(fit)); show(sqrt(diag(vcov(fit)))); show(zph); show(score$concordance, sqrt(score$var))
"""


@pytest.fixture(scope="module")
def lung(tmp_path_factory) -> Path:
    """Return a folder with lung.csv, written by the R command of the document."""
    if shutil.which("Rscript") is None:
        pytest.skip("Rscript is not installed")
    folder = tmp_path_factory.mktemp("lung")
    (program,) = re.findall(r"Rscript -e '(.*?)'\n", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    done = subprocess.run(["Rscript", "-e", program], cwd=folder, capture_output=True, text=True, check=False)
    if "there is no package called" in done.stderr:
        pytest.skip("R's survival is not installed")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.ci
@pytest.mark.machine_code
def test_the_worked_example(lung, here):
    text = DOCUMENT.read_text(encoding="utf-8").split("### Survival\n")[1].split("\n## ")[0]
    (command,) = re.findall(r"^fco-run (.*?)\n```", text, re.DOTALL | re.MULTILINE)
    words = command.replace("\\\n", " ").replace("'", "").split()
    here(*words, "output_dir=out", cwd=lung)
    (record,) = lung.glob("out/*/*/result.json")
    result = json.loads(record.read_text())
    program = "suppressMessages(library(survival))\n" + EXPECTED
    done = subprocess.run(["Rscript", "-e", program], cwd=lung, capture_output=True, text=True, check=True)
    coefficients, errors, zph, score = (np.array(line.split(), float) for line in done.stdout.splitlines())
    lines = result["coefficients"]
    np.testing.assert_allclose([line["estimate"] for line in lines], coefficients, rtol=1e-8)
    np.testing.assert_allclose([line["error"] for line in lines], errors, rtol=1e-8)
    test, pairs = result["proportional_hazards"][-1], result["concordance"][0]
    np.testing.assert_allclose([test["statistic"], test["df"], test["p"]], zph, rtol=1e-7)
    np.testing.assert_allclose([pairs["concordance"], pairs["error"]], score, rtol=1e-10)
    for line in lines:
        p = "<0.001" if line["p"] < 0.001 else f"{line['p']:.3f}"
        interval = f"{line['ratio_low']:.2f} to {line['ratio_high']:.2f}"
        assert f"| {line['coefficient']} | {line['ratio']:.2f} | {interval} | {p} |" in text
    assert f"is {pairs['concordance']:.3f} (standard error {pairs['error']:.3f})" in text.replace("\n", " ")
    assert (
        f"chi-squared {test['statistic']:.2f} with {test['df']} degrees of freedom, p = {test['p']:.3f}"
        in text.replace("\n", " ")
    )
    assert f"{result['rows']} patients" in text
    assert result["units"].keys() == {"age", "ph.ecog", "wt.loss"}  # sex is 1 or 2
    for name in ("survival", "calibration"):
        assert (record.parent / f"{name}.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.ci
def test_lifelines(lung, tmp_path):
    """Efron's ties and strata of another implementation; lifelines needs pandas 2."""
    lifelines = pytest.importorskip("lifelines", reason="lifelines, which needs pandas 2, is not installed")
    import pandas as pd

    frame = pd.read_csv(lung / "lung.csv")
    frame = frame.fillna(frame.mean(numeric_only=True)).assign(status=lambda table: table["status"] == 2)
    accuracy = {"precision": 1e-14, "r_precision": 1e-16}
    theirs = lifelines.CoxPHFitter().fit(frame, "time", "status", strata=["region"], fit_options=accuracy)
    words = (f"task.path={lung / 'lung.csv'}", "task.client=region", "task.label=time", "task.event=status==2")
    ours = glm(*words, "task.cox_ties=efron", f"output_dir={tmp_path}").table
    np.testing.assert_allclose(ours["estimate"], theirs.params_[ours.index], rtol=1e-8)
    np.testing.assert_allclose(ours["error"], theirs.standard_errors_[ours.index], rtol=1e-8)


@pytest.fixture
def clinics(tmp_path):
    """Return the words of a table of three clinics with survival times."""
    random, lines = np.random.default_rng(3), ["clinic,days,dead,age,dose"]
    for k in range(150):
        age, dose = random.normal(60, 9), random.normal()
        time, limit = random.exponential(200 * np.exp(-0.03 * (age - 60) - 0.5 * dose)), random.exponential(400)
        lines.append(f"{'abc'[k % 3]},{min(time, limit) + 0.01:.2f},{int(time < limit)},{age:.2f},{dose:.4f}")
    (tmp_path / "clinics.csv").write_text("\n".join(lines) + "\n")
    task = (f"task.path={tmp_path / 'clinics.csv'}", "task.client=clinic", "task.label=days", "task.event=dead")
    return (*task, f"output_dir={tmp_path / 'out'}")


def test_the_record_of_a_cox_model(clinics):
    fit = glm(*clinics, "glm.horizon=200", "glm.time_transform=rank")
    names = {path.name for path in fit.folder.iterdir()}
    assert {"survival.csv", "survival.png", "baseline.csv", "proportional_hazards.csv", "calibration.csv"} <= names
    assert names - {"result.json", ".lock"} == set(json.loads((fit.folder / "result.json").read_text())["files"])
    assert list(fit.survival.columns)[-4:] == ["survival", "error", "low", "high"]
    assert len(fit.survival) == 150
    assert fit.survival.groupby("client")["at_risk"].first().tolist() == [50, 50, 50]
    assert fit.baseline.groupby("client")["cumulative_hazard"].is_monotonic_increasing.all()
    assert list(fit.proportional_hazards.index) == ["age", "dose", "all terms"]
    assert fit.proportional_hazards.loc["all terms", "df"] == 2
    assert list(fit.concordance.index) == ["all clients", "a", "b", "c"]
    assert fit.concordance["concordance"].between(0.5, 1).all()
    total = fit.calibration[fit.calibration["client"] == "all clients"]
    assert total["rows"].sum() == 150
    assert fit.calibration["predicted"].between(0, 1).all()
    assert "concordance" in fit.summary()
    again = glm(*clinics, "glm.horizon=200", "glm.time_transform=rank")
    assert again.result == fit.result


def test_a_record_without_a_horizon_or_a_cox_loss(clinics):
    assert glm(*clinics).calibration.empty
    other = glm(*clinics[:2], "task.label=dose", "task.drop=[days,dead]", clinics[-1], "glm.meta=false")
    assert other.survival.empty
    assert other.baseline.empty
    assert other.proportional_hazards.empty
    assert other.concordance.empty


@pytest.mark.ci
@pytest.mark.parametrize(
    ("words", "metric"),
    [
        ([], "concordance"),
        (["task.loss=poisson", "task.event=null", "task.label=dead", "task.drop=[days]"], "loss"),
        (["task.loss=softmax", "task.event=null", "task.label=dead", "task.drop=[days]"], "accuracy"),
    ],
)
def test_a_path_of_any_loss_has_a_report(clinics, capsys, words, metric):
    selected = path(*clinics, "path.strengths=5", "path.folds=3", *words)
    recorded = RecordedPath.read(selected.folder)
    assert recorded.metric == metric
    assert recorded.clients["client"].unique().tolist() == ["all clients", "a", "b", "c"]
    drawings = {kind: draw for kind, draw, _ in figures_of(recorded)}
    (axis,) = drawings["clients"]().axes
    assert axis.get_xlabel() == f"{metric}, out of fold"
    assert metric.capitalize() in caption_of(recorded, "clients")
    assert ("concordance out of fold" in path_summary(recorded)) == (metric == "concordance")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["glm.horizon=1e9"], r"glm.horizon: got 1000000000.0, must be a time until the longest of the table"),
        (["glm.horizon=0"], "glm.horizon: got 0.0, must be null or a time > 0"),
        (["glm.time_transform=square"], "glm.time_transform: got 'square'"),
        (["glm.min_cell=-1"], "glm.min_cell: got -1, must be a whole number >= 0"),
        (["task.cox_ties=exact"], "task.cox_ties: got 'exact', must be breslow or efron"),
        (["task.exposure=age"], "task.exposure: got 'age', must be null for the cox loss"),
        (["task.formula=age+agee"], "task.formula: column 'agee' not found"),
        (["task.formula=ns(age)"], "must have df or knots"),
    ],
)
def test_refusals(clinics, words, message):
    with pytest.raises(ValueError, match=message) as refusal:
        glm(*clinics, *words)
    assert "\n" not in str(refusal.value)


def test_a_horizon_needs_a_cox_loss(clinics):
    with pytest.raises(ValueError, match=r"glm\.horizon: got 5\.0, must be null for the squared loss"):
        glm(*clinics[:2], "task.label=dose", "task.drop=[days,dead]", clinics[-1], "glm.horizon=5")
