"""Plots of coefficients: with intervals for experiment=glm, without for the selected models of a path."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np

from fco_cli.reporting.coefficients import RATIOS
from fco_cli.reporting.figures.drawing import mark_cut, new_figure, ratio_ticks, styled
from fco_cli.reporting.records.paths import CHOICES, RecordedPath
from fco_cli.reporting.style import GRAY, PALETTE
from fco_cli.reporting.text import for_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

LARGEST = 40  # coefficients
WIDEST = 8.0  # reach of the axis, relative to the median half interval and the median estimate


def coefficients_png(result: dict[str, Any]) -> bytes:
    """Return the plot of the coefficients of experiment=glm as a PNG file."""
    content = io.BytesIO()
    coefficients_figure(result).savefig(content, format="png", dpi=200)
    return content.getvalue()


def coefficient_numbers(result: dict[str, Any]) -> DataFrame:
    """Return the drawn coefficients: per unit of the plot, without intercepts, those with the largest statistics."""
    import pandas as pd

    lines = [line for line in result["coefficients"] if not line["coefficient"].endswith("(Intercept)")]
    order = sorted(range(len(lines)), key=lambda k: -abs(lines[k]["statistic"] or 0))
    kept = sorted(order[:LARGEST])
    rows = []
    for line in (lines[k] for k in kept):
        unit = result.get("units", {}).get(line["coefficient"])
        values = [np.nan if line[key] is None else line[key] * (unit or 1.0) for key in ("estimate", "low", "high")]
        rows.append([line["coefficient"], unit, *values])
    return pd.DataFrame(rows, columns=["coefficient", "unit", "estimate", "low", "high"])


@styled
def coefficients_figure(result: dict[str, Any]) -> Figure:
    """Return the plot of coefficients with their intervals; ratios have a logarithmic axis."""
    numbers, ratio = coefficient_numbers(result), RATIOS.get(result["loss"])
    figure, ((axis,),) = new_figure(0.8 + 0.16 * max(len(numbers), 3), 1, 1)
    estimate, low, high = (numbers[name].to_numpy(float) for name in ("estimate", "low", "high"))
    places = np.arange(len(numbers))[::-1]
    reach = _reach(estimate, low, high)
    axis.hlines(places, np.clip(low, -reach, reach), np.clip(high, -reach, reach), color=PALETTE[0], linewidth=1)
    inside = np.abs(estimate) <= reach
    axis.plot(estimate[inside], places[inside], "o", color=PALETTE[0], markersize=3.5)
    for is_cut, end, marker in ((low < -reach, -reach, "<"), (high > reach, reach, ">")):
        mark_cut(axis, end, places[is_cut], marker, color=PALETTE[0], markersize=4)
    axis.axvline(0, color=GRAY, linewidth=0.7, zorder=0)
    axis.set_xlim(-reach, reach)
    axis.set_ylim(-0.7, len(numbers) - 0.3)
    names = [
        f"{name} (per {unit:.3g})" if unit == unit else str(name)
        for name, unit in zip(numbers["coefficient"], numbers["unit"].to_numpy(float), strict=True)
    ]
    axis.set_yticks(places, [for_figure(name[:44]) for name in names], fontsize=6)
    if ratio is None:
        axis.set_xlabel(f"coefficient, {100 * result['level']:g} % interval")
    else:
        ratio_ticks(axis, -reach, reach)
        axis.set_xlabel(f"{ratio}, {100 * result['level']:g} % interval")
    return figure


def _reach(estimate: np.ndarray, low: np.ndarray, high: np.ndarray) -> float:
    """Return half the width of the axis: all intervals, unless a few are very wide."""
    ends = np.abs(np.concatenate([low, high]))
    ends, middle = ends[np.isfinite(ends)], np.abs(estimate[np.isfinite(estimate)])
    if not len(ends) or not ends.max() > 0:
        return 1.0
    typical = max(float(np.median(ends)), float(middle.max(initial=0)) / WIDEST * 1.2)
    return 1.05 * min(float(ends.max()), WIDEST * typical)


def model_numbers(path: RecordedPath) -> DataFrame:
    """Return the weights of the selected models by feature, for prepared features."""
    import pandas as pd

    columns = {
        choice: model.groupby(_labels(model), sort=False)["weight"].first() for choice, model in path.models.items()
    }
    table = pd.DataFrame(columns).fillna(0.0)
    order = table.abs().max(axis=1).sort_values(ascending=False, kind="stable").index
    return table.loc[order].head(LARGEST).rename_axis("feature").reset_index()


def _labels(model: DataFrame) -> list[str]:
    """Return names of the weights, with the class if there are several."""
    names = model["feature"].astype(str)
    is_weight = names != "(intercept)"
    if "class" in model:
        names = names + ", " + model["class"].astype(str)
    return names.where(is_weight).tolist()


@styled
def draw_models(path: RecordedPath) -> Figure:
    """Draw the weights of the selected models; selected weights have no intervals."""
    numbers = model_numbers(path)
    figure, ((axis,),) = new_figure(0.9 + 0.16 * max(len(numbers), 3), 1, 1)
    places = np.arange(len(numbers))[::-1]
    for choice, color, marker, shift in zip(CHOICES, PALETTE, "os", (0.12, -0.12), strict=False):
        if choice in numbers:
            weights = numbers[choice].to_numpy()
            used = weights != 0
            axis.hlines(places[used] + shift, 0, weights[used], color=color, linewidth=0.8)
            axis.plot(weights[used], places[used] + shift, marker, color=color, markersize=3, label=choice)
    axis.axvline(0, color=GRAY, linewidth=0.7, zorder=0)
    axis.set_ylim(-0.7, len(numbers) - 0.3)
    axis.set_yticks(places, [for_figure(str(name)[:44]) for name in numbers["feature"]], fontsize=6)
    axis.set_xlabel("weight of the prepared feature")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure
