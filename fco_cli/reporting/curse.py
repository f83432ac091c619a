"""Figure 2, the curse of primal averaging: each client's support against the support of their average.

The models are read from `clients.npz`, which a run writes with `record_clients=true`: the clients' models at the end of
the last round and, last, their average.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fco_cli.reporting.figures import add_title, new_figure, styled
from fco_cli.reporting.records import RecordedRun
from fco_cli.reporting.select import Choice
from fco_cli.reporting.studies import Study
from fco_cli.reporting.style import algorithm_style
from fco_cli.reporting.text import for_figure
from fco_cli.reporting.validation import is_number
from fco_cli.typed_files import MEBIBYTE, BadRecord, read_arrays

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

MAX_BYTES = 64 * MEBIBYTE
THRESHOLD = 1e-2  # smaller weights count as zero, as in the paper's appendix B.2


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
    path = run.folder / "clients.npz"
    if not os.path.lexists(path):
        return None
    models = read_arrays(path, MAX_BYTES).get("weights")
    if models is None or models.ndim == 0 or len(models) < 2 or models.size == 0:
        raise BadRecord("clients.npz: must hold the models of at least one client and their average")
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
def draw_curse(study: Study, supports: dict[str, Supports]) -> Figure:
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
