"""The paper's figure 1: centralized, local and federated training side by side, from final metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fco_cli.reporting.figures import LARGEST_DRAWN, save
from fco_cli.reporting.style import ALGORITHMS

if TYPE_CHECKING:
    from pandas import DataFrame

PANELS = {
    "validation_accuracy": "validation accuracy",
    "density": "density (share of non-zero weights)",
    "validation_objective": "validation regularized loss",
}

Final = Mapping[str, float | None]  # a run's final metrics


def can_compare(final: Final) -> bool:
    return all(metric in final for metric in PANELS)


def side_by_side(finals: Mapping[str, Final]) -> DataFrame:
    """The final metrics of the runs, by their names, a row each, with quartiles where a run has them."""
    import pandas as pd

    rows = {
        name: {
            f"{metric}{suffix}": final.get(f"{metric}{suffix}", final[metric])
            for metric in PANELS
            for suffix in ("", "_q25", "_q75")
        }
        for name, final in finals.items()
    }
    table = pd.DataFrame.from_dict(rows, orient="index").astype(float)
    return table.where(table.abs() < LARGEST_DRAWN)


def figure1(finals: Mapping[str, Final], path: Path) -> Path:
    """Draw the runs as bars, the local baseline with its quartiles over the clients."""
    import matplotlib.pyplot as plt
    import numpy as np

    table = side_by_side(finals)
    figure, axes = plt.subplots(1, len(PANELS), figsize=(4 * len(PANELS), 3.6), layout="constrained")
    places = np.arange(len(table))
    colours = {style.label: style.colour for style in ALGORITHMS.values()}
    for axis, (metric, title) in zip(axes, PANELS.items(), strict=True):
        middle, low, high = (table[f"{metric}{suffix}"] for suffix in ("", "_q25", "_q75"))
        axis.bar(places, middle, color=[colours.get(name, "#4D4D4D") for name in table.index])
        spread = (high > low).to_numpy()
        reach = [(middle - low)[spread].clip(lower=0), (high - middle)[spread].clip(lower=0)]
        axis.errorbar(places[spread], middle[spread], yerr=reach, fmt="none", ecolor="black", capsize=4)
        for place, value, top in zip(places, middle, high.fillna(middle), strict=True):
            if np.isfinite(value):
                axis.annotate(f"{value:.3g}", (place, top), (0, 3), textcoords="offset points", ha="center", fontsize=8)
            else:
                axis.annotate("not finite", (place, 0), (0, 3), textcoords="offset points", ha="center", fontsize=8)
        axis.set_title(title, fontsize=10)
        axis.set_xticks(places, table.index, rotation=30, ha="right")
        axis.margins(y=0.12)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].axhline(0.5, color="grey", linewidth=0.8, linestyle=":")  # chance
    path.parent.mkdir(parents=True, exist_ok=True)
    png, _pdf = save(figure, path.with_suffix(""))
    plt.close(figure)
    return png
