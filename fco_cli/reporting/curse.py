"""Figure 2, the curse of primal averaging: each client's support against the support of their average.

Read from the `clients.npz` that a run leaves with `record_clients=true`: the models at which the clients of the last
round ended and, in the last place, their average.
"""

from __future__ import annotations

import io
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fco_cli.reporting.figures import new_figure, styled
from fco_cli.reporting.gate import MEBIBYTE, BadRecord, read_bounded
from fco_cli.reporting.records import RecordedRun
from fco_cli.reporting.select import Choice
from fco_cli.reporting.studies import Study
from fco_cli.reporting.style import algorithm_style
from fco_cli.reporting.text import for_figure, printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LARGEST = 64 * MEBIBYTE
THRESHOLD = 1e-2  # smaller weights count as zero, as in the paper's appendix B.2


@dataclass(frozen=True)
class Supports:
    """Which weights are non-zero."""

    clients: np.ndarray  # [S, n]
    average: np.ndarray  # [n]

    @property
    def client_density(self) -> float:
        return float(self.clients.mean())

    @property
    def average_density(self) -> float:
        return float(self.average.mean())


def read_supports(run: RecordedRun) -> Supports | None:
    """The supports of a record; None where the clients' models were not kept."""
    path = run.folder / "clients.npz"
    if not os.path.lexists(path):
        return None
    content = io.BytesIO(read_bounded(path, LARGEST))
    try:
        with zipfile.ZipFile(content) as archive:
            if sum(member.file_size for member in archive.infolist()) > LARGEST:
                raise BadRecord(f"unpacks to more than {LARGEST / MEBIBYTE:g} MiB")
        with np.load(content, allow_pickle=False) as arrays:
            models = arrays["weights"]
        support = np.abs(models.reshape(len(models), -1).astype(float)) > THRESHOLD
        if len(support) < 2 or support.size == 0:
            raise BadRecord(f"{models.shape} are not the models of clients and their average")
    except Exception as problem:  # zip files and arrays fail in many ways
        raise BadRecord(f"clients.npz: {printable(str(problem))}") from problem
    return Supports(support[:-1], support[-1])


def supports_of(choices: dict[str, Choice], damaged: list[tuple[Path, str]]) -> dict[str, Supports]:
    """By algorithm, of the chosen runs; what cannot be read is added to `damaged`."""
    found = {}
    for algo, choice in choices.items():
        if choice.best is not None:
            try:
                if supports := read_supports(choice.best.runs[0]):
                    found[algo] = supports
            except BadRecord as problem:
                damaged.append((choice.best.runs[0].folder, str(problem)))
    return found


@styled
def draw_curse(study: Study, supports: dict[str, Supports]) -> Figure | None:
    """A panel per algorithm: a row per client, black where a weight is non-zero, and their average below."""
    if not supports:
        return None
    figure, axes = new_figure(2.6, len(supports), sharey=True)
    for axis, (algo, found) in zip(axes, reversed(supports.items()), strict=True):  # those that average models first
        clients, weights = found.clients.shape
        # the average has the height of three clients, after a gap of one
        rows = np.vstack([found.clients, np.zeros((1, weights)), np.repeat(found.average[None], 3, axis=0)])
        axis.imshow(rows, cmap="Greys", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        axis.axhspan(clients - 0.5, clients + 0.5, color="white")
        axis.set_yticks([(clients - 1) / 2, clients + 2], [f"{clients} clients", "their\naverage"])
        axis.tick_params(axis="y", length=0)
        axis.set_xlabel("weight")
        axis.spines[:].set_visible(False)
        for i in range(clients):
            axis.axhline(i - 0.5, color="white", linewidth=0.8)
        label = algorithm_style(algo).label
        densities = f"{found.client_density:.0%} of a client's weights, {found.average_density:.0%} of their average's"
        axis.set_title(f"{label}\nnon-zero: {densities}", fontsize=7)
    figure.suptitle(for_figure(study.heading))
    return figure
