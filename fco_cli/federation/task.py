"""`task=custom` with rows that are at sites."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from fco_cli.errors import UserError, require
from fco_cli.federated_data.export import LinearModel
from fco_cli.federated_data.format import shown
from fco_cli.federated_data.moments import Moments
from fco_cli.federation.clients import SiteRows
from fco_cli.federation.message import Message
from fco_cli.federation.metrics import SUMS
from fco_cli.federation.site import names_digest, sent_task
from fco_cli.federation.sites import Sites, from_site
from fco_cli.problem.layout import Array
from fco_cli.problem.models import Linear
from fco_cli.problem.problem import Problem, TaskData
from fco_cli.tasks.custom import Custom
from fco_cli.tasks.metrics import density


@dataclass(kw_only=True)
class CustomAtSites(Custom):
    """Its data are the sites' own files; what they are is agreed on, their rows stay."""

    @classmethod
    def of(cls, task: Custom, sites: Sites) -> CustomAtSites:
        made = cls(**{key.name: getattr(task, key.name) for key in fields(task)})
        made.__dict__["sites"] = sites
        return made

    @property
    def connection(self) -> Sites:
        return self.__dict__["sites"]

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.holdout != "clients", "task.holdout", self.holdout, "auto, split, rows or none between sites")

    @property
    def clients_available(self) -> int | None:
        return len(self.connection.names) if "sites" in self.__dict__ else None

    def contents(self) -> dict[str, str]:
        """The sites and their rows' hashes, each under a key that only its site knows."""
        described = self.connection.described()
        return {"path": " ".join(f"{name}:{message.value('digest', str)}" for name, message in described.items())}

    def build(self, seed: int, dtype: str) -> TaskData:
        sites, described = self.connection, self.connection.described()
        names, classes = _agreed_names(described), _agreed_classes(described)
        sent = sent_task(self) | {"holdout": self._holdout(described)}
        head = {"task": sent, "sites": sites.names, "seed": seed, "dtype": dtype, "classes": classes}
        prepared = sites.prepared("prepare", head)
        moments = self._merged_moments(prepared, names)
        outputs = max(message.value("outputs", int) for message in prepared.values())
        start = seed if self.start == "glorot" else None
        scale: dict[str, Any] = {"outputs": outputs, "start": start}
        arrays = {"mean": moments.mean, "deviations": moments.deviations} if self.standardize else {}
        sites.prepared("scale", scale | {"count": moments.count}, arrays)
        loss, last = self.chosen_loss(), dict[bytes, dict[str, Message]]()

        def rows(part: str) -> SiteRows:
            sizes = [message.value(part, int) for message in prepared.values()]
            offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
            return SiteRows(
                np.empty((0, len(names)), dtype), np.empty(0, dtype), offsets,
                sites=sites, part=part, classification=loss.classification, answers=last,
            )  # fmt: skip

        held_out = rows("held_out")
        if (held_out.sizes == 0).any() and held_out.sizes.any():
            raise UserError("task.holdout: some sites would hold out no row; task.holdout=none holds out none at all")
        description = LinearModel(self.loss, names, classes, moments)
        return TaskData(
            rows("training"), Linear(len(names), outputs), loss, held_out if held_out.sizes.any() else None,
            description=description, held_out_of=np.arange(len(sites.names)),
        )  # fmt: skip

    def _holdout(self, described: dict[str, Message]) -> str:
        if self.holdout != "auto":
            return self.holdout
        splits = [message.value("split", bool) for message in described.values()]
        return "split" if all(splits) else "rows"

    def _merged_moments(self, prepared: dict[str, Message], names: list[str]) -> Moments:
        """Merged in the order of the sites' names, as the simulation does."""
        features = len(names)
        if not self.standardize:
            return Moments.identity(features)
        total: Moments | None = None
        for name, message in prepared.items():
            with from_site(name):
                mean, deviations = (message.wanted(one, (features,), float) for one in ("mean", "deviations"))
                own = Moments(message.value("training", int), mean, deviations)
            total = own if total is None else total.merge(own)
        assert total is not None
        finite = np.isfinite(total.mean) & np.isfinite(total.scale)
        if not finite.all():
            feature = shown(names[int(np.argmin(finite))])
            raise UserError(f"task.standardize: feature {feature!r}: its values are too large; task.standardize=false")
        return total

    def metrics(self, problem: Problem, w: Array) -> dict[str, Array]:
        support = w[:, problem.layout.regularized] != 0
        metrics = {"density": density(support), "nonzeros": support.sum(axis=1)}
        known, held_out = SUMS.get(type(problem.loss)), problem.held_out
        if known is not None and isinstance(held_out, SiteRows):
            sums = held_out.sums(w, known.width)
            if sums is not None:
                told = known.metrics(sums, held_out.sizes)
                metrics |= {f"validation_{name}": values for name, values in told.items()}
        return metrics


def _agreed_names(described: dict[str, Message]) -> list[str]:
    """The features' names, the same at all sites; x0, x1, ... where no site tells them."""
    (first, pattern), *others = described.items()
    for name, message in others:
        if message.value("names_digest", str) != pattern.value("names_digest", str):
            counts = f"{message.value('features', int)} and {pattern.value('features', int)}"
            raise UserError(f"{name}: its features are not those of {first} ({counts}; names and order must be equal)")
    for name, message in described.items():
        names = message.head.get("names")
        if names is not None:
            right = isinstance(names, list) and all(isinstance(one, str) for one in names)
            if not right or names_digest(names) != message.value("names_digest", str):
                raise UserError(f"{name}: sent what cannot be used: names that are not those it stands for")
            return names
    return [f"x{k}" for k in range(pattern.value("features", int))]


def _agreed_classes(described: dict[str, Message]) -> list[str] | None:
    """All sites' classes, in alphabetical order."""
    classes = {name: message.head.get("classes") for name, message in described.items()}
    if all(one is None for one in classes.values()):
        return None
    for name, one in classes.items():
        if not (isinstance(one, list) and all(isinstance(word, str) for word in one)):
            raise UserError(f"{name}: only some sites have words for labels")
    return sorted({word for one in classes.values() if one is not None for word in one})
