"""Comparison of untuned runs on published tables with scikit-learn's pooled solution of the same objective."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.machine_code
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize("name", ["heart", "crime", "eicu"])
def test_the_pooled_solution(run_of, real_data, monkeypatch, name, weighting):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    from benchmarks.tables import TASKS, compare

    folder, strengths = TASKS[name]
    words = [f"task={name}", f"task.data_dir={real_data(folder)}", f"hparams.weighting={weighting}", "task.test=rows"]
    for one in compare(run_of(*words), strengths):
        assert one.difference <= 1e-6
        assert one.same_support
        assert one.unseen == pytest.approx(one.unseen_pooled, abs=1e-4)
