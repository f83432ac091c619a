"""Fixtures that write synthetic records with known curves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from fco_cli.reporting.figures import drawing

USES = {"centralized": ["client_lr", "rounds"], "local": ["client_lr", "rounds"], "optimum": ["weighting"]}
SELECT = {"metric": "f1", "mode": "max", "last": 2, "second": "objective"}


def digest(*values: object) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


class Records:
    """Writer of synthetic records below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(
        self,
        algo: str = "feddualavg",
        client_lr: float | str = 0.001,
        server_lr: float = 1.0,
        seed: int = 0,
        *,
        experiment: str | None = "lasso_i",
        profile: str = "paper",
        select: dict[str, Any] = SELECT,
        panels: Sequence[str] = ("f1", "density"),
        diverged: int | None = None,
        task: dict[str, Any] | None = None,
        hparams: dict[str, Any] | None = None,
        options: dict[str, Any] | None = None,
        psi: dict[str, Any] | None = None,
        transform: dict[str, Any] | None = None,
        model: dict[str, Any] | None = None,
        paper: str = "Figure 3",
        twin_of: str = "",
        data: str = "",
        finished_at: str = "2026-03-01T12:00:00+01:00",
        smoothness: float | None = None,
        rounds: Sequence[int] | None = None,
        taken: float | None = None,
        **curves: Sequence[float],
    ) -> Path:
        curves = {"f1": (0.0, 0.5, 0.6, 0.7), **curves}
        length = len(curves["f1"])
        rounds = list(range(length)) if rounds is None else list(rounds)
        cost = np.zeros(length) if algo in USES else 1e6 * np.array(rounds)
        columns = {
            "round": rounds,
            "objective": np.linspace(9, 3, length),
            "train_loss": np.linspace(8, 2, length),
            "density": np.full(length, 0.5),
            "bytes_up": cost,
            "bytes_down": cost,
            **curves,
        }
        scale = {"paper": 1.0, "quick": 1.0, "laptop": 0.02}[profile]
        config = {
            "task": {"name": "lasso", "clients": 8, **(task or {})},
            "algo": {"name": algo, **(options or {})},
            "regularizer": psi or {"name": "l1", "strength": 0.5},
            "mirror": {"name": "euclidean"},
            **({"transform": transform} if transform else {}),
            **({"model": model} if model else {}),
            "hparams": {"client_lr": client_lr, "server_lr": server_lr, "rounds": 500, "weighting": "uniform"}
            | (hparams or {}),
            "seed": seed,
            "experiment": experiment and {
                "name": experiment, "title": f"The {experiment}", "select": SELECT | select, "panels": list(panels),
                "paper": paper, "twin_of": twin_of,
            },
            "profile": {"name": profile, "scale": scale, "note": ""},
        }  # fmt: skip
        family = digest(
            config["task"], config["regularizer"], config["hparams"]["weighting"], data, *([model] if model else [])
        )
        run_id = digest(family, algo, options, transform, client_lr, server_lr, seed, hparams, experiment, profile)
        folder = self.root / (experiment or "alone") / "lasso" / algo / run_id
        folder.mkdir(parents=True)
        result = {
            "status": "finished" if diverged is None else "diverged",
            "diverged_round": diverged,
            "rounds": rounds[-1],
            "final": {name: float(v[-1]) if np.isfinite(v[-1]) else None for name, v in columns.items()},
            "seconds": 1.5,
            "run_id": run_id,
            "identity": {"family": family, "problem": digest(family, seed), "stack": digest(algo), "run": run_id},
            "federated": algo not in USES,
            "uses": USES.get(algo, ["client_lr", "server_lr", "rounds", "weighting"]),
            "task": config["task"]["name"],
            "algo": algo,
            "seed": seed,
            "main_metric": "f1",
            "client_lr": taken if isinstance(client_lr, str) else client_lr,
            "smoothness": smoothness,
            "versions": {"fco-cli": "0.1.0"},
            "python": "3.13.5",
            "finished_at": finished_at,
            "git_revision": "0123456789abcdef",
        }
        lines = [
            ",".join(columns),
            *(",".join(repr(float(v)) for v in row) for row in zip(*columns.values(), strict=True)),
        ]
        (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        (folder / "result.json").write_text(json.dumps(result))
        return folder


@pytest.fixture
def quick_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write figures at low resolution and as PNG only, for tests of other parts of a report."""

    def save(figure: Any, path: Path) -> list[Path]:
        small = path.with_name(path.name + ".png")
        figure.savefig(small, dpi=20)
        return [small, small]

    monkeypatch.setattr(drawing, "save", drawing.styled(save))


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path / "outputs")
