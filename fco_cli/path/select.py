"""The path of models, its cross-validation, the choice, and how the chosen models do: from a run to a selection.

Every solution is made of sums over the clients; rows that the task keeps for a test are looked at once, when the models
are chosen. Nothing is written here: `keep` may remember parts of the work, for a path that is interrupted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from fco_cli.config import Run
from fco_cli.config.path_settings import PathSettings
from fco_cli.errors import require
from fco_cli.federation.coordinator.elsewhere import SiteRows
from fco_cli.kernels.compiled import set_threads
from fco_cli.memory_limit import require_memory
from fco_cli.path.curve import Curve
from fco_cli.path.largest import dial_of, path_values
from fco_cli.path.performance import Line, calibration_bins, line_of, performance
from fco_cli.path.solve import Solved, problem_on, solve_path
from fco_cli.path.stability import Stability, halves_of, selected
from fco_cli.path.told import line_told, performance_told
from fco_cli.problem.data import ClientData
from fco_cli.problem.folds import Deal, HeldOut
from fco_cli.problem.layout import Array
from fco_cli.problem.problem import Problem, TaskData
from fco_cli.problem.risk import scores_of

log = logging.getLogger(__name__)

Part = dict[str, Array]
Keep = Callable[[str, Callable[[], Part]], Part]


@dataclass(frozen=True)
class Fold:
    """One fold's models, on the rows that they have not seen."""

    solved: Solved
    losses: Array  # [J]
    weight: float  # what it counts


@dataclass(frozen=True)
class Selection:
    """What a path has found; models have weights for features as the task prepares them."""

    data: TaskData
    problem: Problem
    dial: str  # strength or radius
    values: Array  # [J], the null model's end first
    path: Solved  # on all training rows
    folds: list[Fold]
    curve: Curve
    refitted: Solved  # of the chosen places, in order, to hparams.tolerance
    clients: list[Line]  # out of fold, by choice and client
    bins: list[Line]  # of predictions
    tests: dict[str, Line]  # by choice, on rows that had no part in it
    stability: Stability | None

    @property
    def chosen(self) -> dict[str, int]:
        return self.curve.chosen

    def refitted_place(self, name: str) -> int:
        return sorted(set(self.chosen.values())).index(self.chosen[name])

    def model(self, name: str) -> Array:
        """`min` or `1se`, refitted on all training rows: [P]."""
        return self.refitted.models[self.refitted_place(name)]


def make_now(_name: str, make: Callable[[], Part]) -> Part:
    """The `keep` that keeps nothing."""
    return make()


def select(run: Run, settings: PathSettings, on_round: Callable[[], None], deal: Deal | None = None) -> Selection:
    """Choose a strength, or a radius, for the run's regularizer."""
    with few_threads(run.threads):
        return Selecting(run, settings, on_round, deal).selection()


@contextmanager
def few_threads(count: int | None) -> Iterator[None]:
    """One, unless told otherwise: rounds are milliseconds, threads would mostly wait for each other."""
    import numba

    before = numba.get_num_threads()
    set_threads(count or 1)
    try:
        with threadpool_limits(1, user_api="blas"):
            yield
    finally:
        set_threads(before)


class Selecting:
    """A selection on its way; what cannot be is refused when it is made, before any work."""

    def __init__(
        self, run: Run, settings: PathSettings, on_round: Callable[[], None], deal: Deal | None = None
    ) -> None:
        self.run, self.settings, self.on_round = run, settings, on_round
        self.dial = dial_of(run.regularizer)  # refuses what has none
        self.task = run.task.cross_validated()
        self.data = self.task.data(run.seed, run.hparams.dtype)
        self.problem = problem_on(run, self.data)
        require(self.problem.model.convex, "task", run.task.name, "one with a linear model")
        self.deal = deal or self._deal()
        numbers = (self.deal.folds + 1) * settings.strengths * self.problem.layout.size
        require_memory(f"path.strengths={settings.strengths}: the models of all folds", 8 * numbers)
        self.values = path_values(self.problem, settings.strengths, settings.ratio, settings.largest)

    def _deal(self) -> Deal:
        """How the training rows are dealt to the folds."""
        settings, data = self.settings, self.data
        return Deal.of(data.training, settings.folds, settings.by, data.loss.classification, self.run.seed)

    def selection(self, keep: Keep = make_now) -> Selection:
        self.keep = keep
        log.info("%s from %.3g to %.3g", self.dial, self.values[0], self.values[-1])
        path = Solved(**self.keep("all", lambda: self._solve(self.data).as_arrays()))
        folds = list(self._folds())
        curve = Curve.of(np.array([fold.losses for fold in folds]), np.array([fold.weight for fold in folds]))
        places = sorted(set(curve.chosen.values()))
        refitted = Solved(**self.keep("chosen", lambda: self._refit(path, places).as_arrays()))
        clients, bins = self._unseen(folds, curve.chosen)
        tests = {name: self._test(refitted.models[places.index(at)]) for name, at in curve.chosen.items()}
        return Selection(
            self.data, self.problem, self.dial, self.values, path, folds, curve, refitted, clients, bins,
            {name: line for name, line in tests.items() if line is not None},
            self._stability() if self.settings.subsamples else None,
        )  # fmt: skip

    def _solve(self, data: TaskData) -> Solved:
        return solve_path(self.run, data, self.values, self.settings.tolerance, self.on_round)

    def _refit(self, path: Solved, places: list[int]) -> Solved:
        tolerance = self.run.hparams.tolerance
        return solve_path(self.run, self.data, self.values[places], tolerance, self.on_round, path.models[places])

    def _divided(self, held_out: Iterable[HeldOut]) -> Iterator[TaskData]:
        """What the task learns from rows is learnt anew, from the rows that are left."""
        return self.task.divided(self.data, self.run.seed, self.run.hparams.dtype, held_out)

    def _folds(self) -> Iterator[Fold]:
        for k, data in enumerate(self._divided(self.deal)):
            log.info("fold %d of %d", k + 1, self.deal.folds)
            assert data.held_out is not None

            def make(data: TaskData = data) -> Part:
                solved, validation = self._solve(data), problem_on(self.run, data).validation
                assert validation is not None
                return solved.as_arrays() | {"losses": validation(solved.models, gradient=False).value}

            part = dict(self.keep(f"fold_{k}", make))
            losses = part.pop("losses")
            yield Fold(Solved(**part), losses, self._weight(data.held_out))

    def _weight(self, held_out: ClientData) -> float:
        """What a fold counts: as many rows, or clients, as it holds out, by what counts alike in the objective."""
        return float(held_out.sizes.sum() if self.run.hparams.weighting == "examples" else held_out.clients)

    def _unseen(self, folds: list[Fold], chosen: dict[str, int]) -> tuple[list[Line], list[Line]]:
        """Every row scored by the models of the fold that held it out: lines by client, and tenths of predictions."""
        training, loss = self.data.training, self.data.loss
        divided, places = zip(self._divided(self.deal), folds, self.deal, strict=True), list(chosen.values())
        if isinstance(training, SiteRows):
            told = [data.held_out.told(fold.solved.models[places]) for data, fold, _ in divided]  # type: ignore[union-attr]
            return performance_told(loss, told, list(chosen))
        scores = np.empty((len(chosen), self.problem.model.widths[-1], len(training.y)))
        for data, fold, held_out in divided:
            assert data.held_out is not None
            scores[:, :, held_out.rows(training)] = scores_of(data.model, data.held_out, fold.solved.models[places])
        names = self.data.clients or [f"client {m}" for m in range(training.clients)]
        clients: list[Line] = []
        bins: list[Line] = []
        for name, score in zip(chosen, scores, strict=True):
            lines = performance(loss, score, training.y, training.owners, names)
            clients += [{"choice": name, **line} for line in lines]
            if loss.classification and len(score) == 1:
                bins += [{"choice": name, **line} for line in calibration_bins(score[0], training.y > 0.5)]
        return clients, bins

    def _test(self, model: Array) -> Line | None:
        """On the rows kept for the end, or else those that the task holds out: nothing was chosen by them."""
        apart = self.data.test if self.data.test is not None else self.data.held_out
        if apart is None:
            return None
        if isinstance(apart, SiteRows):
            return line_told(self.data.loss, apart.told(model[None]), 0)
        return line_of(self.data.loss, scores_of(self.problem.model, apart, model[None])[0], apart.y)

    def _stability(self) -> Stability:
        """Features that are chosen on most halves of the clients' rows."""
        settings, loss, found = self.settings, self.data.loss, []
        halves = halves_of(self.data.training, settings.subsamples, settings.by, loss.classification, self.run.seed)
        for k, data in enumerate(self._divided(halves)):
            log.info("half %d of %d", k + 1, 2 * settings.subsamples)

            def make(data: TaskData = data) -> Part:
                return {"selected": selected(data, self._solve(data).models, self.data.features)}

            found.append(self.keep(f"half_{k}", make)["selected"])
        return Stability.of(np.array(found), settings.threshold, settings.errors)
