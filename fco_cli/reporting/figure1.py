"""The paper's figure 1: centralized, local and federated training side by side, from finished records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from fco_cli.errors import UserError
from fco_cli.reporting.style import ALGORITHMS

if TYPE_CHECKING:
    from pandas import DataFrame

PANELS = {
    "validation_accuracy": "validation accuracy",
    "density": "density (share of non-zero weights)",
    "validation_objective": "validation regularised loss",
}


def side_by_side(records: dict[str, Path]) -> DataFrame:
    """The final metrics of the runs (name -> record folder), a row each, with quartiles where a run has them."""
    import pandas as pd

    rows = {}
    for name, record in records.items():
        path = record / "result.json"
        try:
            final = json.loads(path.read_text())["final"]
            rows[name] = {
                f"{metric}{suffix}": final.get(f"{metric}{suffix}", final[metric])
                for metric in PANELS
                for suffix in ("", "_q25", "_q75")
            }
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise UserError(f"{path}: not the result of a classification run: {problem!r}") from problem
    return pd.DataFrame.from_dict(rows, orient="index").astype(float)


def figure1(records: dict[str, Path], path: Path) -> Path:
    """Draw the runs as bars, the local baseline with its quartiles over the clients."""
    import matplotlib.pyplot as plt
    import numpy as np

    from fco_cli.reporting.figures import save

    table = side_by_side(records)
    figure, axes = plt.subplots(1, len(PANELS), figsize=(4 * len(PANELS), 3.6), layout="constrained")
    places = np.arange(len(table))
    colours = {style.label: style.colour for style in ALGORITHMS.values()}
    for axis, (metric, title) in zip(axes, PANELS.items(), strict=True):
        middle, low, high = (table[f"{metric}{suffix}"] for suffix in ("", "_q25", "_q75"))
        axis.bar(places, middle, color=[colours.get(name, "#4D4D4D") for name in table.index])
        spread = (high > low).to_numpy()
        reach = [(middle - low)[spread], (high - middle)[spread]]
        axis.errorbar(places[spread], middle[spread], yerr=reach, fmt="none", ecolor="black", capsize=4)
        for place, value, top in zip(places, middle, high, strict=True):
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
