"""Tests of the snapshots of a run."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fco_cli.simulation.record import Record
from fco_cli.simulation.snapshots import LARGEST, MOST, snapshot_rounds


@pytest.mark.parametrize("size", [10, 1025, 39913])
@pytest.mark.parametrize("every", [1, 7, 100])
@pytest.mark.parametrize("rounds", [1, 2, 3, 5, 39, 40, 41, 300, 500, 5000])
def test_snapshots_are_few_small_and_of_evaluated_rounds(rounds, every, size):
    kept = sorted(snapshot_rounds(rounds, every, size))
    evaluated = {*range(0, rounds, every), rounds}
    assert set(kept) <= evaluated
    assert (kept[0], kept[-1]) == (0, rounds)
    assert len(kept) == min(MOST, len(evaluated), LARGEST // (2 * size))
    assert len(kept) * size * 2 <= LARGEST


def test_a_model_too_large_for_two_snapshots_keeps_none():
    assert snapshot_rounds(500, 1, 10**6) == frozenset()


def test_the_snapshots_go_from_the_start_to_the_final_model(make_setup, simulate, tmp_path):
    setup = dataclasses.replace(make_setup("lasso", "feddualavg", rounds=60), record_path=True)
    whole, diverged = simulate(setup, [0.01, 1e30])
    assert list(whole.path) == sorted(snapshot_rounds(60, 1, setup.problem.layout.size))
    np.testing.assert_array_equal(whole.path[60], whole.model.astype(np.float16))
    np.testing.assert_array_equal(whole.path[0], np.zeros_like(whole.path[60]))

    record = Record(tmp_path / "run")
    record.create()
    record.save_checkpoint(whole, "code")
    assert list(record.checkpoint("code").path) == list(whole.path)
    record.finish(whole, setup.problem.layout, {})
    with np.load(record.folder / "path.npz", allow_pickle=False) as path:
        assert path["round"].tolist() == list(whole.path)
        np.testing.assert_array_equal(path["weights"][-1], whole.path[60][:-1])
    (halfway,) = simulate(setup, [0.01], rounds=20)
    (continued,) = simulate(setup, [0.01], [halfway])
    assert list(continued.path) == list(whole.path)

    record = Record(tmp_path / "diverged")
    record.create()
    record.finish(diverged, setup.problem.layout, {})
    assert not (record.folder / "path.npz").exists()  # not needed after a divergence
