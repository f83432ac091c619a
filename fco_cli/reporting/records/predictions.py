"""Reader of predictions.csv: histograms of predicted probabilities by chosen model and client."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fco_cli.federation.metrics import BINS
from fco_cli.path.predictions import ALL_CLIENTS, Predictions
from fco_cli.reporting.records.tables import Columns, read_table
from fco_cli.typed_files import BadRecord

if TYPE_CHECKING:
    from pandas import DataFrame

PREDICTIONS = Columns(("client", "bin", "negatives", "positives"), ("choice", "client"))


class ClientPredictions(NamedTuple):
    """Predictions of one client, and why it has no ROC curve (empty if it has one)."""

    client: str
    rows: int
    predictions: Predictions | None
    reason: str


@dataclass(frozen=True)
class RecordedPredictions:
    """Predictions of one model: those of all clients, and of every client, most rows first."""

    title: str  # of the model
    how: str  # "out of fold" or "on the rows of the fit"
    total: Predictions
    clients: list[ClientPredictions]


def read_predictions(path: Path) -> DataFrame | None:
    """Return the histograms of a record; None if it has none. Raise BadRecord if they are invalid."""
    if not path.exists():
        return None
    table = read_table(path, PREDICTIONS)
    for name in ("bin", "negatives", "positives"):
        values = table[name].to_numpy()
        if table[name].dtype.kind != "i" or (values < 0).any() or (values > 10**12).any():
            raise BadRecord(f"{path.name}: column {name!r} must hold counts")
    if (table["bin"] >= BINS).any():
        raise BadRecord(f"{path.name}: bins must be below {BINS}")
    return table


def predictions_of(
    table: DataFrame, sizes: dict[str, int], title: str, how: str, choice: str | None = None
) -> RecordedPredictions | None:
    """Return the predictions of one model; `sizes` are the rows of all clients of the record, by name.

    Clients without predictions are listed with the reason. None if there are no predictions.
    """
    own = table if choice is None else table[table["choice"] == choice]
    by_client = {
        str(client): Predictions.of_lines(*(lines[name].to_numpy() for name in ("bin", "negatives", "positives")))
        for client, lines in own.groupby("client", sort=True)
    }
    if not by_client:
        return None
    total = reduce(add, by_client.values())
    masked = set(by_client) == {ALL_CLIENTS}
    clients = [] if masked else [_client(name, rows, by_client.get(name)) for name, rows in sizes.items()]
    clients.sort(key=lambda one: -one.rows)
    return RecordedPredictions(title, how, total, clients)


def _client(name: str, rows: int, predictions: Predictions | None) -> ClientPredictions:
    if predictions is None:
        return ClientPredictions(name, rows, None, "no histogram is shared")
    reason = (
        "" if 0 < predictions.events < predictions.rows else "no events" if not predictions.events else "only events"
    )
    return ClientPredictions(name, predictions.rows, predictions, reason)


def client_sizes(names: list[str], rows: list[int]) -> dict[str, int]:
    """Return the rows of every client by name, without the line of all clients."""
    return {name: int(np.int64(count)) for name, count in zip(names, rows, strict=True) if name != ALL_CLIENTS}
