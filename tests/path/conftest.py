from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fco_cli.config import PathRun

FEW = ["path.strengths=4", "path.folds=3", "path.ratio=0.1", "path.tolerance=1e-3", "hparams.tolerance=1e-5"]


@pytest.fixture(scope="module")
def run_of(path_run) -> Callable[..., PathRun]:
    """Return a function that makes a small run of experiment=path with given overrides."""
    return lambda *overrides: path_run(*FEW, *overrides)


@pytest.fixture
def few() -> list[str]:
    """Return the overrides of every run of `run_of`."""
    return FEW


@pytest.fixture
def table(tmp_path) -> Callable[..., str]:
    """Return a function that writes a CSV file of three clinics with two informative features of four.

    `changed` may alter its columns first.
    """

    def write(name: str = "clinics.csv", rows: int = 60, changed: Callable[[dict], None] | None = None) -> str:
        random = np.random.default_rng(0)
        x = random.standard_normal((rows, 4)) * [1, 2, 5, 1] + [0, 3, -2, 1]
        chance = 1 / (1 + np.exp(-(1.5 * x[:, 0] - 0.8 * (x[:, 1] - 3))))
        columns = {
            **{f"x{k}": x[:, k].copy() for k in range(4)},
            "y": (random.random(rows) < chance).astype(int),
            "client": np.array(["a", "b", "c"])[np.arange(rows) % 3],
            "split": np.where(np.arange(rows) % 6 == 5, "test", "train"),
        }
        if changed is not None:
            changed(columns)
        lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        return str(tmp_path / name)

    return write
