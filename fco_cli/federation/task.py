"""`task=custom` with rows that are at sites."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, astuple, dataclass, fields

import numpy as np

from fco_cli.errors import UserError, require
from fco_cli.federated_data.export import LinearModel
from fco_cli.federated_data.preparation import Preparation, agree, median_search
from fco_cli.federated_data.summary import Summary, merged
from fco_cli.federation.elsewhere import SiteRows
from fco_cli.federation.message import BadMessage, Message
from fco_cli.federation.metrics import SUMS
from fco_cli.federation.sites import Agreement, Sites, from_site
from fco_cli.federation.telling import sent_task
from fco_cli.problem.data import ClientData
from fco_cli.problem.folds import HeldOut
from fco_cli.problem.layout import Array
from fco_cli.problem.models import Linear
from fco_cli.problem.problem import Problem, TaskData
from fco_cli.tasks.custom import Custom

UNKNOWN_THERE = {
    "weights": "every row counts once",
    "class_weight": "every row counts once",
    "partition": "each of them is one client",
}


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
        for holdout in self.holdouts:
            allowed = "auto, split, rows or none between sites"
            require(holdout.way != "clients", f"task.{holdout.name}", holdout.way, allowed)
        require(self.loss != "auto", "task.loss", self.loss, "named between sites: logistic, squared, ...")
        require(not self.site_intercept, "task.site_intercept", True, "false between sites: they share one intercept")
        for key, why in UNKNOWN_THERE.items():
            require(getattr(self, key) is None, f"task.{key}", getattr(self, key), f"null between sites: {why}")

    @property
    def clients_available(self) -> int | None:
        return len(self.connection.names) if "sites" in self.__dict__ else None

    def contents(self) -> dict[str, str]:
        """The sites and their rows' hashes, each under a key that only its site knows."""
        described = self.connection.described()
        return {"path": " ".join(f"{name}:{message.value('digest', str)}" for name, message in described.items())}

    def build(self, seed: int, dtype: str) -> TaskData:
        return self._agreed_on(seed, dtype, None)

    def divided(self, data: TaskData, seed: int, dtype: str, held_out: Iterable[HeldOut]) -> Iterator[TaskData]:
        """Every site holds out its own rows, and all agree anew on what the others are prepared by."""
        for apart in held_out:
            made = self._agreed_on(seed, dtype, apart)
            apart.deal.check(np.array([0 if made.held_out is None else 1]))
            yield made

    def _agreed_on(self, seed: int, dtype: str, apart: HeldOut | None) -> TaskData:
        described, agreement = self.connection.described(), Agreement(self.connection)
        classes = _agreed_classes(described)
        _check_names(described)
        sent = sent_task(self) | {"holdout": self._way("holdout", described), "test": self._way("test", described)}
        fold = None if apart is None else asdict(apart)
        head = {"task": sent, "sites": self.connection.names, "seed": seed, "dtype": dtype, "classes": classes}
        told = self.connection.noise is None  # noise covers evaluations: of the rows themselves nothing is told
        split = agreement.add("prepare", head | {"fold": fold, "summary": told})
        preparation = self._agreed(agreement, split) if told else _as_they_are(described)
        outputs = max(message.value("outputs", int) for message in split.values())
        start = seed if self.start == "glorot" else None
        agreement.add("apply", {"preparation": preparation.as_json(), "outputs": outputs, "start": start})

        def rows(part: str) -> SiteRows | None:
            """Those of the sites that have any."""
            sizes = {name: size for name, message in split.items() if (size := message.value(part, int))}
            offsets = np.append(0, np.cumsum(list(sizes.values()))).astype(np.int64)
            return SiteRows(
                np.empty((0, len(preparation.features)), dtype), np.empty(0, dtype), offsets,
                trained_as=np.array([trained.get(name, -1) for name in sizes], int),
                agreement=agreement, names=list(sizes), part=part, loss=loss,
            ) if sizes else None  # fmt: skip

        loss, trained = self.chosen_loss(), dict[str, int]()
        training = rows("training")
        if training is None:
            raise UserError("federation.sites: none of them has rows to train on")
        trained |= {name: m for m, name in enumerate(training.names)}
        held_out, test = rows("held_out"), rows("test")
        if self.connection.mask_bits is not None:
            everybody = all(data is None or data.names == self.connection.names for data in (training, held_out, test))
            require(everybody, "federation.masks", True, "false here: only some sites have rows of a part")
        return TaskData(
            training, Linear(len(preparation.features), outputs), loss, held_out,
            description=LinearModel(self.loss, classes, preparation),
            features=tuple(preparation.features), test=test, clients=training.names,
        )  # fmt: skip

    def _way(self, key: str, described: dict[str, Message]) -> str:
        """How rows are held out, the same at all sites; auto: as their files say, if all of them do."""
        way, part = getattr(self, key), {"holdout": "val", "test": "test"}[key]
        if way != "auto":
            return way
        splits = [part in message.value("split", list) for message in described.values()]
        return "split" if all(splits) else {"holdout": self.validates, "test": "none"}[key]

    def _agreed(self, agreement: Agreement, split: dict[str, Message]) -> Preparation:
        """The exchange of `preparation.prepared`, with the sites that train."""
        summaries = {}
        for name, message in split.items():
            with from_site(name):
                if message.value("training", int):
                    summaries[name] = _summary(name, message)
        total = merged(list(summaries.values()))
        if self.recipe.fill != "median":
            return agree(total, self.recipe)
        search = median_search(total)
        while not search.finished:
            answers = []
            for name, message in agreement.ask("count", {}, {"edges": search.edges}, list(summaries)).items():
                with from_site(name):
                    answers.append(message.wanted("counts", search.edges.shape, np.int64))
            search = search.narrowed(answers)
        return agree(total, self.recipe, search.high)

    def held_out_metrics(self, problem: Problem, data: ClientData, w: Array) -> dict[str, Array]:
        """Those that follow from sums over the sites' rows; none where a site does not tell."""
        known = SUMS.get(type(problem.loss))
        sums = data.sums(w, known.width) if known is not None and isinstance(data, SiteRows) else None
        return {} if sums is None or known is None else known.metrics(*sums)


def _check_names(described: dict[str, Message]) -> None:
    """The features' names must be the same at all sites; of those that keep them only the digest is known."""
    (first, pattern), *others = described.items()
    for name, message in others:
        if message.value("names_digest", str) != pattern.value("names_digest", str):
            counts = f"{message.value('features', int)} and {pattern.value('features', int)}"
            raise UserError(f"{name}: its features are not those of {first} ({counts}; names and order must be equal)")


def _as_they_are(described: dict[str, Message]) -> Preparation:
    """Rows that need no preparation."""
    first = next(iter(described.values()))
    features = first.value("features", int)
    names = first.head.get("names") or [f"x{k}" for k in range(features)]
    return Preparation(names, [0.0] * features, {}, [])


def _summary(name: str, message: Message) -> Summary:
    """What a site tells of its rows, of the shapes that it must have."""
    try:
        summary = Summary.of_plain(message.value("summary", dict))
        shapes = {array.shape for array in (*astuple(summary.moments), summary.low, summary.high)}
        sound = shapes == {(len(summary.columns),)} and all(isinstance(one, str) for one in summary.columns)
        finite = np.isfinite(summary.moments.mean).all() and np.isfinite(summary.moments.deviations).all()
        if not sound or not finite or summary.client != name or summary.rows != message.value("training", int):
            raise ValueError
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadMessage("a summary of its rows that is none") from None
    return summary


def _agreed_classes(described: dict[str, Message]) -> list[str] | None:
    """All sites' classes, in alphabetical order."""
    classes = {name: message.head.get("classes") for name, message in described.items()}
    if all(one is None for one in classes.values()):
        return None
    for name, one in classes.items():
        if not (isinstance(one, list) and all(isinstance(word, str) for word in one)):
            raise UserError(f"{name}: only some sites have words for labels")
    return sorted({word for one in classes.values() if one is not None for word in one})
