"""Survival analysis at a site: cells, policy, ledger, and what a request could smuggle in."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.federation.policy import preset
from fco_cli.problem.survival_tables import GROUP_NUMBERS, MAX_GROUPS, MAX_INTERVALS, table_of_array
from tests.federation.site.conftest import refusal

SHARING = {"share_histograms": True, "max_equations_per_value": None}


@pytest.fixture
def times(tmp_path):
    """Return the file of 200 rows of three columns; the last column marks four rows."""
    random = np.random.default_rng(2)
    x = random.normal(size=(200, 3))
    x[:, 2] = np.where(np.arange(200) < 4, 1.0, 0.0) + 1e-3 * np.round(100 * x[:, 2])
    y = random.exponential(np.exp(-x[:, 0])) * np.where(random.random(200) < 0.6, 1, -1)
    np.savez(tmp_path / "north.npz", x=x, y=y, client=np.full(200, "north"))
    return tmp_path / "north.npz", y


@pytest.fixture
def session(attack, times):
    def start(policy=None, **task):
        attacker = attack(policy, times[0])
        prepared = attacker.prepare(**{"loss": "cox"} | task)
        assert prepared.kind == "prepare", prepared.head
        attacker.apply(prepared)
        return attacker

    return start


def table(attacker, w=(0.5, 0, 0, 0), min_cell=10, horizon=None):
    return attacker.ask("risk_table", {"fit": 0, "min_cell": min_cell, "horizon": horizon}, w=np.array([w], float))


def test_every_cell_is_large(session, times):
    answer = table(session(preset("strict", **SHARING)), horizon=0.9)
    own = table_of_array(answer.arrays["table"][0])
    assert own.events.min() >= 10
    assert ((own.censored == 0) | (own.censored >= 10)).all()
    assert own.events.sum() == (times[1] > 0).sum()
    assert not np.isin(own.times, np.abs(times[1])).any()  # the ends are those of a grid
    assert answer.arrays["table"].shape == (1, 5, MAX_INTERVALS)
    groups = answer.arrays["groups"]
    assert groups.shape == (1, MAX_GROUPS, GROUP_NUMBERS)
    used = groups[0, groups[0, :, 0] > 0]
    assert used[:, :2].min() >= 10
    assert ((used[:, 2] == 0) | (used[:, 2] >= 10)).all()


def test_policy(session):
    assert "share_histograms" in refusal(table(session(preset("strict"))))
    small = refusal(table(session(preset("strict", **SHARING)), min_cell=9))
    assert "a cell of survival times of 9 rows requested" in small
    assert "set glm.min_cell=10" in small
    attacker = session(preset("demo"), loss="squared")
    answer = attacker.ask("survival", {"fit": 0, "min_cell": 3, "exponent": 8}, w=np.zeros((1, 4)))
    assert "got the squared loss, must be cox" in refusal(answer)


def test_other_cells_horizons_and_rows_are_refused(session):
    """Their differences would disclose few rows; the ledger remembers the first ones over sessions."""
    policy = preset("strict", **SHARING)
    attacker = session(policy)
    assert table(attacker).kind == "risk_table"
    assert "tables of other cells or rows" in refusal(table(attacker, min_cell=11))
    assert table(attacker, horizon=0.9).kind == "risk_table"
    assert "tables of other horizon or rows" in refusal(table(attacker, horizon=0.91))
    assert table(session(policy)).kind == "risk_table"
    assert "tables of other cells or rows" in refusal(table(session(policy, holdout="rows")))
    assert table(session(preset("research")), min_cell=11).kind == "risk_table"


def test_models_that_single_out_rows_are_refused_and_counted(session):
    attacker = session(preset("strict", **SHARING))
    before = attacker.site.disclosure.ledger.read().steep_models
    assert "the curvature of few rows" in refusal(table(attacker, (0, 0, 60, 0)))
    marked = {"fit": 0, "min_cell": 10, "exponent": 8}
    assert attacker.ask("survival", marked, w=np.array([[0.5, 0, 0, 0]])).arrays["pairs"].shape == (1, 6)
    assert attacker.site.disclosure.ledger.read().steep_models == before + 1


def test_pairs_of_scores_that_differ_for_few_rows_only(attack, tmp_path):
    random = np.random.default_rng(0)
    x = np.column_stack([random.normal(size=100), np.arange(100) < 5]).astype(float)
    np.savez(tmp_path / "few.npz", x=x, y=random.exponential(size=100), client=np.full(100, "north"))
    attacker = attack(preset("strict", hide_small_cells=False), tmp_path / "few.npz")
    attacker.apply(attacker.prepare(loss="cox"))
    answer = attacker.ask("survival", {"fit": 0, "min_cell": 10, "exponent": 7}, w=np.array([[0, 0.1, 0.0]]))
    assert "equal scores of all but a few rows" in refusal(answer)


def test_tests_take_one_value_for_every_interval(session):
    attacker = session(preset("strict", max_parameters_per_row=1.0, **SHARING))
    head, w = {"fit": 0, "min_cell": 10, "exponent": 0, "columns": [0, 1]}, np.array([[0.5, 0, 0, 0]])
    g = np.zeros((1, MAX_INTERVALS))
    answer = attacker.ask("survival", head, w=w, g=g)
    assert answer.arrays["information"].shape == (1, 3, 3)
    assert not answer.arrays["score"].any()
    assert not answer.arrays["information"][0, 1:].any()
    assert "is missing" in refusal(attacker.ask("survival", head, w=w))
    assert "must be below 3" in refusal(attacker.ask("survival", head | {"columns": [3]}, w=w, g=g))
    assert "columns: must be sorted" in refusal(attacker.ask("survival", head | {"columns": [1, 0]}, w=w, g=g))
    assert "[1, 51]" in refusal(attacker.ask("survival", head, w=w, g=g[:, :-1]))


def test_few_events_have_no_pairs(attack, tmp_path):
    random = np.random.default_rng(0)
    y = random.exponential(size=60) * np.where(np.arange(60) < 9, 1, -1)
    np.savez(tmp_path / "few.npz", x=random.normal(size=(60, 2)), y=y, client=np.full(60, "north"))
    attacker = attack(preset("strict", **SHARING), tmp_path / "few.npz")
    attacker.apply(attacker.prepare(loss="cox"))
    w = np.array([[0.5, 0, 0.0]])
    assert attacker.ask("survival", {"fit": 0, "min_cell": 10, "exponent": 7}, w=w).arrays == {}
    assert not attacker.ask("risk_table", {"fit": 0, "min_cell": 10, "horizon": 1.0}, w=w).arrays["table"].any()


def test_answers_are_counted(session):
    attacker = session(preset("demo"))
    before = attacker.site.disclosure.ledger.read()
    table(attacker, min_cell=3, horizon=1.0)
    after = attacker.site.disclosure.ledger.read()
    assert after.numbers - before.numbers == 5 * MAX_INTERVALS + 1 + MAX_GROUPS * GROUP_NUMBERS
    assert (after.evaluations - before.evaluations, after.counts - before.counts) == (1, 2)
