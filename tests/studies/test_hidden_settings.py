"""Tests of the search over settings that the paper leaves open."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fco_cli.reporting.records.studies import collect
from fco_cli.reporting.report import make_report
from fco_cli.studies import all_studies
from fco_cli.studies.yuan2021 import SEARCH, Yuan2021
from fco_cli.studies.yuan2021.hidden_settings import as_markdown, draw_map, score_settings, search_section

TASKS = ("lasso", "lasso_ii", "lasso_iii", "lasso_iv")
GOOD, BAD = (0, 1, 1, 1), (0, 0.2, 0.5, 0.5)


def add_setting(
    records, strength=0.2, start="glorot", seeds=(0,), mine=GOOD, tasks=TASKS, client_lr=0.001, last_batch="keep"
):
    """Add runs of FedDualAvg and three other algorithms on every dataset."""
    select, psi = {"second": "recovery_error"}, {"name": "l1", "strength": strength}
    for task in tasks:
        for seed in seeds:
            for algo in ("feddualavg", "feddualavg_osp", "fedmid", "fedmid_osp"):
                records.add(
                    algo, client_lr, 0.3, seed, experiment=SEARCH, select=select, psi=psi,
                    task={"name": task, "start": start, "heterogeneity": 1.0}, hparams={"last_batch": last_batch},
                    f1=mine if algo == "feddualavg" else BAD, recovery_error=(4, 3, 2, 1),
                )  # fmt: skip


def scores(records):
    return score_settings(collect([records.root]).named(SEARCH), Yuan2021().claims)


def test_settings_are_scored_on_the_search_seed_and_on_the_others(records):
    add_setting(records, strength=0.2, seeds=(0, 1, 2))
    add_setting(records, strength=0.5, mine=BAD)
    tried = scores(records)
    assert [(one.setting.strength, one.setting.rule) for one in tried] == [
        (0.2, "f1"), (0.2, "recovery_error"), (0.5, "f1"), (0.5, "recovery_error"),
    ]  # fmt: skip
    good, _, bad, _ = tried
    assert good.search.tests == bad.search.tests == good.judge.tests / 2
    assert good.search.share == good.judge.share > bad.search.share
    assert bad.judge is None
    assert "lasso I, best learning rates of FedDualAvg (lasso_i)" not in bad.search.never  # (0.01, 1) was not tried
    assert "lasso I, FedDualAvg finds the pattern (lasso_i)" in bad.search.never
    page = as_markdown(tried)
    assert page.index("| glorot | 1 | keep | 1 | F1 | 0.2 |") < page.index("| glorot | 1 | keep | 1 | F1 | 0.5 |")
    assert "Claims that hold under no setting: " in page


def test_half_rate_and_twice_lambda_counts_as_half_the_loss(records):
    """Test that claims about rates refer to the paper's grid; other rates are left out."""
    add_setting(records, strength=0.4, client_lr=0.0005)
    add_setting(records, strength=0.4, client_lr=0.0007)
    half, _ = scores(records)
    assert (half.setting.loss_factor, half.setting.strength) == (0.5, 0.2)
    add_setting(records, strength=0.2, client_lr=0.001)
    half, plain = (one for one in scores(records) if one.setting.rule == "f1")
    assert half.setting == replace(plain.setting, loss_factor=0.5)
    assert half.search == plain.search


def test_last_batch_is_a_setting(records):
    add_setting(records)
    add_setting(records, last_batch="drop", mine=BAD)
    tried = scores(records)
    assert [(one.setting.rule, one.setting.last_batch) for one in tried[::2]] == [("f1", "keep"), ("f1", "drop")]


def test_a_setting_without_all_datasets_is_not_scored(records):
    add_setting(records, tasks=TASKS[:3])
    assert scores(records) == []
    add_setting(records, tasks=TASKS[3:])
    add_setting(records, tasks=TASKS[:2], seeds=(1,))  # evaluation seeds are incomplete
    first, _ = scores(records)
    assert first.search is not None
    assert first.judge is None


@pytest.mark.usefixtures("quick_figures")
def test_search_has_a_section_of_its_own(records, tmp_path):
    add_setting(records)
    records.add()
    results = collect([records.root])
    report = make_report(results, tmp_path / "report", all_studies())
    assert [study.name for study in report.studies] == ["lasso_i"]
    assert len(results.named(SEARCH)) == len(TASKS)
    assert report.contents["hidden-settings"] == [SEARCH]
    assert "Claims that hold under no setting" in (tmp_path / "report" / "tables" / "hidden_settings.md").read_text()


def test_map_shows_search_and_evaluation_seeds(records):
    add_setting(records, seeds=(0, 1))
    add_setting(records, start="zeros", mine=BAD)
    search = collect([records.root]).named(SEARCH)
    axes = draw_map(score_settings(search, Yuan2021().claims)).axes
    assert [len(axis.texts) for axis in axes] == [2, 2]  # a panel per rule
    for axis in axes:
        judged, unjudged = (text.get_text() for text in sorted(axis.texts, key=lambda text: text.get_position()[1]))
        assert "/" in judged
        assert "/" not in unjudged
        assert axis.get_yticklabels()[0].get_text() == "glorot, heterogeneity 1, keep"
    assert search_section([], Yuan2021().claims) is None
