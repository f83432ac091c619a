"""Figure 1 of the paper: final metrics of centralized, local and federated training side by side."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fco_cli.reporting import (
    GRAY,
    Cell,
    Choice,
    Figure,
    RecordedStudy,
    Spread,
    add_title,
    algorithm_style,
    describe_spread,
    drawable,
    figure_numbers,
    for_figure,
    new_figure,
    sentence,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing
    from pandas import DataFrame

ALGORITHMS_SHOWN = ("centralized", "local", "fedavg_subgrad", "fedmid", "feddualavg")
PANELS = {
    "validation_accuracy": "validation\naccuracy",
    "density": "density",
    "validation_objective": "validation\nloss + ψ",
}
CHANCE = 0.5  # accuracy of guessing between two classes
SIMILAR_ACCURACY = 0.02  # accuracies that differ by less are not ranked


CAPTION = "Final metrics of centralized, local and federated training, at the best learning rates."


def side_by_side_figure(study: RecordedStudy, choices: dict[str, Choice]) -> Figure | None:
    """Return figure 1 for a study of scans; None if fewer than two algorithms can be compared."""
    chosen = [choice.best.runs[0].folder for choice in choices.values() if choice.best]
    if not any((folder / "weights.nii.gz").exists() for folder in chosen):
        return None
    if (table := side_by_side(choices)) is None:
        return None
    numbers = figure_numbers(study)
    note = accuracy_note(choices)
    return Figure(
        f"{study.slug}_side_by_side",
        partial(draw_side_by_side, study, table),
        CAPTION + sentence(describe_spread(study)) + (f" {note}" if note else ""),
        table,
        "side_by_side",
        numbers[0] if len(numbers) > 1 else "",
        f"{study.heading}: side by side",
        before="curves",
    )


def side_by_side(choices: dict[str, Choice]) -> DataFrame | None:
    """Return a row per algorithm: final metrics with quartiles over clients or the range over seeds.

    Return None if fewer than two algorithms can be compared.
    """
    import pandas as pd

    rows = []
    for algo in ALGORITHMS_SHOWN:
        best = choices[algo].best if algo in choices else None
        if best is not None and all(best.has(metric) for metric in PANELS):
            row: dict[str, object] = {"algorithm": algo, "client_lr": best.client_lr, "server_lr": best.server_lr}
            for metric in PANELS:
                for name, value in _spread(best, metric)._asdict().items():
                    row[f"{metric}_{name}"] = drawable(np.array(value)).item()
            rows.append(row)
    return pd.DataFrame(rows) if len(rows) > 1 else None


def accuracy_note(choices: dict[str, Choice]) -> str:
    """Return a sentence if the federated algorithms are about equally accurate, unlike in the paper; else empty."""
    table = side_by_side({algo: choice for algo, choice in choices.items() if choice.federated})
    if table is None:
        return ""
    accuracy, density = (table[f"{metric}_median"] for metric in ("validation_accuracy", "density"))
    if not accuracy.max() - accuracy.min() < SIMILAR_ACCURACY:
        return ""
    return (
        f"The federated algorithms are about equally accurate ({accuracy.min():.3g} to {accuracy.max():.3g}); "
        f"they differ in density ({density.min():.2g} to {density.max():.2g})."
    )


def _spread(cell: Cell, metric: str) -> Spread:
    over_seeds = cell.final(metric, 1)
    quartiles = [cell.runs[0].final.get(f"{metric}_{q}") for q in ("q25", "q75")]
    if quartiles[0] is None or quartiles[1] is None:
        return over_seeds
    return Spread(over_seeds.median, quartiles[0], quartiles[1])  # over the clients' local models


@styled
def draw_side_by_side(study: RecordedStudy, table: DataFrame) -> Drawing:
    """Draw a panel per metric: a dot per algorithm with its interval and its value."""
    figure, axes = new_figure(0.85 + 0.24 * len(table), 1, len(PANELS), sharey=True)
    places = -np.arange(len(table))
    for axis, (metric, title) in zip(axes[0], PANELS.items(), strict=True):
        for place, row in zip(places, table.to_dict("records"), strict=True):
            style = algorithm_style(str(row["algorithm"]))
            middle, low, high = (float(row[f"{metric}_{name}"]) for name in Spread._fields)
            if not np.isfinite(middle):
                axis.annotate("not finite", (0.05, place), xycoords=("axes fraction", "data"), va="center", fontsize=6)
                continue
            axis.plot([low, high], [place, place], color=style.color, linewidth=1.0, marker="|", markersize=5)
            axis.plot([middle], [place], color=style.color, marker=style.marker, markersize=3.5)
            text = f"{middle:.3g}"
            axis.annotate(text, (middle, place), (0, 3.5), textcoords="offset points", ha="center", fontsize=6)
        axis.set_title(title, loc="center")
        axis.set_ylim(places[-1] - 0.5, 0.75)
        axis.margins(x=0.25)
        axis.grid(axis="x", alpha=0.25, linewidth=0.5)
        axis.tick_params(axis="y", length=0)
        axis.locator_params(axis="x", nbins=3)
    axes[0][0].set_yticks(places, [for_figure(algorithm_style(algo).label) for algo in table["algorithm"]])
    axes[0][0].axvline(CHANCE, color=GRAY, linewidth=0.8, linestyle=":")
    scans = "real scans" if study.runs[0].config["task"]["name"] == "fmri" else "simulated scans"
    local = "local: median and quartiles over clients" if "local" in set(table["algorithm"]) else ""
    add_title(
        figure,
        study,
        scans,
        local,
        f"others: {describe_spread(study)}" if describe_spread(study) else "",
        "dotted: chance",
    )
    return figure
