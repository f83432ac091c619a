from __future__ import annotations

import numpy as np
import pytest

from fco_cli.reporting.records.select import choose, first_round, in_window
from fco_cli.reporting.records.studies import collect


def chosen(records, algo="feddualavg"):
    return choose(collect([records.root]).studies[0])[algo]


def test_the_best_mean_over_the_last_rounds_wins(records):
    records.add(client_lr=0.001, f1=(0, 0, 0.7, 0.8))
    records.add(client_lr=0.003, f1=(0, 0.9, 0.9, 0.1))  # better only before the last two rounds
    choice = chosen(records)
    assert choice.best.client_lr == 0.001
    assert choice.best.score == pytest.approx(0.75)


def test_min_takes_the_smallest(records):
    select = {"metric": "density", "mode": "min", "last": 1}
    records.add(client_lr=0.001, select=select, density=(1, 0.1, 0.1, 0.4))
    records.add(client_lr=0.003, select=select, density=(1, 0.9, 0.9, 0.3))
    assert chosen(records).best.client_lr == 0.003


def test_diverged_and_nan_runs_never_win(records):
    records.add(client_lr=0.001, f1=(0, 0.1, 0.1, 0.1))
    records.add(client_lr=0.003, f1=(0, 1, 1, 1), diverged=4)
    records.add(client_lr=0.01, f1=(0, 1, np.nan, 1))
    choice = chosen(records)
    assert choice.best.client_lr == 0.001
    assert choice.diverged == 1
    assert len(choice.cells) == 3


def test_nothing_is_chosen_if_everything_diverged(records):
    records.add(diverged=2)
    choice = chosen(records)
    assert choice.best is None
    assert choice.tied == ()


def test_second_metric_breaks_ties(records):
    records.add(client_lr=0.001, f1=(0, 0.8, 1, 1), objective=(9, 5, 4, 4))
    records.add(client_lr=0.003, f1=(0, 0.2, 1, 1), objective=(9, 8, 3, 3))
    records.add(client_lr=0.01, f1=(0, 0.9, 0.9, 0.9))
    choice = chosen(records)
    assert choice.best.client_lr == 0.003
    assert sorted(cell.client_lr for cell in choice.tied) == [0.001, 0.003]


def test_smaller_rates_break_complete_ties(records):
    for client_lr, server_lr in ((0.003, 0.1), (0.001, 1.0), (0.001, 0.3)):
        records.add(client_lr=client_lr, server_lr=server_lr)
    best = chosen(records).best
    assert (best.client_lr, best.server_lr) == (0.001, 0.3)


def test_auto_is_one_cell_for_all_seeds(records):
    for seed, taken in enumerate((0.0021, 0.0019, 0.002)):
        records.add(client_lr="auto", taken=taken, seed=seed, f1=(0, 0, 0.9, 0.9))
        records.add(client_lr=0.002, seed=seed)
    choice = chosen(records)
    assert [(cell.client_lr, len(cell.runs)) for cell in choice.cells] == [(0.002, 3), (0.002, 3)]
    assert choice.best.rates == "(0.002, 1) client_lr auto"


def test_seeds_are_averaged_and_one_diverged_seed_excludes_the_pair(records):
    records.add(client_lr=0.001, seed=0, f1=(0, 0, 0.5, 0.5))
    records.add(client_lr=0.001, seed=1, f1=(0, 0, 0.7, 0.7))
    records.add(client_lr=0.003, seed=0, f1=(0, 0, 1, 1))
    records.add(client_lr=0.003, seed=1, f1=(0, 0, 1, 1), diverged=3)
    choice = chosen(records)
    assert choice.best.client_lr == 0.001
    assert choice.best.score == pytest.approx(0.6)
    rounds, median, low, high = choice.best.curve("f1")
    assert rounds.tolist() == [0, 1, 2, 3]
    assert [values[-1] for values in (median, low, high)] == pytest.approx([0.6, 0.5, 0.7])
    assert str(choice.best.final("f1", 2)) == "0.6 (0.5–0.7)"


def test_choice_on_the_edge_of_its_grid(records):
    for client_lr, f1 in ((0.001, 0.9), (0.003, 0.5), (0.01, 0.1)):
        for server_lr, more in ((0.1, 0.0), (0.3, 0.05), (1.0, 0.0)):
            records.add(client_lr=client_lr, server_lr=server_lr, f1=(0, 0, f1 + more, f1 + more))
        records.add("fedmid", client_lr=client_lr, f1=(0, 0, 1 - f1, 1 - f1))
    records.add("centralized", client_lr=0.1)
    assert chosen(records).on_edge == ("smallest client rate",)
    assert chosen(records, "fedmid").on_edge == ("largest client rate",)  # a single server rate has no edge
    assert chosen(records, "centralized").on_edge == ()


@pytest.mark.parametrize(
    ("rounds", "last", "kept"),
    [
        ([0, 1, 2, 3], 1, [3]),
        ([0, 1, 2, 3], 2, [2, 3]),
        ([0, 100, 200, 300], 200, [200, 300]),  # rounds count, not evaluations
        ([0, 1], 100, [1]),  # the start is excluded
    ],
)
def test_the_window_counts_rounds(rounds, last, kept):
    rounds = np.array(rounds)
    assert rounds[in_window(rounds, last)].tolist() == kept


def test_options_of_the_algorithm_are_separate_cells(records):
    records.add(options={"momentum": 0.5, "nesterov": True}, f1=(0, 0, 0.5, 0.5))
    records.add(options={"momentum": 0.9, "nesterov": True}, f1=(0, 0, 0.9, 0.9))
    choice = chosen(records)
    assert sorted(cell.options for cell in choice.cells) == ["momentum 0.5", "momentum 0.9"]
    assert choice.best.score == pytest.approx(0.9)
    assert choice.best.rates == "(0.001, 1) momentum 0.9"


def reference_first_round(rounds, holds, stays):
    """Compute the first round by its definition, in a loop."""
    for i in range(len(rounds)):
        rest = holds[i:]
        if holds[i] and sum(rest) >= stays * len(rest) - 1e-9:
            return rounds[i]
    return np.inf


@pytest.mark.parametrize("stays", [0.0, 0.5, 0.95, 1.0])
def test_first_round_equals_its_definition(stays):
    draw = np.random.default_rng(0)
    for length in range(1, 40):
        rounds, holds = np.cumsum(draw.integers(1, 5, length)), draw.random(length) < draw.random()
        assert first_round(rounds, holds, stays) == reference_first_round(rounds, holds, stays)


def test_first_round_for_different_shares():
    rounds, holds = np.array([0, 2, 4, 6, 8]), np.array([False, True, False, True, True])
    assert [first_round(rounds, holds, stays) for stays in (0, 0.75, 1)] == [2, 2, 6]
    assert first_round(rounds, ~holds, 1) == np.inf
