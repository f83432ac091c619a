"""Draw docs/images/privacy_utility.png: held-out performance at epsilon 1, 2, 4 and 8 for one row, on real tables.

    python docs/privacy_utility.py DATA [OUTPUT]

DATA is a folder with heart_disease, communities_crime and eicu_demo (docs/data.md); the digits are scikit-learn's.
Records go to OUTPUT (outputs/privacy_utility) and are reused.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from fco_cli.algorithms.transforms.row_accounting import RowSums, noise_for_epsilon, row_epsilon
from fco_cli.api import load, sweep

EPSILONS, DELTA, SEEDS = (1, 2, 4, 8), 1e-5, "0,1,2,3,4"
STYLES = {  # by algorithm, and whether the clients share the noise
    ("fista", True): ("noisy gradients (fista), shared noise", "#D55E00", "o"),
    ("fista", False): ("noisy gradients (fista), noise of every client", "#E69F00", "v"),
    ("moments", True): ("one release (moments), shared noise", "#0072B2", "s"),
}


@dataclass(frozen=True)
class Table:
    """A table, its folder, the metric of the figure, and settings that do not depend on epsilon."""

    task: str
    folder: str | None
    metric: str
    label: str
    clients: int
    rounds: int
    client_lr: float
    clip_norm: float
    row_norm: float  # clip_norm of moments, about the norm of a prepared row; 0: the loss has no moments
    preparation: tuple[str, ...] = ()  # ranges that are known without the rows

    @property
    def shares(self) -> int:
        """Clients that share the noise: a third of them may be missing, or disclose their noise."""
        return math.ceil(2 * self.clients / 3)


TABLES = (
    Table("heart", "heart_disease", "validation_accuracy", "accuracy", 4, 10, 1.0, 0.5, 5.0),
    Table("eicu", "eicu_demo", "validation_auc", "AUC", 157, 20, 0.5, 0.5, 6.5),
    Table(
        "crime", "communities_crime", "validation_r2", "R²", 35, 30, 0.02, 2.0, 6.0, ("task.ranges={default:[0,1]}",)
    ),
    Table("digits", None, "validation_accuracy", "accuracy", 20, 20, 1.0, 1.0, 0.0),
)


def noise_of(algo: str, table: Table, epsilon: float) -> float:
    """Return the noise multiplier that spends epsilon: every row is in each of the sums that its client releases."""
    sums, change = (table.rounds, 1.0) if algo == "fista" else (1, np.sqrt(0.5))
    return noise_for_epsilon(epsilon, lambda noise: row_epsilon((RowSums(sums, 1.0, noise / change),), DELTA))


def run_table(table: Table, data: Path, output: Path) -> pd.DataFrame:
    """Return the final metrics of all runs on one table."""
    folder = output / table.task
    common = [f"task={table.task}", "regularizer=l2_squared", "regularizer.strength=0.01", f"output_dir={folder}"]
    common += ["hparams.weighting=examples", "hparams.clients_per_round=all", f"seed={SEEDS}"]
    common += [f"task.data_dir={data / table.folder}"] if table.folder else []
    common += table.preparation
    steps = [
        f"hparams.rounds={table.rounds}",
        f"hparams.eval_every={table.rounds}",
        f"hparams.client_lr={table.client_lr}",
    ]
    sweep(*common, "algo=optimum")
    for (algo, is_shared), clip_norm in zip(STYLES, (table.clip_norm, table.clip_norm, table.row_norm), strict=True):
        if clip_norm:
            noise = ",".join(f"{noise_of(algo, table, epsilon):.6g}" for epsilon in EPSILONS)
            private = ["transform=row_clip_noise", f"transform.clip_norm={clip_norm}"]
            private += [f"transform.noise_shares={table.shares if is_shared else 1}"]
            sweep(*common, *steps, f"algo={algo}", *private, f"transform.noise_multiplier={noise}")
    runs = load(folder)
    return runs.assign(is_shared=runs["transform.noise_shares"] > 1)


def draw(axes: plt.Axes, table: Table, runs: pd.DataFrame) -> None:
    """Draw the median and the range over seeds by epsilon, and the optimum without privacy."""
    optimum = runs[runs.algo == "optimum"][table.metric]
    axes.axhline(optimum.median(), color="black", linestyle=(0, (4, 2)), label="without privacy (optimum)")
    for (algo, is_shared), (label, color, marker) in STYLES.items():
        own = runs[(runs.algo == algo) & (runs.is_shared == is_shared)]
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
        by_epsilon = runs.groupby(["algo", "is_shared", runs.epsilon.round()], dropna=False)
        print(by_epsilon[table.metric].median().to_string())
    panels[2].set_ylim(bottom=-1)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(Path(__file__).with_name("images") / "privacy_utility.png", dpi=110)


if __name__ == "__main__":
    main()
