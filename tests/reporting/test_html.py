"""Tests of the order and the texts of the page; tests/e2e/test_report_page.py tests it in a browser."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from fco_cli.reporting.page.sections import command, curves_number, figure_numbers, sort_studies, study_sections
from fco_cli.reporting.records.select import choose
from fco_cli.reporting.records.studies import Results, collect
from fco_cli.reporting.report import make_report
from fco_cli.studies import all_studies


def test_studies_are_in_the_papers_order_followed_by_their_twins(records):
    records.add(experiment="digits", paper="")
    records.add(experiment="nuclear_ii", paper="Figure 9")
    records.add(experiment="lasso_i", paper="Figure 3")
    records.add(experiment="lasso_i_extended", paper="", twin_of="lasso_i")
    records.add(experiment="fmri", paper="Figures 1, 5 and 12")
    studies = collect([records.root]).studies
    order = ["fmri", "lasso_i", "lasso_i_extended", "nuclear_ii", "digits"]
    assert [study.name for study in sort_studies(studies)] == order


def test_several_figures_of_an_experiment_are_numbered(records):
    records.add(paper="Figures 1, 5 and 12")
    (study,) = collect([records.root]).studies
    assert figure_numbers(study) == ["Figure 1", "Figure 5", "Figure 12"]
    assert curves_number(study) == "Figure 5"


def test_captions_mention_choices_on_the_edge(records):
    for seed in (0, 1):
        records.add(client_lr=0.001, seed=seed, f1=(0, 1))
        records.add(client_lr=0.01, seed=seed, f1=(0, 0.5))
    (study,) = collect([records.root]).studies
    (section,) = study_sections([study], {study.slug: choose(study)}, "rounds", Results())
    curves, learning_rates = section.figures
    assert "Median and range over 2 seeds." in curves.caption
    assert "†" in curves.caption
    assert learning_rates.caption.startswith("F1, mean of the last 2 rounds, for every pair")


def test_command_of_a_study(records):
    records.add()
    records.add(profile="quick")
    records.add(experiment=None, task={"name": "lasso"})
    commands = {study.slug: command(study) for study in collect([records.root]).studies}
    assert commands == {
        "lasso_i": "fco-run -m experiment=lasso_i",
        "lasso_i_quick": "fco-run -m experiment=lasso_i profile=quick",
        "lasso": "fco-run -m task=lasso",
    }


@pytest.mark.usefixtures("quick_figures")
def test_curves_of_a_twin_follow_those_of_the_original(records, tmp_path):
    records.add(experiment="lasso_i", paper="Figure 3")
    records.add(experiment="lasso_i_extended", paper="", twin_of="lasso_i")
    page = make_report(collect([records.root]), tmp_path / "report", all_studies()).page.read_text()
    sections = page.split("<section id=")
    (first,) = [section for section in sections if section.startswith('"lasso_i"')]
    (second,) = [section for section in sections if section.startswith('"lasso_i_extended"')]
    assert first.index('id="figure-lasso_i"') < first.index('id="figure-lasso_i_extended"')
    assert "<figure" not in second


THEORY = {"status": "finished", "cells": 4, "violated": {}, "identity_error": {}, "seconds": 1.0}


@pytest.mark.usefixtures("quick_figures")
def test_page_has_the_theorems_and_lists_a_damaged_image(records, tmp_path):
    records.add()
    folder = records.root / "theory"
    folder.mkdir()
    table = [["statement", "cells", "violated", "smallest slack"], ["theorem <1>", "4", "0", "27"]]
    (folder / "result.json").write_text(json.dumps(THEORY | {"table": table, "config": "rounds: [4]"}))
    (folder / "theory.md").write_text("")
    Image.new("RGB", (40, 30)).save(folder / "theory.png")
    page = make_report(collect([records.root]), tmp_path / "report", all_studies()).page.read_text()
    section = page.split('<section id="theory">')[1].split("</section>")[0]
    assert "<td>theorem &lt;1&gt;</td><td>4</td>" in section
    assert 'src="data:image/webp;base64,' in section
    (folder / "theory.png").write_bytes(b"nonsense")
    results = collect([records.root])
    report = make_report(results, tmp_path / "report", all_studies())
    assert [place for place, _ in results.damaged] == [folder]
    assert '<section id="theory">' not in report.page.read_text()
