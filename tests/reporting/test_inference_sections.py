"""Records of experiment=glm and experiment=table1 in a report."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fco_cli.federation.metrics import BINS
from fco_cli.path.predictions import Predictions
from fco_cli.reporting.figures.classification import classification_caption
from fco_cli.reporting.figures.coefficients import coefficient_numbers, coefficients_figure
from fco_cli.reporting.records.glm import RecordedGlm
from fco_cli.reporting.records.predictions import ClientPredictions, RecordedPredictions
from fco_cli.reporting.records.studies import collect
from fco_cli.reporting.report import make_report
from fco_cli.typed_files import BadRecord


def line(name, estimate, error):
    low, high = estimate - 1.96 * error, estimate + 1.96 * error
    own = {"coefficient": name, "estimate": estimate, "error": error, "statistic": estimate / error, "p": 0.01}
    return own | {"low": low, "high": high, "ratio": np.exp(estimate), "ratio_low": np.exp(low), "ratio_high": 9.0}


def write_glm(folder, **changes):
    folder.mkdir(parents=True)
    result = {
        "status": "finished", "kind": "glm", "task": "heart", "regularizer": "none", "loss": "logistic",
        "method": "wald", "covariance": "model", "level": 0.95, "degrees": None, "rows": 60, "clients": 3,
        "coefficients": [line("(Intercept)", -1.0, 0.5), line("age", 0.03, 0.01), line("sex=<b>", 0.9, 0.3)],
        "units": {"age": 9.5}, "terms": [], "clients_without_fit": {"west": "too few rows"}, "notes": ["a <note>"],
        "meta": [
            {"coefficient": name, "fixed": 0.1, "fixed_error": 0.1, "reml": 0.1, "reml_error": 0.1, "reml_tau2": 0.0,
             "q_p": 0.5, "i2": 0.0} for name in ("(Intercept)", "age", "sex=<b>")
        ],
        "card": [["Data", "rows", "60 training rows"]],
    }  # fmt: skip
    np.savez(folder / "covariance.npz", estimates=np.zeros(3), model=np.eye(3))
    (folder / "coefficients.csv").write_text("coefficient,estimate\n")
    lines = [f"{client},20,{name},0.2,0.1" for client in ("east", "north") for name in ("age", "sex=<b>")]
    (folder / "clients.csv").write_text("\n".join(["client,rows,coefficient,estimate,error", *lines]) + "\n")
    metrics = ["client,rows,observed,predicted,auc,auc_error", "all clients,60,0.4,0.4,0.8,0.05"]
    metrics += ["east,20,0.5,0.4,0.7,0.1", "north,20,0.5,0.4,0.7,0.1", "west,20,0,0.3,,"]
    (folder / "performance.csv").write_text("\n".join(metrics) + "\n")
    bins = [f"{client},{k},{2},{0 if client == 'west' else 1}" for client in ("east", "north", "west")
            for k in (50, 200, 300, 400, 450)]  # fmt: skip
    (folder / "predictions.csv").write_text("\n".join(["client,bin,negatives,positives", *bins]) + "\n")
    (folder / "result.json").write_text(json.dumps(result | changes))
    return folder


def write_table1(folder):
    folder.mkdir(parents=True)
    lines = [{"column": "age", "statistic": "mean (SD)", "cells": ["54 (9)", "<54>"], "smd": 0.2, "p": None}]
    result = {
        "status": "finished", "kind": "table1", "task": "heart", "rows": 60, "clients": 1, "min_cell": 10, "smd": True,
        "p": False, "heads": ["all clients", "east"], "lines": lines, "notes": ["n (%): share"],
    }  # fmt: skip
    (folder / "table1.csv").write_text("column\n")
    (folder / "result.json").write_text(json.dumps(result))


def test_sections(tmp_path):
    write_glm(tmp_path / "out" / "a")
    write_glm(tmp_path / "out" / "b")
    write_table1(tmp_path / "out" / "c")
    results = collect([tmp_path / "out"])
    assert not results.left_out
    assert [one.slug for one in results.glms] == ["glm_heart", "glm_heart_2"]
    report = make_report(results, tmp_path / "report")
    kinds = ["forest", "coefficients", "roc", "client_calibration", "decision"]
    assert report.contents["glm_heart"] == kinds
    page = report.page.read_text()
    assert not results.damaged
    for text in ("odds ratio", "a &lt;note&gt;", "60 training rows", "&lt;54&gt;", "model card", "mean (SD)"):
        assert text in page
    assert "sex=<b>" not in page
    for name in kinds:
        assert (tmp_path / "report" / "figures" / f"glm_heart_{name}.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("predictions.csv", "client,bin,negatives,positives\neast,900,1,1\n"),
        ("clients.csv", "client,rows\neast,1\n"),
        ("performance.csv", "rows\n1\n"),
        ("survival.png", "no image"),
    ],
)
def test_damaged_files_are_named(tmp_path, name, content):
    folder = write_glm(tmp_path / "out" / "a")
    (folder / name).write_text(content)
    results = collect([tmp_path / "out"])
    make_report(results, tmp_path / "report")
    ((_, reason),) = results.damaged
    assert reason.startswith(name)
    assert "\n" not in reason


def test_invalid_results_are_left_out(tmp_path):
    write_glm(tmp_path / "out" / "a", coefficients=[{"coefficient": "age"}])
    ((_, reason),) = collect([tmp_path / "out"]).left_out
    assert "estimate" in reason
    with pytest.raises(BadRecord):
        RecordedGlm.read(tmp_path / "out" / "a")


def test_coefficients_are_drawn_per_unit():
    lines = [line("(Intercept)", 5.0, 1.0), line("age", 0.03, 0.01), line("sex", 0.9, 0.3)]
    result = {"loss": "logistic", "level": 0.95, "units": {"age": 10.0}, "coefficients": lines}
    numbers = coefficient_numbers(result)
    assert numbers["coefficient"].tolist() == ["age", "sex"]
    assert numbers["estimate"].tolist() == pytest.approx([0.3, 0.9])
    (axis,) = coefficients_figure(result).axes
    assert axis.get_xlabel() == "odds ratio, 95 % interval"
    assert [text.get_text() for text in axis.get_yticklabels()] == ["age (per 10)", "sex"]


def test_wide_intervals_are_cut_and_marked():
    names = [f"x{k}" for k in range(8)]
    lines = [line(name, 0.1, 0.05) for name in names] + [line("wide", 0.1, 30.0)]
    result = {"loss": "squared", "level": 0.95, "coefficients": lines}
    (axis,) = coefficients_figure(result).axes
    assert axis.get_xlim()[1] < 10
    marked = [one for one in axis.get_lines() if one.get_marker() in "<>" and len(one.get_xdata())]
    assert len(marked) == 2


def test_clients_without_a_panel_are_counted():
    bins = Predictions(np.ones(BINS, int), np.ones(BINS, int))
    clients = [ClientPredictions(f"c{k}", 900 - k, bins, "") for k in range(11)]
    clients.append(ClientPredictions("silent", 50, None, "no histogram is shared"))
    caption = classification_caption("decision", RecordedPredictions("", "out of fold", bins, clients))
    assert "Not drawn: 3 smaller clients." in caption
    assert "Without predictions: silent (50): no histogram is shared." in caption
    assert "Not drawn" not in classification_caption("decision", RecordedPredictions("", "x", bins, clients[:2]))
