"""Published tables: agreement with statsmodels on the pooled rows, and the numbers of docs/inference.md."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from fco_cli.api import glm
from fco_cli.data.fitted import FittedModel

FOLDERS = {"heart": "heart_disease", "crime": "communities_crime", "eicu": "eicu_demo"}
DROPPED = {"eicu": ["ventday1", "ima"]}  # collinear; separates the labels
TOLERANCE = 1e-8
DOCUMENT = Path(__file__).parents[2] / "docs" / "inference.md"


@pytest.mark.ci
@pytest.mark.machine_code
@pytest.mark.parametrize("task", FOLDERS)
def test_statsmodels_on_pooled_rows(task, real_data, tmp_path):
    sm = pytest.importorskip("statsmodels.api")
    from fco_cli.config import Run
    from fco_cli.config.compose import compose

    words = [f"task={task}", f"task.data_dir={real_data(FOLDERS[task])}"]
    drop = f"glm.drop=[{','.join(DROPPED.get(task, []))}]"
    record = glm(*words, f"output_dir={tmp_path}", drop, "glm.meta=false")
    data = Run.of(compose(words)).task.cross_validated().data(0, "float64")
    preparation = FittedModel.read(record.folder).preparation
    x = np.asarray(data.training.x) * preparation.scale + preparation.mean
    kept = [data.features.index(name) for name in record.table.index[1:]]
    x, y = sm.add_constant(x[:, kept]), data.training.y
    is_linear = data.loss.name == "squared"
    model = sm.OLS(y, x) if is_linear else sm.GLM(y, x, family=sm.families.Binomial())
    accuracy = {} if is_linear else {"tol": 1e-14, "maxiter": 100}
    others = {"model": {}, "hc0": {"cov_type": "HC0"}}
    others |= {"hc1": {"cov_type": "HC1"}} if is_linear else {}
    others |= {"cluster": {"cov_type": "cluster", "cov_kwds": {"groups": data.training.owners}}}
    for kind, options in others.items():
        theirs, ours = model.fit(**options, **accuracy), record.with_covariance(kind).table
        np.testing.assert_allclose(ours["estimate"], theirs.params, rtol=TOLERANCE)
        np.testing.assert_allclose(ours["error"], theirs.bse, rtol=TOLERANCE)
        np.testing.assert_allclose(ours["p"], theirs.pvalues, rtol=1e-6, atol=1e-12)
    theirs, test = model.fit(**accuracy), record.result["test"]
    statistic = theirs.fvalue if is_linear else theirs.null_deviance - theirs.deviance
    assert test["statistic"] == pytest.approx(statistic, rel=TOLERANCE)


@pytest.mark.ci
@pytest.mark.machine_code
def test_the_worked_example(here, real_data, tmp_path):
    """docs/inference.md, "Heart disease in four hospitals", by the command that stands there."""
    here("experiment=glm", "task=heart", f"task.data_dir={real_data('heart_disease')}", f"output_dir={tmp_path}")
    (record,) = tmp_path.glob("heart/*/result.json")
    result = json.loads(record.read_text())
    lines = {line["coefficient"]: line for line in result["coefficients"]}
    text = DOCUMENT.read_text().split("### Heart disease in four hospitals")[1].split("\n### ")[0]
    rows = re.findall(r"^\| (\w+) \| ([\d.]+) \| ([\d.]+) to ([\d.]+) \| ([<\d.]+) \|$", text, re.M)
    assert len(rows) == 5
    for name, ratio, low, high, p in rows:
        line = lines[name]
        for stated, value in zip(
            (ratio, low, high), (line["ratio"], line["ratio_low"], line["ratio_high"]), strict=True
        ):
            assert float(stated) == pytest.approx(value, abs=0.0051)
        assert (p == "<0.001") == (line["p"] < 0.001)
    assert result["clients_without_fit"].keys() == {"hungarian", "switzerland"}
    fixed = next(line for line in result["meta"] if line["coefficient"] == "sex")
    low, high = (np.exp(fixed["fixed"] + side * 1.96 * fixed["fixed_error"]) for side in (-1, 1))
    assert f"{low:.2f} to {high:.1f}\nfor the odds ratio of `sex`" in text


BRCA = r"""
suppressMessages(library(survival))
read <- function(name) read.csv(file.path(FOLDER, name), check.names = FALSE)
d <- merge(read("brca.csv"), read("train_test_split.csv"), by = "pid")
d <- d[d$fold == "train" & d$T > 0, ]
x <- as.matrix(d[, NAMES])
fit <- coxph(Surv(d$T, d$E) ~ x + strata(d$fold2), control = coxph.control(eps = 1e-14, iter.max = 100), TIES)
cat(format(c(coef(fit), sqrt(diag(vcov(fit))), fit$loglik[2]), digits = 17))
"""
DROPPED_OF_BRCA = [  # determined by other columns, or without events
    "race_white", "prior_malignancy_yes", "synchronous_malignancy_Not Reported", "tumor_stage_stage ia",
    "tumor_stage_stage iia", "tumor_stage_stage iib", "tumor_stage_stage iiia", "tumor_stage_stage iiic",
    "primary_diagnosis_Infiltrating duct carcinoma, NOS", "primary_diagnosis_Lobular carcinoma, NOS",
]  # fmt: skip


@pytest.mark.ci
@pytest.mark.machine_code
@pytest.mark.parametrize("ties", ["breslow", "efron"])
def test_coxph_on_six_regions(ties, real_data, tmp_path):
    """Stratified Cox model of 29 features in six regions, against R's survival."""
    folder = real_data("fed_tcga_brca")
    if shutil.which("Rscript") is None:
        pytest.skip("Rscript is not installed")
    drop = "[" + ",".join(f"'{name}'" for name in DROPPED_OF_BRCA) + "]"
    words = ["task=brca", f"task.data_dir={folder}", f"task.cox_ties={ties}", f"output_dir={tmp_path}"]
    record = glm(*words, f"glm.drop={drop}", "glm.meta=false")
    names = ", ".join(json.dumps(name) for name in record.table.index)
    program = BRCA.replace("FOLDER", json.dumps(str(folder))).replace("NAMES", f"c({names})")
    done = subprocess.run(
        ["Rscript", "-e", program.replace("TIES", f'ties = "{ties}"')], capture_output=True, text=True
    )
    if "there is no package called" in done.stderr:
        pytest.skip("R's survival is not installed")
    theirs = np.array(done.stdout.split(), float)
    assert (record.result["rows"], record.result["clients"], len(record.table)) == (858, 6, 29)
    np.testing.assert_allclose(record.table["estimate"], theirs[:29], rtol=TOLERANCE, atol=TOLERANCE)
    np.testing.assert_allclose(record.table["error"], theirs[29:58], rtol=TOLERANCE)
    assert -record.result["deviance"] / 2 == pytest.approx(theirs[58], rel=1e-10)
