from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fco_cli.tracking import TrackedRun


@pytest.fixture
def make_run(tmp_path):
    """Return a function that makes the content of a finished record, with a model file."""

    def make(run_id, rounds=4, settings=None, status="finished"):
        folder = Path(tmp_path) / "records" / run_id
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / "model.npz", weights=np.arange(5.0))
        for name in ("config.yaml", "result.json", "metrics.csv"):
            (folder / name).write_text(f"{name} of {run_id}\n")
        curves = {
            "round": np.arange(rounds + 1.0),
            "objective": 1 / (1 + np.arange(rounds + 1.0)),
            "nan_metric": np.full(rounds + 1, np.nan),
        }
        given = {"task.name": "lasso", "hparams.client_lr": 0.1} if settings is None else settings
        return TrackedRun(folder, run_id, "feddualavg", given, {"objective": 0.2}, curves, status, 1.7e9)

    return make
