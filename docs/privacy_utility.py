"""Draw docs/images/privacy_utility.png: held-out performance at epsilon 1, 2, 4 and 8 for one row, on real tables.

    python docs/privacy_utility.py DATA [OUTPUT]

DATA is a folder with heart_disease, communities_crime and eicu_demo (docs/data.md); the digits are scikit-learn's.
Records go to OUTPUT (outputs/privacy_utility) and are reused.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from fco_cli.algorithms.transforms.row_accounting import RowSums, noise_for_epsilon, row_epsilon
from fco_cli.api import load, sweep

EPSILONS, DELTA, SEEDS = (1, 2, 4, 8), 1e-5, "0,1,2,3,4"
STYLES = {"fedmid": ("noisy gradients (fedmid)", "#D55E00", "o"), "moments": ("one release (moments)", "#0072B2", "s")}


@dataclass(frozen=True)
class Table:
    """A table, its folder, the metric of the figure, and settings that do not depend on epsilon."""

    task: str
    folder: str | None
    metric: str
    label: str
    client_lr: float
    row_norm: float  # clip_norm of moments, about the norm of a standardized row; 0: the loss has no moments
    rounds: int = 30


TABLES = (
    Table("heart", "heart_disease", "validation_accuracy", "accuracy", 0.5, 5.0),
    Table("eicu", "eicu_demo", "validation_auc", "AUC", 0.5, 6.5),
    Table("crime", "communities_crime", "validation_r2", "R²", 0.1, 11.0, 20),
    Table("digits", None, "validation_accuracy", "accuracy", 1.0, 0.0),
)


def noise_of(algo: str, table: Table, epsilon: float) -> float:
    """Return the noise multiplier that spends epsilon: every row is in each of the sums that its client releases."""
    sums, change = (table.rounds, 1.0) if algo == "fedmid" else (1, np.sqrt(0.5))
    return noise_for_epsilon(epsilon, lambda noise: row_epsilon((RowSums(sums, 1.0, noise / change),), DELTA))


def run_table(table: Table, data: Path, output: Path) -> pd.DataFrame:
    """Return the final metrics of all runs on one table."""
    folder = output / table.task
    common = [f"task={table.task}", "regularizer=l2_squared", "regularizer.strength=0.01", f"output_dir={folder}"]
    common += ["hparams.weighting=examples", "hparams.clients_per_round=all", f"seed={SEEDS}"]
    common += [f"task.data_dir={data / table.folder}"] if table.folder else []
    steps = ["hparams.batch_size=1000", f"hparams.rounds={table.rounds}", f"hparams.eval_every={table.rounds}"]
    steps += [f"hparams.client_lr={table.client_lr}", "hparams.server_lr=1", "hparams.local_epochs=1"]
    sweep(*common, "algo=optimum")
    for algo, clip_norm in (("fedmid", 1.0), ("moments", table.row_norm)):
        if clip_norm:
            noise = ",".join(f"{noise_of(algo, table, epsilon):.6g}" for epsilon in EPSILONS)
            private = ["transform=row_clip_noise", f"transform.clip_norm={clip_norm}"]
            sweep(*common, *steps, f"algo={algo}", *private, f"transform.noise_multiplier={noise}")
    return load(folder)


def draw(axes: plt.Axes, table: Table, runs: pd.DataFrame) -> None:
    """Draw the median and the range over seeds by epsilon, and the optimum without privacy."""
    optimum = runs[runs.algo == "optimum"][table.metric]
    axes.axhline(optimum.median(), color="black", linestyle=(0, (4, 2)), label="without privacy (optimum)")
    for algo, (label, color, marker) in STYLES.items():
        own = runs[runs.algo == algo]
        if own.empty:
            continue
        assert (own.epsilon.between(0.98 * own.epsilon.round(), own.epsilon.round())).all()
        by_epsilon = own.groupby(own.epsilon.round())[table.metric]
        median = by_epsilon.median()
        axes.plot(median.index, median, color=color, marker=marker, label=label)
        axes.fill_between(median.index, by_epsilon.min(), by_epsilon.max(), color=color, alpha=0.2, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(EPSILONS, [str(epsilon) for epsilon in EPSILONS])
    axes.set_title(table.task)
    axes.set_xlabel("ε for one row, δ = 1e-5")
    axes.set_ylabel(f"held-out {table.label}")


def main() -> None:
    data, output = Path(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else "outputs/privacy_utility")
    figure, panels = plt.subplots(1, len(TABLES), figsize=(13, 3.4), layout="constrained")
    for axes, table in zip(panels, TABLES, strict=True):
        runs = run_table(table, data, output)
        draw(axes, table, runs)
        print(table.task)
        print(runs.groupby(["algo", runs.epsilon.round()], dropna=False)[table.metric].median().to_string())
    panels[2].set_ylim(bottom=-2)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(Path(__file__).with_name("images") / "privacy_utility.png", dpi=110)


if __name__ == "__main__":
    main()
