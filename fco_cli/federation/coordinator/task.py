"""`task=custom` with rows that are at sites."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields

import msgspec
import numpy as np

from fco_cli.data.export import LinearModel
from fco_cli.data.preparation import Preparation, agree, median_search
from fco_cli.data.summary import Summary, merged
from fco_cli.errors import UserError, require
from fco_cli.federation.coordinator.elsewhere import SiteRows
from fco_cli.federation.coordinator.sites import Agreement, Answer, Sites, from_site
from fco_cli.federation.message import ArraySpec, BadMessage
from fco_cli.federation.metrics import SUMS
from fco_cli.federation.schema import Description, RowCounts
from fco_cli.federation.site.telling import sent_task
from fco_cli.memory_limit import require_memory
from fco_cli.problem.data import ClientData
from fco_cli.problem.folds import HeldOut
from fco_cli.problem.layout import Array
from fco_cli.problem.models.linear import Linear
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
        return {"path": " ".join(f"{name}:{answer.head.digest}" for name, answer in described.items())}

    def build(self, seed: int, dtype: str) -> TaskData:
        return self._agreed_on(seed, dtype, None)

    def divided(self, data: TaskData, seed: int, dtype: str, held_out: Iterable[HeldOut]) -> Iterator[TaskData]:
        """Every site holds out its own rows, and all agree anew on what the others are prepared by."""
        for apart in held_out:
            made = self._agreed_on(seed, dtype, apart)
            apart.deal.check(np.array([0 if made.held_out is None else 1]))
            yield made

    def _agreed_on(self, seed: int, dtype: str, apart: HeldOut | None) -> TaskData:
        described = {name: answer.head for name, answer in self.connection.described().items()}
        agreement, classes = Agreement(self.connection), _agreed_classes(described)
        _check_names(described)
        sent = sent_task(self) | {"holdout": self._way("holdout", described), "test": self._way("test", described)}
        fold = None if apart is None else asdict(apart)
        head = {"task": sent, "sites": self.connection.names, "seed": seed, "dtype": dtype, "classes": classes}
        told = self.connection.noise is None  # noise covers evaluations: of the rows themselves nothing is told
        answers = agreement.add("prepare", head | {"fold": fold, "summary": told})
        split = self._split(answers, described, classes, told)
        preparation = self._agreed(agreement, split) if told else _as_they_are(described)
        outputs = max(counts.outputs for counts in split.values())
        start = seed if self.start == "glorot" else None
        agreement.add("apply", {"preparation": preparation.as_json(), "outputs": outputs, "start": start})

        def rows(part: str) -> SiteRows | None:
            """Those of the sites that have any."""
            sizes = {name: size for name, counts in split.items() if (size := getattr(counts, part))}
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
        require_memory("federation.sites: the order of their rows in a round", 8 * int(training.sizes.sum()))
        held_out, test = rows("held_out"), rows("test")
        if self.connection.mask_bits is not None:
            everybody = all(data is None or data.names == self.connection.names for data in (training, held_out, test))
            require(everybody, "federation.masks", True, "false here: only some sites have rows of a part")
        return TaskData(
            training, Linear(len(preparation.features), outputs), loss, held_out,
            description=LinearModel(self.loss, classes, preparation),
            features=tuple(preparation.features), test=test, clients=training.names,
        )  # fmt: skip

    def _split(
        self,
        answers: dict[str, Answer],
        described: dict[str, Description],
        classes: list[str] | None,
        told: bool,
    ) -> dict[str, RowCounts]:
        """Return the sites' counts; raise UserError if one does not match its description or the question."""
        many = self.chosen_loss().outputs(np.zeros(1), 2) > 1
        for name, answer in answers.items():
            with from_site(name, "prepare"):
                _check_counts(name, answer.head, described[name], told)
                outputs = answer.head.outputs
                if (outputs > 1) != many or (many and classes is not None and outputs != len(classes)):
                    raise BadMessage(f"outputs: {outputs} scores do not fit the {self.loss} loss and the classes")
        return {name: answer.head for name, answer in answers.items()}

    def _way(self, key: str, described: dict[str, Description]) -> str:
        """How rows are held out, the same at all sites; auto: as their files say, if all of them do."""
        way, part = getattr(self, key), {"holdout": "val", "test": "test"}[key]
        if way != "auto":
            return way
        splits = [part in head.split for head in described.values()]
        return "split" if all(splits) else {"holdout": self.validates, "test": "none"}[key]

    def _agreed(self, agreement: Agreement, split: dict[str, RowCounts]) -> Preparation:
        """The exchange of `preparation.prepared`, with the sites that train."""
        summaries = {
            name: Summary.of_plain(msgspec.structs.asdict(counts.summary))
            for name, counts in split.items()
            if counts.summary is not None
        }
        if not summaries:
            raise UserError("federation.sites: none of them has rows to train on")
        total = merged(list(summaries.values()))
        if self.recipe.fill != "median":
            return agree(total, self.recipe)
        search = median_search(total)
        specs = {"counts": ArraySpec(search.edges.shape, np.int64)}
        while not search.finished:
            answers = agreement.ask("count", {}, {"edges": search.edges}, list(summaries), expected=lambda _: specs)
            for name, answer in answers.items():
                with from_site(name, "count"):
                    _check_cumulative(answer.arrays["counts"], summaries[name].rows)
            search = search.narrowed(answer.arrays["counts"] for answer in answers.values())
        return agree(total, self.recipe, search.high)

    def held_out_metrics(self, problem: Problem, data: ClientData, w: Array) -> dict[str, Array]:
        """Those that follow from sums over the sites' rows; none where a site does not tell."""
        known = SUMS.get(type(problem.loss))
        sums = data.sums(w) if known is not None and isinstance(data, SiteRows) else None
        return {} if sums is None or known is None else known.metrics(*sums)


def _check_names(described: dict[str, Description]) -> None:
    """The features' names must be the same at all sites; of those that keep them only the digest is known."""
    (first, pattern), *others = described.items()
    for name, head in others:
        if (head.names_digest, head.features) != (pattern.names_digest, pattern.features):
            counts = f"{head.features} and {pattern.features}"
            raise UserError(f"{name}: its features are not those of {first} ({counts}; names and order must be equal)")


def _as_they_are(described: dict[str, Description]) -> Preparation:
    """Rows that need no preparation."""
    first = next(iter(described.values()))
    return Preparation(_columns(first), [0.0] * first.features, {}, [])


def _columns(described: Description) -> list[str]:
    """Return the names that a site uses for its columns."""
    return described.names or [f"x{k}" for k in range(described.features)]


def _check_counts(name: str, counts: RowCounts, described: Description, told: bool) -> None:
    """Raise BadMessage if a site's summary does not match its counts and its description."""
    summary = counts.summary
    if (summary is not None) != (told and counts.training > 0):
        raise BadMessage("summary: there must be one if rows train and it was requested, and none otherwise")
    if summary is not None:
        if (summary.client, summary.rows) != (name, counts.training):
            raise BadMessage("summary: it must be of this site's training rows")
        if summary.columns != _columns(described):
            raise BadMessage("summary: its columns must be the site's features")


def _check_cumulative(counts: Array, rows: int) -> None:
    """Raise BadMessage if counts [d, edges] are not those of so many rows up to each edge."""
    if (counts < 0).any() or (counts > rows).any() or (np.diff(counts, axis=1) < 0).any():
        raise BadMessage(f"the array counts must increase from 0 to {rows}, the rows that train")


def _agreed_classes(described: dict[str, Description]) -> list[str] | None:
    """All sites' classes, in alphabetical order."""
    if all(head.classes is None for head in described.values()):
        return None
    for name, head in described.items():
        if head.classes is None:
            raise UserError(f"{name}: only some sites have words for labels")
    return sorted({word for head in described.values() for word in head.classes or []})
