"""How robust an algorithm is to its learning rates: where all of its runs stand after some rounds (figure 12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fco_cli.reporting.figures import add_title, drawable, new_figure, styled
from fco_cli.reporting.records import RecordedRun
from fco_cli.reporting.select import Cell, Choice, pairs_in_paper_range
from fco_cli.reporting.studies import Study
from fco_cli.reporting.style import algorithm_style, metric_style
from fco_cli.reporting.text import for_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

ROUNDS = (10, 30, 100, 300)
QUALITIES = ("validation_accuracy", "f1")  # against density; the first that the records have
FEWEST = 5  # pairs that must survive for their dots to say anything


@dataclass(frozen=True)
class RobustnessPoints:
    """Where the runs of the paper's range of rates stand: a row per algorithm, round and pair."""

    quality: str
    rounds: list[int]
    pairs: int  # of the algorithm that has most
    table: DataFrame  # algorithm, round, client_lr, server_lr, density, quality; NaN once a pair has diverged


def robustness_points(study: Study, choices: dict[str, Choice]) -> RobustnessPoints | None:
    """None where there is no grid, or no quality to draw against density."""
    import pandas as pd

    known = study.runs[0].curves
    quality = next((metric for metric in QUALITIES if metric in known), None)
    grids = {
        algo: pairs_in_paper_range(choice)
        for algo, choice in choices.items()
        if choice.federated and len(choice.cells) > 1
    }
    if quality is None or "density" not in known or not any(grids.values()):
        return None
    evaluated = max((run.curves["round"] for run in study.runs), key=len)
    first_at = np.searchsorted(evaluated, np.maximum(1, np.multiply(ROUNDS, study.scale)))
    rounds = np.unique(evaluated[np.minimum(first_at, len(evaluated) - 1)]).astype(int).tolist()
    rows = [
        (algo, at, cell.client_lr, cell.server_lr, *_median_point(cell, at, quality))
        for algo, cells in grids.items()
        for cell in cells
        for at in rounds
    ]
    names = ["algorithm", "round", "client_lr", "server_lr", "density", quality]
    return RobustnessPoints(quality, rounds, max(map(len, grids.values())), pd.DataFrame(rows, columns=names))


def _median_point(cell: Cell, at: int, quality: str) -> tuple[float, float]:
    """The median over the seeds; not a number as soon as one of them has diverged."""
    places = np.array([_point_of_run(run, at, quality) for run in cell.runs])
    density, value = np.median(places, axis=0)  # NaN if one is
    return float(density), float(value)


def _point_of_run(run: RecordedRun, at: int, quality: str) -> tuple[float, float]:
    """Where a run stands in the plane after a round, unless it has diverged. After its end a run stands still."""
    i = np.searchsorted(run.curves["round"], at, side="right") - 1
    ended = run.diverged and run.curves["round"][-1] < at
    if ended or run.exploded[i] or not {"density", quality} <= run.curves.keys():
        return np.nan, np.nan
    density, value = drawable(np.array([run.curves["density"][i], run.curves[quality][i]]))
    return float(density), float(value)


def reason_not_drawn(points: RobustnessPoints) -> str | None:
    """A sentence in the place of the figure where too few pairs survive; None if it can be drawn."""
    alive = points.table[points.table["round"] == points.rounds[-1]].dropna().groupby("algorithm").size()
    most = int(alive.max()) if len(alive) else 0
    if most >= FEWEST:
        return None
    return (
        f"No figure of robustness: of {points.pairs} pairs in the paper's range of learning rates no algorithm has more "
        f"than {most} that have not diverged."
    )


@styled
def draw_robustness(study: Study, points: RobustnessPoints) -> Figure:
    """A row per algorithm, a column per round, a dot for every learning-rate pair."""
    algorithms = list(points.table["algorithm"].unique())
    figure, axes = new_figure(
        0.6 + 0.82 * len(algorithms), len(algorithms), len(points.rounds), sharex=True, sharey=True
    )
    for row, algo in zip(axes, algorithms, strict=True):
        style = algorithm_style(algo)
        for axis, at in zip(row, points.rounds, strict=True):
            mine = points.table[(points.table["algorithm"] == algo) & (points.table["round"] == at)]
            dots = mine.dropna()
            axis.scatter(
                dots["density"], dots[points.quality], s=9, color=style.color, marker=style.marker, alpha=0.7,
                linewidths=0, clip_on=False,
            )  # fmt: skip
            if gone := len(mine) - len(dots):
                axis.text(0.97, 0.04, f"{gone} gone", transform=axis.transAxes, ha="right", fontsize=6, color="#666666")
            axis.grid(alpha=0.25, linewidth=0.5)
        row[-1].annotate(
            for_figure(style.label), (1.08, 0.5), xycoords="axes fraction", rotation=270, va="center", fontsize=7,
            in_layout=False,
        )  # fmt: skip
    for axis, at in zip(axes[0], points.rounds, strict=True):
        axis.set_title(f"round {at}", loc="center")
        axis.set_xlim(-0.03, 1.03)
        axis.set_xticks([0, 0.5, 1], ["0", ".5", "1"])
    figure.supxlabel("density", fontsize=8)
    figure.supylabel(metric_style(points.quality).label, fontsize=8)
    figure.get_layout_engine().set(rect=(0, 0, 0.95, 1))  # type: ignore[union-attr, call-arg]  # for the names
    lost = "; gone: diverged" if points.table["density"].isna().any() else ""
    add_title(figure, study, f"a dot is one of {points.pairs} learning-rate pairs{lost}")
    return figure
