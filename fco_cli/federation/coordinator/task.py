"""`task=custom` with rows at remote sites."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import msgspec
import numpy as np

from fco_cli.data.exact_sums import (
    Names,
    cell_count,
    center_of_sums,
    merged_names,
    summary_of_sums,
)
from fco_cli.data.fitted import LinearModel
from fco_cli.data.format import format_list, shown
from fco_cli.data.formula import KEY
from fco_cli.data.offsets import ADDITIVE, key_of, offset_column, offset_name
from fco_cli.data.preparation import Preparation, agree, start_median_search
from fco_cli.data.ranges import declared_preparation, largest_norm, with_moments
from fco_cli.data.statistics import Summary, merged
from fco_cli.data.terms import with_terms
from fco_cli.errors import UserError, require
from fco_cli.federation.coordinator.checks import (
    Counts,
    agreed_classes,
    check_counts,
    check_names,
    columns_of,
    has_rows,
    held_out_events,
    least_limit,
    no_preparation,
)
from fco_cli.federation.coordinator.column_sums import counts_up_to, exact_sums
from fco_cli.federation.coordinator.remote_rows import SiteRows
from fco_cli.federation.coordinator.sites import Agreement, Response, Sites, report_invalid_response
from fco_cli.federation.coordinator.terms import RemoteTerms
from fco_cli.federation.message import ArraySpec, BadMessage
from fco_cli.federation.metrics import SUMS
from fco_cli.federation.response_schema import Description
from fco_cli.federation.site.data import PARTS, sent_task
from fco_cli.memory_limit import require_memory
from fco_cli.problem.data import ClientData, FoldAssignment, HeldOut
from fco_cli.problem.layout import Array
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.problem import Problem, TaskData
from fco_cli.tasks.tabular import Custom

UNSUPPORTED_KEYS = {
    **dict.fromkeys(("weights", "class_weight"), "all rows have weight 1"),
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
        return self._agreed_fits(seed, dtype, [None])[0]

    def split_folds(self, data: TaskData, seed: int, dtype: str, held_out: Iterable[HeldOut]) -> Iterator[TaskData]:
        """Yield the data of every fold; each site holds out its own rows, and the remaining rows are prepared anew."""
        yield from self._agreed_fits(seed, dtype, list(held_out))

    def with_folds(self, seed: int, dtype: str, folds: int, by: str) -> tuple[TaskData, FoldAssignment, list[TaskData]]:
        """Return the data of all rows, the folds and their data, which are prepared together."""
        sites, classification = len(self.connection.names), self.configured_loss().classification
        deal = FoldAssignment.among(sites, folds, by, classification, seed)
        data, *splits = self._agreed_fits(seed, dtype, [None, *deal])
        return data, deal, splits

    def _agreed_fits(self, seed: int, dtype: str, folds: list[HeldOut | None]) -> list[TaskData]:
        """Return the data of every fit after all sites have split and prepared their rows in the same way."""
        descriptions = {name: response.head for name, response in self.connection.descriptions().items()}
        agreement, classes = Agreement(self.connection), agreed_classes(descriptions)
        check_names(descriptions)
        columns = self._used_columns(descriptions)
        methods = {key: self._holdout_method(key, descriptions) for key in ("holdout", "test")}
        with_summary = self.connection.noise is None and self.ranges is None  # summaries of the rows have no noise
        head = {
            "task": sent_task(self) | methods,
            "sites": self.connection.names,
            "seed": seed,
            "dtype": dtype,
            "classes": classes,
            "folds": [None if fold is None else asdict(fold) for fold in folds],
            "summary": with_summary,
            "exact": self.uses_sums,
            "keeps_offset": self.keeps_offset,
        }
        responses = agreement.add("prepare", head)
        fits = self._row_counts(responses, columns, classes, with_summary, len(folds))
        for fold, counts in zip(folds, fits, strict=True):
            if fold is not None:
                fold.deal.check(np.array([sum(one.held_out for one in counts.values())]))
        outputs = max(response.head.outputs for response in responses.values())
        if self.connection.mask_bits is not None:
            complete = all(len({getattr(one, part) > 0 for one in fit.values()}) == 1 for fit in fits for part in PARTS)
            require(complete, "federation.masks", True, "false: some sites have no rows of a part (holdout, test)")
        preparations = [no_preparation(columns)] * len(fits)
        if self.ranges is not None:
            preparations = [self._private_preparation(agreement, k, one, columns) for k, one in enumerate(fits)]
        elif with_summary:
            preparations = self._agreed_preparations(agreement, fits, columns)
        head = {
            "preparations": [one.as_json() for one in preparations],
            "outputs": outputs,
            "start": seed if self.start == "glorot" else None,
        }
        if self.connection.mask_bits is not None:
            agreement.rows = [
                {part: {name: getattr(one, part) for name, one in fit.items()} for part in PARTS if has_rows(fit, part)}
                for fit in fits
            ]
            head["rows"] = agreement.rows
        agreement.add("apply", head)
        limits = {name: least_limit([fit[name].max_parameters for fit in fits]) for name in responses}
        shared = {
            "hessian_limits": limits,
            "estimating": [name for name, response in responses.items() if response.head.estimates],
            "tabulating": [name for name, response in responses.items() if response.head.tables],
            "smallest_cell": max(response.head.min_cell for response in responses.values()),
        }
        return [
            self._task_data(agreement, k, counts, preparation, classes, outputs, dtype, shared)
            for k, (counts, preparation) in enumerate(zip(fits, preparations, strict=True))
        ]

    def _used_columns(self, descriptions: dict[str, Description]) -> list[str]:
        """Return the columns that sites prepare: those of the formula, or all but that of the offset."""
        known, formula, offset = columns_of(next(iter(descriptions.values()))), self.parsed_formula(), None
        if (expression := self.offset_expression()) is not None:
            offset, key = offset_column(expression), key_of(expression)
            require(offset in known, key, offset, f"a column of the sites: {format_list(known)}")
            is_possible = self.keeps_offset or self.loss in ADDITIVE
            allowed = f"null with federation=flare for the {self.loss} loss, except with experiment=glm"
            require(is_possible, key, offset, allowed)
        if formula is None:
            return [name for name in known if name != offset]
        for name in formula.columns:
            columns = f"a formula of the sites' columns, which have no {shown(name)!r}: {format_list(known)}"
            require(name in known and name != offset, KEY, formula.text, columns)
        allowed = "null with federation.evaluation_noise: knots and moments of terms have no noise"
        require(self.connection.noise is None, KEY, formula.text, allowed)
        return formula.columns

    def _task_data(
        self,
        agreement: Agreement,
        fit: int,
        counts: Counts,
        preparation: Preparation,
        classes: list[str] | None,
        outputs: int,
        dtype: str,
        shared: dict[str, Any],
    ) -> TaskData:
        """Return the data of a fit; `shared` are fields of `SiteRows` about what the sites share."""
        loss, offset, features = self.configured_loss(), self.offset_expression(), list(preparation.features)
        if offset is not None and self.keeps_offset:
            features.append(offset_name(offset))
        trained = {name: m for m, name in enumerate(name for name, one in counts.items() if one.training)}

        def rows(part: str) -> SiteRows | None:
            """Return the rows of a part, or None if no site has any."""
            sizes = {name: getattr(one, part) for name, one in counts.items() if getattr(one, part)}
            offsets = np.append(0, np.cumsum(list(sizes.values()))).astype(np.int64)
            return SiteRows(
                np.empty((0, len(features)), dtype), np.empty(0, dtype), offsets,
                trained_as=np.array([trained.get(name, -1) for name in sizes], int) if part != "training" else None,
                agreement=agreement, fit=fit, names=list(sizes), part=part, loss=loss,
                **shared, events=held_out_events(counts) if part == "held_out" else None,
            ) if sizes else None  # fmt: skip

        training = rows("training")
        if training is None:
            raise UserError("federation.sites: no site has training rows; change task.holdout or task.test")
        require_memory("federation.sites: the order of the training rows in a round", 8 * int(training.sizes.sum()))
        return TaskData(
            training, Linear(len(features), outputs), loss, rows("held_out"),
            description=LinearModel(loss, classes, replace(preparation, offset=offset)),
            features=tuple(features), test=rows("test"), clients=training.names,
        )  # fmt: skip

    def _row_counts(
        self,
        responses: dict[str, Response],
        columns: list[str],
        classes: list[str] | None,
        with_summary: bool,
        fits: int,
    ) -> list[Counts]:
        """Return the sites' row counts of every fit; raise UserError if one does not match the request."""
        multiclass = self.configured_loss().outputs(np.zeros(1), 2) > 1
        for name, response in responses.items():
            with report_invalid_response(name, "prepare"):
                if len(response.head.fits) != fits:
                    raise BadMessage(f"fits: has {len(response.head.fits)} fits, must be {fits}")
                for one in response.head.fits:
                    check_counts(name, one, columns, with_summary, self.uses_sums)
                outputs = response.head.outputs
                if (outputs > 1) != multiclass or (multiclass and classes is not None and outputs != len(classes)):
                    raise BadMessage(f"outputs: {outputs} scores do not fit the {self.loss} loss and the classes")
        return [{name: response.head.fits[k] for name, response in responses.items()} for k in range(fits)]

    def _holdout_method(self, key: str, descriptions: dict[str, Description]) -> str:
        """Return how rows are held out at all sites; `auto` is `split` if all files have that part."""
        method, part = getattr(self, key), {"holdout": "val", "test": "test"}[key]
        if method != "auto":
            return method
        splits = [part in head.split for head in descriptions.values()]
        return "split" if all(splits) else {"holdout": self.validates, "test": "none"}[key]

    @property
    def uses_sums(self) -> bool:
        """True if the preparation is computed from exact sums over the sites, as masks require."""
        return self.exact_sums or self.connection.mask_bits is not None

    def _agreed_preparations(self, agreement: Agreement, fits: list[Counts], columns: list[str]) -> list[Preparation]:
        """Return the preparation of every fit from the sites with training rows (`preparation.prepared`)."""
        rows = [{name: one.training for name, one in fit.items() if one.training} for fit in fits]
        if not all(rows):
            raise UserError("federation.sites: no site has training rows; change task.holdout or task.test")
        if self.uses_sums:
            totals = self._summaries_from_sums(agreement, fits, rows, columns)
        else:
            heads = [[one.summary for one in fit.values() if one.summary is not None] for fit in fits]
            totals = [merged([Summary.from_plain(msgspec.structs.asdict(one)) for one in fit]) for fit in heads]
        formula, recipe = self.parsed_formula(), self.recipe
        if formula is not None:
            recipe = replace(recipe, standardize=False)
        medians: list[Array | None] = [None] * len(totals)
        if recipe.fill == "median":
            medians = self._medians(agreement, rows, totals)
        bases = [agree(total, recipe, median) for total, median in zip(totals, medians, strict=True)]
        if formula is None:
            return bases
        return [
            with_terms(base, formula, self._terms(agreement, fit, own), self.recipe.standardize)
            for fit, (base, own) in enumerate(zip(bases, rows, strict=True))
        ]

    def _terms(self, agreement: Agreement, fit: int, rows: dict[str, int]) -> RemoteTerms:
        """Return the terms of the training rows of one fit."""

        def column_sums(center: Array, head: dict[str, Any]) -> Array:
            head, arrays = {"categories": [], **head}, {f"center.{fit}": center}
            return exact_sums(agreement, head, arrays, {fit: 3 * len(center)}, {fit: rows})[fit]

        def count_up_to(edges: Array, head: dict[str, Any]) -> list[Array]:
            return counts_up_to({fit: edges}, agreement, {fit: rows}, head)[fit]

        return RemoteTerms(agreement, fit, rows, self.uses_sums, column_sums, count_up_to)

    def _medians(self, agreement: Agreement, rows: list[dict[str, int]], totals: list[Summary]) -> list[Array | None]:
        """Return the medians of the columns of every fit."""
        searches = [start_median_search(total) for total in totals]
        while unfinished := [k for k, search in enumerate(searches) if not search.finished]:
            edges = {k: searches[k].edges for k in unfinished}
            for k, counts in counts_up_to(edges, agreement, dict(enumerate(rows))).items():
                searches[k] = searches[k].narrowed(counts)
        return [search.high for search in searches]

    def _summaries_from_sums(
        self, agreement: Agreement, fits: list[Counts], rows: list[dict[str, int]], columns: list[str]
    ) -> list[Summary]:
        """Return the summaries of all rows of every fit from two exact sums over the sites (`sum_summary`)."""
        names = [merged_names(one.categories or {} for one in fit.values()) for fit in fits]
        sums = self._column_sums(agreement, rows, [np.zeros(len(columns))] * len(fits), names)
        centers = [center_of_sums(one, len(columns)) for one in sums]
        around = self._column_sums(agreement, rows, centers, [{}] * len(fits))
        return [
            summary_of_sums(columns, next(iter(own)), sum(own.values()), cells, first, second)
            for own, cells, first, second in zip(rows, names, sums, around, strict=True)
        ]

    def _column_sums(
        self, agreement: Agreement, rows: list[dict[str, int]], centers: list[Array], names: Sequence[Names]
    ) -> list[Array]:
        """Return the exact sums over the sites of `exact_sums.column_sums`; NaN where a number is out of range."""
        head, arrays = {"categories": names}, {f"center.{k}": center for k, center in enumerate(centers)}
        sizes = {
            k: 3 * len(center) + cell_count(own) for k, (center, own) in enumerate(zip(centers, names, strict=True))
        }
        sums = exact_sums(agreement, head, arrays, sizes, dict(enumerate(rows)))
        return [sums[k] for k in range(len(centers))]

    def _private_preparation(self, agreement: Agreement, fit: int, counts: Counts, columns: list[str]) -> Preparation:
        """Return the preparation of a fit by declared ranges, with noisy moments of the sites' rows if requested."""
        preparation = declared_preparation(columns, self.ranges, self.standardize)
        if self.moments_noise is None:
            return preparation
        rows, name = {site: one.training for site, one in counts.items() if one.training}, f"sums.{fit}"
        specs = {name: ArraySpec((2, len(preparation.features)))}
        head = {"fit": fit, "preparation": preparation.as_json(), "noise": self.moments_noise}
        responses = agreement.request("moments", head, None, list(rows), expected=lambda _: specs)
        sums, norm = [response.arrays[name] for response in responses.values()], largest_norm(specs[name].shape[1])
        return with_moments(preparation, sums, sum(rows.values()), self.moments_noise * norm)

    def held_out_metrics(self, problem: Problem, data: ClientData, w: Array) -> dict[str, Array]:
        """Return the metrics computed from sums over the sites' rows; none if a site does not share its sums."""
        known = SUMS.get(type(problem.loss))
        sums = data.sums(w) if known is not None and isinstance(data, SiteRows) else None
        return {} if sums is None or known is None else known.metrics(*sums)
