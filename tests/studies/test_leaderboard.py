"""Tests of the leaderboard: gaps, ranks, tables, findings and figures."""

from __future__ import annotations

import csv
import hashlib
import zipfile

import numpy as np
import pandas as pd
import pytest
import yaml

from fco_cli.errors import UserError
from fco_cli.reporting.records.studies import collect
from fco_cli.reporting.report import make_report
from fco_cli.studies import all_studies
from fco_cli.studies.leaderboard import LEADERBOARD
from fco_cli.studies.leaderboard.archive import archive
from fco_cli.studies.leaderboard.data_card import data_card
from fco_cli.studies.leaderboard.figures import draw_few_rounds, draw_heterogeneity, draw_map, draw_problem
from fco_cli.studies.leaderboard.method_results import FLOOR, final_gap, gap_of, rounds_to
from fco_cli.studies.leaderboard.numbers import auto_numbers, by_heterogeneity, heterogeneity_numbers, problem_numbers
from fco_cli.studies.leaderboard.profiles import cost_ratios, draw_profiles, profile, profile_numbers
from fco_cli.studies.leaderboard.tables import (
    COLUMNS,
    FEW_ROUNDS,
    finding,
    format_cells,
    problems_of,
    recorded_problems,
    summary,
    table,
)

RULE = {"metric": "objective", "mode": "min", "last": 1}
OPTIMUM = 3.0  # the objective starts at 13


@pytest.fixture
def board(records):
    """Return a function that adds a record with given gaps at the evaluated rounds after the start."""

    def add(algo, *gaps, seed=0, **options):
        objective = OPTIMUM + 10 * np.array([1, *gaps])
        length, experiment = len(objective), options.pop("experiment", "successors")
        costs = {"prox_calls": np.arange(length), "gradients": 100 * np.arange(length), "f1": np.zeros(length)}
        curves = {"objective": objective, "train_loss": objective, **costs, **options}
        records.add(algo, seed=seed, experiment=experiment, select=RULE, paper="", **curves)

    return add


def single_problem(records, prefix=LEADERBOARD):
    (problem,) = problems_of(collect([records.root]).named(prefix))
    return problem


def method_results(records):
    return {one.algo: one for one in single_problem(records).methods}


def with_optimum(board, seeds=(0,), **options):
    for seed in seeds:
        board("optimum", 0.0, seed=seed, **options)


def test_gap_is_relative_to_the_initial_gap(records, board):
    with_optimum(board)
    board("zhj", 0.1, 1e-3, 0.0)
    gap = gap_of(method_results(records)["zhj"].runs[0])
    np.testing.assert_allclose(gap, [1, 0.1, 1e-3, FLOOR], rtol=1e-9)


def test_level_is_reached_when_it_holds_for_good(records, board):
    with_optimum(board)
    board("zhj", 1e-3, 0.5, 1e-3, 1e-5)
    best = method_results(records)["zhj"].best
    assert rounds_to(best, 1e-2) == [3]
    assert rounds_to(best, 1e-4) == [4]
    assert rounds_to(best, 1e-6) == [np.inf]


def test_best_cell_reaches_the_smallest_level_first(records, board):
    """Test with another cell that has a slightly smaller final gap."""
    with_optimum(board)
    board("zhj", 0.5, 0.1, 1e-9, client_lr=0.1)
    board("zhj", 1e-3, 1e-7, 2e-9, client_lr=0.2)
    board("zhj", 1e-5, 1e-5, 1e-5, client_lr=0.3)
    assert method_results(records)["zhj"].best.client_lr == 0.2


def test_best_cell_has_the_smallest_final_gap_if_no_level_is_reached(records, board):
    """Test with another cell that decreases faster at first."""
    with_optimum(board)
    board("fedmid", 1e-3, 1e-3, client_lr=0.2)
    board("fedmid", 0.5, 1e-5, client_lr=0.1)
    assert method_results(records)["fedmid"].best.client_lr == 0.1


def test_methods_are_ranked_with_diverged_ones_last(records, board):
    with_optimum(board)
    board("fedmid", 0.5, 1e-3, 1e-3)
    board("zhj", 1e-3, 1e-5, 1e-7)
    board("feddr", 1e-3, 1e-7, 1e-7)
    board("fedprox", 1e-3, 2e-3, np.nan, diverged=3)
    found = method_results(records)
    assert list(found) == ["feddr", "zhj", "fedmid", "fedprox"]
    cells = format_cells(table([single_problem(records)])).set_index("algo")
    assert cells.loc["fedprox", "gap at the end"] == "diverged"
    assert cells.loc["fedmid", "rounds to 1e-06"] == "never"
    assert cells.loc["zhj", "rounds to 1e-06"] == "3"
    assert cells.loc["zhj", "MB to 0.0001"] == "4"  # one megabyte per round and direction
    assert cells.loc["zhj", "gradients to 0.0001"] == "200"
    assert finding(single_problem(records)).startswith(
        "The successors: reached 1e-6: FedDR (2 rounds), ZHJ (3 rounds); smallest final gap of the others: FedMiD"
    )


def test_table_has_median_and_range_over_seeds(records, board):
    with_optimum(board, seeds=(0, 1, 2))
    for seed, gaps in enumerate(([1e-3, 1e-3], [0.1, 1e-3], [0.1, 0.1])):
        board("zhj", *gaps, seed=seed)
    (row,) = format_cells(table([single_problem(records)])).to_dict("records")
    assert row["rounds to 0.01"] == "2 (1–never)"
    assert row["seeds"] == 3


def test_slope_uses_stalled_gaps_only(records, board):
    with_optimum(board)
    for rate in (0.1, 0.2, 0.4):
        board("fedmid", 0.5, *[1e-3 * rate**2] * 3, client_lr=rate)
    board("fedmid", 0.5, 0.4, 0.3, 0.2, client_lr=0.01)  # still decreasing
    board("zhj", 0.5, 1e-3, 1e-4, 1e-5, client_lr=0.1)
    board("zhj", 0.5, 1e-4, 1e-6, 1e-8, client_lr=0.2)
    found = method_results(records)
    assert found["fedmid"].slope == pytest.approx(2)
    assert [rate for rate, _ in found["fedmid"].by_rate] == [0.01, 0.1, 0.2, 0.4]
    assert np.isnan(found["zhj"].slope)
    (row,) = table([single_problem(records)]).query("algo == 'fedmid'").to_dict("records")
    assert row["rests"] is True


def test_untuned_cell(records, board):
    """Test that it is auto with the method's default server step and options, not another multiple of 1/L."""
    with_optimum(board)
    for word, end in (("auto", 1e-2), ("0.3/L", 1e-4)):
        for server_lr in (1.0, 2.0):
            board("zhj", 0.5, end * server_lr, client_lr=word, server_lr=server_lr, taken=0.1)
    one = method_results(records)["zhj"]
    assert len(one.choice.cells) == 4
    assert final_gap(one.untuned) == pytest.approx(1e-2)
    assert one.final == pytest.approx(1e-4)
    assert "client_lr 0.3/L" in one.best.rates
    assert [rate for rate, _ in one.by_rate] == [0.3, 1.0]  # in units of 1/L


def test_rounds_until_the_density_is_the_optimums(records, board):
    with_optimum(board, density=(1.0, 0.25))
    board("zhj", 0.5, 1e-3, 1e-4, density=(1.0, 0.25, 0.5, 0.25))
    board("fedmid", 0.5, 1e-3, 1e-4, density=(1.0, 0.5, 0.5, 0.5))
    board("feddr", 0.5, 0.1, 1e-3, density=(0.25, 0.25, 0.25, 0.25))
    board("fedprox", 0.5, 0.1, 0.1, density=(0.25, 0.25, 0.25, 0.25))
    found = method_results(records)
    assert found["zhj"].structure_rounds == [3]
    assert found["fedmid"].structure_rounds == [np.inf]
    assert found["feddr"].structure_rounds == [3]  # equal before, far from the optimum
    assert found["fedprox"].structure_rounds == [np.inf]


def test_rank_takes_precedence_over_density(records, board):
    with_optimum(board, rank=(9, 2), density=(1.0, 1.0))
    board("zhj", 0.5, 1e-3, rank=(9, 9, 2), density=(1.0, 1.0, 1.0))
    assert method_results(records)["zhj"].structure_rounds == [2]


@pytest.mark.ci
@pytest.mark.usefixtures("quick_figures")
def test_incomplete_records_are_shown(records, tmp_path):
    """Test records without costs, with different rounds per seed, or starting at the optimum."""
    for seed in (0, 1):
        records.add("optimum", experiment="successors", select=RULE, seed=seed, f1=(0, 1), objective=(13, 3))
    records.add("zhj", experiment="successors", select=RULE, objective=(13, 4, 3.5, 3.1))  # no gradients, no prox calls
    records.add("zhj", experiment="successors", select=RULE, seed=1, rounds=(0, 2, 3, 4), objective=(13, 4, 3.5, 3.1))
    records.add("fedmid", experiment="successors", select=RULE, objective=(3, 3, 3, 3))  # starts at the optimum
    problem = single_problem(records)
    (row,) = table([problem]).query("algo == 'zhj'").to_dict("records")
    assert np.isnan(row["gradients to 0.0001"])
    rounds, gaps = problem.of("zhj").curves
    assert rounds.tolist() == [0, 2, 3]
    np.testing.assert_allclose(gaps, [[1, 0.05, 0.01], [1, 0.1, 0.05]])
    assert "leaderboard" in make_report(collect([records.root]), tmp_path / "report", all_studies()).contents


def test_edges_of_a_grid(records, board):
    """Test a best cell in the middle of the client rates and at the largest option; constant settings have no edges."""
    with_optimum(board)
    for word, end in (("auto", 1e-2), ("0.3/L", 1e-4), ("0.1/L", 1e-3)):
        for strength in (0.1, 1.0):
            board(
                "fedprox", 0.5, end / strength, client_lr=word, taken=0.1, options={"strength": strength, "coin": True}
            )
    assert method_results(records)["fedprox"].edges == ["largest strength"]


def test_overlapping_ranges_are_reported_as_undecided(records, board):
    with_optimum(board, seeds=(0, 1))
    for seed, slow in enumerate((1e-7, 1e-3)):
        board("zhj", slow, 1e-7, seed=seed)  # rounds 1 and 2
        board("feddr", 1e-3, 1e-7, seed=seed)  # 2
        board("scaffnew", 1e-3, 1e-3, 1e-7, seed=seed)  # 3
    assert finding(single_problem(records)).endswith("the seeds do not decide whether ZHJ is faster than FedDR.")


def test_summary_over_all_problems(records, board):
    """Test the number of reached levels, the ranks, and the ratio of auto to the best."""
    for experiment in ("successors", "successors_other"):
        with_optimum(board, experiment=experiment)
        board("zhj", 1e-3, 1e-7, client_lr="auto", taken=0.1, experiment=experiment)
        board("fedmid", 0.5, 1e-3, client_lr="0.3/L", taken=0.1, server_lr=0.3, experiment=experiment)
        board("fedmid", 0.5, 1e-2, client_lr="auto", taken=0.3, server_lr=0.3, experiment=experiment)
    found = summary(problems_of(collect([records.root]).named(LEADERBOARD))).set_index("method")
    assert list(found.index) == ["ZHJ", "FedMiD"]
    assert list(found["reaches 1e-06"]) == [2, 0]
    assert list(found["reaches 0.01"]) == [2, 2]
    assert [place.median for place in found["place"]] == [1, 2]
    assert [ratio.median for ratio in found["gap with auto / best"]] == pytest.approx([1, 10])


def test_problems_with_equal_titles_are_named_by_their_variant(records, board):
    for step in (0.3, 1.0):
        with_optimum(board, task={"heterogeneity": step})
        board("zhj", 1e-3, task={"heterogeneity": step})
    with_optimum(board, experiment="successors_other")
    board("zhj", 1e-3, experiment="successors_other")
    assert [problem.name for problem in problems_of(collect([records.root]).named(LEADERBOARD))] == [
        "The successors (task.heterogeneity=0.3)",
        "The successors (task.heterogeneity=1.0)",
        "The successors_other",
    ]


def texts_of(figure):
    return [text.get_text() for axis in figure.axes for text in axis.texts]


def test_map_has_rounds_or_the_final_gap(records, board):
    with_optimum(board)
    board("zhj", 1e-3, 1e-5)
    board("fedmid", 0.5, 2e-3)
    board("mine", 0.5, np.nan, diverged=2)
    problems = problems_of(collect([records.root]).named(LEADERBOARD))
    figure = draw_map(problems, "Rounds", lambda one: rounds_to(one.best, 1e-4), lambda one: f"{one.final:g}")
    assert texts_of(figure) == ["0.002", "2", "inf"]
    assert figure.get_suptitle().splitlines()[1].startswith("number and color: rounds; bold: the fewest of the row")
    assert figure.axes[1].get_ylabel() == "rounds"  # of the color bar
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["FedMiD", "ZHJ", "mine"]


def test_figure_of_a_problem_has_a_row_per_family_and_a_column_per_cost(records, board):
    with_optimum(board)
    for word, end in (("auto", 1e-2), ("0.3/L", 1e-3)):
        board("fedmid", 0.5, end, client_lr=word, taken=0.1)
        board("zhj", 0.5, 1e-6, client_lr=word, taken=0.1)
    board("mine", 0.5, 0.1)
    figure = draw_problem(single_problem(records))
    assert len(figure.axes) == 3 * 5  # costs without a record have no column
    labels = [[line.get_label() for line in axis.lines if line.get_label()[0] != "_"] for axis in figure.axes[::5]]
    assert labels == [["FedMiD"], ["ZHJ"], ["mine"]]
    assert all(len(axis.lines) == 3 for axis in figure.axes)  # the other families are drawn behind
    bias = next(line for line in figure.axes[4].lines if line.get_label() == "FedMiD")
    assert bias.get_xydata() == pytest.approx(np.array([[0.3, 1e-3], [1, 1e-2]]))


@pytest.mark.ci
def test_few_round_methods_are_compared_by_rounds_bytes_and_queries(records, board, tmp_path):
    kib, sites = 1024, 4
    costs = {"experiment": "few_rounds", "density": np.zeros(3)}
    once = {"experiment": "few_rounds", "density": np.zeros(2)}
    board("optimum", 0, 0, **costs, queries=np.zeros(3), bytes_up=np.zeros(3), bytes_down=np.zeros(3))
    sent = kib * np.arange(3)
    board("fista", 0.1, 1e-5, **costs, queries=sites * np.arange(3), bytes_up=sent, bytes_down=sent)
    sent = 9 * kib * np.arange(2)
    board("moments", 1e-9, **once, queries=sites * np.arange(2), bytes_up=sent, bytes_down=0 * sent)
    rows = {row["method"]: row for row in table([single_problem(records, FEW_ROUNDS)]).to_dict("records")}
    assert [rows[name]["queries to 0.0001"] for name in ("FISTA", "moments")] == [8, 4]
    assert [rows[name]["MB to 0.0001"] for name in ("FISTA", "moments")] == pytest.approx(
        [4 * kib / 1e6, 9 * kib / 1e6]
    )
    make_report(collect([records.root]), tmp_path / "report", all_studies())
    assert (tmp_path / "report" / "figures" / "leaderboard_costs.png").exists()
    figure = draw_few_rounds([single_problem(records, FEW_ROUNDS)], "Costs")
    assert [axis.get_xlabel() for axis in figure.axes] == ["rounds", "sent (MB)", "queries"]
    lines = {line.get_label(): line.get_xydata() for line in figure.axes[2].lines}
    assert lines["FISTA"] == pytest.approx(np.array([[4, 0.1], [8, 1e-5]]))
    assert lines["moments"] == pytest.approx(np.array([[4, 1e-9]]))


def test_heterogeneity_is_compared_across_experiments(records, board):
    for experiment, steps in (("successors", (0.3, 1.0)), ("successors_heterogeneity", (0.0, 0.5))):
        for step in steps:
            with_optimum(board, experiment=experiment, task={"heterogeneity": step})
            gaps = (2 * step, 2 * step, step) if step == 1 else [step] * 3
            board("fedmid", *gaps, experiment=experiment, task={"heterogeneity": step})
    with_optimum(board, experiment="successors_other", task={"heterogeneity": 0.3, "ones": 8})
    board("fedmid", 0.1, experiment="successors_other", task={"heterogeneity": 0.3, "ones": 8})
    steps = by_heterogeneity(problems_of(collect([records.root]).named(LEADERBOARD)))
    assert list(steps) == [0.0, 0.3, 0.5, 1.0]
    line, falling = draw_heterogeneity(steps, "apart").axes[0].lines
    assert line.get_xydata()[1:] == pytest.approx(np.array([[0.3, 0.3], [0.5, 0.5], [1, 1]]))
    assert falling.get_xdata() == pytest.approx([1.0])


@pytest.mark.ci
@pytest.mark.usefixtures("quick_figures")
def test_page_and_tables(records, board, tmp_path):
    """Test that studies of the leaderboard appear only in its section."""
    records.add()
    with_optimum(board)
    board("zhj", 1e-3, 1e-7)
    board("zhj", 1e-2, 1e-5, client_lr=0.01)
    board("fedmid", 0.5, 0.1)
    results = collect([records.root])
    report = make_report(results, tmp_path / "report", all_studies())
    assert [study.name for study in report.studies] == ["lasso_i"]
    page = report.page.read_text()
    assert page.count("<h2>Leaderboard") == 1
    assert "reached 1e-6: ZHJ (2 rounds)" in page
    assert {path.stem for path in (tmp_path / "report" / "figures").glob("leaderboard*.png")} == {
        "leaderboard", "leaderboard_profiles", "leaderboard_support", "leaderboard_auto", "leaderboard_successors",
    }  # fmt: skip
    tables = tmp_path / "report" / "tables"
    for path in (tmp_path / "report" / "figures").glob("leaderboard*.png"):
        assert "method" in path.with_suffix(".csv").read_text().splitlines()[0].split(","), path
    numbers = pd.read_csv(tables / "leaderboard.csv").fillna({"on the edge of its grid": ""})
    pd.testing.assert_frame_equal(pd.read_parquet(tables / "leaderboard.parquet"), numbers, check_dtype=False)
    latex = (tables / "leaderboard_successors.tex").read_text()
    assert r"\caption{The successors}" in latex
    assert "method & exactness & rounds to 0.01 & rounds to 0.0001 & rounds to 1e-06 & MB to 0.0001" in latex
    assert r"ZHJ & exact & 1 & 2 & 2 & 4 & 200 & -- & -- & 1e-07 & 2 \\" in latex
    assert r"FedMiD & 1 & 0 & 0 & 0 &" in (tables / "leaderboard_summary.tex").read_text()
    with (tmp_path / "report" / "tables" / "leaderboard.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["method"], row["rounds to 1e-06"]) for row in rows] == [("ZHJ", "2.0"), ("FedMiD", "inf")]
    assert "| ZHJ | 1 | 1 | 1 | 1 |" in (tmp_path / "report" / "tables" / "leaderboard.md").read_text()


def test_without_an_optimum_there_is_no_leaderboard(records, board, tmp_path):
    board("zhj", 1e-3)
    records.add()
    report = make_report(collect([records.root]), tmp_path / "report", all_studies())
    assert list(report.contents) == ["lasso_i"]
    assert "Leaderboard" not in report.page.read_text()


def test_classes_of_exactness_are_those_of_the_best_cell(records, board):
    """Test with a gap that rests, one that decreases, and a rest that gradients of batches may explain."""
    with_optimum(board, hparams={"batch_size": 10**6})
    board("zhj", 1e-3, 1e-7, hparams={"batch_size": 10**6})
    board("fedmid", 0.5, *[1e-3] * 4, hparams={"batch_size": 10**6})
    board("feddr", 0.5, 0.1, 0.01, hparams={"batch_size": 10**6})
    board("fedprox", 0.5, np.nan, diverged=2, hparams={"batch_size": 10**6})
    with_optimum(board, experiment="successors_batches", hparams={"batch_size": 16})
    board("zhj", 0.5, *[1e-3] * 4, experiment="successors_batches", hparams={"batch_size": 16})
    problems = recorded_problems(collect([records.root]))
    found = [(row.problem, row.algo, row.exactness) for row in table(problems).itertuples()]
    assert sorted(found) == [
        ("The successors", "feddr", "open"),
        ("The successors", "fedmid", "biased"),
        ("The successors", "fedprox", "diverged"),
        ("The successors", "zhj", "exact"),
        ("The successors_batches", "zhj", "noisy"),
    ]
    assert summary(problems).set_index("method")["exactness"].to_dict() == {
        "ZHJ": "exact", "FedMiD": "biased", "FedDR": "open", "FedProx": "open"
    }  # fmt: skip
    with_optimum(board, experiment="successors_other", hparams={"batch_size": 10**6})
    board("zhj", 0.5, *[1e-3] * 4, experiment="successors_other", hparams={"batch_size": 10**6})
    problems = recorded_problems(collect([records.root]))
    assert summary(problems).set_index("method").loc["ZHJ", "exactness"] == "exact on 1 of 2"


def test_tuning_effort_is_that_of_the_whole_grid_per_seed(records, board):
    with_optimum(board, seeds=(0, 1))
    for seed in (0, 1):
        for rate in (0.1, 0.2, 0.3):
            board("zhj", 0.5, 1e-3, 1e-7, client_lr=rate, seed=seed)
    (row,) = table([single_problem(records)]).to_dict("records")
    assert row["settings tried"] == 3
    assert row["rounds spent on tuning"] == 3 * 3
    assert row["gradients spent on tuning"] == 3 * 300


def test_simulated_seconds_are_counted_and_the_card_describes_every_column(records, board):
    with_optimum(board)
    board("zhj", 1e-3, 1e-7, simulated_seconds=np.array([0, 0.5, 1.5]))
    board("pg_extra", 1e-3, 1e-7)
    problems = [single_problem(records)]
    rows = table(problems)
    seconds = rows.set_index("algo")["simulated seconds to 0.0001"]
    assert seconds["zhj"] == 1.5
    assert np.isnan(seconds["pg_extra"])
    assert list(rows.columns) == list(COLUMNS)
    card = data_card(problems)
    assert all(f"| {name} |" in card for name in COLUMNS)
    assert "| The successors | successors | l1 |" in card


def test_numbers_of_figures(records, board):
    with_optimum(board, seeds=(0, 1))
    for seed, gap in enumerate((1e-3, 3e-3)):
        board("zhj", gap, 1e-6, client_lr="auto", taken=0.1, seed=seed)
        board("zhj", 0.5, 0.1, client_lr="0.3/L", taken=0.03, seed=seed)
    problem = single_problem(records)
    numbers = problem_numbers(problem)
    first = numbers[(numbers["x axis"] == "rounds") & (numbers["x"] == 1)].iloc[0]
    assert [first["gap"], first["gap low"], first["gap high"]] == pytest.approx([2e-3, 1e-3, 3e-3])
    rates = numbers[numbers["x axis"] == "client rate × L"]
    np.testing.assert_allclose(rates[["x", "gap"]], [[0.3, 0.1], [1, 1e-6]], rtol=1e-6)
    assert auto_numbers([problem])["final gap, auto / best"].tolist() == pytest.approx([1])
    assert heterogeneity_numbers({0.5: problem})["final gap"].tolist() == pytest.approx([1e-6])


def test_performance_profiles(records, board):
    """Test with two problems: ratios 1 and 2 for ZHJ, 3 and 1 for FedDR, 3 and never for FedMiD."""
    for experiment, gaps in {
        "successors": {"zhj": [1e-5] * 3, "feddr": [1, 1, 1e-5], "fedmid": [1, 1, 1e-5]},
        "successors_other": {"zhj": [1, 1e-5, 1e-5], "feddr": [1e-5] * 3, "fedmid": [1] * 3},
        "successors_never": {"zhj": [1] * 3, "feddr": [1] * 3, "fedmid": [1] * 3},
    }.items():
        with_optimum(board, experiment=experiment)
        for algo, values in gaps.items():
            board(algo, *values, experiment=experiment)
    problems = recorded_problems(collect([records.root]))
    ratios = {algo: sorted(values) for algo, values in cost_ratios(problems, "round").items()}
    assert ratios == {"zhj": [1, 2], "feddr": [1, 3], "fedmid": [3, np.inf]}
    for algo, expected in {"zhj": ([1, 2], [0.5, 1]), "fedmid": ([1, 3], [0, 0.5])}.items():
        assert [part.tolist() for part in profile(np.array(ratios[algo]))] == list(expected)
    numbers = profile_numbers(problems)
    assert set(numbers["cost"]) == {"rounds", "sent (MB)", "gradients"}
    figure = draw_profiles(problems, "Profiles")
    drawn = {line.get_label(): line.get_xydata().tolist() for axis in figure.axes[::3] for line in axis.lines}
    assert drawn["ZHJ"] == [[1, 0.5], [2, 1], [pytest.approx(3.3), 1]]
    assert drawn["FedMiD"] == [[1, 0], [3, 0.5], [pytest.approx(3.3), 0.5]]


def test_a_method_without_a_cost_has_no_profile_of_it(records, board):
    with_optimum(board)
    board("zhj", 1e-5, 1e-7, simulated_seconds=np.array([0, 0.5, 1.5]))
    board("pg_extra", 1e-3, 1e-7)
    problems = recorded_problems(collect([records.root]))
    assert set(cost_ratios(problems, "simulated_seconds")) == {"zhj"}
    assert cost_ratios(problems, "round")["pg_extra"].tolist() == [2]
    figure = draw_profiles(problems, "Profiles")
    legends = [text.get_text() for axis in figure.axes if axis.get_legend() for text in axis.get_legend().get_texts()]
    assert legends == ["ZHJ", "PG-EXTRA"]


@pytest.mark.usefixtures("quick_figures")
def test_archive(records, board, tmp_path):
    """Test that equal records give equal bytes, that the checksums hold, and that a report reads the records."""
    with_optimum(board)
    board("zhj", 1e-3, 1e-7)
    results = collect([records.root])
    make_report(results, tmp_path / "report", all_studies())
    paths = [tmp_path / "a.zip", tmp_path / "b.zip"]
    assert [archive(results, tmp_path / "report", path) for path in paths] == [2, 2]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with zipfile.ZipFile(paths[0]) as file:
        file.extractall(tmp_path / "unpacked")
    folder = tmp_path / "unpacked" / "leaderboard"
    sums = [line.split("  ") for line in (folder / "SHA256SUMS").read_text().splitlines()]
    assert all(hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest for digest, name in sums)
    present = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert present == {"SHA256SUMS", *(name for _, name in sums)}
    expected = {"README.md", "CITATION.cff", "LICENSE", "versions.json", "tables/leaderboard.parquet"}
    assert expected | {"figures/leaderboard_profiles.csv", "tables/leaderboard_summary.tex"} <= present
    assert "Apache License" in (folder / "LICENSE").read_text()
    assert yaml.safe_load((folder / "CITATION.cff").read_text())["type"] == "dataset"
    again = recorded_problems(collect([folder / "records"]))
    pd.testing.assert_frame_equal(table(again), table(recorded_problems(results)))
    with pytest.raises(UserError, match="no records of the leaderboard"):
        archive(collect([tmp_path / "report"]), tmp_path, paths[0])
