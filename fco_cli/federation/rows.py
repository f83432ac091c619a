"""A site's own file, and its rows as a run wants them: split, in the run's precision, standardized with all sites'."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fco_cli.errors import UserError
from fco_cli.federated_data.format import FederatedData
from fco_cli.federated_data.moments import Moments
from fco_cli.federated_data.readers import fingerprint, read_alone
from fco_cli.federated_data.source import Columns
from fco_cli.federation.policy import Refusal
from fco_cli.problem.data import ClientData
from fco_cli.problem.layout import Array
from fco_cli.tasks.custom import Custom, held_out_rows, standardized


@dataclass(frozen=True)
class Prepared:
    """One client's rows, ready for a run."""

    training: ClientData
    held_out: ClientData | None
    dtype: str

    def standardized(self, moments: Moments) -> Prepared:
        """By the moments of all sites together."""
        held_out = None if self.held_out is None else standardized(self.held_out, moments, self.dtype)
        return replace(self, training=standardized(self.training, moments, self.dtype), held_out=held_out)


class SiteFile:
    """The rows that a site brings; which file that is, only the site knows."""

    def __init__(self, path: Path, name: str, columns: Columns, secret: Path) -> None:
        self.data: FederatedData = read_alone(path, name, columns)
        # The rows' hash under a key of the site's own: equal for equal rows, and of no use to anyone who guesses them.
        self.digest = hmac.new(_secret(secret), fingerprint(path).encode(), hashlib.sha256).hexdigest()[:16]

    def prepared(self, task: Custom, seed: int, dtype: str, client: int, classes: list[str] | None) -> Prepared:
        """Split as the simulation splits this client's rows, the client-th in the order of the names."""
        data = self._with_classes(classes)
        loss = task.chosen_loss()
        if not loss.takes(data.y, None if classes is None else len(classes)).all():
            raise Refusal(f"its labels do not suit the {loss.name} loss, which needs {loss.allowed()}")
        held_out = self._held_out(data, task, seed, client)
        try:
            training = data.take(~held_out).as_clients(dtype)
            return Prepared(training, data.take(held_out).as_clients(dtype) if held_out.any() else None, dtype)
        except UserError:
            raise Refusal(f"its values are too large for {dtype}") from None

    def _held_out(self, data: FederatedData, task: Custom, seed: int, client: int) -> Array:
        if task.holdout == "none":
            return np.zeros(len(data.y), dtype=bool)
        if task.holdout == "rows":
            return held_out_rows(len(data.y), task.holdout_fraction, seed, client)
        if task.holdout != "split":
            raise Refusal(f"task.holdout={task.holdout} is not possible between sites: rows, split or none")
        if data.split is None or (data.split != "train").all():
            raise Refusal("its file has no split that leaves rows to train on")
        return np.asarray(data.split != "train")

    def _with_classes(self, classes: list[str] | None) -> FederatedData:
        """Labels counted among the classes of all sites."""
        data = self.data
        if (classes is None) != (data.classes is None):
            raise Refusal("only some sites have words for labels")
        if classes is None or data.classes is None:
            return data
        places = {name: place for place, name in enumerate(classes)}
        if not set(data.classes.tolist()) <= places.keys():
            raise Refusal("its labels are not among those that were agreed")
        return replace(data, y=np.array([places[name] for name in data.classes.tolist()])[data.y.astype(int)])


def _secret(path: Path) -> bytes:
    """The site's own key, drawn once; nobody else can read it."""
    if not path.exists():
        path.touch(mode=0o600)
        path.write_bytes(secrets.token_bytes(32))
    return path.read_bytes()
