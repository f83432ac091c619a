"""Figures of sweeps over one setting other than learning rates, such as psi's strength or the clients per round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fco_cli.reporting.figures.drawing import drawable, line_options, log_scale, new_figure, styled
from fco_cli.reporting.records.select import Choice, arrival, target
from fco_cli.reporting.records.studies import RecordedStudy, settings_of
from fco_cli.reporting.records.validation import is_number
from fco_cli.reporting.style import algorithm_style, metric_style
from fco_cli.reporting.text import for_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

MIN_VALUES = 3  # of the setting
COST = "MB to target"


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
    figure, axes = new_figure(0.7 + 1.25 * rows, rows, 2, sharex=True)
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
            axis.set_xlabel(for_figure(swept.key + " (log scale)" * wide))
            axis.xaxis.set_tick_params(labelbottom=True)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, handlelength=2.6)
    figure.suptitle(for_figure(swept.heading), x=0.01, ha="left")
    return figure
