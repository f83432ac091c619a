"""Figures of a regularization path: cross-validation, coefficients, clients, calibration and stability."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fco_cli.problem.losses.classification import area_interval
from fco_cli.reporting.figures.classification import (
    CLASSIFICATION_CAPTIONS,
    classification_caption,
    classification_figures,
    draw_groups,
    draw_histogram,
)
from fco_cli.reporting.figures.coefficients import LARGEST, draw_models, model_numbers
from fco_cli.reporting.figures.drawing import mark_cut, new_figure, styled
from fco_cli.reporting.records.paths import CHOICES, RecordedPath
from fco_cli.reporting.style import DARK_GRAY, LIGHT_GRAY, PALETTE
from fco_cli.reporting.text import for_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing
    from pandas import DataFrame

MAX_NAMES, MAX_CLIENTS, MAX_FEATURES = len(PALETTE), 40, 30
DASHES = {"min": "--", "1se": ":"}
NORMAL = 1.96  # normal quantile of a 95% interval
LOWEST = {"auc": 0.0, "r2": -1.0, "concordance": 0.0}  # lower limit of the axis
METRIC_NAMES = {"auc": "Area under the ROC curve", "r2": "R²"}
CAPTIONS = {
    "cv": (
        "Cross-validation: mean loss on the held-out rows, with a band of one standard error. min is the model with "
        "the smallest mean, 1se the simplest model within one standard error of it."
    ),
    "coefficients": (
        "Weights of the models along the path, fitted on all training rows, for the prepared features; the largest at "
        "min are named."
    ),
    "models": (
        "Weights of the selected models for the prepared features, the {features} largest at most. They have no "
        "intervals: the same rows selected them."
    ),
    "clients": (
        "{metric} of each client out of fold{interval}, and of all clients together{mixed}. "
        "Arrows: beyond the axis. {left_out}"
    ),
    "calibration": (
        "Calibration out of fold: mean prediction against observed frequency with Wilson's 95% interval, by deciles of "
        "the prediction; below, the histogram of the predictions."
    ),
    "stability": (
        "Share of the half samples on which a feature is selected anywhere on the path down to {value:.3g}; dashed: "
        "the threshold. Among the features above it, at most {bound:.2g} are expected to be selected on a half sample "
        "less often than an average feature (Shah and Samworth, 2013). These shares are not p-values."
    ),
}


def caption_of(path: RecordedPath, kind: str) -> str:
    """Return the caption of a path's figure."""
    if kind in CLASSIFICATION_CAPTIONS and (predictions := path.predictions("min")) is not None:
        return classification_caption(kind, predictions)
    stability = path.result["stability"] or {"place": 0, "bound": 0.0}
    clients = len(path.clients[path.clients["choice"] == "min"]) - 1
    left_out = f"The {MAX_CLIENTS} of {clients} clients with the most rows." if clients > MAX_CLIENTS else ""
    value = float(path.values[stability["place"]])
    metric = METRIC_NAMES.get(path.metric, path.metric.capitalize())
    mixed = {
        "auc": ", which also compares rows of different clients", "concordance": ", over pairs of rows of one client"
    }.get(path.metric, "")  # fmt: skip
    has_errors = f"{path.metric}_error" in path.clients
    interval = ", with a 95% interval over its rows where these suffice" if has_errors else ""
    numbers = {"features": LARGEST, "mixed": mixed, "interval": interval, "value": value, "bound": stability["bound"]}
    return CAPTIONS[kind].format(metric=metric, left_out=left_out, **numbers).strip()


def figures_of(path: RecordedPath) -> Iterator[tuple[str, Callable[[], Drawing], DataFrame]]:
    """Yield the kind, the drawing function and the numbers of every figure."""
    import pandas as pd

    yield "cv", partial(draw_cv, path), path.table
    numbers = pd.DataFrame(path.weights, columns=path.names)
    numbers.insert(0, path.parameter, path.values)
    yield "coefficients", partial(draw_coefficients, path), numbers
    if path.models and any(len(model) for model in path.models.values()):
        yield "models", partial(draw_models, path), model_numbers(path)
    if path.metric:
        yield "clients", partial(draw_clients, path), path.clients
    if path.calibration is not None:
        yield "calibration", partial(draw_calibration, path), path.calibration
    if (predictions := path.predictions("min")) is not None:
        yield from classification_figures(predictions)
    if (stability := path.result["stability"]) is not None:
        named = path.result["features"] or [f"feature {i + 1}" for i in range(len(stability["frequency"]))]
        frequency = pd.DataFrame({"feature": named, "frequency": stability["frequency"]})
        yield "stability", partial(draw_stability, path, frequency), frequency.sort_values("frequency", ascending=False)


@styled
def draw_cv(path: RecordedPath) -> Drawing:
    """Draw the cross-validated loss along the path."""
    figure, ((axis,),) = new_figure(2.4, 1, 1)
    mean, error = path.table["cv_loss"].to_numpy(), path.table["cv_error"].to_numpy()
    axis.fill_between(path.values, mean - error, mean + error, color=PALETTE[0], alpha=0.2, linewidth=0)
    axis.plot(path.values, mean, color=PALETTE[0], linewidth=1)
    axis.set_ylabel(f"{path.result['loss']} loss, out of fold")
    _mark_choices(axis, path)
    _format_path_axes(axis, path)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


@styled
def draw_coefficients(path: RecordedPath) -> Drawing:
    """Draw the weights, or singular values, along the path."""
    figure, ((axis,),) = new_figure(2.8, 1, 1)
    at_best = np.abs(path.weights[path.result["chosen"]["min"]["place"]])
    named = [int(i) for i in np.argsort(-at_best, kind="stable")[:MAX_NAMES] if at_best[i] > 0]
    for i in range(path.weights.shape[1]):
        if i not in named and path.weights[:, i].any():
            axis.plot(path.values, path.weights[:, i], color=LIGHT_GRAY, linewidth=0.5)
    for color, i in zip(PALETTE, named, strict=False):
        axis.plot(path.values, path.weights[:, i], color=color, linewidth=1, label=for_figure(path.names[i]))
    axis.axhline(0, color="black", linewidth=0.4)
    axis.set_ylabel("weight" if not path.names[0].startswith("singular") else "singular value")
    _mark_choices(axis, path, label=False)
    _format_path_axes(axis, path)
    if named:  # the null model may be the best one
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def _mark_choices(axis: Axes, path: RecordedPath, label: bool = True) -> None:
    for choice in CHOICES:
        chosen = path.result["chosen"][choice]
        value = path.values[chosen["place"]]
        text = f"{choice}: {value:.3g}, {_size(chosen)}" if label else None
        axis.axvline(value, color="black", linewidth=0.7, linestyle=DASHES[choice], label=text)


def _size(chosen: dict[str, Any]) -> str:
    """Return the size of a chosen model, refitted on all rows."""
    return f"rank {chosen['rank']}" if chosen.get("rank") is not None else f"{chosen['nonzeros']} non-zero"


def _format_path_axes(axis: Axes, path: RecordedPath) -> None:
    """Format the x axis with the null model on the left, and add an axis of model sizes at the top."""
    axis.set_xscale("log")
    if path.parameter == "strength":
        axis.invert_xaxis()
    axis.set_xlabel("strength λ" if path.parameter == "strength" else path.parameter)
    top = axis.secondary_xaxis("top")
    places = np.unique(np.linspace(0, len(path.values) - 1, 7).round().astype(int))
    sizes = path.table["rank" if "rank" in path.table else "nonzeros"]
    top.set_xticks(path.values[places], [str(sizes[place]) for place in places])
    top.minorticks_off()
    top.set_xlabel("rank" if "rank" in path.table else "non-zero weights")


@styled
def draw_clients(path: RecordedPath) -> Drawing:
    """Draw a forest plot: a line per client, sorted by the number of rows."""
    metric, lines = path.metric, path.clients
    best = lines[lines["choice"] == "min"]
    pooled = best.iloc[0]
    clients = best.iloc[1:].sort_values("rows", ascending=False, kind="stable").head(MAX_CLIENTS)
    figure, ((axis,),) = new_figure(0.9 + 0.17 * max(len(clients), 3), 1, 1)
    places = {name: len(clients) - 1 - i for i, name in enumerate(clients["client"])}
    low = _client_limit(path, list(places))
    for choice, shift, filled in (("min", 0.14, True), ("1se", -0.14, False)):
        own = lines[(lines["choice"] == choice) & lines["client"].isin(list(places)) & lines[metric].notna()]
        own = own[own["client"] != pooled["client"]]
        y = np.array([places[name] for name in own["client"]]) + shift
        color, values = PALETTE[0] if filled else PALETTE[1], own[metric].to_numpy()
        inside = values >= low
        axis.errorbar(
            values[inside], y[inside], xerr=_reach(own, metric)[:, inside], fmt="o", markersize=3, linewidth=0.7,
            color=color, markerfacecolor=None if filled else "white", label=choice,
        )  # fmt: skip
        is_cut = values - _reach(own, metric)[0] < low
        mark_cut(axis, low, y[is_cut], "<", color=color, markersize=3.5)
    for name in clients.loc[clients[metric].isna(), "client"]:
        axis.text(0.5, places[name], _without_metric(metric), transform=axis.get_yaxis_transform(), color=DARK_GRAY,
                  fontsize=6, ha="center", va="center")  # fmt: skip
    axis.axvline(pooled[metric], color="black", linewidth=0.7, linestyle="--", label="all clients, min")
    labels = [f"{name} ({rows})" for name, rows in zip(clients["client"], clients["rows"], strict=True)]
    axis.set_yticks(list(places.values()), [for_figure(str(label)) for label in labels])
    axis.set_xlabel({"auc": "area under the ROC curve", "r2": "R²"}.get(metric, metric) + ", out of fold")
    axis.set_ylim(-0.6, len(clients) - 0.4)
    if np.isfinite(low):
        axis.set_xlim(low, max(1.02, axis.get_xlim()[1]))
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure


def _reach(lines: DataFrame, metric: str) -> np.ndarray:
    """Return the distances [2, lines] from the values to the ends of their intervals; 0 without a standard error."""
    if (name := f"{metric}_error") not in lines:
        return np.zeros((2, len(lines)))
    value, error = lines[metric].to_numpy(), lines[name].fillna(0).to_numpy()
    if metric != "auc":
        return np.stack([NORMAL * error] * 2)
    low, high = area_interval(value, error)
    return np.stack([value - low, high - value])


def _client_limit(path: RecordedPath, names: list[str]) -> float:
    """Return the lower limit of the axis of clients; minus infinity if the axis shows all values."""
    metric, own = path.metric, path.clients[path.clients["client"].isin(names)]
    values = own[metric].to_numpy() - _reach(own, metric)[0]
    if metric not in LOWEST or not np.isfinite(values).any():
        return -np.inf
    return max(LOWEST[metric], min(0.5, float(np.nanmin(values)) - 0.02))


def _without_metric(metric: str) -> str:
    return "no AUC: rows of one class only" if metric == "auc" else f"no {metric}: too few rows"


@styled
def draw_calibration(path: RecordedPath) -> Drawing:
    """Draw the calibration curves of the chosen models with intervals, above histograms of the predictions."""
    assert path.calibration is not None
    shown = [one for choice in CHOICES if (one := path.predictions(choice)) is not None]
    options: dict[str, Any] = {"height_ratios": (4, 1), "sharex": True} if shown else {}
    figure, axes = new_figure(3.2, 2 if shown else 1, 1, **options)
    axis = axes[0, 0]
    axis.plot([0, 1], [0, 1], color=LIGHT_GRAY, linewidth=0.7)
    for choice, color, marker in zip(CHOICES, PALETTE, "os", strict=False):
        own = path.calibration[path.calibration["choice"] == choice]
        line = path.clients[path.clients["choice"] == choice].iloc[0]
        slope, intercept = line["calibration_slope"], line["calibration_intercept"]
        text = f"{choice}: slope {slope:.2f}, intercept {intercept:.2f}" if slope == slope else f"{choice}: no slope"
        draw_groups(axis, own, color, marker, text)
    axis.set(ylabel="observed", xlim=(0, 1), ylim=(0, 1))
    axis.legend(frameon=False)
    for one, color in zip(shown, PALETTE, strict=False):
        draw_histogram(axes[1, 0], one.total, color)
    axes[-1, 0].set_xlabel("predicted")
    return figure


@styled
def draw_stability(path: RecordedPath, frequency: DataFrame) -> Drawing:
    """Draw the selection frequencies of the most stable features."""
    stability = path.result["stability"]
    top = frequency.sort_values("frequency", ascending=False, kind="stable").head(MAX_FEATURES)
    top = top[(top["frequency"] > 0) | (top["frequency"] == top["frequency"].max())].iloc[::-1]
    figure, ((axis,),) = new_figure(0.6 + 0.14 * len(top), 1, 1)
    stable = top["frequency"] >= stability["threshold"]
    axis.barh(
        np.arange(len(top)), top["frequency"], color=np.where(stable, PALETTE[0], LIGHT_GRAY).tolist(), height=0.7
    )
    axis.axvline(stability["threshold"], color="black", linewidth=0.7, linestyle="--")
    axis.set_yticks(np.arange(len(top)), [for_figure(str(name)[:40]) for name in top["feature"]])
    axis.set(xlabel="share of half samples on which it is selected", xlim=(0, 1))
    return figure
