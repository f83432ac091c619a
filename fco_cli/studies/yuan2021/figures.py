"""Figures 1 and 2 of the paper.

Figure 1 compares final metrics of centralized, local and federated training. Figure 2, the curse of primal averaging,
shows each client's support against the support of their average. Its models are read from `clients.npz`, which a run
writes with `record_clients=true`: the clients' models at the end of the last round and, last, their average.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fco_cli.reporting import (
    GRAY,
    BadRecord,
    Cell,
    Choice,
    Evidence,
    Figure,
    Finding,
    NotRun,
    RecordedRun,
    RecordedStudy,
    Spread,
    add_title,
    algorithm_style,
    describe_spread,
    drawable,
    figure_numbers,
    for_figure,
    is_number,
    new_figure,
    sentence,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing
    from pandas import DataFrame

ALGORITHMS_SHOWN = ("centralized", "local", "fedavg_subgrad", "fedmid", "feddualavg")
PANELS = {
    "validation_accuracy": "validation\naccuracy",
    "density": "density",
    "validation_objective": "validation\nloss + ψ",
}
CHANCE = 0.5  # accuracy of guessing between two classes
SIMILAR_ACCURACY = 0.02  # accuracies that differ by less are not ranked
COMPARISON_CAPTION = "Final metrics of centralized, local and federated training, at the best learning rates."
THRESHOLD = 1e-2  # smaller weights count as zero, as in the paper's appendix B.2
BAND = 2  # height of the true model's and of the average's row, in rows of clients
CURSE_CAPTION = (
    f"Non-zero weights (|w| > {THRESHOLD:g}) of the true model, of the clients' models at the end of the last round, "
    "and of their average."
)


def side_by_side_figure(study: RecordedStudy, choices: dict[str, Choice]) -> Figure | None:
    """Return figure 1 for a study of scans; None if fewer than two algorithms can be compared."""
    chosen = [choice.best.runs[0].folder for choice in choices.values() if choice.best]
    if not any((folder / "weights.nii.gz").exists() for folder in chosen):
        return None
    if (table := side_by_side(choices)) is None:
        return None
    numbers = figure_numbers(study)
    note = accuracy_note(choices)
    return Figure(
        f"{study.slug}_side_by_side",
        partial(draw_side_by_side, study, table),
        COMPARISON_CAPTION + sentence(describe_spread(study)) + (f" {note}" if note else ""),
        table,
        "side_by_side",
        numbers[0] if len(numbers) > 1 else "",
        f"{study.heading}: side by side",
        before="curves",
    )


def side_by_side(choices: dict[str, Choice]) -> DataFrame | None:
    """Return a row per algorithm: final metrics with quartiles over clients or the range over seeds.

    Return None if fewer than two algorithms can be compared.
    """
    import pandas as pd

    rows = []
    for algo in ALGORITHMS_SHOWN:
        best = choices[algo].best if algo in choices else None
        if best is not None and all(best.has(metric) for metric in PANELS):
            row: dict[str, object] = {"algorithm": algo, "client_lr": best.client_lr, "server_lr": best.server_lr}
            for metric in PANELS:
                for name, value in _spread(best, metric)._asdict().items():
                    row[f"{metric}_{name}"] = drawable(np.array(value)).item()
            rows.append(row)
    return pd.DataFrame(rows) if len(rows) > 1 else None


def accuracy_note(choices: dict[str, Choice]) -> str:
    """Return a sentence if the federated algorithms are about equally accurate, unlike in the paper; else empty."""
    table = side_by_side({algo: choice for algo, choice in choices.items() if choice.federated})
    if table is None:
        return ""
    accuracy, density = (table[f"{metric}_median"] for metric in ("validation_accuracy", "density"))
    if not accuracy.max() - accuracy.min() < SIMILAR_ACCURACY:
        return ""
    return (
        f"The federated algorithms are about equally accurate ({accuracy.min():.3g} to {accuracy.max():.3g}); "
        f"they differ in density ({density.min():.2g} to {density.max():.2g})."
    )


def _spread(cell: Cell, metric: str) -> Spread:
    over_seeds = cell.final(metric, 1)
    quartiles = [cell.runs[0].final.get(f"{metric}_{q}") for q in ("q25", "q75")]
    if quartiles[0] is None or quartiles[1] is None:
        return over_seeds
    return Spread(over_seeds.median, quartiles[0], quartiles[1])  # over the clients' local models


@styled
def draw_side_by_side(study: RecordedStudy, table: DataFrame) -> Drawing:
    """Draw a panel per metric: a dot per algorithm with its interval and its value."""
    figure, axes = new_figure(0.85 + 0.24 * len(table), 1, len(PANELS), sharey=True)
    places = -np.arange(len(table))
    for axis, (metric, title) in zip(axes[0], PANELS.items(), strict=True):
        for place, row in zip(places, table.to_dict("records"), strict=True):
            style = algorithm_style(str(row["algorithm"]))
            middle, low, high = (float(row[f"{metric}_{name}"]) for name in Spread._fields)
            if not np.isfinite(middle):
                axis.annotate("not finite", (0.05, place), xycoords=("axes fraction", "data"), va="center", fontsize=6)
                continue
            axis.plot([low, high], [place, place], color=style.color, linewidth=1.0, marker="|", markersize=5)
            axis.plot([middle], [place], color=style.color, marker=style.marker, markersize=3.5)
            text = f"{middle:.3g}"
            axis.annotate(text, (middle, place), (0, 3.5), textcoords="offset points", ha="center", fontsize=6)
        axis.set_title(title, loc="center")
        axis.set_ylim(places[-1] - 0.5, 0.75)
        axis.margins(x=0.25)
        axis.grid(axis="x", alpha=0.25, linewidth=0.5)
        axis.tick_params(axis="y", length=0)
        axis.locator_params(axis="x", nbins=3)
    axes[0][0].set_yticks(places, [for_figure(algorithm_style(algo).label) for algo in table["algorithm"]])
    axes[0][0].axvline(CHANCE, color=GRAY, linewidth=0.8, linestyle=":")
    scans = "real scans" if study.runs[0].config["task"]["name"] == "fmri" else "simulated scans"
    local = "local: median and quartiles over clients" if "local" in set(table["algorithm"]) else ""
    add_title(
        figure,
        study,
        scans,
        local,
        f"others: {describe_spread(study)}" if describe_spread(study) else "",
        "dotted: chance",
    )
    return figure


@dataclass(frozen=True)
class Supports:
    """Supports (masks of non-zero weights) of the clients' models, their average and the truth."""

    clients: np.ndarray  # [S, n]
    average: np.ndarray  # [n]
    truth: np.ndarray | None = None  # [n]

    @property
    def client_density(self) -> float:
        return float(self.clients.mean())

    @property
    def average_density(self) -> float:
        return float(self.average.mean())


def read_supports(run: RecordedRun) -> Supports | None:
    """Read the supports of a record; return None if the clients' models were not recorded."""
    models = run.client_models
    if models is None:
        return None
    support = np.abs(models.reshape(len(models), -1)) > THRESHOLD
    return Supports(support[:-1], support[-1], _truth(run, support.shape[1]))


def _truth(run: RecordedRun, weights: int) -> np.ndarray | None:
    """Return the true support if the task defines one: the first `ones` weights."""
    ones = run.config["task"].get("ones")
    return np.arange(weights) < ones if is_number(ones) else None


def supports_of(choices: dict[str, Choice], damaged: list[tuple[Path, str]]) -> dict[str, Supports]:
    """Return the supports of the chosen runs by algorithm; add unreadable records to `damaged`."""
    supports_by_algo = {}
    for algo, choice in choices.items():
        if choice.best is not None:
            try:
                if supports := read_supports(choice.best.runs[0]):
                    supports_by_algo[algo] = supports
            except BadRecord as problem:
                damaged.append((choice.best.runs[0].folder, str(problem)))
    return supports_by_algo


@styled
def draw_curse(study: RecordedStudy, supports: dict[str, Supports]) -> Drawing:
    """Draw a panel per algorithm with a row per client, black for non-zero weights; truth above, average below."""
    figure, axes = new_figure(0.6 + 1.5 * len(supports), len(supports), 1, sharex=True)
    for axis, (algo, support) in zip(axes[:, 0], reversed(supports.items()), strict=True):  # model averaging first
        clients, weights = support.clients.shape
        bands = [(f"{clients} clients", support.clients), ("average", np.repeat(support.average[None], BAND, axis=0))]
        if support.truth is not None:
            bands.insert(0, ("truth", np.repeat(support.truth[None], BAND, axis=0)))
        gap = np.full((1, weights), np.nan)
        rows = np.vstack([part for _, band in bands for part in (band, gap)][:-1])
        ends = np.cumsum([len(band) + 1 for _, band in bands])
        axis.imshow(rows, cmap="Greys", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        axis.set_yticks(
            [end - 1 - (len(band) + 1) / 2 for end, (_, band) in zip(ends, bands, strict=True)],
            [name for name, _ in bands],
        )
        first = len(bands[0][1]) + 1 if support.truth is not None else 0
        for row in range(first, first + clients + 1):  # truth and average are one row each, drawn higher
            axis.axhline(row - 0.5, color="white", linewidth=0.6)
        axis.tick_params(axis="y", length=0)
        axis.spines[:].set_visible(False)
        shares = f"clients {support.client_density:.0%} non-zero, average {support.average_density:.0%}"
        axis.set_title(for_figure(f"{algorithm_style(algo).label}: {shares}"))
    axes[-1, 0].set_xlabel("weight")
    add_title(figure, study, f"black: |w| > {THRESHOLD:g}, at the end of the last round")
    return figure


def supports_table(supports: dict[str, Supports]) -> DataFrame:
    """Return a row per weight: the share of clients with a non-zero value, and whether it is non-zero on average."""
    import pandas as pd

    return pd.concat(
        [
            pd.DataFrame(
                {
                    "algorithm": algo,
                    "weight": np.arange(len(support.average)),
                    "true": np.nan if support.truth is None else support.truth,
                    "share_of_clients": support.clients.mean(axis=0),
                    "average": support.average,
                }
            )
            for algo, support in supports.items()
        ],
        ignore_index=True,
    )


def clients_figure(study: RecordedStudy, supports: dict[str, Supports]) -> Figure:
    """Return figure 2, which replaces the others: such a study has few rounds."""
    return Figure(
        f"{study.slug}_clients",
        partial(draw_curse, study, supports),
        CURSE_CAPTION,
        supports_table(supports),
        "clients",
        study.paper,
        f"{study.heading}: clients",
        alone=True,
    )


# Tests of the claims about figure 2.


def averaging_densifies(evidence: Evidence, algo: str, factor: float) -> Finding:
    """Test that the average of the clients' last models is denser than a client's, by a factor."""
    ratio, measured = _densities(evidence, algo)
    return Finding(ratio >= factor, f"the average {factor:g} times as dense as a client", measured)


def averaging_keeps_sparsity(evidence: Evidence, algo: str, within: float) -> Finding:
    """Test that the average of the clients' last models is at most `1 + within` times as dense as a client's."""
    ratio, measured = _densities(evidence, algo)
    return Finding(ratio <= 1 + within, f"the average at most {1 + within:g} times as dense as a client", measured)


def _densities(evidence: Evidence, algo: str) -> tuple[float, dict[str, float | str]]:
    try:
        supports = read_supports(evidence.run(algo))
    except BadRecord as problem:
        raise NotRun(str(problem)) from problem
    if supports is None:
        raise NotRun("the record has no clients.npz (record_clients=true)")
    ratio = supports.average_density / max(supports.client_density, 1e-12)
    return ratio, {"a client": supports.client_density, "the average": supports.average_density, "times": ratio}
