"""Model selection along a path: solutions, cross-validation, the selection rules, the selected models, their metrics.

Every solution needs sums over the clients only. Test rows are used once, after the models are selected. Nothing is
written here; a `Cache` may store intermediate results, so that an interrupted path can resume.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

import numpy as np
from threadpoolctl import threadpool_limits

from fco_cli.config import Run
from fco_cli.config.schemas import PathSettings
from fco_cli.errors import UserError, require
from fco_cli.federation.coordinator.evaluations import held_out_losses, metrics_together
from fco_cli.federation.coordinator.remote_rows import SiteRows
from fco_cli.kernels.compiled import set_threads
from fco_cli.memory_limit import require_memory
from fco_cli.path.between_clients import LARGE_SHARE, BetweenClients, share_between
from fco_cli.path.method import Method, choose_method, refit, solve_fits
from fco_cli.path.performance import (
    MetricRow,
    calibration_bins,
    client_metrics,
    client_metrics_from_sites,
    metrics_from_sites,
    metrics_of,
    predictions_from_sites,
    validation_losses,
)
from fco_cli.path.predictions import by_client, prediction_lines
from fco_cli.path.round import evaluator
from fco_cli.path.second_order import first_request, null_gradient
from fco_cli.path.solve import Cache, Checkpoint, Part, Solutions, path_parameter, path_values, problem_for
from fco_cli.path.stability import Stability, complementary_halves, selected_features
from fco_cli.problem.data import ClientData, FoldAssignment, HeldOut, SparseRows
from fco_cli.problem.layout import Array
from fco_cli.problem.models.linear import Model
from fco_cli.problem.problem import Problem, TaskData
from fco_cli.problem.risk import scores_of

log = logging.getLogger(__name__)
MAX_FIT_BYTES = 2**30  # of the rows of fits that are solved together


@dataclass(frozen=True)
class Curve:
    """Cross-validated loss of every value of a path, simplest model first."""

    mean: Array  # [J], weighted mean of the folds' losses
    error: Array  # [J], standard error of the mean

    @classmethod
    def of(cls, losses: Array, weights: Array) -> Curve:
        """Return the curve of the folds' losses [F, J] with weights [F] (held-out rows or clients)."""
        share = (weights / weights.sum())[:, None]
        with np.errstate(over="ignore", invalid="ignore"):  # models with an overflowed loss are not selected
            mean = (share * losses).sum(axis=0)
            spread = (share * (losses - mean) ** 2).sum(axis=0)
        return cls(mean, np.sqrt(spread / (len(losses) - 1)))

    @property
    def best(self) -> int:
        """Index of the smallest mean (`min`); ties go to the simplest model."""
        if not np.isfinite(self.mean).any():
            raise UserError("path: no model has a finite loss on the held-out rows; rescale the data")
        return int(np.nanargmin(np.where(np.isfinite(self.mean), self.mean, np.nan)))

    @property
    def simplest(self) -> int:
        """Index of the simplest model within one standard error of the best (`1se`; Breiman et al., 1984)."""
        return int(np.argmax(self.mean <= self.mean[self.best] + self.error[self.best]))

    @property
    def chosen(self) -> dict[str, int]:
        """Index of the selected model by rule."""
        return {"min": self.best, "1se": self.simplest}


@dataclass(frozen=True)
class Fold:
    """Models of one fold and their losses on its held-out rows."""

    solutions: Solutions
    losses: Array  # [J]
    weight: float  # in the mean over the folds
    model: Model
    held_out: ClientData


@dataclass(frozen=True)
class Selection:
    """Result of a path; the models refer to features as prepared by the task."""

    data: TaskData
    problem: Problem
    method: Method
    parameter: str  # strength or radius
    values: Array  # [J], simplest model first
    path: Solutions  # on all training rows
    folds: list[Fold]
    curve: Curve
    refitted: Solutions  # of the selected values, in order, to hparams.tolerance
    clients: list[MetricRow]  # out-of-fold metrics by rule and client
    bins: list[MetricRow]  # out-of-fold calibration by rule and decile of the predictions
    predictions: list[MetricRow]  # histograms of out-of-fold predictions by rule and client
    tests: dict[str, MetricRow]  # metrics on the test rows by rule
    stability: Stability | None
    between: BetweenClients | None  # if labels vary mostly between clients and folds are by rows

    @property
    def chosen(self) -> dict[str, int]:
        """Index of the selected value by rule, `min` and `1se`."""
        return self.curve.chosen

    def refit_index(self, name: str) -> int:
        """Return the index of a rule's model in `refitted`."""
        return sorted(set(self.chosen.values())).index(self.chosen[name])

    def model(self, name: str) -> Array:
        """Return the model of `min` or `1se`, refitted on all training rows: [P]."""
        return self.refitted.models[self.refit_index(name)]


def select(
    run: Run, settings: PathSettings, on_round: Callable[[], None], deal: FoldAssignment | None = None
) -> Selection:
    """Select a strength, or a radius, for the run's regularizer."""
    with limited_threads(run.threads):
        return Selector(run, settings, on_round, deal).select()


@contextmanager
def limited_threads(count: int | None) -> Iterator[None]:
    """Limit the number of threads to `count`, 1 by default: rounds take milliseconds, too short to parallelize."""
    import numba

    before = numba.get_num_threads()
    set_threads(count or 1)
    try:
        with threadpool_limits(1, user_api="blas"):
            yield
    finally:
        set_threads(before)


class Selector:
    """Model selection for one run; the constructor raises UserError for invalid settings, before any work."""

    def __init__(
        self, run: Run, settings: PathSettings, on_round: Callable[[], None], deal: FoldAssignment | None = None
    ) -> None:
        self.run, self.settings, self.on_round = run, settings, on_round
        self.parameter = path_parameter(run.regularizer)  # raises UserError if there is none
        self.task = run.task.cross_validated()
        self.data, self.deal, self.folds = self._split(deal)
        self.problem = problem_for(run, self.data)
        require(self.problem.model.convex, "task", run.task.name, "one with a linear model")
        numbers = (self.deal.folds + 1) * settings.strengths * self.problem.layout.size
        require_memory(f"path.strengths={settings.strengths}: the models of all folds", 8 * numbers)
        self.method = choose_method(run, self.problem, settings.algo)
        self.tolerance = self.method.tolerance(run, settings.tolerance)
        self.values = self._values()

    def _split(self, deal: FoldAssignment | None) -> tuple[TaskData, FoldAssignment, Iterable[TaskData]]:
        """Return the data of all rows, the assignment of the training rows to folds, and the data of the folds."""
        settings, seed, dtype = self.settings, self.run.seed, self.run.hparams.dtype
        if deal is None:
            return self.task.with_folds(seed, dtype, settings.folds, settings.by)
        data = self.task.data(seed, dtype)
        return data, deal, self.task.split_folds(data, seed, dtype, deal)

    def _values(self) -> Array:
        """Return the values of the path; with Hessians, from the first round of all fits."""
        settings, whole = self.settings, self.method.name == "moments"
        arguments = (self.problem, settings.strengths, settings.ratio, settings.largest)
        if not self.method.is_second_order:
            return path_values(*arguments)
        evaluate = evaluator(self.run.hparams.fraction_bits)
        if isinstance(self.data.training, SiteRows):  # one message; the answers are kept
            problems = [self.problem, *(problem_for(self.run, data) for data in self.folds)]
            evaluate([first_request(problem, whole) for problem in problems])
        return path_values(*arguments, null_gradient=lambda problem: null_gradient(problem, whole, evaluate))

    def select(self, cache: Cache | None = None) -> Selection:
        """Solve the path and its folds, refit the selected models and evaluate them."""
        self.cache = cache or Cache()
        log.info("%s", self.method.line)
        log.info("%s from %.3g to %.3g", self.parameter, self.values[0], self.values[-1])
        splits = enumerate(self.folds)
        solved = self._solved(chain([("all", self.data)], ((f"fold_{k}", data) for k, data in splits)))
        whole = Solutions(**next(solved)[1])
        folds = [self._fold(data, part) for data, part in solved]
        curve = Curve.of(np.array([fold.losses for fold in folds]), np.array([fold.weight for fold in folds]))
        indices = sorted(set(curve.chosen.values()))
        refitted = self._refit(whole, indices)
        clients, bins, predictions = self._out_of_fold_metrics(folds, curve.chosen)
        tests = self._test_metrics({name: refitted.models[indices.index(j)] for name, j in curve.chosen.items()})
        return Selection(
            self.data, self.problem, self.method, self.parameter, self.values, whole, folds, curve, refitted, clients,
            bins, predictions, tests, self._stability() if self.settings.subsamples else None,
            self._between_clients(curve),
        )  # fmt: skip

    def _solved(self, fits: Iterable[tuple[str, TaskData]]) -> Iterator[tuple[TaskData, Part]]:
        """Yield every named fit and its solutions; a second-order method solves several fits together."""
        largest = MAX_FIT_BYTES if self.method.is_second_order else 0
        for group in groups_of(fits, largest):
            loaded = [self.cache.load(name) for name, _ in group]
            parts = [part for part in loaded if part is not None]
            if len(parts) < len(group):
                log.info("%s", group[0][0] if len(group) == 1 else f"{group[0][0]} to {group[-1][0]}")
                data = [one for _, one in group]
                checkpoint = Checkpoint(self.cache, f"rounds_{group[0][0]}")
                solved = solve_fits(self.run, self.method, data, self.values, self.tolerance, self.on_round, checkpoint)
                parts = self._as_parts(data, solved)
                for (name, _), part in zip(group, parts, strict=True):
                    self.cache.store(name, part)
            yield from zip((one for _, one in group), parts, strict=True)

    def _as_parts(self, fits: list[TaskData], solutions: list[Solutions]) -> list[Part]:
        """Return the solutions of fits and their losses on held-out rows, which sites evaluate together."""
        parts, folds = [one.as_arrays() for one in solutions], []
        for data, part in zip(fits, parts, strict=True):
            if data.held_out is not None and data is not self.data:
                folds.append((problem_for(self.run, data), part))
        if isinstance(self.data.training, SiteRows) and folds:
            losses = held_out_losses([(one.held_out, part["models"], one.weighting) for one, part in folds])  # type: ignore[misc]
        else:
            bits = self.run.hparams.fraction_bits
            losses = [validation_losses(one, part["models"], bits) for one, part in folds]
        for (_, part), values in zip(folds, losses, strict=True):
            part["losses"] = values
        return parts

    def _fold(self, data: TaskData, part: Part) -> Fold:
        assert data.held_out is not None
        part = dict(part)
        losses, weight = part.pop("losses"), self._weight(data.held_out)
        if self._counts_events(data.held_out):
            losses = losses * (data.held_out.sizes.sum() / weight) if weight else np.zeros_like(losses)
        return Fold(Solutions(**part), losses, weight, data.model, data.held_out)

    def _refit(self, path: Solutions, indices: list[int]) -> Solutions:
        part = self.cache.load("chosen")
        if part is None:
            tolerance, values = self.run.hparams.tolerance, self.values[indices]
            taken = path.take(indices)
            part = refit(self.run, self.method, self.data, values, taken, tolerance, self.on_round).as_arrays()
            self.cache.store("chosen", part)
        return Solutions(**part)

    def _splits(self, held_out: Iterable[HeldOut]) -> Iterator[TaskData]:
        """Yield the data without each set of held-out rows, with the preparation fitted on the remaining rows."""
        return self.task.split_folds(self.data, self.run.seed, self.run.hparams.dtype, held_out)

    def _weight(self, held_out: ClientData) -> float:
        """Return the weight of a fold: its number of held-out rows or clients, depending on hparams.weighting.

        For a Cox loss it is the number of held-out events, if it is known: rows without events have no loss.
        """
        if self._counts_events(held_out):
            return float(number_of_events(held_out) or 0)
        return float(held_out.sizes.sum() if self.run.hparams.weighting == "examples" else held_out.clients)

    def _counts_events(self, held_out: ClientData) -> bool:
        """Return True if losses are per held-out event."""
        has_events = self.data.loss.censored_labels and self.run.hparams.weighting == "examples"
        return has_events and number_of_events(held_out) is not None

    def _out_of_fold_metrics(
        self, folds: list[Fold], chosen: dict[str, int]
    ) -> tuple[list[MetricRow], list[MetricRow], list[MetricRow]]:
        """Return metrics by client, calibration by decile and histograms of predictions.

        Each row is scored by the fold that held it out.
        """
        training, loss = self.data.training, self.data.loss
        indices = list(chosen.values())
        if isinstance(training, SiteRows):
            parts = metrics_together([(fold.held_out, fold.solutions.models[indices]) for fold in folds])  # type: ignore[misc]
            names = list(chosen)
            return *client_metrics_from_sites(loss, parts, names), predictions_from_sites(loss, parts, names)
        scores = np.empty((len(chosen), self.problem.model.widths[-1], len(training.y)))
        for fold, held_out in zip(folds, self.deal, strict=True):
            rows = held_out.rows(training)
            scores[:, :, rows] = scores_of(fold.model, fold.held_out, fold.solutions.models[indices])
        names = self.data.clients or [f"client {m}" for m in range(training.clients)]
        clients: list[MetricRow] = []
        bins: list[MetricRow] = []
        predictions: list[MetricRow] = []
        for name, score in zip(chosen, scores, strict=True):
            lines = client_metrics(loss, score, training.y, training.owners, names)
            clients += [{"choice": name, **line} for line in lines]
            if loss.classification and len(score) == 1:
                positive = training.y > 0.5
                bins += [{"choice": name, **line} for line in calibration_bins(score[0], positive)]
                predictions += prediction_lines(by_client(score[0], positive, training.owners, names), choice=name)
        return clients, bins, predictions

    def _test_metrics(self, chosen: dict[str, Array]) -> dict[str, MetricRow]:
        """Return the models' metrics on the test rows or, without these, on the rows that the task holds out."""
        test = self.data.test if self.data.test is not None else self.data.held_out
        if test is None:
            return {}
        models, loss = np.array(list(chosen.values())), self.data.loss
        if isinstance(test, SiteRows):
            (parts,) = metrics_together([(test, models)])
            return {name: metrics_from_sites(loss, parts, j) for j, name in enumerate(chosen)}
        scores = scores_of(self.problem.model, test, models)
        return {name: metrics_of(loss, scores[j], test.y, test.owners) for j, name in enumerate(chosen)}

    def _between_clients(self, by_rows: Curve) -> BetweenClients | None:
        """Cross-validate by clients as well if the labels vary mostly between them and the folds are by rows."""
        training, settings = self.data.training, self.settings
        if settings.by != "rows" or isinstance(training, SiteRows):
            return None
        share = share_between(training, self.data.loss)
        if share is None or share < LARGE_SHARE:
            return None
        number = min(settings.folds, training.clients)
        deal = FoldAssignment.of(training, number, "clients", self.data.loss.classification, self.run.seed)
        fits = ((f"clients_{k}", data) for k, data in enumerate(self._splits(deal)))
        folds = [self._fold(data, part) for data, part in self._solved(fits)]
        by_clients = Curve.of(np.array([fold.losses for fold in folds]), np.array([fold.weight for fold in folds]))
        return BetweenClients.of(share, by_rows.mean, by_clients.mean)

    def _stability(self) -> Stability:
        """Return the selection frequencies of the features over random halves of the data."""
        settings, loss = self.settings, self.data.loss
        halves = complementary_halves(
            self.data.training, settings.subsamples, settings.by, loss.classification, self.run.seed
        )
        fits = ((f"half_{k}", data) for k, data in enumerate(self._splits(halves)))
        features = self.data.features
        selected = [selected_features(data, part["models"], features) for data, part in self._solved(fits)]
        return Stability.of(np.array(selected), settings.threshold, settings.errors)


def number_of_events(held_out: ClientData) -> int | None:
    """Return the number of rows whose label is the time of an event; None if a site hides it."""
    return held_out.events if isinstance(held_out, SiteRows) else int((held_out.y > 0).sum())


def groups_of(fits: Iterable[tuple[str, TaskData]], largest: int) -> Iterator[list[tuple[str, TaskData]]]:
    """Yield consecutive fits in groups whose rows have at most `largest` bytes, or of one fit."""
    group: list[tuple[str, TaskData]] = []
    size = 0
    for name, data in fits:
        x = data.training.x
        own = sum(part.nbytes for part in x[:3]) if isinstance(x, SparseRows) else int(x.nbytes)
        if group and (largest == 0 or size + own > largest):
            yield group
            group, size = [], 0
        group.append((name, data))
        size += own
    if group:
        yield group
