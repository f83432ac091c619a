"""Draw docs/images/curse.png, the README's figure: `python docs/curse_figure.py`.

The clients' models after their local steps, and their average as the server computes it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LinearSegmentedColormap

from fco_cli.api import run
from fco_cli.reporting import algorithm_style

FEATURES, ONES, CLIENTS = 64, 12, 8
SETTINGS = (
    "task=lasso_ii", f"task.dimension={FEATURES}", f"task.ones={ONES}", "task.clients=8", "task.samples=64",
    "task.heterogeneity=0.3", "task.start=zeros", "regularizer.strength=0.5", "hparams.client_lr=0.01",
    "hparams.clients_per_round=8", "hparams.batch_size=64", "hparams.local_epochs=30", "hparams.rounds=6",
    "record_clients=true",
)  # fmt: skip


def main() -> None:
    figure, axes = plt.subplots(1, 2, figsize=(9, 2.5), layout="constrained")
    with tempfile.TemporaryDirectory() as folder:
        for axis, algo in zip(axes, ("fedmid", "feddualavg"), strict=True):
            record = run(*SETTINGS, f"algo={algo}", f"output_dir={folder}")
            *clients, average = np.load(record.folder / "clients.npz")["weights"]
            draw(axis, algo, np.array(clients), average)
    figure.savefig(Path(__file__).parent / "images" / "curse.png", dpi=150)


def draw(axis: plt.Axes, algo: str, clients: np.ndarray, average: np.ndarray) -> None:
    """Draw a row of cells for the true model, every client and the average; empty cells are zeros."""
    style = algorithm_style(algo)
    truth = np.where(np.arange(FEATURES) < ONES, 1.0, 0.0)
    gap = np.full(FEATURES, np.nan)
    rows = np.array([truth, gap, *clients, gap, average])
    colors = LinearSegmentedColormap.from_list(algo, ["white", style.color])
    shades = np.where(rows == 0, 0.04, 0.35 + 0.65 * np.clip(np.abs(rows), 0, 1))
    cells = np.ma.masked_invalid(np.where(np.isnan(rows), np.nan, shades))
    axis.pcolormesh(cells, cmap=colors, vmin=0, vmax=1, edgecolors="white", linewidth=0.4)
    axis.invert_yaxis()
    axis.set_yticks([0.5, 5.5, CLIENTS + 3.5], ["true model", f"{CLIENTS} clients", "average"], fontsize=8)
    axis.tick_params(length=0)
    axis.set_xticks([])
    axis.spines[:].set_visible(False)
    counts = [np.count_nonzero(row) for row in clients]
    size = f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else str(min(counts))
    axis.set_title(f"{style.label}: clients have {size} weights, their average {np.count_nonzero(average)}", fontsize=9)


if __name__ == "__main__":
    main()
