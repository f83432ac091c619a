"""The figures of all learning rates that were tried: a heat map of the scores, and how robust an algorithm is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fco_cli.reporting.figures import LARGEST_DRAWN, SMALLEST_DRAWN, drawable, new_figure, styled
from fco_cli.reporting.records import RecordedRun
from fco_cli.reporting.select import Cell, Choice, robust_pairs
from fco_cli.reporting.studies import Study
from fco_cli.reporting.style import algorithm_style, metric_style
from fco_cli.reporting.text import for_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_RATES = 40  # in a direction of the heat maps: more are no grid, and no page is tall enough
ROBUSTNESS_ROUNDS = (10, 30, 100, 300)
ROBUSTNESS_METRICS = ("validation_accuracy", "f1")  # against density; the first that the records have


@styled
def draw_heat_maps(study: Study, choices: dict[str, Choice]) -> Figure | None:
    """The score of every learning-rate pair; diverged pairs are hatched, the chosen one is framed."""
    from matplotlib.colors import LogNorm, Normalize

    grids = {algo: choice for algo, choice in choices.items() if choice.federated and len(choice.cells) > 1}
    if not grids:
        return None
    cells = [cell for choice in grids.values() for cell in choice.cells]
    scores = np.array([cell.score for cell in cells if np.abs(cell.score) < LARGEST_DRAWN])
    client_rates = sorted({cell.client_lr or 0.0 for cell in cells})
    server_rates = sorted({cell.server_lr or 0.0 for cell in cells})
    if max(len(client_rates), len(server_rates)) > MOST_RATES:
        return None
    figure, axes = new_figure(1.0 + 0.23 * max(4, len(client_rates)), len(grids), sharey=True)
    low, high = (scores.min(), scores.max()) if len(scores) else (0.0, 1.0)
    log = low > SMALLEST_DRAWN and high > 20 * low
    norm = LogNorm(low, high) if log else Normalize(low, high if high > low else low + 1)
    colours = "viridis" if study.rule.mode == "max" else "viridis_r"  # bright is good
    for axis, (algo, choice) in zip(axes, grids.items(), strict=True):
        grid = np.full((len(client_rates), len(server_rates)), np.nan)
        for cell in _best_of_each_pair(choice, study.rule.mode):
            place = client_rates.index(cell.client_lr or 0.0), server_rates.index(cell.server_lr or 0.0)
            grid[place] = drawable(np.array(cell.score))
            _mark_cell(axis, cell, place, norm, bright_is_high=study.rule.mode == "max", best=cell is choice.best)
        image = axis.imshow(grid, norm=norm, cmap=colours, origin="lower", aspect="auto")
        axis.set_xticks(range(len(server_rates)), [f"{rate:g}" for rate in server_rates], rotation=60)
        axis.set_yticks(range(len(client_rates)), [f"{rate:g}" for rate in client_rates])
        axis.set_title(f"{algorithm_style(algo).label}\n{choice.diverged} of {len(choice.cells)} diverged", fontsize=7)
        axis.set_xlabel("server learning rate")
        for side in range(1, len(server_rates)):
            axis.axvline(side - 0.5, color="white", linewidth=0.8)
        for side in range(1, len(client_rates)):
            axis.axhline(side - 0.5, color="white", linewidth=0.8)
        axis.spines[:].set_visible(True)
    axes[0].set_ylabel("client learning rate")
    figure.colorbar(image, ax=axes, fraction=0.03, pad=0.01)
    figure.suptitle(for_figure(f"{study.heading}: {study.rule}"))
    return figure


def _best_of_each_pair(choice: Choice, mode: str) -> list[Cell]:
    """A pair of learning rates may have been tried with several options of the algorithm; the chosen ones go first."""

    def goodness(cell: Cell) -> tuple[bool, float]:
        score = cell.score if mode == "max" else -cell.score
        return (cell is choice.best, score if np.isfinite(score) else -np.inf)

    pairs: dict[tuple[float | None, float | None], Cell] = {}
    for cell in sorted(choice.cells, key=goodness):
        pairs[cell.client_lr, cell.server_lr] = cell
    return list(pairs.values())


def _mark_cell(axis: Axes, cell: Cell, place: tuple[int, int], norm: Any, bright_is_high: bool, best: bool) -> None:
    from matplotlib.patches import Rectangle

    row, column = place
    corner = (column - 0.5, row - 0.5)
    if cell.diverged:
        axis.add_patch(Rectangle(corner, 1, 1, facecolor="#EEEEEE", edgecolor="#999999", hatch="/////", linewidth=0))
    elif np.abs(cell.score) < LARGEST_DRAWN:
        brightness = float(norm(cell.score)) if bright_is_high else 1 - float(norm(cell.score))
        colour = "black" if brightness > 0.55 else "white"
        axis.text(column, row, short(cell.score), ha="center", va="center", fontsize=4.5, color=colour)
    if best:
        axis.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="#D55E00", linewidth=1.8, zorder=3))


def short(value: float) -> str:
    """Three characters or so, for a small cell."""
    if 0.095 <= value < 0.9995:
        return f"{value:.{2 if value < 0.995 else 3}f}".lstrip("0")
    if 0.00095 <= value < 0.095:
        return f"{value:.2g}".lstrip("0")
    return f"{value:.2g}" if abs(value) < 100 else f"{value:.0f}" if abs(value) < 10_000 else f"{value:.0e}"


# Robustness to the learning rates.


@styled
def draw_robustness(study: Study, choices: dict[str, Choice]) -> Figure | None:
    """Quality against density after 10, 30, 100 and 300 rounds (evaluated ones), a dot for every learning-rate pair."""
    known = study.runs[0].curves
    quality = next((metric for metric in ROBUSTNESS_METRICS if metric in known), None)
    grids = {
        algo: robust_pairs(choice) for algo, choice in choices.items() if choice.federated and len(choice.cells) > 1
    }
    if quality is None or "density" not in known or not any(grids.values()):
        return None
    evaluated = max((run.curves["round"] for run in study.runs), key=len)
    first_at = np.searchsorted(evaluated, np.maximum(1, np.multiply(ROBUSTNESS_ROUNDS, study.scale)))
    rounds = np.unique(evaluated[np.minimum(first_at, len(evaluated) - 1)]).astype(int).tolist()
    runs = sum(len(cell.runs) for cells in grids.values() for cell in cells)
    figure, axes = new_figure(2.4, len(rounds), sharey=True, sharex=True)
    for axis, at in zip(axes, rounds, strict=True):
        gone = 0
        for algo, cells in grids.items():
            style = algorithm_style(algo)
            dots = [dot for cell in cells for run in cell.runs if (dot := _standing(run, at, quality)) is not None]
            gone += sum(len(cell.runs) for cell in cells) - len(dots)
            axis.scatter(
                [density for density, _ in dots], [value for _, value in dots],
                s=14, color=style.colour, marker=style.marker, alpha=0.75, linewidths=0, label=style.label,
            )  # fmt: skip
        axis.set_title(f"round {at}" + (f", {gone} of {runs} diverged" if gone else ""), fontsize=7)
        axis.set_xlabel("density")
        axis.set_xlim(-0.03, 1.03)
        axis.grid(alpha=0.25, linewidth=0.5)
    axes[0].set_ylabel(metric_style(quality).label)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    pairs = max(len(cells) for cells in grids.values())
    figure.suptitle(for_figure(f"{study.heading}: {pairs} learning-rate pairs"))
    return figure


def _standing(run: RecordedRun, at: int, quality: str) -> tuple[float, float] | None:
    """Where a run stands in the plane after a round; None once it has diverged. After its end a run stands still."""
    if not {"density", quality} <= run.curves.keys():
        return None
    i = np.searchsorted(run.curves["round"], at, side="right") - 1
    ended = run.diverged and run.curves["round"][-1] < at
    density, value = drawable(np.array([run.curves["density"][i], run.curves[quality][i]]))
    return None if ended or run.exploded[i] else (density, value)
