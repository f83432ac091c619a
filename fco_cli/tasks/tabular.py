"""Tasks on tables: a linear model with any loss, exported with its data preparation.

Custom: a user's own data. Published: heart disease (4 hospitals), intensive care (185 hospitals), crime (46 states).
"""

from __future__ import annotations

import copy
import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from fco_cli.data.fitted import LinearModel
from fco_cli.data.format import FederatedData, check_labels, format_list, shown
from fco_cli.data.offsets import key_of, split_offset
from fco_cli.data.plausibility import Finding, find_doubts
from fco_cli.data.preparation import Preparation, Recipe, prepared
from fco_cli.data.published import PUBLICATIONS, Publication
from fco_cli.data.ranges import check_ranges, simulated_preparation
from fco_cli.data.readers import fingerprint, read
from fco_cli.data.readers.cells import category_name
from fco_cli.data.readers.source import Columns
from fco_cli.data.sparse import is_sparse
from fco_cli.data.splits import Holdout, Partition, Parts, split
from fco_cli.data.subsets import restrict_roles
from fco_cli.data.terms import prepared_by_formula
from fco_cli.errors import UserError, no_such_key, require
from fco_cli.memory_limit import require_memory
from fco_cli.problem.data import ClientData, HeldOut
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Logistic, Loss, Softmax, Squared, all_losses
from fco_cli.problem.losses.survival import Cox
from fco_cli.problem.models.linear import Linear, SparseLinear
from fco_cli.problem.problem import Problem, TaskData
from fco_cli.tasks.metrics import density
from fco_cli.tasks.model_terms import ModelTerms
from fco_cli.tasks.table_rows import prepared_rows, with_weights

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Tabular(ModelTerms):
    """Base class of tasks on tables; subclasses define the source of the rows."""

    loss: str  # auto: inferred from the labels
    cox_ties: str = "breslow"  # `ties` of the Cox loss: breslow or efron
    huber_delta: float  # `delta` of the Huber loss; a parameter of a loss may have a key <loss>_<parameter>
    loss_options: Any = None  # parameters of the loss by name: {sharpness: 2}
    standardize: bool  # features to mean 0 and standard deviation 1, from the merged moments of the clients
    fill: str  # of missing values: mean, median or refuse
    flag_missing: bool  # add an indicator column for every column with missing values
    min_count: int  # rarer categories are merged into "other"
    ranges: Any = None  # public ranges of columns, which replace statistics of rows (data/ranges.py); null: none
    moments_noise: float | None = None  # noise multiplier of one release of moments, with ranges; null: no release
    holdout: str  # validation rows: split (column), clients, rows (of every client) or none; auto: split or rows
    holdout_fraction: float  # share of the rows or clients for validation
    test: str  # test rows, evaluated once at the end: same values; auto: split or none
    test_fraction: float  # share of the rows or clients for the test
    class_weight: str | None  # balanced: all classes have equal total weight
    site_intercept: bool  # a private bias per client instead of a common one
    # prepare rows from exact sums over the clients (`data/exact_sums.py`), set by the run
    exact_sums: bool = field(default=False, metadata={"omegaconf_ignore": True})

    main_metric = "objective"
    validates: ClassVar[str] = "rows"  # meaning of task.holdout=auto if the split column has no validation rows

    def __post_init__(self) -> None:
        super().__post_init__()
        known = ["auto", *all_losses()]
        require(self.loss in known, "task.loss", self.loss, "one of " + ", ".join(known))
        numbers = self.loss_options or {}
        is_valid = isinstance(numbers, dict) and all(isinstance(one, int | float) for one in numbers.values())
        require(is_valid, "task.loss_options", self.loss_options, "null or numbers by name, such as {sharpness: 2}")
        if self.loss != "auto":
            self.configured_loss()  # raises UserError for an invalid parameter
        _ = self.recipe, self.holdouts
        self._check_ranges()
        self.check_terms(self.ranges)
        allowed = "null or balanced"
        require(self.class_weight in (None, "balanced"), "task.class_weight", self.class_weight, allowed)

    def _check_ranges(self) -> None:
        check_ranges(self.ranges)
        if self.ranges is not None:
            allowed = "mean with task.ranges: missing values become the center of their range"
            require(self.fill == "mean", "task.fill", self.fill, allowed)
            allowed = "false with task.ranges: columns with missing values would be disclosed"
            require(not self.flag_missing, "task.flag_missing", self.flag_missing, allowed)
        if self.moments_noise is not None:
            is_usable = self.ranges is not None and self.standardize and 1e-6 <= self.moments_noise <= 1e6
            allowed = "null, or a number from 1e-6 to 1e6 with task.ranges and task.standardize=true"
            require(is_usable, "task.moments_noise", self.moments_noise, allowed)

    @property
    def preparation_noise(self) -> float | None:
        return self.moments_noise

    def identity(self) -> dict[str, Any]:
        """Return the configuration without the parameters of other losses and without keys that are not used."""
        other_losses = [kind for name, kind in all_losses().items() if name != self.loss]
        unused = {f"{kind.name}_{parameter.name}" for kind in other_losses for parameter in fields(kind)}
        unused |= {key for key in ("ranges", "moments_noise") if getattr(self, key) is None} | self.unused_terms()
        unused |= set() if self.exact_sums else {"exact_sums"}
        return {key: value for key, value in super().identity().items() if key not in unused}

    def bound_classes(self) -> Iterable[type]:
        """Return the classes in the configuration: the loss, or all losses for loss=auto."""
        losses = all_losses()
        return losses.values() if self.loss == "auto" else (losses[self.loss],)

    @property
    @abstractmethod
    def columns(self) -> Columns:
        """Roles of the columns of the table."""

    @abstractmethod
    def read(self, seed: int) -> FederatedData:
        """Read the table."""

    @property
    def recipe(self) -> Recipe:
        return Recipe(self.fill, self.flag_missing, self.min_count, self.standardize)

    @property
    def holdouts(self) -> tuple[Holdout, Holdout]:
        return (
            Holdout("holdout", "val", self.holdout, self.holdout_fraction, auto_method=self.validates),
            Holdout("test", "test", self.test, self.test_fraction, auto_method="none"),
        )

    def configured_loss(self) -> Loss:
        """Return the configured loss; it must not be auto."""
        return self._make_loss(self.loss)

    def _make_loss(self, name: str) -> Loss:
        kind = all_losses()[name]
        known = [parameter.name for parameter in fields(kind)]
        options = self.loss_options or {}
        for key in options:
            if key not in known:
                raise no_such_key(f"task.loss_options.{key}", known or [f"none for the {name} loss"])
        keys = {parameter: f"{name}_{parameter}" for parameter in known}
        own = {parameter: getattr(self, key) for parameter, key in keys.items() if hasattr(self, key)}
        return kind(**own | options)

    def _loss_for(self, data: FederatedData) -> Loss:
        """Return the configured loss; auto: logistic or softmax for classes, squared for other labels."""
        name = self.loss
        if name == "auto":
            is_binary = np.isin(data.y, (0, 1)).all() if data.classes is None else len(data.classes) == 2
            if data.classes is None and not is_binary and len(codes := np.unique(data.y)) == 2:
                first, second = (category_name(code) for code in codes)
                raise UserError(
                    f"{data.source}: every label is {first} or {second}, which may be two classes or numbers: set "
                    f"task.label='{shown(self.columns.label)}=={second}' for classes, or task.loss=squared for numbers"
                )
            name = (Logistic if is_binary else Squared if data.classes is None else Softmax).name
        return self._make_loss(name)

    def build(self, seed: int, dtype: str) -> TaskData:
        data = self._table(seed)
        task_data = self._build_parts(data, split(data, *self.holdouts, seed), dtype, seed)
        log.info("%s: %s loss%s", data.source, task_data.loss.name, self._reason(data))
        for finding in self.doubts(data):
            log.warning("%s: warning: %s", data.source, finding.text)
        preparation = task_data.description.preparation
        if preparation is not None and (constant := preparation.constant):
            log.warning("%s: constant features, which get no weight: %s", data.source, format_list(constant))
        return task_data

    def doubts(self, data: FederatedData) -> list[Finding]:
        """Return the warnings about the data; there are none for published tables, whose columns are declared."""
        return []

    def _reason(self, data: FederatedData) -> str:
        """Return why loss=auto chose the loss."""
        if self.loss != "auto":
            return ""
        if data.classes is not None:
            return f" (task.loss=auto; the labels are the classes {format_list(data.classes, 4)})"
        return f" (task.loss=auto; the labels are {'0 and 1' if np.isin(data.y, (0, 1)).all() else 'numbers'})"

    def cross_validated(self) -> Self:
        """Return this task with holdout=auto meaning no validation rows, unless the file has a split."""
        other = copy.copy(self)
        other.__dict__ |= {"validates": "none", "_tables": {}}
        return other

    def _table(self, seed: int) -> FederatedData:
        """Return the table; a task for cross-validation stores it, because every fold prepares it again."""
        tables: dict[int, FederatedData] | None = self.__dict__.get("_tables")
        if tables is None:
            return self.read(seed)
        if seed not in tables:
            tables[seed] = self.read(seed)
        return tables[seed]

    def split_folds(self, data: TaskData, seed: int, dtype: str, held_out: Iterable[HeldOut]) -> Iterator[TaskData]:
        """Yield the task data of every fold, with a preparation computed from its training rows only."""
        table = self._table(seed)
        training = np.flatnonzero(split(table, *self.holdouts, seed).training)
        _, member = np.unique(table.client[training], return_inverse=True)
        training = training[np.argsort(member, kind="stable")]  # in the order of ClientData
        for fold in held_out:
            rows = fold.rows(data.training)
            masks = np.zeros((3, len(table.y)), dtype=bool)
            masks[0, training[~rows]], masks[1, training[rows]] = True, True
            yield self.with_chosen_model(self._build_parts(table, Parts(*masks), dtype, seed), seed)

    def _build_parts(self, data: FederatedData, parts: Parts, dtype: str, seed: int) -> TaskData:
        loss = self._loss_for(data)
        outputs = check_labels(data, loss)
        expression, offset, shift = self.offset_expression(), None, 0.0
        if expression is not None:
            data, offset = split_offset(data, expression, loss)
        data = with_weights(data, parts.training, loss, self.class_weight)
        preparation = self._fit_preparation(data, parts.training, seed)
        if offset is not None and not self.keeps_offset:
            data, shift = offset.applied(data, parts.training, loss, key_of(offset.expression))
        extra = offset if self.keeps_offset else None
        self._check_memory(data, preparation, dtype)
        training, validation, test = (
            prepared_rows(data, rows, parts.training, preparation, dtype, extra) for rows in parts
        )
        assert training is not None
        classes = None if data.classes is None else data.classes.tolist()
        clients = np.unique(data.client[parts.training]).tolist()
        is_supported = not self.site_intercept or loss.optimal_score is not None
        allowed = f"false for the {loss.name} loss, which has no single intercept"
        require(is_supported, "task.site_intercept", True, allowed)
        names = data.features if preparation is None else preparation.features
        features = None if names is None else (*names, *([] if extra is None else [extra.name]))
        kind = SparseLinear if preparation is None else Linear
        return TaskData(
            training, kind(training.x.shape[1], outputs, site_bias=self.site_intercept), loss, validation,
            description=LinearModel(loss, classes, preparation, clients, features, shift),
            features=features, test=test, clients=clients,
        )  # fmt: skip

    def _fit_preparation(self, data: FederatedData, training: Array, seed: int) -> Preparation | None:
        """Return the preparation, or None for sparse rows, which are not prepared."""
        if is_sparse(data.x):
            allowed = f"false: centering would make the sparse rows of {data.source} dense"
            require(not self.standardize, "task.standardize", self.standardize, allowed)
            return None
        rows, roles = data.take(training), self.columns
        if (formula := self.parsed_formula()) is not None:
            preparation = prepared_by_formula(rows, formula, self.recipe, self.exact_sums)
            used = [*preparation.columns, self.offset or self.exposure or ""]  # others may be absent from new tables
            roles = restrict_roles(roles, used)
        elif self.ranges is None:
            preparation = prepared(rows, self.recipe, self.exact_sums)
        else:
            preparation = simulated_preparation(rows, self.ranges, self.standardize, self.moments_noise, seed)
        return replace(preparation, table=roles, offset=self.offset_expression())

    def _check_memory(self, data: FederatedData, preparation: Preparation | None, dtype: str) -> None:
        """Raise UserError if the rows, in the precision of the run and during preparation, exceed the memory."""
        if preparation is None:
            return  # sparse rows are already in memory
        is_mapped, is_whole = isinstance(data.x, np.memmap), (self.holdout, self.test) == ("none", "none")
        if is_mapped and not self.standardize and is_whole:
            return  # stays on disk
        per_value = np.dtype(dtype).itemsize + (0 if is_mapped else data.x.itemsize) + (8 if self.standardize else 0)
        require_memory(f"{data.source}: its rows in {dtype}", len(data.y) * len(preparation.features) * per_value)

    def metrics(self, problem: Problem, w: Array) -> dict[str, Array]:
        support = w[:, problem.layout.regularized] != 0
        return {"density": density(support), "nonzeros": support.sum(axis=1)}

    def held_out_metrics(self, problem: Problem, data: ClientData, w: Array) -> dict[str, Array]:
        if problem.model.widths[-1] != 1:
            return {}
        scores, y = problem.scores_on(data, w), data.y.astype(float)
        jobs = [problem.loss.metrics(job[0].astype(float), y, data.offsets) for job in scores]
        return {name: np.array([job[name] for job in jobs]) for name in jobs[0]}

    def export(self, problem: Problem, model: Array, folder: Path) -> None:
        """Write a linear model; the local baseline has no single model to export."""
        if model.ndim == 1 and isinstance(problem.model, Linear):
            weights = problem.layout.view(model[None], "weights").reshape(problem.model.widths[-1], -1)
            own = problem.description.preparation
            weights = weights if own is None else weights[:, : len(own.features)]  # without an offset
            bias = model[problem.layout.slices["bias"]].astype(float)
            site_bias = problem.site_biases(model[None])[:, 0] if problem.model.site_bias else None
            problem.description.write(folder, weights.astype(float), bias, site_bias, problem.weights)


@dataclass(kw_only=True)
class Custom(Tabular):
    """Task on a table, a folder with one table per client, or any other file that `fco-data` reads."""

    name: str = "custom"
    path: str
    label: str  # a column, or a condition on one: num>0
    event: str | None  # a column or condition: 1 for an event, 0 for censoring; the label is then a time
    client: str  # the column with the client of each row
    split: str  # the column with train, val and test; optional
    weights: str | None  # the column with sample weights
    drop: list[str]  # columns to ignore
    categorical: list[str]  # columns with categories that are written as numbers
    missing: list[str]  # additional missing-value markers
    names: list[str]  # column names, for a table without header
    patient: str | None = None  # the column with the patient of each row; a patient's rows stay together
    decimal: str | None = None  # decimal separator, "." or ","; null: recognized in every column
    derive: list[str] = field(default_factory=list)  # columns from dates: age=years_between(birth, admission)
    map: list[str] = field(default_factory=list)  # new names: old=new for columns, sex:M=male for texts
    fold_case: bool = False  # names of clients, categories and classes are equal in any case
    min_samples: int  # clients with fewer samples are dropped
    partition: str | None  # assignment of rows to simulated clients
    partition_clients: int  # number of simulated clients
    partition_concentration: float

    def __post_init__(self) -> None:
        if self.event is not None and self.loss == "auto":
            self.loss = Cox.name
        super().__post_init__()
        has_events = self.loss != "auto" and all_losses()[self.loss].censored_labels
        require(self.event is None or has_events, "task.event", self.event, f"null unless task.loss={Cox.name}")
        require(self.min_samples >= 0, "task.min_samples", self.min_samples, "a whole number >= 0")
        _ = self._partition, self.columns

    @property
    def categorical_columns(self) -> tuple[str, ...]:
        formula = self.parsed_formula()
        return tuple(dict.fromkeys([*self.categorical, *([] if formula is None else formula.categorical)]))

    @property
    def _partition(self) -> Partition | None:
        if self.partition is None:
            return None
        return Partition(self.partition, self.partition_clients, self.partition_concentration)

    @property
    def columns(self) -> Columns:
        lists = (tuple(self.drop), self.categorical_columns, tuple(self.missing), tuple(self.names))
        dealt = self.partition is not None
        return Columns(
            self.label, self.client, self.split, self.weights, *lists, dealt=dealt, event=self.event,
            patient=self.patient, decimal=self.decimal, derive=tuple(self.derive), map=tuple(self.map),
            fold_case=self.fold_case,
        )  # fmt: skip

    def doubts(self, data: FederatedData) -> list[Finding]:
        return find_doubts(data, censored=self.event is not None, labels_are_numbers=self.loss != "auto")

    def missing_data(self) -> str | None:
        return None if Path(self.path).exists() else f"task.path: {self.path} not found"

    def contents(self) -> dict[str, str]:
        return {"path": fingerprint(Path(self.path), self.columns)}

    def read(self, seed: int) -> FederatedData:
        if self._partition is None:
            return read(Path(self.path), self.columns, self.min_samples)
        data = read(Path(self.path), self.columns, min_clients=1)
        x = data.x if is_sparse(data.x) else prepared(data, self.recipe).apply(data.raw)
        return self._partition.assign(data, x, seed)


@dataclass(kw_only=True)
class Published(Tabular):
    """Task on one of PUBLICATIONS."""

    name: str = "published"
    publication: str  # name of the published table
    data_dir: str | None  # folder with the files; null: download
    min_samples: int  # clients with fewer samples are dropped

    def __post_init__(self) -> None:
        super().__post_init__()
        known = "one of " + ", ".join(PUBLICATIONS)
        require(self.publication in PUBLICATIONS, "task.publication", self.publication, known)
        require(self.min_samples >= 0, "task.min_samples", self.min_samples, "a whole number >= 0")

    @property
    def _published(self) -> Publication:
        return PUBLICATIONS[self.publication]

    @property
    def columns(self) -> Columns:
        return self._published.columns

    def missing_data(self) -> str | None:
        if self.data_dir is not None or self._published.is_downloaded:
            return None
        return f"{self._published.name} is not on this machine (task.data_dir, docs/data.md)"

    def contents(self) -> dict[str, str]:
        return {"data_dir": self._published.content(self.data_dir)}

    def read(self, seed: int) -> FederatedData:
        return self._published.read(self.data_dir, self.min_samples)
