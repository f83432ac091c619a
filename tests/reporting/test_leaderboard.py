"""The leaderboard: gaps, arrivals, who stands where, and what the page says of it."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from fco_cli.reporting import leaderboard
from fco_cli.reporting.leaderboard import finding, gap_of, in_words, rounds_to, standings, table
from fco_cli.reporting.report import make_report
from fco_cli.reporting.studies import collect

RULE = {"metric": "objective", "mode": "min", "last": 1}
OPTIMUM = 3.0  # the objective starts at 13


@pytest.fixture
def board(records):
    """Records of the leaderboard by their gaps at every evaluated round after the start."""

    def add(algo, *gaps, seed=0, **options):
        objective = OPTIMUM + 10 * np.array([1, *gaps])
        length, experiment = len(objective), options.pop("experiment", "successors")
        costs = {"prox_calls": np.arange(length), "gradients": 100 * np.arange(length), "f1": np.zeros(length)}
        curves = {"objective": objective, "train_loss": objective, **costs, **options}
        records.add(algo, seed=seed, experiment=experiment, select=RULE, paper="", **curves)

    return add


def the_standings(records):
    (study,) = collect([records.root]).leaderboard
    return {one.algo: one for one in standings(study)}


def with_optimum(board, seeds=(0,), **options):
    for seed in seeds:
        board("optimum", 0.0, seed=seed, **options)


def test_the_gap_is_relative_to_the_start_s(records, board):
    with_optimum(board)
    board("zhj", 0.1, 1e-3, 0.0)
    gap = gap_of(the_standings(records)["zhj"].runs[0])
    np.testing.assert_allclose(gap, [1, 0.1, 1e-3, leaderboard.FLOOR], rtol=1e-9)


def test_a_level_is_reached_when_it_is_kept(records, board):
    with_optimum(board)
    board("zhj", 1e-3, 0.5, 1e-3, 1e-5)
    best = the_standings(records)["zhj"].best
    assert rounds_to(best, 1e-2) == [3]
    assert rounds_to(best, 1e-4) == [4]
    assert rounds_to(best, 1e-6) == [np.inf]


def test_the_best_of_a_grid_is_soonest_at_the_finest_level(records, board):
    """Not what is a hair lower at the end."""
    with_optimum(board)
    board("zhj", 0.5, 0.1, 1e-9, client_lr=0.1)
    board("zhj", 1e-3, 1e-7, 2e-9, client_lr=0.2)
    board("zhj", 1e-5, 1e-5, 1e-5, client_lr=0.3)
    assert the_standings(records)["zhj"].best.client_lr == 0.2


def test_methods_are_ranked_and_divergence_comes_last(records, board):
    with_optimum(board)
    board("fedmid", 0.5, 1e-3, 1e-3)
    board("zhj", 1e-3, 1e-5, 1e-7)
    board("feddr", 1e-3, 1e-7, 1e-7)
    board("fedprox", 1e-3, 2e-3, np.nan, diverged=3)
    found = the_standings(records)
    assert list(found) == ["feddr", "zhj", "fedmid", "fedprox"]
    words = in_words(table([found["zhj"].study])).set_index("algo")
    assert words.loc["fedprox", "gap at the end"] == "diverged"
    assert words.loc["fedmid", "rounds to 1e-06"] == "never"
    assert words.loc["zhj", "rounds to 1e-06"] == "3"
    assert words.loc["zhj", "MB to 0.0001"] == "4"  # a megabyte each way and round
    assert words.loc["zhj", "gradients to 0.0001"] == "200"
    assert finding(found["zhj"].study).startswith(
        "The successors: to 1e-06 come FedDR (2), ZHJ (3); of the others FedMiD"
    )


def test_seeds_give_a_median_and_a_range(records, board):
    with_optimum(board, seeds=(0, 1, 2))
    for seed, gaps in enumerate(([1e-3, 1e-3], [0.1, 1e-3], [0.1, 0.1])):
        board("zhj", *gaps, seed=seed)
    (row,) = in_words(table([the_standings(records)["zhj"].study])).to_dict("records")
    assert row["rounds to 0.01"] == "2 (1–never)"
    assert row["seeds"] == 3


def test_the_bias_s_slope(records, board):
    with_optimum(board)
    for rate in (0.1, 0.2, 0.4):
        board("fedmid", 0.5, 1e-3 * rate**2, client_lr=rate)
    one = the_standings(records)["fedmid"]
    assert one.slope == pytest.approx(2)
    assert [rate for rate, _ in one.bias] == [0.1, 0.2, 0.4]


def test_what_nobody_tuned(records, board):
    """auto with the method's own server step and options; a multiple of 1/L is another cell."""
    with_optimum(board)
    for word, end in (("auto", 1e-2), ("0.3/L", 1e-4)):
        for server_lr in (1.0, 2.0):
            board("zhj", 0.5, end * server_lr, client_lr=word, server_lr=server_lr, taken=0.1)
    one = the_standings(records)["zhj"]
    assert len(one.choice.cells) == 4
    assert one.untuned == pytest.approx(1e-2)
    assert one.final == pytest.approx(1e-4)
    assert "client_lr 0.3/L" in one.best.rates
    assert [rate for rate, _ in one.bias] == [0.3, 1.0]  # in units of 1/L


def test_from_when_on_the_density_is_the_optimum_s(records, board):
    with_optimum(board, density=(1.0, 0.25))
    board("zhj", 0.5, 0.1, 0.01, density=(1.0, 0.25, 0.5, 0.25))
    board("fedmid", 0.5, 0.1, 0.01, density=(1.0, 0.5, 0.5, 0.5))
    found = the_standings(records)
    assert found["zhj"].support_from() == [3]
    assert found["fedmid"].support_from() == [np.inf]


@pytest.mark.usefixtures("quick_figures")
def test_the_page_and_the_tables(records, board, tmp_path):
    """Studies of the leaderboard have figures of their own and stand in no other part of the page."""
    records.add()
    with_optimum(board)
    board("zhj", 1e-3, 1e-7)
    board("zhj", 1e-2, 1e-5, client_lr=0.01)
    board("fedmid", 0.5, 0.1)
    results = collect([records.root])
    assert [study.name for study in results.studies] == ["lasso_i"]
    report = make_report(results, tmp_path / "report")
    page = report.page.read_text()
    assert page.count("<h2>Leaderboard") == 1
    assert "to 1e-06 come ZHJ (2)" in page
    assert {path.stem for path in (tmp_path / "report" / "figures").glob("leaderboard*.png")} == {
        "leaderboard", "leaderboard_successors", "leaderboard_successors_bias",
    }  # fmt: skip
    with (tmp_path / "report" / "tables" / "leaderboard.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["method"], row["rounds to 1e-06"]) for row in rows] == [("ZHJ", "2.0"), ("FedMiD", "inf")]
    assert "| 1 | ZHJ |" in (tmp_path / "report" / "tables" / "leaderboard.md").read_text()


def test_without_an_optimum_there_is_no_leaderboard(records, board, tmp_path):
    board("zhj", 1e-3)
    records.add()
    report = make_report(collect([records.root]), tmp_path / "report")
    assert report.leaderboard is None
    assert "Leaderboard" not in report.page.read_text()
