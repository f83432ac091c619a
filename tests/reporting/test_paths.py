"""Tests of the reader and the figures of records of experiment=path."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fco_cli.reporting.figures.paths import caption_of, figures_of
from fco_cli.reporting.page.render import render_section
from fco_cli.reporting.page.sections import path_section
from fco_cli.reporting.records.paths import RecordedPath
from fco_cli.reporting.records.studies import collect
from fco_cli.reporting.report import make_report
from fco_cli.studies import all_studies
from fco_cli.typed_files import BadRecord

VALUES = np.geomspace(1, 0.01, 8)
FEATURES = ["age", "sex", "$chol$"]
CHOICE = {"strength": 0.1, "cv_loss": 0.5, "cv_error": 0.1, "nonzeros": 2, "rounds": 30, "kkt": 1e-9, "test": None}


def write_path(folder, *, psi="l1", dial="strength", loss="logistic", stability=True):
    """Write a path of eight models of three features (of a 2 x 2 matrix for the nuclear norm)."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    weights = random.standard_normal((8, 4 if psi == "nuclear" else 3)) * np.linspace(0, 1, 8)[:, None]
    values = VALUES if dial == "strength" else VALUES[::-1]
    lines = [f"{dial},cv_loss,cv_error,train_loss,nonzeros,rounds,kkt" + (",rank" if psi == "nuclear" else "")]
    lines += [
        f"{v},{1 - i / 10},0.05,{1 - i / 9},{np.count_nonzero(w)},30,1e-9" + (",1" if psi == "nuclear" else "")
        for i, (v, w) in enumerate(zip(values, weights, strict=True))
    ]
    (folder / "path.csv").write_text("\n".join(lines) + "\n")
    np.savez(folder / "path.npz", values=values, models=np.column_stack([weights, np.ones(8)]), losses=np.ones((3, 8)))
    logistic = ",auc,auc_error,calibration_intercept,calibration_slope" if loss == "logistic" else ",r2"
    rows = ["choice,client,rows,loss,loss_error" + logistic]
    for choice in ("min", "1se"):
        for client, count in (("all clients", 30), ("north", 20), ("south", 9), ("=tiny", 1)):
            extra = ",0.8,0.05,0.1,0.9" if loss == "logistic" and count > 1 else "," * logistic.count(",")
            rows.append(f"{choice},{client},{count},0.4,0.1" + (extra if loss == "logistic" else ",0.5"))
    if loss == "cox":  # whose losses depend on all rows at risk
        rows = ["choice,client,rows,concordance"]
        rows += [
            f"{choice},{client},9,0.6" for choice in ("min", "1se") for client in ("all clients", "north", "=tiny")
        ]
    (folder / "clients.csv").write_text("\n".join(rows) + "\n")
    if loss == "logistic":
        bins = [f"{choice},10,{p},{p}" for choice in ("min", "1se") for p in (0.2, 0.5, 0.8)]
        (folder / "calibration.csv").write_text("\n".join(["choice,rows,predicted,observed", *bins]) + "\n")
    for choice in ("min", "1se"):
        (folder / choice).mkdir()
        block = weights[-1].reshape(2, 2) if psi == "nuclear" else weights[-1]
        np.savez(folder / choice / "model.npz", weights=block, bias=np.ones(1))
        (folder / choice / "model.csv").write_text("feature,weight\nage,0.5\n")
    result = {
        "status": "finished", "kind": "path", "task": "heart", "regularizer": psi, "loss": loss, "dial": dial,
        "rows": 30, "clients": 3, "folds": 3, "by": "rows", "features": None if psi == "nuclear" else FEATURES,
        "chosen": {"min": {"place": 6} | CHOICE, "1se": {"place": 4} | CHOICE},
        "at_the_end": False, "not_converged": 0,
        "stability": {"place": 5, "threshold": 0.75, "bound": 0.9, "stable": [0], "frequency": [1.0, 0.4, 0.0]}
        if stability else None,
    }  # fmt: skip
    (folder / "result.json").write_text(json.dumps(result))
    return folder


@pytest.mark.ci
@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ({}, {"cv", "coefficients", "models", "clients", "calibration", "stability"}),
        ({"psi": "nuclear", "loss": "squared", "stability": False}, {"cv", "coefficients", "models", "clients"}),
        (
            {"psi": "l1_ball", "dial": "radius", "stability": False},
            {"cv", "coefficients", "models", "clients", "calibration"},
        ),
    ],
)
def test_every_figure_has_a_table(tmp_path, options, kinds):
    path = RecordedPath.read(write_path(tmp_path / "record", **options))
    section = path_section(path)
    assert {one.kind for one in section.figures} == kinds
    for part in ("figures", "tables"):
        (tmp_path / part).mkdir()
    render_section(tmp_path, section)
    for kind in kinds:
        png = tmp_path / "figures" / f"{path.slug}_{kind}.png"
        assert png.read_bytes().startswith(b"\x89PNG")
        assert png.with_suffix(".pdf").exists()
        assert png.with_suffix(".csv").read_text()
        assert "{" not in caption_of(path, kind)


def test_clients_of_a_cox_model_are_compared_by_concordance(tmp_path):
    write_path(tmp_path / "records" / "cox", loss="cox")
    results = collect([tmp_path / "records"])
    assert not results.left_out
    (path,) = results.paths
    assert path.metric == "concordance"
    (draw,) = [draw for kind, draw, _ in figures_of(path) if kind == "clients"]
    assert draw().axes[0].get_xlabel() == "concordance, out of fold"


def test_a_matrix_shows_its_singular_values(tmp_path):
    path = RecordedPath.read(write_path(tmp_path / "record", psi="nuclear"))
    assert path.names == ["singular value 1", "singular value 2"]
    assert (path.weights[:, 0] >= path.weights[:, 1]).all()


@pytest.mark.ci
def test_report_of_paths_only(tmp_path):
    """Test two paths of one task, with a spreadsheet formula as the name of a client."""
    for name in ("one", "other"):
        write_path(tmp_path / "records" / name)
    results = collect([tmp_path / "records"])
    assert [path.slug for path in results.paths] == ["path_heart", "path_heart_2"]
    assert not results.left_out
    report = make_report(results, tmp_path / "report", all_studies())
    page = report.page.read_text()
    assert "heart: the path of l1, 30 rows of 3 clients, 3 folds by rows of every client" in page
    assert "not p-values" in page
    summary, rest = page.split('<section id="summary">')[1].split("</section>", 1)
    assert "<td>min</td><td>0.1</td><td>0.5</td><td>0.1</td><td>2</td><td>0.8</td>" in summary  # values of the refit
    assert rest.index('<section id="path_heart">') < rest.index("<script")
    assert "<section" not in rest.split('<section id="path_heart_2">')[1]  # no claims and no table of runs
    assert not (tmp_path / "report" / "CLAIMS.md").exists()
    assert "from 2 paths." in page
    assert "'=tiny" in (tmp_path / "report" / "figures" / "path_heart_clients.csv").read_text()


DAMAGES = {
    "no table": lambda folder: (folder / "path.csv").write_bytes(b"\x00\xff"),
    "other columns": lambda folder: (folder / "path.csv").write_text("a,b\n1,2\n"),
    "another length": lambda folder: np.savez(folder / "path.npz", models=np.ones((3, 4))),
    "no arrays": lambda folder: (folder / "path.npz").write_bytes(b"zip"),
    "a choice beyond": lambda folder: _change(
        folder, chosen={"min": {"place": 99} | CHOICE, "1se": {"place": 0} | CHOICE}
    ),
    "no choice": lambda folder: _change(folder, chosen={}),
    "no clients": lambda folder: (folder / "clients.csv").unlink(),
    "infinite weights": lambda folder: np.savez(folder / "path.npz", models=np.full((8, 4), np.inf)),
}


def _change(folder, **values):
    path = folder / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_record_is_left_out_with_one_line(tmp_path, damage):
    folder = write_path(tmp_path / "record")
    DAMAGES[damage](folder)
    with pytest.raises(BadRecord):
        RecordedPath.read(folder)
    results = collect([tmp_path])
    assert not results.paths
    assert [place for place, _ in results.left_out] == [folder]


def test_clients_without_an_area_are_drawn_with_the_reason(tmp_path):
    path = RecordedPath.read(write_path(tmp_path / "record"))
    figure = {kind: draw for kind, draw, _ in figures_of(path)}["clients"]()
    (axis,) = figure.axes
    assert "=tiny (1)" in [label.get_text() for label in axis.get_yticklabels()]
    assert [text.get_text() for text in axis.texts] == ["no AUC: rows of one class only"]


def test_values_beyond_the_axis_are_marked(tmp_path):
    folder = write_path(tmp_path / "record", loss="squared")
    table = (folder / "clients.csv").read_text().replace("south,9,0.4,0.1,0.5", "south,9,0.4,0.1,-4")
    (folder / "clients.csv").write_text(table)
    path = RecordedPath.read(folder)
    (axis,) = {kind: draw for kind, draw, _ in figures_of(path)}["clients"]().axes
    arrows = [line for line in axis.lines if line.get_marker() == "<"]
    assert sum(len(line.get_xdata()) for line in arrows) == 2  # of min and 1se


def test_intervals_of_areas_end_between_0_and_1(tmp_path):
    folder = write_path(tmp_path / "record")
    table = (folder / "clients.csv").read_text().replace("south,9,0.4,0.1,0.8,0.05", "south,9,0.4,0.1,0.9,0.4")
    (folder / "clients.csv").write_text(table)
    path = RecordedPath.read(folder)
    (axis,) = {kind: draw for kind, draw, _ in figures_of(path)}["clients"]().axes
    ends = np.concatenate([line.get_segments() for line in axis.collections])[..., 0]
    assert ends.min() > 0
    assert 0.99 < ends.max() < 1


def test_predictions_have_figures_and_list_every_client(tmp_path):
    folder = write_path(tmp_path / "record")
    lines = ["choice,client,bin,predicted,negatives,positives"]
    for choice in ("min", "1se"):
        lines += [f"{choice},north,100,0.2,8,2", f"{choice},north,400,0.8,2,8", f"{choice},south,300,0.6,0,9"]
    (folder / "predictions.csv").write_text("\n".join(lines) + "\n")
    path = RecordedPath.read(folder)
    drawings = {kind: draw for kind, draw, _ in figures_of(path)}
    assert {"roc", "client_calibration", "decision"} <= set(drawings)
    recorded = path.predictions("min")
    reasons = {one.client: one.reason for one in recorded.clients}
    assert reasons == {"north": "", "south": "only events", "=tiny": "no histogram is shared"}
    title = drawings["roc"]().legends[0].get_title().get_text()
    assert "south (9): only events" in title
    assert "=tiny (1): no histogram is shared" in title


@pytest.mark.parametrize("line", ["min,north,512,0.2,8,2", "min,north,1,0.2,-8,2", "min,north,1,0.2,0.5,2"])
def test_invalid_predictions_are_refused(tmp_path, line):
    folder = write_path(tmp_path / "record")
    (folder / "predictions.csv").write_text(f"choice,client,bin,predicted,negatives,positives\n{line}\n")
    with pytest.raises(BadRecord, match=r"predictions\.csv"):
        RecordedPath.read(folder)


def test_menu_entries_of_several_paths_of_a_task_differ(tmp_path):
    folders = [tmp_path / name for name in ("0123456789ab", "ba9876543210")]
    for folder in folders:
        write_path(folder)
    one, other = (path_section(RecordedPath.read(folder), is_only=False).menu for folder in folders)
    assert one.endswith(", l1, 0123456789ab")
    assert other.endswith(", l1, ba9876543210")
