"""Robustness to learning rates (figure 12): quality against density of all runs after given rounds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fco_cli.reporting import (
    DARK_GRAY,
    Cell,
    Choice,
    Evidence,
    Figure,
    Finding,
    Level,
    NotRun,
    RecordedRun,
    RecordedStudy,
    add_title,
    algorithm_style,
    capitalized,
    drawable,
    figure_numbers,
    for_figure,
    label,
    metric_label,
    metric_style,
    needs_whole_grid,
    new_figure,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing
    from pandas import DataFrame

RANGE = (0.003, 0.3)  # of client_lr * server_lr
ROUNDS = (10, 30, 100, 300)
QUALITIES = ("validation_accuracy", "f1")  # drawn against density; the first one recorded is used
MIN_PAIRS = 5  # pairs of an algorithm that must not have diverged for the figure to be drawn


CAPTION = (
    "{quality} against density after given rounds, one dot per pair of learning rates whose product is "
    "in [{low:g}, {high:g}]. The upper left is best: accurate and sparse."
)


def pairs_in_range(choice: Choice) -> list[Cell]:
    """Return the cells with client_lr * server_lr in the paper's range, ends included up to rounding."""
    low, high = RANGE
    kept = []
    for cell in choice.cells:
        product = (cell.client_lr or 0.0) * (cell.server_lr or 0.0)
        if low <= product <= high or np.isclose(product, low) or np.isclose(product, high):
            kept.append(cell)
    return kept


def robustness_figure(study: RecordedStudy, points: RobustnessPoints) -> Figure:
    """Return figure 12."""
    numbers, (low, high) = figure_numbers(study), RANGE
    return Figure(
        f"{study.slug}_robustness",
        partial(draw_robustness, study, points),
        CAPTION.format(quality=capitalized(metric_style(points.quality).label), low=low, high=high),
        points.table,
        "robustness",
        numbers[2] if len(numbers) > 2 else "",
        f"{study.heading}: robustness",
        before="brain_slices",
    )


@dataclass(frozen=True)
class RobustnessPoints:
    """Density and quality of the pairs in the paper's range of learning rates, by algorithm and round."""

    quality: str
    rounds: list[int]
    pairs: int  # largest number of pairs of an algorithm
    table: DataFrame  # algorithm, round, client_lr, server_lr, density, quality; NaN after divergence


def robustness_points(study: RecordedStudy, choices: dict[str, Choice]) -> RobustnessPoints | None:
    """Return the points of a study; None if it has no grid, no density or no quality metric."""
    import pandas as pd

    known = study.runs[0].curves
    quality = next((metric for metric in QUALITIES if metric in known), None)
    grids = {
        algo: pairs_in_range(choice) for algo, choice in choices.items() if choice.federated and len(choice.cells) > 1
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
    """Return the medians of density and quality over the seeds; NaN if one of them has diverged."""
    points = np.array([_point_of_run(run, at, quality) for run in cell.runs])
    density, value = np.median(points, axis=0)  # NaN if one is NaN
    return float(density), float(value)


def _point_of_run(run: RecordedRun, at: int, quality: str) -> tuple[float, float]:
    """Return a run's density and quality at a round, or at its last one before; NaN if it has diverged."""
    i = np.searchsorted(run.curves["round"], at, side="right") - 1
    ended = run.diverged and run.curves["round"][-1] < at
    if ended or run.exploded[i] or not {"density", quality} <= run.curves.keys():
        return np.nan, np.nan
    density, value = drawable(np.array([run.curves["density"][i], run.curves[quality][i]]))
    return float(density), float(value)


def reason_not_drawn(points: RobustnessPoints) -> str | None:
    """Return a sentence to show instead of the figure if too many pairs diverged; None if it can be drawn."""
    alive = points.table[points.table["round"] == points.rounds[-1]].dropna().groupby("algorithm").size()
    most = int(alive.max()) if len(alive) else 0
    if most >= MIN_PAIRS:
        return None
    return (
        f"No robustness figure: of {points.pairs} pairs in the paper's range of learning rates, at most {most} of any "
        "algorithm have not diverged."
    )


@styled
def draw_robustness(study: RecordedStudy, points: RobustnessPoints) -> Drawing:
    """Draw a row per algorithm, a column per round and a dot per learning-rate pair."""
    algorithms = list(points.table["algorithm"].unique())
    figure, axes = new_figure(
        0.6 + 0.82 * len(algorithms), len(algorithms), len(points.rounds), sharex=True, sharey=True
    )
    for row, algo in zip(axes, algorithms, strict=True):
        style = algorithm_style(algo)
        for axis, at in zip(row, points.rounds, strict=True):
            rows = points.table[(points.table["algorithm"] == algo) & (points.table["round"] == at)]
            dots = rows.dropna()
            axis.scatter(
                dots["density"], dots[points.quality], s=9, color=style.color, marker=style.marker, alpha=0.7,
                linewidths=0, clip_on=False,
            )  # fmt: skip
            if diverged := len(rows) - len(dots):
                text = f"{diverged} diverged"
                axis.text(0.97, 0.04, text, transform=axis.transAxes, ha="right", fontsize=6, color=DARK_GRAY)
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
    add_title(figure, study, f"a dot is one of {points.pairs} learning-rate pairs")
    return figure


# Tests of the claims about robustness.


Levels = dict[str, dict[str, float]]


@needs_whole_grid
def most_pairs(evidence: Evidence, algos: list[str], levels: Levels) -> Finding:
    """Test that more than half of each algorithm's pairs end with every metric at its levels."""
    shares = {algo: _share(evidence, algo, levels) for algo in algos}
    measured: dict[str, float | str] = {label(algo): share for algo, share in shares.items()}
    return Finding(min(shares.values()) > 0.5, f"most pairs end with {_describe_levels(levels)}", measured)


@needs_whole_grid
def most_robust(evidence: Evidence, algo: str, than: list[str], levels: Levels) -> Finding:
    """Test that the algorithm has the largest share of pairs that end with every metric at its levels."""
    shares = {name: _share(evidence, name, levels) for name in (algo, *than)}
    measured: dict[str, float | str] = {label(name): share for name, share in shares.items()}
    holds = all(shares[algo] > shares[other] for other in than)
    return Finding(holds, f"{label(algo)} has the largest share of pairs with {_describe_levels(levels)}", measured)


def _share(evidence: Evidence, algo: str, levels: Levels) -> float:
    evidence.best(algo)
    choice = evidence.own_grid(algo)
    pairs = pairs_in_range(choice)
    if not pairs:
        raise NotRun(f"no pairs of {algo} in the range of the robustness figure")
    conditions = [(metric, Level(**{key: value})) for metric, level in levels.items() for key, value in level.items()]
    # A diverged pair has NaN, for which no level holds
    reached = [
        all(level.holds(cell.mean(metric, evidence.rule.last)) for metric, level in conditions) for cell in pairs
    ]
    return float(np.mean(reached))


def _describe_levels(levels: Levels) -> str:
    parts = [f"{metric_label(metric)} {Level(**{k: v})}" for metric, level in levels.items() for k, v in level.items()]
    return " and ".join(parts)
