"""A site's own file, and its rows as a run wants them: split, and prepared as all sites have agreed."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fco_cli.data.format import Features, FederatedData, first_row
from fco_cli.data.preparation import Preparation
from fco_cli.data.readers import fingerprint, read_alone
from fco_cli.data.source import Columns
from fco_cli.data.splits import Parts, split
from fco_cli.data.summary import Summary
from fco_cli.errors import UserError
from fco_cli.federation.policy import Refusal
from fco_cli.problem.data import ClientData
from fco_cli.problem.folds import HeldOut
from fco_cli.problem.layout import Array
from fco_cli.tasks.custom import Custom


@dataclass(frozen=True)
class Split:
    """One client's rows before anything is agreed."""

    data: FederatedData
    parts: Parts
    names: list[str]  # under which its columns are spoken of: not their own if the site keeps those

    def without(self, apart: HeldOut, client: int, clients: int) -> Split:
        """The same for a fold, which holds out some of the rows that trained and leaves all others alone."""
        training = self.parts.training
        held_out = np.zeros(len(training), dtype=bool)
        held_out[training] = apart.rows_of(client, clients, self.data.y[training])
        return replace(self, parts=Parts(training & ~held_out, held_out, np.zeros(len(training), dtype=bool)))

    def summary(self, name: str) -> Summary:
        """What the site tells of the rows that train."""
        return Summary.of(name, self._raw(self.parts.training))

    def check_bare(self) -> None:
        """Whether nothing must be told of the rows to prepare them: numbers only, and none is missing."""
        if self.data.levels or first_row(np.isnan, self.data.x) is not None:
            raise Refusal(
                "it has words or missing values, of which it would have to tell (federation.evaluation_noise)"
            )

    def table(self) -> Features:
        """The rows that train, of which medians are asked."""
        return self._raw(self.parts.training)

    def prepared(self, preparation: Preparation, dtype: str) -> Prepared:
        """As was agreed."""
        try:
            training, held_out, test = (self._prepared(rows, preparation, dtype) for rows in self.parts)
        except UserError:
            raise Refusal(f"its values are too large for {dtype}") from None
        return Prepared(training, held_out, test, dtype, tuple(preparation.features))

    def _raw(self, rows: Array) -> Features:
        return replace(self.data.take(rows).raw, names=self.names)

    def _prepared(self, rows: Array, preparation: Preparation, dtype: str) -> ClientData | None:
        if not rows.any():
            return None
        return replace(self.data.take(rows), x=preparation.apply(self._raw(rows))).model_clients(dtype)


@dataclass(frozen=True)
class Prepared:
    """One client's rows, ready for a run."""

    training: ClientData | None
    held_out: ClientData | None
    test: ClientData | None
    dtype: str
    features: tuple[str, ...]


class SiteFile:
    """The rows that a site brings; which file that is, only the site knows."""

    def __init__(self, path: Path, name: str, columns: Columns, secret: Path) -> None:
        self.data: FederatedData = read_alone(path, name, columns)
        # The rows' hash under a key of the site's own: equal for equal rows, and of no use to anyone who guesses them.
        own = fingerprint(path, columns)
        self.digest = hmac.new(_secret(secret), own.encode(), hashlib.sha256).hexdigest()[:16]

    def split(self, task: Custom, seed: int, client: int, classes: list[str] | None, share_names: bool) -> Split:
        """As the simulation splits this client's rows, the client-th in the order of the names."""
        data = self._with_classes(classes)
        loss = task.chosen_loss()
        if not loss.takes(data.y, None if classes is None else len(classes)).all():
            raise Refusal(f"its labels do not suit the {loss.name} loss, which needs {loss.allowed()}")
        for holdout in task.holdouts:
            if holdout.way == "clients":
                raise Refusal(f"task.{holdout.name}=clients is not possible between sites: rows, split or none")
        try:
            parts = split(data, *task.holdouts, seed, first=client)
        except UserError:
            raise Refusal("its file has no split that leaves rows to train on") from None
        names = data.feature_names if share_names else [f"x{k}" for k in range(data.x.shape[1])]
        if data.levels and not share_names:
            raise Refusal("it has columns of categories, and its policy does not share names (share_names)")
        return Split(data, parts, names)

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
