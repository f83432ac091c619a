"""Figures of predicted probabilities by client: ROC curves, calibration and decision curves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fco_cli.data.format import format_list
from fco_cli.path.predictions import Predictions, calibration_groups, net_benefit, roc_curve
from fco_cli.reporting.figures.drawing import new_figure, styled
from fco_cli.reporting.records.predictions import RecordedPredictions
from fco_cli.reporting.style import DARK_GRAY, LIGHT_GRAY, PALETTE
from fco_cli.reporting.text import for_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing
    from pandas import DataFrame

MAX_CURVES, MAX_PANELS = len(PALETTE), 8
HISTOGRAM_BINS = 32
CLIENT_GROUPS, FEW_GROUPS, MANY_ROWS = 10, 5, 200  # groups of a client's calibration: FEW_GROUPS below MANY_ROWS rows
CLASSIFICATION_CAPTIONS = {
    "roc": (
        "ROC curves of the clients with the most rows, {how}, and their areas, from histograms of the predictions in "
        "512 bins; the table of clients has areas from every row. The curve of all clients also compares rows of "
        "different clients. Clients without a curve are listed with the reason."
    ),
    "client_calibration": (
        "Calibration of the clients with the most rows, {how}: mean prediction against observed frequency with "
        "Wilson's 95% interval, by groups of about equally many rows; gray: histogram of the predictions. "
        "Sites merge bins with few rows. {left_out}"
    ),
    "decision": (
        "Decision curves, {how}: net benefit per row of treating by the model, of treating all rows (dashed) and none "
        "(0), against the threshold of the predicted probability (Vickers and Elkin, 2006). "
        "Curves below the axis are not drawn. {left_out}"
    ),
}


def classification_figures(recorded: RecordedPredictions) -> Iterator[tuple[str, Callable[[], Drawing], DataFrame]]:
    """Yield the kind, the drawing function and the numbers of every figure."""
    import pandas as pd

    shown = _panels(recorded)
    curves = {name: curve for name, one in _all(recorded).items() if (curve := roc_curve(one)) is not None}
    lines = [pd.DataFrame({"client": name, **curve._asdict()}) for name, curve in curves.items()]
    if lines:
        yield "roc", partial(draw_roc, recorded), pd.concat(lines)
    if recorded.clients:
        groups = [_client_groups(one).assign(client=name) for name, one in shown.items()]
        yield "client_calibration", partial(draw_client_calibration, recorded), pd.concat(groups)
    benefits = [pd.DataFrame({"client": name, **net_benefit(one)}) for name, one in _all(recorded).items()]
    yield "decision", partial(draw_decision, recorded), pd.concat(benefits)


def classification_caption(kind: str, recorded: RecordedPredictions) -> str:
    """Return the caption of a figure, with the clients that it does not show."""
    known = [one for one in recorded.clients if one.predictions is not None]
    texts = []
    if len(known) > MAX_PANELS:
        texts.append(f"Not drawn: {len(known) - MAX_PANELS} smaller clients.")
    if unknown := [f"{one.client} ({one.rows}): {one.reason}" for one in recorded.clients if one.predictions is None]:
        texts.append(f"Without predictions: {format_list(unknown)}.")
    return CLASSIFICATION_CAPTIONS[kind].format(how=recorded.how, left_out=" ".join(texts)).strip()


def _all(recorded: RecordedPredictions) -> dict[str, Predictions]:
    """Return the predictions of all clients together, then of every client that has some."""
    own = {one.client: one.predictions for one in recorded.clients if one.predictions is not None}
    return {"all clients": recorded.total, **own}


def _panels(recorded: RecordedPredictions) -> dict[str, Predictions]:
    """Return the predictions of the clients with the most rows."""
    by_client = {one.client: one.predictions for one in recorded.clients if one.predictions is not None}
    return dict(list(by_client.items())[:MAX_PANELS])


def _client_groups(predictions: Predictions) -> DataFrame:
    """Return a client's calibration, by fewer groups if it has few rows."""
    import pandas as pd

    groups = CLIENT_GROUPS if predictions.rows >= MANY_ROWS else FEW_GROUPS
    return pd.DataFrame(calibration_groups(predictions, groups))


@styled
def draw_roc(recorded: RecordedPredictions) -> Drawing:
    """Draw the ROC curves; clients without a curve are listed below with the reason."""
    without = [f"{one.client} ({one.rows}): {one.reason}" for one in recorded.clients if one.reason]
    drawn = [one for one in recorded.clients if not one.reason]
    notes = without[:6] + ([f"and {len(without) - 6} more without a curve"] if len(without) > 6 else [])
    if len(drawn) > MAX_CURVES:
        notes.append(f"not drawn: {len(drawn) - MAX_CURVES} smaller clients")
    legend = min(len(drawn), MAX_CURVES) + 1
    figure, ((axis,),) = new_figure(2.9 + 0.14 * (legend + len(notes) + 1), 1, 1)
    axis.plot([0, 1], [0, 1], color=LIGHT_GRAY, linewidth=0.7)
    for one, color in zip(drawn, PALETTE, strict=False):
        assert one.predictions is not None
        _draw_curve(axis, one.predictions, f"{one.client} ({one.rows})", color)
    _draw_curve(axis, recorded.total, f"all clients ({recorded.total.rows})", "black")
    axis.set(xlabel="false positive rate", ylabel="true positive rate", xlim=(0, 1), ylim=(0, 1.005), aspect="equal")
    title = "\n".join([*(for_figure(note) for note in notes), "client (rows): area under the curve"])
    figure.legend(loc="outside lower center", frameon=False, title=title, title_fontsize=6)
    return figure


def _draw_curve(axis: Axes, predictions: Predictions, label: str, color: str) -> None:
    if (curve := roc_curve(predictions)) is not None:
        text = for_figure(f"{label}: {curve.area:.3f}")
        axis.plot(curve.false_positive, curve.true_positive, color=color, linewidth=0.9, label=text)


@styled
def draw_client_calibration(recorded: RecordedPredictions) -> Drawing:
    """Draw a calibration panel per client."""
    figure, axes = _grid(_panels(recorded), share_y=True)
    for axis, (name, predictions) in zip(axes, _panels(recorded).items(), strict=False):
        axis.plot([0, 1], [0, 1], color=LIGHT_GRAY, linewidth=0.7)
        draw_groups(axis, _client_groups(predictions), PALETTE[0], "o", None)
        below = axis.inset_axes((0, 0, 1, 0.2), zorder=0)
        draw_histogram(below, predictions, LIGHT_GRAY)
        below.set_axis_off()
        axis.set_ylim(0, 1)
        axis.set_title(for_figure(f"{name[:24]}\n{predictions.events} events in {predictions.rows} rows"), fontsize=6)
        axis.set_xticks([0, 0.5, 1])
    figure.supxlabel("predicted", fontsize=8)
    figure.supylabel("observed", fontsize=8)
    return figure


def draw_groups(axis: Axes, groups: DataFrame, color: str, marker: str, label: str | None) -> None:
    """Draw observed frequencies against mean predictions, with intervals if the record has them."""
    x, y = groups["predicted"].to_numpy(), groups["observed"].to_numpy()
    bars = None
    if "low" in groups:
        bars = np.array([y - groups["low"].to_numpy(), groups["high"].to_numpy() - y])
    axis.errorbar(
        x, y, yerr=bars, color=color, marker=marker, markersize=3, linewidth=0.8, elinewidth=0.6, label=label,
        clip_on=False,
    )  # fmt: skip


def draw_histogram(axis: Axes, predictions: Predictions, color: str) -> None:
    """Draw the number of rows by prediction."""
    counts = (predictions.negatives + predictions.positives).reshape(HISTOGRAM_BINS, -1).sum(axis=1)
    axis.stairs(counts, np.linspace(0, 1, HISTOGRAM_BINS + 1), color=color, fill=True, alpha=0.4)
    axis.set(xlim=(0, 1), ylabel="rows")


@styled
def draw_decision(recorded: RecordedPredictions) -> Drawing:
    """Draw a panel of net benefit for all clients and for the clients with the most rows."""
    panels = {"all clients": recorded.total, **_panels(recorded)}
    figure, axes = _grid(panels, share_y=False)
    for axis, (name, predictions) in zip(axes, panels.items(), strict=False):
        curves = net_benefit(predictions)
        top = max(predictions.events / max(predictions.rows, 1), 0.05)
        axis.axhline(0, color=DARK_GRAY, linewidth=0.6, label="treat none")
        axis.plot(curves["threshold"], curves["treat_all"], "--", color=PALETTE[1], linewidth=0.8, label="treat all")
        axis.plot(curves["threshold"], curves["model"], color=PALETTE[0], linewidth=0.9, label="model")
        axis.set_ylim(-0.25 * top, 1.08 * top)
        axis.set_title(for_figure(f"{name[:24]} ({predictions.rows} rows)"), fontsize=6)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", frameon=False, fontsize=6, ncols=3)
    figure.supxlabel("threshold", fontsize=8)
    figure.supylabel("net benefit", fontsize=8)
    return figure


def _grid(panels: dict[str, Predictions], share_y: bool) -> tuple[Drawing, list[Axes]]:
    """Return a figure with two columns of panels, whose x axes are from 0 to 1."""
    rows = -(-len(panels) // 2)
    figure, axes = new_figure(0.5 + 1.4 * rows, rows, min(2, len(panels)), sharex=True, sharey=share_y)
    flat = list(axes.ravel())
    flat[0].set(xlim=(0, 1), xticks=[0, 0.5, 1], xticklabels=["0", "0.5", "1"])
    for axis in flat[len(panels) :]:
        axis.set_axis_off()
    for axis in flat[: len(panels)][-2:]:
        axis.tick_params(labelbottom=True)  # also where no panel is below
    return figure, flat
