"""Figure 2, the curse of primal averaging: each client's support against the support of their average.

The models are read from `clients.npz`, which a run writes with `record_clients=true`: the clients' models at the end of
the last round and, last, their average.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fco_cli.reporting import (
    BadRecord,
    Choice,
    Evidence,
    Figure,
    Finding,
    NotRun,
    RecordedRun,
    RecordedStudy,
    add_title,
    algorithm_style,
    for_figure,
    is_number,
    new_figure,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing
    from pandas import DataFrame

THRESHOLD = 1e-2  # smaller weights count as zero, as in the paper's appendix B.2


CAPTION = (
    f"Non-zero weights (|w| > {THRESHOLD:g}) of the true model, of the clients' models at the end of the last round, "
    "and of their average."
)


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
        bands = [(f"{clients} clients", support.clients), ("average", np.repeat(support.average[None], 3, axis=0))]
        if support.truth is not None:
            bands.insert(0, ("truth", np.repeat(support.truth[None], 2, axis=0)))
        gap = np.full((1, weights), np.nan)
        rows = np.vstack([part for _, band in bands for part in (band, gap)][:-1])
        ends = np.cumsum([len(band) + 1 for _, band in bands])
        axis.imshow(rows, cmap="Greys", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        axis.set_yticks(
            [end - 1 - (len(band) + 1) / 2 for end, (_, band) in zip(ends, bands, strict=True)],
            [name for name, _ in bands],
        )
        for row in range(len(rows) + 1):
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
        CAPTION,
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
