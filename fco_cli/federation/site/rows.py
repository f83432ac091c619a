"""Data file of a site, and its rows after the split and the common preparation."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fco_cli.data.format import Features, FederatedData, first_row
from fco_cli.data.formula import KEY
from fco_cli.data.offsets import ADDITIVE, Offset, key_of, split_offset
from fco_cli.data.preparation import Preparation
from fco_cli.data.readers import fingerprint, read_single_client
from fco_cli.data.readers.source import Columns
from fco_cli.data.splits import Parts, split
from fco_cli.data.statistics import Summary
from fco_cli.data.subsets import select_columns
from fco_cli.errors import UserError
from fco_cli.federation.keys import read_or_create_key
from fco_cli.federation.policy import Refusal
from fco_cli.problem.data import ClientData, HeldOut
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss
from fco_cli.problem.models.linear import Linear
from fco_cli.tasks.tabular import Custom


@dataclass(frozen=True)
class Split:
    """Rows of one client, split but not prepared."""

    data: FederatedData
    parts: Parts
    names: list[str]  # of the columns in messages; x0, x1, ... if the site does not share names
    offset: Offset | None = None  # an additional last feature

    def hold_out(self, fold: HeldOut, client: int, clients: int) -> Split:
        """Return the split of a fold, which holds out some training rows; other held-out rows are not used."""
        training = self.parts.training
        held_out = np.zeros(len(training), dtype=bool)
        patients = None if self.data.patient is None else self.data.patient[training]
        held_out[training] = fold.rows_of(client, clients, self.data.y[training], patients)
        return replace(self, parts=Parts(training & ~held_out, held_out, np.zeros(len(training), dtype=bool)))

    def summary(self, name: str) -> Summary:
        """Return the summary of the training rows."""
        return Summary.of(name, self.table(self.parts.training))

    def rows_of(self, part: str) -> Array:
        """Return the indices of a part's rows in the file."""
        rows = {"training": self.parts.training, "held_out": self.parts.validation, "test": self.parts.test}[part]
        return np.flatnonzero(rows)

    def check_needs_no_preparation(self) -> None:
        """Raise Refusal if the rows have categorical or missing values."""
        if self.data.levels or first_row(np.isnan, self.data.x) is not None:
            raise Refusal(
                "the site has categorical or missing values; preparing them would disclose statistics without noise"
                " (federation.evaluation_noise)"
            )

    def training_table(self) -> Features:
        """Return the training rows before preparation."""
        return self.table(self.parts.training)

    def table(self, rows: Array) -> Features:
        """Return some rows before preparation."""
        return replace(self.data.take(rows).raw, names=self.names)

    def prepared(self, preparation: Preparation, dtype: str, merge: Callable[[Features], Features]) -> Prepared:
        """Return the rows after the common preparation of tables whose rare categories are merged."""
        try:
            training, held_out, test = (self._prepared(rows, preparation, dtype, merge) for rows in self.parts)
        except UserError:
            raise Refusal(f"the site's values are too large for {dtype}") from None
        extra = [] if self.offset is None else [self.offset.name]
        return Prepared(training, held_out, test, dtype, (*preparation.features, *extra))

    def _prepared(
        self, rows: Array, preparation: Preparation, dtype: str, merge: Callable[[Features], Features]
    ) -> ClientData | None:
        if not rows.any():
            return None
        x = preparation.apply(merge(self.table(rows)))
        x = x if self.offset is None else np.column_stack([x, self.offset.values[rows]])
        return replace(self.data.take(rows), x=x).model_clients(dtype)


@dataclass(frozen=True)
class Prepared:
    """Prepared rows of one client."""

    training: ClientData | None
    held_out: ClientData | None
    test: ClientData | None
    dtype: str
    features: tuple[str, ...]


@dataclass
class Fit:
    """Rows of one fit of a run, all rows or those of a fold, and its model after the preparation."""

    split: Split
    client: int  # index among the sites with training rows
    sites: int = 1  # that may have training rows
    prepared: Prepared | None = None
    model: Linear | None = None

    def rows(self) -> Prepared:
        if self.prepared is None:
            raise Refusal("the rows are not prepared yet")
        return self.prepared

    def part(self, part: str) -> ClientData | None:
        """Return the rows of a part, None if the site has none."""
        return {"training": self.rows().training, "held_out": self.rows().held_out, "test": self.rows().test}[part]

    def training(self) -> ClientData:
        if (training := self.rows().training) is None:
            raise Refusal("the site has no training rows in this run")
        return training

    def linear(self) -> Linear:
        if self.model is None:
            raise Refusal("the rows are not prepared yet")
        return self.model


class SiteFile:
    """Data file of a site; its path is not sent."""

    def __init__(self, path: Path, name: str, columns: Columns, secret: Path) -> None:
        self.data: FederatedData = read_single_client(path, name, columns)
        # A keyed hash is equal for equal rows and cannot be used to test guesses of them.
        unkeyed, self.secret = fingerprint(path, columns), read_or_create_key(secret)
        self.digest = hmac.new(self.secret, unkeyed.encode(), hashlib.sha256).hexdigest()[:16]

    def split(
        self, task: Custom, seed: int, client: int, classes: list[str] | None, share_names: bool, keeps_offset: bool
    ) -> Split:
        """Return the split that a simulation with this seed uses for client number `client`, in the order of names.

        It has the columns of the task's formula only. An offset is kept as an additional feature, or subtracted from
        the labels.
        """
        data = self._with_classes(classes)
        loss = task.configured_loss()
        if not loss.accepts_labels(data.y, None if classes is None else len(classes)).all():
            raise Refusal(
                f"the site's labels are invalid for the {loss.name} loss, which needs {loss.describe_labels()}"
            )
        for holdout in task.holdouts:
            if holdout.method == "clients":
                raise Refusal(f"task.{holdout.name}: got clients, must be rows, split or none with federation=flare")
        try:
            parts = split(data, *task.holdouts, seed, first=client)
        except UserError:
            raise Refusal("the site's file has no split that leaves training rows") from None
        names = data.feature_names if share_names else [f"x{k}" for k in range(data.x.shape[1])]
        if data.levels and not share_names:
            raise Refusal("the site has categorical columns, but does not share names (site.yaml: share_names)")
        if (formula := task.parsed_formula()) is None and task.offset_expression() is None:
            return Split(data, parts, names)
        if not share_names:
            raise Refusal("task.formula and task.offset need names of columns (site.yaml: share_names)")
        data, offset = self._with_offset(data, parts, task, loss, keeps_offset)
        if formula is not None:
            data = select_columns(data, formula.columns, KEY)
        return Split(data, parts, data.feature_names, offset)

    @staticmethod
    def _with_offset(
        data: FederatedData, parts: Parts, task: Custom, loss: Loss, keeps_offset: bool
    ) -> tuple[FederatedData, Offset | None]:
        """Return the data without the column of the offset, and the offset if it is kept as a feature."""
        if (expression := task.offset_expression()) is None:
            return data, None
        try:
            data, offset = split_offset(data, expression, loss)
        except UserError:  # its text has the number of a row
            raise Refusal(f"{key_of(expression)}: the column is absent, or not a valid number in every row") from None
        if keeps_offset:
            return data, offset
        if loss.name not in ADDITIVE:
            raise Refusal(f"{key_of(expression)}: must be null for the {loss.name} loss, except with experiment=glm")
        return offset.applied(data, parts.training, loss, key_of(expression))[0], None

    def _with_classes(self, classes: list[str] | None) -> FederatedData:
        """Return the data with labels as indices into the classes of all sites."""
        data = self.data
        if (classes is None) != (data.classes is None):
            raise Refusal("labels are class names at some sites and numbers at others")
        if classes is None or data.classes is None:
            return data
        indices = {name: k for k, name in enumerate(classes)}
        if not set(data.classes.tolist()) <= indices.keys():
            raise Refusal("the site's labels are not among the common classes")
        return replace(data, y=np.array([indices[name] for name in data.classes.tolist()])[data.y.astype(int)])
