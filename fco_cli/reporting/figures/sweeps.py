"""Figures of sweeps: heat maps of all learning-rate pairs, and lines against another setting such as the strength."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fco_cli.reporting.figures.drawing import (
    LINE_HEIGHT,
    MAX_DRAWN,
    MIN_DRAWN,
    add_title,
    drawable,
    line_options,
    log_scale,
    new_figure,
    set_title,
    styled,
)
from fco_cli.reporting.records.select import EDGE, Cell, Choice, arrival, choose_from, target
from fco_cli.reporting.records.studies import RecordedStudy, Rule, settings_of
from fco_cli.reporting.records.validation import is_number
from fco_cli.reporting.style import ACCENT, GRAY, PALE_GRAY, algorithm_style, metric_style
from fco_cli.reporting.text import for_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

LABEL_HEIGHT = 1.3  # inches that the label of the y axis needs
MAX_RATES = 40  # per axis of a heat map; larger grids are not drawn
MIN_VALUES = 3  # of the setting
COST = "MB to target"


@dataclass(frozen=True)
class Scale:
    """Rates along an axis of the maps; adjacent rates at which every run diverged share one position."""

    places: list[list[float]]

    @classmethod
    def of(cls, cells: Sequence[Cell], rate: Callable[[Cell], float]) -> Scale:
        diverged = {one: all(cell.diverged for cell in cells if rate(cell) == one) for one in map(rate, cells)}
        places: list[list[float]] = []
        for one in sorted(diverged):
            if places and diverged[one] and diverged[places[-1][-1]]:
                places[-1].append(one)
            else:
                places.append([one])
        return cls(places)

    def index(self, rate: float) -> int:
        return next(i for i, place in enumerate(self.places) if rate in place)

    @property
    def labels(self) -> list[str]:
        return [f"{place[0]:g}" if len(place) == 1 else f"{place[0]:g}–{place[-1]:g}" for place in self.places]


def _client(cell: Cell) -> float:
    return cell.client_lr or 0.0


def _server(cell: Cell) -> float:
    return cell.server_lr or 0.0


def has_heat_maps(choices: dict[str, Choice]) -> bool:
    """Return True if there is a grid, and it is not too large."""
    cells = [cell for choice in _grids(choices).values() for cell in choice.cells]
    sizes = [len({rate(cell) for cell in cells}) for rate in (_client, _server)]
    return 0 < max(sizes) <= MAX_RATES


def _grids(choices: dict[str, Choice]) -> dict[str, Choice]:
    return {algo: choice for algo, choice in choices.items() if choice.federated and len(choice.cells) > 1}


@styled
def draw_heat_maps(study: RecordedStudy, choices: dict[str, Choice]) -> Figure:
    """Draw the score of every learning-rate pair; diverged pairs are hatched, the chosen one is framed."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    grids = _grids(choices)
    cells = [cell for choice in grids.values() for cell in choice.cells]
    clients, servers = Scale.of(cells, _client), Scale.of(cells, _server)
    norm, colors = _colors(study, cells)
    columns = min(2, len(grids))
    rows = -(-len(grids) // columns)
    height = max(0.35 + 0.16 * len(clients.places), LABEL_HEIGHT / rows, 0.83)
    figure, axes = new_figure(0.75 + rows * height, rows, columns, sharex=True, sharey=True)
    for spare in axes.flat[len(grids) :]:
        spare.set_axis_off()
    for axis, (algo, choice) in zip(axes.flat, grids.items(), strict=False):
        grid = np.full((len(clients.places), len(servers.places)), np.nan)
        for cell in _best_of_each_pair(choice, study.rule):
            place = clients.index(_client(cell)), servers.index(_server(cell))
            grid[place] = drawable(np.array(cell.score))
            _annotate_cell(axis, cell, place, norm, bright_is_high=study.rule.mode == "max", best=cell is choice.best)
        image = axis.imshow(grid, norm=norm, cmap=colors, origin="lower", aspect="auto")
        axis.set_xticks(range(len(servers.places)), servers.labels, rotation=60 if len(servers.places) > 5 else 0)
        axis.set_yticks(range(len(clients.places)), clients.labels)
        axis.set_title(for_figure(algorithm_style(algo).label + EDGE * bool(choice.on_edge)), pad=3)
        axis.set_xticks(np.arange(1, len(servers.places)) - 0.5, minor=True)
        axis.set_yticks(np.arange(1, len(clients.places)) - 0.5, minor=True)
        axis.grid(which="minor", color="white", linewidth=0.8)
        axis.tick_params(which="both", length=0)
        axis.spines[:].set_visible(False)
    figure.supxlabel("server learning rate", fontsize=8)
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    bar = figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02, aspect=30, format=plain)
    bar.ax.yaxis.set_minor_formatter(plain if norm.vmax < 100 * norm.vmin else NullFormatter())
    bar.outline.set_visible(False)
    edge = f"{EDGE} on the edge of its grid" if any(choice.on_edge for choice in grids.values()) else ""
    add_title(figure, study, f"{study.rule}; hatched: diverged", edge)
    title = LINE_HEIGHT * (figure.get_suptitle().count("\n") + 1) / figure.get_figheight()
    figure.supylabel("client learning rate", y=(1 - title) / 2, fontsize=8)  # centered below the title
    return figure


def _colors(study: RecordedStudy, cells: list[Cell]) -> tuple[Any, str]:
    """Return the normalization of the scores and a color map in which bright is good."""
    from matplotlib.colors import LogNorm, Normalize

    scores = np.array([cell.score for cell in cells if np.abs(cell.score) < MAX_DRAWN])
    low, high = (scores.min(), scores.max()) if len(scores) else (0.0, 1.0)
    log = metric_style(study.rule.metric).log and low > MIN_DRAWN and high > 5 * low
    norm = LogNorm(low, high) if log else Normalize(low, high if high > low else low + 1)
    return norm, "viridis" if study.rule.mode == "max" else "viridis_r"


def _best_of_each_pair(choice: Choice, rule: Rule) -> list[Cell]:
    """Return one cell per pair of learning rates: the best among those with different options."""
    pairs: dict[tuple[float | None, float | None], list[Cell]] = {}
    for cell in choice.cells:
        pairs.setdefault((cell.client_lr, cell.server_lr), []).append(cell)
    return [choose_from(choice.algo, tuple(cells), rule).best or cells[-1] for cells in pairs.values()]


def _annotate_cell(axis: Axes, cell: Cell, place: tuple[int, int], norm: Any, bright_is_high: bool, best: bool) -> None:
    from matplotlib.patches import Rectangle

    row, column = place
    corner = (column - 0.5, row - 0.5)
    if cell.diverged:
        axis.add_patch(Rectangle(corner, 1, 1, facecolor=PALE_GRAY, edgecolor=GRAY, hatch="/////", linewidth=0))
    elif np.abs(cell.score) < MAX_DRAWN:
        brightness = float(norm(cell.score)) if bright_is_high else 1 - float(norm(cell.score))
        color = "black" if brightness > 0.55 else "white"
        axis.text(column, row, format_short(cell.score), ha="center", va="center", fontsize=6, color=color)
    if best:
        axis.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=ACCENT, linewidth=1.6, zorder=3, clip_on=False))


def format_short(value: float) -> str:
    """Format a number in about three characters."""
    if 0.095 <= value < 0.9995:
        return f"{value:.{2 if value < 0.995 else 3}f}".lstrip("0")
    if 0.00095 <= value < 0.095:
        return f"{value:.2g}".lstrip("0")
    if 0 < value < 0.00095:
        return f"{value:.0e}"
    return f"{value:.2g}" if abs(value) < 100 else f"{value:.0f}" if abs(value) < 10_000 else f"{value:.0e}"


def rates_table(choices: dict[str, Choice]) -> DataFrame:
    """Return the numbers of the heat maps: a row per learning-rate pair."""
    import pandas as pd

    return pd.DataFrame(
        [
            {
                "algorithm": algo,
                "client_lr": cell.client_lr,
                "server_lr": cell.server_lr,
                "options": cell.options,
                "score": cell.score,
                "seeds": cell.seeds,
                "diverged": sum(run.diverged for run in cell.runs),
                "chosen": cell is choice.best,
            }
            for algo, choice in choices.items()
            for cell in choice.cells
        ]
    )


@dataclass(frozen=True)
class SweptKey:
    """Studies that differ in one numerical setting."""

    key: str
    studies: dict[float, RecordedStudy]  # by increasing value of the setting

    @property
    def first(self) -> RecordedStudy:
        return next(iter(self.studies.values()))

    @property
    def slug(self) -> str:
        return f"{self.first.name}_by_{self.key.replace('.', '_')}"

    @property
    def heading(self) -> str:
        return f"{self.first.title}: against {self.key}"


def swept_keys(studies: list[RecordedStudy]) -> list[SweptKey]:
    """Return the groups of at least three studies of one name and profile that differ in a single number."""
    swept = []
    groups: dict[tuple[str, str], list[RecordedStudy]] = {}
    for study in studies:
        groups.setdefault((study.name, study.profile), []).append(study)
    for group in groups.values():
        settings = [settings_of(study) for study in group]
        known = dict.fromkeys(key for one in settings for key in one)
        keys = [key for key in known if len({repr(one.get(key)) for one in settings}) > 1]
        keys = [key for key in keys if not _is_duplicate_key(key, keys, settings)]
        if len(group) >= MIN_VALUES and len(keys) == 1 and all(is_number(one.get(keys[0])) for one in settings):
            by_value = {float(one[keys[0]]): study for one, study in zip(settings, group, strict=True)}
            if len(by_value) == len(group):
                swept.append(SweptKey(keys[0], dict(sorted(by_value.items()))))
    return swept


def _is_duplicate_key(key: str, keys: list[str], settings: list[dict[str, object]]) -> bool:
    """Return True if a task's key duplicates the regularizer's key of the same name and value."""
    twin = key.replace("task.", "regularizer.")
    return twin != key and twin in keys and all(one.get(key) == one.get(twin) for one in settings)


def sweep_table(swept: SweptKey, choices: dict[str, dict[str, Choice]]) -> DataFrame:
    """Return a row per value, algorithm and metric: final metrics at the best learning rates, and cost to target."""
    import pandas as pd

    rows = []
    for value, study in swept.studies.items():
        level = target(study, choices[study.slug])
        for algo, choice in choices[study.slug].items():
            if choice.best is None:
                continue
            for metric in study.panels:
                if choice.best.has(metric):
                    rows.append((value, algo, metric, *choice.best.final(metric, 1)))
            at = arrival(choice.best, level) if level is not None and choice.federated else None
            if at is not None:
                run = choice.best.runs[0]
                sent = float(run.megabytes[run.curves["round"] == at][0])
                rows.append((value, algo, COST, sent, sent, sent))
    return pd.DataFrame(rows, columns=[swept.key, "algorithm", "metric", "median", "low", "high"])


@styled
def draw_sweep(swept: SweptKey, table: DataFrame) -> Figure:
    """Draw a panel per metric and a line per algorithm."""
    metrics = list(table["metric"].unique())
    rows = -(-len(metrics) // 2)
    figure, axes = new_figure(0.8 + 1.25 * rows, rows, 2, sharex=True)
    values = list(swept.studies)
    wide = values[0] > 0 and values[-1] >= 10 * values[0]
    for spare in axes.flat[len(metrics) :]:
        spare.set_axis_off()
    for i, (axis, metric) in enumerate(zip(axes.flat, metrics, strict=False)):
        for algo in table["algorithm"].unique():
            mine = table[(table["metric"] == metric) & (table["algorithm"] == algo)]
            style = algorithm_style(algo)
            middle, low, high = (drawable(mine[name].to_numpy()) for name in ("median", "low", "high"))
            axis.plot(mine[swept.key], middle, label=for_figure(style.label), **line_options(style))
            axis.fill_between(mine[swept.key], low, high, color=style.color, alpha=0.2, linewidth=0)
        log = (metric_style(metric).log or metric == COST) and (table[table["metric"] == metric]["low"] > 0).all()
        axis.set_title(for_figure(metric_style(metric).label))
        axis.grid(alpha=0.25, linewidth=0.5)
        if wide:
            log_scale(axis, "x")
        if log:
            log_scale(axis)
        if i + 2 >= len(metrics):
            axis.set_xlabel(for_figure(swept.key + "\n(log scale)" * wide), fontsize=7)
            axis.xaxis.set_tick_params(labelbottom=True)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, handlelength=2.6)
    set_title(figure, [swept.heading])
    return figure
