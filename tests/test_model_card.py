"""Model cards state what the record holds."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.api import glm, path
from fco_cli.model_card import as_markdown, describe_metrics


@pytest.fixture
def clinics(tmp_path):
    random = np.random.default_rng(1)
    rows = 120
    age, dose = random.normal(60, 9, rows).round(1), random.normal(0, 1, rows).round(2)
    sick = (random.random(rows) < 1 / (1 + np.exp(-dose))).astype(int)
    lines = ["age,dose,sick,clinic"]
    lines += [f"{'' if k % 9 == 0 else age[k]},{dose[k]},{sick[k]},clinic {k % 3}" for k in range(rows)]
    (tmp_path / "clinics.csv").write_text("\n".join(lines) + "\n")
    words = ("task.client=clinic", "task.label=sick", f"output_dir={tmp_path / 'out'}")
    return (f"task.path={tmp_path / 'clinics.csv'}", *words), int(sick.sum())


def test_card_of_inference(clinics):
    words, events = clinics
    record = glm(*words)
    card = record.card
    assert record.result["files"]["model_card.md"] == len(card.encode())
    assert "**source:** table clinics.csv" in card
    assert "**clients:** 3 (column clinic)" in card
    assert f"**events:** {events} of 120 rows" in card
    assert "**candidate parameters:** 2; 60.0 rows" in card  # without the intercept
    assert "replaced by means of the training rows" in card
    assert "Multiple imputation" in card
    assert "clinic 1, on the rows of the fit:** 40 rows, AUC" in card
    assert f"seed 0; data {record.result['identity']['data']}" in card
    filled = glm(*words, "task.fill=refuse", "task.drop=[age]").card
    assert "none were allowed" in filled
    assert "Multiple imputation" not in filled


def test_card_of_a_path(clinics):
    words, _ = clinics
    record = path(*words, "path.strengths=4", "path.folds=3", "path.by=clients")
    card = (record.folder / "model_card.md").read_text()
    assert "3-fold cross-validation by whole clients" in card
    assert "model min, out of fold:** 120 rows" in card
    assert "Performance at new clients" not in card
    assert "Standard errors, intervals or p-values of the weights" in card


def test_markdown_has_no_marks_of_the_data():
    card = as_markdown([("Data", "source", "a*b_[c](d) <e>")], "t`")
    assert "a\\*b\\_\\[c\\](d) \\<e\\>" in card
    assert card.startswith("# Model card: t\\`")


def test_metrics_with_intervals():
    line = {"rows": 50, "auc": 0.95, "auc_error": 0.05, "observed": 0.4, "predicted": 0.41}
    assert "AUC 0.95 (95 % interval 0.707 to 0.993)" in describe_metrics(line)
    assert "no AUC" in describe_metrics({"rows": 5, "auc": None, "observed": 0.0, "predicted": 0.2})
    assert describe_metrics({"rows": 5, "r2": float("nan")}) == "5 rows"
