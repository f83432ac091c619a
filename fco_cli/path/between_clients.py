"""Labels that vary mostly between clients, such as repeated measurements of patients who are the clients.

Cross-validation by rows then predicts a client from its own other rows. The loss for new clients can be much larger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fco_cli.problem.data import ClientData
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss

LARGE_SHARE = 0.5  # of the variance of the labels
FEWEST_CLIENTS = 3


def share_between(training: ClientData, loss: Loss) -> float | None:
    """Return the share of the variance of the labels that is between clients; None if it is not defined.

    It is corrected for chance (epsilon squared), so that it is 0 on average for clients of equal distribution.
    """
    clients, rows = training.clients, len(training.y)
    if loss.client_loss is not None or not FEWEST_CLIENTS <= clients < rows:
        return None
    y = np.asarray(training.y, dtype=float)
    labels = (y[:, None] == np.unique(y)).astype(float) if loss.classification else y[:, None]  # [N, C]
    labels = labels - labels.mean(axis=0)
    total = float((labels**2).sum())
    sums = np.add.reduceat(labels, training.offsets[:-1], axis=0)
    between = float((sums**2 / training.sizes[:, None]).sum())
    if not 0 < total < np.inf:
        return None
    within = (total - between) / (rows - clients)
    return max(0.0, (between - (clients - 1) * within) / total)


@dataclass(frozen=True)
class BetweenClients:
    """Cross-validated losses by rows and by clients of a path whose labels vary mostly between clients."""

    share: float
    by_rows: float  # smallest cross-validated loss
    by_clients: float
    null: float  # loss of the null model, by clients

    @classmethod
    def of(cls, share: float, by_rows: Array, by_clients: Array) -> BetweenClients:
        """Return the comparison of two curves of cross-validated losses [J], null model first."""
        return cls(share, float(np.nanmin(by_rows)), float(np.nanmin(by_clients)), float(by_clients[0]))

    def as_json(self) -> dict[str, Any]:
        return {"share": self.share, "by_rows": self.by_rows, "by_clients": self.by_clients, "null": self.null}


def warning_of_between_clients(numbers: dict[str, Any], option: str = "path.by=clients") -> str:
    """Return the warning of labels that vary mostly between clients, with both cross-validated losses."""
    return (
        f"{numbers['share']:.0%} of the variance of the labels is between clients: the cross-validated loss is "
        f"{numbers['by_rows']:.4g} by rows, where a client's other rows are known, but {numbers['by_clients']:.4g} by "
        f"clients (null model: {numbers['null']:.4g}); use {option} to select a model for new clients"
    )
