from __future__ import annotations

import csv

import numpy as np
import pytest

from fco_cli.commands import report, track
from fco_cli.reporting import choose, collect
from fco_cli.reporting.figures.curves import draw_panels
from fco_cli.reporting.tracked import sweep_figures, tracked_run

SECONDS = {"simulated_seconds": (0.0, 2.0, 4.5, 6.0)}


def test_a_record_as_a_tracker_receives_it(records):
    run = tracked_run(records.add())
    assert (run.algo, run.status, run.experiment) == ("feddualavg", "finished", "lasso_i")
    assert run.settings["hparams.client_lr"] == 0.001
    assert run.final["objective"] == 3.0
    assert run.points(10)[1][1]["f1"] == 0.5
    assert run.finished_at == 1772362800.0


def test_the_figure_of_a_sweep(records):
    folders = [records.add(algo) for algo in ("feddualavg", "fedmid")]
    ((name, png),) = sweep_figures(folders)
    assert name == "lasso_i"
    assert png.startswith(b"\x89PNG")


def test_curves_over_simulated_seconds(records):
    records.add(**SECONDS)
    records.add(seed=1, simulated_seconds=(0.0, 4.0, 5.5, 8.0))
    records.add("optimum")
    (study,) = collect([records.root]).studies
    figure = draw_panels(study, choose(study), "seconds")
    (line,) = [line for line in figure.axes[0].get_lines() if len(line.get_xdata()) == 4]
    assert line.get_xdata().tolist() == [0, 3, 5, 7]
    assert figure.axes[0].get_xlabel() == "simulated seconds"


def test_a_study_without_times_is_drawn_over_rounds(records):
    records.add()
    (study,) = collect([records.root]).studies
    figure = draw_panels(study, choose(study), "seconds")
    assert figure.axes[0].get_xlabel() == "communication rounds"


def test_seconds_without_any_times_are_one_line(records, tmp_path, capsys):
    records.add()
    with pytest.raises(SystemExit) as ended:
        report.main([str(records.root), "--x", "seconds", "--output", str(tmp_path / "report")])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(
        "fco-report: --x seconds: no run has simulated seconds; run with time_model"
    )


def test_runs_on_different_networks_are_different_studies(records):
    for number, probability in enumerate((0.1, 0.4)):
        folder = records.add(hparams={"rounds": 500 + number})
        path = folder / "config.yaml"
        text = path.read_text().replace(f"rounds: {500 + number}", "rounds: 500")
        path.write_text(text + f"participation: {{name: dropout, probability: {probability}}}\n")
    variants = [study.variant for study in collect([records.root]).studies]
    assert sorted(variants) == ["participation.probability=0.1", "participation.probability=0.4"]


def test_fco_track_sends_what_is_missing(records, tmp_path, capsys):
    for algo in ("feddualavg", "fedmid"):
        records.add(algo)
    arguments = [str(records.root), "tracking=csv", f"tracking.path={tmp_path / 'tables'}"]
    for sent in (2, 0):
        track.main(arguments)
        assert capsys.readouterr().out.startswith(f"{sent} of 2 runs sent to csv tables in")
    rows = list(csv.DictReader((tmp_path / "tables" / "runs.csv").read_text().splitlines()))
    assert sorted(row["algo"] for row in rows) == ["feddualavg", "fedmid"]
    assert len({row["sweep_id"] for row in rows}) == 1
    rounds = list(csv.DictReader((tmp_path / "tables" / "rounds.csv").read_text().splitlines()))
    np.testing.assert_allclose([float(row["f1"]) for row in rounds], [0, 0.5, 0.6, 0.7] * 2)


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["tracking=none"], 2, "tracking: got 'none', must be another"),
        (["task=lasso"], 2, "settings: got 'task=lasso', must be tracking=... and tracking.key=..."),
        (["tracking=csv", "tracking.points=1"], 2, "tracking.points: got 1, must be a whole number >= 2"),
        (["tracking=csv", "tracking.path=/dev/null/below"], 1, "1 of 1 runs were not sent"),
    ],
)
def test_failures_of_fco_track(records, capsys, arguments, code, reason):
    records.add()
    with pytest.raises(SystemExit) as ended:
        track.main([str(records.root), *arguments])
    assert ended.value.code == code
    assert reason in capsys.readouterr().err
