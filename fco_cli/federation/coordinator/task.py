"""`task=custom` with rows at remote sites."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields

import msgspec
import numpy as np

from fco_cli.data.fitted import LinearModel
from fco_cli.data.preparation import Preparation, agree, start_median_search
from fco_cli.data.statistics import Summary, merged
from fco_cli.errors import UserError, require
from fco_cli.federation.coordinator.remote_rows import SiteRows, report_invalid_sum
from fco_cli.federation.coordinator.sites import Agreement, Response, Sites, report_invalid_response
from fco_cli.federation.message import ArraySpec, BadMessage
from fco_cli.federation.metrics import SUMS
from fco_cli.federation.schema import Description, RowCounts
from fco_cli.federation.site.data import sent_task
from fco_cli.memory_limit import require_memory
from fco_cli.problem.data import ClientData, HeldOut
from fco_cli.problem.layout import Array
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.problem import Problem, TaskData
from fco_cli.tasks.tabular import Custom

PARTS = ("training", "held_out", "test")  # of the rows
UNSUPPORTED_KEYS = {
    "weights": "all rows have weight 1",
    "class_weight": "all rows have weight 1",
    "partition": "each site is one client",
}


@dataclass(kw_only=True)
class CustomAtSites(Custom):
    """Custom task whose rows are the files of the sites; only summaries of them are exchanged."""

    @classmethod
    def of(cls, task: Custom, sites: Sites) -> CustomAtSites:
        """Return the task with the data of the sites."""
        remote = cls(**{key.name: getattr(task, key.name) for key in fields(task)})
        remote.__dict__["sites"] = sites
        return remote

    @property
    def connection(self) -> Sites:
        return self.__dict__["sites"]

    def __post_init__(self) -> None:
        super().__post_init__()
        for holdout in self.holdouts:
            allowed = "auto, split, rows or none with federation=flare"
            require(holdout.method != "clients", f"task.{holdout.name}", holdout.method, allowed)
        allowed = "the name of a loss (logistic, squared, ...) with federation=flare"
        require(self.loss != "auto", "task.loss", self.loss, allowed)
        allowed = "false with federation=flare: all sites share one intercept"
        require(not self.site_intercept, "task.site_intercept", True, allowed)
        for key, why in UNSUPPORTED_KEYS.items():
            require(getattr(self, key) is None, f"task.{key}", getattr(self, key), f"null with federation=flare: {why}")

    @property
    def clients_available(self) -> int | None:
        return len(self.connection.names) if "sites" in self.__dict__ else None

    def contents(self) -> dict[str, str]:
        """Return the names of the sites and hashes of their rows, each keyed with a secret of the site."""
        descriptions = self.connection.descriptions()
        return {"path": " ".join(f"{name}:{response.head.digest}" for name, response in descriptions.items())}

    def build(self, seed: int, dtype: str) -> TaskData:
        return self._agreed_data(seed, dtype, None)

    def split_folds(self, data: TaskData, seed: int, dtype: str, held_out: Iterable[HeldOut]) -> Iterator[TaskData]:
        """Yield the data of every fold; each site holds out its own rows, and the remaining rows are prepared anew."""
        for fold in held_out:
            data_of_fold = self._agreed_data(seed, dtype, fold)
            fold.deal.check(np.array([0 if data_of_fold.held_out is None else 1]))
            yield data_of_fold

    def _agreed_data(self, seed: int, dtype: str, fold: HeldOut | None) -> TaskData:
        """Return the data after all sites have split and prepared their rows alike."""
        descriptions = {name: response.head for name, response in self.connection.descriptions().items()}
        agreement, classes = Agreement(self.connection), _agreed_classes(descriptions)
        _check_names(descriptions)
        methods = {key: self._holdout_method(key, descriptions) for key in ("holdout", "test")}
        head = {
            "task": sent_task(self) | methods,
            "sites": self.connection.names,
            "seed": seed,
            "dtype": dtype,
            "classes": classes,
        }
        with_summary = self.connection.noise is None  # summaries of the rows have no noise
        responses = agreement.add(
            "prepare", head | {"fold": None if fold is None else asdict(fold), "summary": with_summary}
        )
        counts = self._row_counts(responses, descriptions, classes, with_summary)
        preparation = self._agreed_preparation(agreement, counts) if with_summary else _no_preparation(descriptions)
        outputs = max(one.outputs for one in counts.values())
        start = seed if self.start == "glorot" else None
        parts = {part: {name: getattr(one, part) for name, one in counts.items()} for part in PARTS}
        masked = self.connection.mask_bits is not None
        if masked:
            complete = all(all(sizes.values()) or not any(sizes.values()) for sizes in parts.values())
            require(complete, "federation.masks", True, "false: some sites have no rows of a part (holdout, test)")
            agreement.rows = {part: sizes for part, sizes in parts.items() if any(sizes.values())}
        head = {"preparation": preparation.as_json(), "outputs": outputs, "start": start}
        agreement.add("apply", head | ({"rows": agreement.rows} if masked else {}))

        def rows(part: str) -> SiteRows | None:
            """Return the rows of a part, or None if no site has any."""
            sizes = {name: size for name, size in parts[part].items() if size}
            offsets = np.append(0, np.cumsum(list(sizes.values()))).astype(np.int64)
            return SiteRows(
                np.empty((0, len(preparation.features)), dtype), np.empty(0, dtype), offsets,
                trained_as=np.array([trained.get(name, -1) for name in sizes], int),
                agreement=agreement, names=list(sizes), part=part, loss=loss,
            ) if sizes else None  # fmt: skip

        loss, trained = self.configured_loss(), dict[str, int]()
        training = rows("training")
        if training is None:
            raise UserError("federation.sites: no site has training rows")
        trained |= {name: m for m, name in enumerate(training.names)}
        require_memory("federation.sites: the order of the training rows in a round", 8 * int(training.sizes.sum()))
        held_out, test = rows("held_out"), rows("test")
        return TaskData(
            training, Linear(len(preparation.features), outputs), loss, held_out,
            description=LinearModel(loss, classes, preparation),
            features=tuple(preparation.features), test=test, clients=training.names,
        )  # fmt: skip

    def _row_counts(
        self,
        responses: dict[str, Response],
        descriptions: dict[str, Description],
        classes: list[str] | None,
        with_summary: bool,
    ) -> dict[str, RowCounts]:
        """Return the sites' row counts; raise UserError if one does not match its description or the request."""
        multiclass = self.configured_loss().outputs(np.zeros(1), 2) > 1
        for name, response in responses.items():
            with report_invalid_response(name, "prepare"):
                _check_counts(name, response.head, descriptions[name], with_summary)
                outputs = response.head.outputs
                if (outputs > 1) != multiclass or (multiclass and classes is not None and outputs != len(classes)):
                    raise BadMessage(f"outputs: {outputs} scores do not fit the {self.loss} loss and the classes")
        return {name: response.head for name, response in responses.items()}

    def _holdout_method(self, key: str, descriptions: dict[str, Description]) -> str:
        """Return how rows are held out at all sites; `auto` is `split` if all files have that part."""
        method, part = getattr(self, key), {"holdout": "val", "test": "test"}[key]
        if method != "auto":
            return method
        splits = [part in head.split for head in descriptions.values()]
        return "split" if all(splits) else {"holdout": self.validates, "test": "none"}[key]

    def _agreed_preparation(self, agreement: Agreement, counts: dict[str, RowCounts]) -> Preparation:
        """Return the preparation from the summaries of the sites with training rows (`preparation.prepared`)."""
        summaries = {
            name: Summary.from_plain(msgspec.structs.asdict(one.summary))
            for name, one in counts.items()
            if one.summary is not None
        }
        if not summaries:
            raise UserError("federation.sites: no site has training rows")
        total = merged(list(summaries.values()))
        if self.recipe.fill != "median":
            return agree(total, self.recipe)
        search = start_median_search(total)
        while not search.finished:
            search = search.narrowed(self._counts_up_to(search.edges, agreement, summaries))
        return agree(total, self.recipe, search.high)

    def _counts_up_to(self, edges: Array, agreement: Agreement, summaries: dict[str, Summary]) -> list[Array]:
        """Return the numbers of values up to each edge: those of every site, or their sum if responses are masked."""
        specs = {"counts": ArraySpec(edges.shape, np.int64)}
        if self.connection.mask_bits is not None:
            total = agreement.sum_of_all("count", {}, {"edges": edges}, specs)["counts"]
            with report_invalid_sum(summaries, "count"):
                _check_cumulative(total, sum(one.rows for one in summaries.values()))
            return [total]
        responses = agreement.request("count", {}, {"edges": edges}, list(summaries), expected=lambda _: specs)
        for name, response in responses.items():
            with report_invalid_response(name, "count"):
                _check_cumulative(response.arrays["counts"], summaries[name].rows)
        return [response.arrays["counts"] for response in responses.values()]

    def held_out_metrics(self, problem: Problem, data: ClientData, w: Array) -> dict[str, Array]:
        """Return the metrics computed from sums over the sites' rows; none if a site does not share its sums."""
        known = SUMS.get(type(problem.loss))
        sums = data.sums(w) if known is not None and isinstance(data, SiteRows) else None
        return {} if sums is None or known is None else known.metrics(*sums)


def _check_names(descriptions: dict[str, Description]) -> None:
    """Raise UserError if the features' names differ between sites; digests are compared."""
    (first, pattern), *others = descriptions.items()
    for name, head in others:
        if (head.names_digest, head.features) != (pattern.names_digest, pattern.features):
            counts = f"{head.features} and {pattern.features}"
            raise UserError(
                f"{name}: its features differ from those of {first} ({counts}; names and order must be equal)"
            )


def _no_preparation(descriptions: dict[str, Description]) -> Preparation:
    """Return a preparation that leaves rows unchanged."""
    first = next(iter(descriptions.values()))
    return Preparation(_columns(first), [0.0] * first.features, {}, [])


def _columns(description: Description) -> list[str]:
    """Return the column names that a site uses in messages."""
    return description.names or [f"x{k}" for k in range(description.features)]


def _check_counts(name: str, counts: RowCounts, description: Description, with_summary: bool) -> None:
    """Raise BadMessage if a site's summary does not match its counts and its description."""
    summary = counts.summary
    if (summary is not None) != (with_summary and counts.training > 0):
        raise BadMessage("summary: must be present exactly if it was requested and the site has training rows")
    if summary is not None:
        if (summary.client, summary.rows) != (name, counts.training):
            raise BadMessage("summary: must be of this site's training rows")
        if summary.columns != _columns(description):
            raise BadMessage("summary: its columns must be the site's features")


def _check_cumulative(counts: Array, rows: int) -> None:
    """Raise BadMessage if counts [d, edges] are not cumulative counts of at most `rows` rows."""
    if (counts < 0).any() or (counts > rows).any() or (np.diff(counts, axis=1) < 0).any():
        raise BadMessage(f"the array counts must increase from 0 to {rows}, the number of training rows")


def _agreed_classes(descriptions: dict[str, Description]) -> list[str] | None:
    """Return the union of all sites' classes, sorted; None if labels are numbers."""
    if all(head.classes is None for head in descriptions.values()):
        return None
    for name, head in descriptions.items():
        if head.classes is None:
            raise UserError(f"{name}: labels are class names at some sites and numbers at others")
    return sorted({label for head in descriptions.values() for label in head.classes or []})
