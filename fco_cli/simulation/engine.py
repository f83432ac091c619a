"""The simulation: rounds over sampled clients for a stack of jobs that differ only along the axis J.

Its caller asks for a round at a time, or a few, so that it can show progress, save checkpoints or stop in between. A
job's numbers do not depend on the stack it runs in, nor on how many rounds are evaluated together.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path

import numpy as np

from fco_cli.algorithms import Algorithm, Cohort, State, Varying
from fco_cli.algorithms.rounds import Costs, Round
from fco_cli.errors import UserError
from fco_cli.problem.certificate import is_certified
from fco_cli.problem.data import Elsewhere
from fco_cli.problem.layout import Array
from fco_cli.problem.problem import Problem
from fco_cli.simulation.clients import Clients, Here
from fco_cli.simulation.convergence import is_due, residual_enough
from fco_cli.simulation.evaluate import Metrics, evaluate, summarized
from fco_cli.simulation.history import History
from fco_cli.simulation.hparams import Hparams
from fco_cli.simulation.memory import Saved
from fco_cli.simulation.path import Snapshots, as_snapshot, snapshot_rounds
from fco_cli.simulation.sampling import Sampler
from fco_cli.tasks.base import Task

COUNTERS = (*Costs._fields, "clients_dropped")
WATCHED = ("objective", "own_train_loss_worst_decile")  # clients' own models may explode where the shared one is sound
EXPLOSION = 1e12  # times these at the start: beyond it no digit means anything, and a constraint may hide why

# Of one model an evaluation reads as much as of many, all rows or a Gram matrix: those of several rounds are made
# together. Who has exploded, or converged, is known only then, and has gone on in vain by a share of its way at most.
MODELS_TOGETHER, NUMBERS_TOGETHER = 64, 2**18
IN_VAIN = 1 / 8
PATIENCE = 0.2  # seconds of rounds that may pass before anybody hears of them


@dataclass
class Job:
    """One run: where it stands. Plain data, so that a checkpoint is this and nothing else."""

    round: int = 0  # rounds done
    state: State = field(default_factory=dict)  # without the job axis; empty before the first round
    memory: Saved = field(default_factory=dict)  # what its clients remember, as a checkpoint keeps it
    counters: Array = field(default_factory=lambda: np.zeros(len(COUNTERS), dtype=np.int64))
    history: History = field(default_factory=History)  # metric -> value at every evaluated round
    seconds: float = 0.0  # of work so far, over all sessions
    diverged: int | None = None  # the round whose state was not finite
    model: Array | None = None  # the output, set when the job ends
    certified: bool = False  # its relative gap is small enough (problem/certificate.py)
    clients: Array | None = None  # [S + 1, P], the last round's client models and their average, where asked for
    path: Snapshots = field(default_factory=dict)  # its model at a few rounds, where asked for
    own: dict[str, tuple[Array, Array]] = field(default_factory=dict)  # of personal models: metric -> clients, values

    @property
    def ended(self) -> bool:
        return self.model is not None


@dataclass(frozen=True)
class Setup:
    """All that the jobs of a stack have in common."""

    task: Task
    problem: Problem
    hparams: Hparams
    seed: int
    algorithm: Algorithm
    record_clients: bool = False  # keep the client models of the last round
    record_path: bool = False  # keep the model at a few rounds
    clients: Callable[[Problem, Algorithm, Array, list[Path] | None], Clients] = Here  # who holds them


@dataclass(frozen=True)
class Step:
    """A round of the whole stack, before anybody has looked at what came of it."""

    done: int  # rounds, with this one
    before: State
    state: State
    counters: Array  # [COUNTERS, J]
    finite: Array  # [J], which jobs' states are

    def take(self, jobs: Array) -> Step:
        """Of some of the jobs, a mask [J]."""
        before, state = ({name: values[jobs] for name, values in one.items()} for one in (self.before, self.state))
        return Step(self.done, before, state, self.counters[:, jobs], self.finite[jobs])


class Simulation:
    """A stack of jobs, all at the same round, on its way to the end.

    `folders`, one for every job, is where client memory too large for this process may live; `start` [J, P] is where
    jobs begin that do not at the model's own start.
    """

    def __init__(
        self,
        setup: Setup,
        jobs: list[Job],
        varying: Varying,
        folders: list[Path] | None = None,
        start: Array | None = None,
    ) -> None:
        self.setup = setup
        self.running = list(jobs)
        self.finished: list[Job] = []  # those that have come to the end, in the order of the stack
        self.counters = np.array([job.counters for job in jobs]).T  # [COUNTERS, J], of the running jobs
        self._adopt(varying)
        self.rounds = 1 if self.algorithm.one_shot else setup.hparams.last_round
        self.sampler = self._sampler()
        self.snapshots: frozenset[int] = frozenset()
        if setup.record_path and self.algorithm.federated:
            self.snapshots = snapshot_rounds(self.rounds, setup.hparams.eval_every, setup.problem.layout.size)
        w = setup.problem.initial_models(varying.psi, start)
        self.clients = setup.clients(setup.problem, self.algorithm, w, folders)
        if jobs[0].round:
            self.state = {name: np.stack([job.state[name] for job in jobs]) for name in jobs[0].state}
            for j, job in enumerate(jobs):
                self.clients.load(j, job.memory)
        else:
            self.state = self.algorithm.initial_state(w)
            self._start()
        self.limits = self._limits()  # of the running jobs, as `counters`

    def _adopt(self, varying: Varying) -> None:
        self.varying = varying
        self.algorithm = self.setup.algorithm.bind(self.setup.problem, varying)

    def _sampler(self) -> Sampler | None:
        """Who draws clients and batches; none for a baseline that takes all rows at a time."""
        setup, data = self.setup, self.setup.problem.data
        if self.algorithm.federated:
            shares = data.shares(setup.hparams.weighting)
            return Sampler(data.sizes, setup.hparams, setup.seed, self.algorithm.pace, shares)
        if not (batch := self.algorithm.pooled_batch):
            return None
        one = replace(setup.hparams, clients_per_round=1, batch_size=batch, local_epochs=1, last_batch="keep")
        return Sampler(data.sizes.sum(keepdims=True), one, setup.seed)

    @property
    def round(self) -> int:
        """Rounds done."""
        return self.running[0].round if self.running else self.rounds

    def advance(self, patience: float = 0.0) -> bool:
        """Simulate a round, and more for so many seconds if it pays to evaluate them together; False if there is
        nothing left to do."""
        if self.round >= self.rounds:
            return False
        until = time.monotonic() + patience
        with np.errstate(all="ignore"):  # divergence is detected and recorded; no storm of warnings
            steps = [self._step(self.round + 1)]
            while self._may_wait(steps) and time.monotonic() < until:
                steps.append(self._step(steps[-1].done + 1))
            self._settle(steps)
        return True

    def _step(self, done: int) -> Step:
        cohort = None if self.sampler is None else self.sampler.cohort(done - 1)
        made = self.clients.round(self.algorithm, self.state, cohort)
        finite = _finite_jobs(made.state)
        if self.setup.record_clients and done == self.rounds:
            self._keep_clients(made, cohort)
        self.clients.remember(cohort, made, finite)  # only now: a job that diverges leaves with what it had
        before, self.state, self.counters = self.state, made.state, self._counted(cohort, made)
        return Step(done, before, self.state, self.counters, finite)

    def _evaluated(self, done: int) -> bool:
        return done % self.setup.hparams.eval_every == 0 or done == self.rounds

    def _may_wait(self, steps: list[Step]) -> bool:
        """Whether another round may come before these are evaluated."""
        problem, every, last = self.setup.problem, self.setup.hparams.eval_every, steps[-1]
        if self.algorithm.personal or isinstance(problem.data, Elsewhere):  # clients would have to go back
            return False
        if last.done >= self.rounds - self.setup.record_clients or not last.finite.all():
            return False
        jobs, before = len(self.running), (steps[0].done - 1) // every
        together = min(MODELS_TOGETHER // jobs, int(IN_VAIN * before))
        room = NUMBERS_TOGETHER // (jobs * problem.layout.size)
        return len(steps) < room and last.done // every - before < together

    def _settle(self, steps: list[Step]) -> None:
        """What came of rounds is written down, and who has come to an end leaves, as if after each of them."""
        if not steps or not self.running:
            return
        if not (finite := steps[0].finite).all():
            self._drop(finite, steps[0])
            return self._settle([step.take(finite) for step in steps])
        measured = list(takewhile(lambda step: step.finite.all(), steps))
        for n, (step, metrics) in enumerate(zip(measured, self._evaluate(measured), strict=True), 1):
            stay = self._concluded(step, metrics)
            if not stay.all():
                return self._settle([later.take(stay) for later in steps[n:]])
        self._settle(steps[len(measured) :])

    def _concluded(self, step: Step, metrics: Metrics) -> Array:
        """Who still runs after a round, of those who did: [J]. Metrics are empty where it was not evaluated."""
        stay = self._sound(metrics)
        if not stay.all():
            self._drop(stay, step)
            step, metrics = step.take(stay), {name: values[stay] for name, values in metrics.items()}
        if metrics and self.running:
            self._record(step, metrics | self._spent(step))
        self._count(step)
        if metrics and self.running and self.setup.hparams.until_converged:
            converged = self._converged(step, metrics["kkt_residual"])
            self._leave(converged, step)
            stay[stay] = ~converged
        return stay

    def _converged(self, step: Step, residuals: Array) -> Array:
        """Return which running jobs have converged: [J]."""
        problem, psi, tolerance = self.setup.problem, self.varying.psi, self.setup.hparams.tolerance
        enough, models = residual_enough(problem, psi, tolerance), self.algorithm.output(step.state)
        converged = residuals <= enough
        for j in np.flatnonzero(converged):
            job = self.running[j]
            if not is_due(job.history["kkt_residual"], enough[j]):
                converged[j] = False
            elif models.ndim == 2:
                gap = is_certified(problem, psi[[j]], models[j], tolerance)
                job.certified, converged[j] = gap is True, gap is not False
        return converged

    def _leave(self, converged: Array, step: Step) -> None:
        """Jobs that have converged leave the stack, with their models."""
        if converged.any():
            models = self.algorithm.output(step.state)
            for j in np.flatnonzero(converged):
                self.running[j].model = models[j].copy()
            self._keep(~converged)

    def _counted(self, cohort: Cohort | None, made: Round) -> Array:
        """The counters after a round: [COUNTERS, J]."""
        counters = self.counters.copy()
        for counter, count in zip(counters, (*self.algorithm.costs(cohort), made.dropped), strict=True):
            counter += count
        return counters

    def _count(self, step: Step) -> None:
        for job, counters in zip(self.running, step.counters.T, strict=True):
            job.round, job.counters = step.done, counters
        if step.done == self.rounds and self.running:
            for job, model in zip(self.running, self.algorithm.output(self.state), strict=True):
                job.model = model.copy()
            if self.algorithm.personal:
                own = self.clients.own_metrics(self.algorithm, self.state)
                for j, job in enumerate(self.running):
                    job.own = {name: (clients, values[:, j]) for name, (clients, values) in own.items()}
            self.running, self.finished = [], self.running
            self.clients.ended()

    def personal_models(self, job: Job) -> Array | None:
        """[M, P], what the clients of a finished job remember as their own models, unless it is more than is kept."""
        places = [j for j, one in enumerate(self.finished) if one is job]
        return self.clients.own_models(self.algorithm, places[0]) if places else None  # it may have diverged

    def _keep_clients(self, made: Round, cohort: Cohort | None) -> None:
        if made.messages is not None and cohort is not None:
            models = self.algorithm.client_models(self.state, made, cohort)
            for j, job in enumerate(self.running):
                job.clients = models[:, j].copy()

    def _drop(self, kept: Array, step: Step) -> None:
        """Jobs that have diverged leave the stack, with their last model."""
        models = self.algorithm.output(step.before)
        for j in np.flatnonzero(~kept):
            self.running[j].diverged, self.running[j].model = step.done, models[j].copy()
        self._keep(kept)

    def _keep(self, kept: Array) -> None:
        """The stack without the jobs that have ended."""
        self.running = [job for job in self.running if not job.ended]
        self.state = {name: values[kept] for name, values in self.state.items()}
        self.counters = self.counters[:, kept]
        self.limits = {name: values[kept] for name, values in self.limits.items()}
        self.clients.keep(kept)
        if self.running:
            self._adopt(self.varying.take(kept))

    def _start(self) -> None:
        """Round 0: the evaluation with which all others are compared."""
        start = Step(0, self.state, self.state, self.counters, np.ones(len(self.running), dtype=bool))
        with np.errstate(all="ignore"):
            (metrics,) = self._evaluate([start])
        if not np.isfinite(metrics["objective"]).all():
            raise UserError("task: the objective at the start is beyond all numbers: the data or psi are too large")
        metrics |= self._spent(start)
        for job in self.running:
            job.history = History(("round", *metrics, *COUNTERS))
        self._record(start, metrics)

    def _evaluate(self, steps: list[Step]) -> list[Metrics]:
        """The metrics of every round; none of one that is not to be evaluated."""
        measured = [step for step in steps if self._evaluated(step.done)]
        if not measured:
            return [{} for _ in steps]
        models = np.concatenate([self.algorithm.output(step.state) for step in measured])
        numbers = np.tile(self.varying.psi, len(measured)).view(np.recarray)
        found = evaluate(self.setup.task, self.setup.problem, models, numbers)
        if self.algorithm.personal:
            found |= summarized(self.clients.own_metrics(self.algorithm, self.state))
        rows = {name: iter(values.reshape(len(measured), -1)) for name, values in found.items()}
        return [{name: next(of) for name, of in rows.items()} if self._evaluated(step.done) else {} for step in steps]

    def _spent(self, step: Step) -> Metrics:
        """What the messages so far have given away, where the algorithm's transform bounds it."""
        sampled = self.setup.hparams.sampled(self.setup.problem.data.clients)
        evaluations = len(self.running[0].history.rows) + 1
        return self.algorithm.spent(step.done, sampled, step.counters[-1], self.clients.evaluated(evaluations))

    def _limits(self) -> Metrics:
        """How large a job's metrics may become before it has exploded: [J]."""
        watched = [name for name in WATCHED if name in self.running[0].history]
        start = {name: np.array([abs(job.history[name][0]) for job in self.running]) for name in watched}
        return {name: np.where(first > 0, EXPLOSION * first, np.inf) for name, first in start.items()}

    def _sound(self, metrics: Metrics) -> Array:
        """Which jobs have not exploded: [J]. Weights may be finite where the objective is not."""
        sound = np.ones(len(self.running), dtype=bool)
        for name in self.limits.keys() & metrics.keys():
            sound &= np.isfinite(metrics[name]) & (metrics[name] <= self.limits[name])
        return sound

    def _record(self, step: Step, metrics: Metrics) -> None:
        """Append an evaluation to the running jobs' histories."""
        if step.done in self.snapshots:
            for job, model in zip(self.running, self.algorithm.output(step.state), strict=True):
                job.path[step.done] = as_snapshot(model)
        columns = [values.tolist() for values in (*metrics.values(), *step.counters)]
        rows = zip([step.done] * len(self.running), *columns, strict=True)
        for job, row in zip(self.running, rows, strict=True):
            job.history.rows.append(row)

    def why_unfit(self, job: Job) -> str | None:
        """What is wrong with a checkpoint that should go on from here, the start; None if it fits this simulation."""
        wanted = {name: (values.shape[1:], values.dtype) for name, values in self.state.items()}
        if {name: (values.shape, values.dtype) for name, values in job.state.items()} != wanted:
            return "its arrays are not this run's"
        if not 0 < job.round < self.rounds or job.counters.shape != (len(COUNTERS),):
            return "it is of no round of this run"
        evaluated = [0, *range(self.setup.hparams.eval_every, job.round + 1, self.setup.hparams.eval_every)]
        if job.history.names != self.running[0].history.names or job.history["round"] != evaluated:
            return "its metrics are not this run's"
        taken = {done for done in self.snapshots if done <= job.round}
        if job.path.keys() != taken or any(
            model.shape != (self.setup.problem.layout.size,) for model in job.path.values()
        ):
            return "its snapshots are not this run's"
        return None

    def snapshot(self) -> list[Job]:
        """The running jobs with their states filled in, for a checkpoint."""
        for j, job in enumerate(self.running):
            job.state = {name: values[j] for name, values in self.state.items()}
            job.memory = self.clients.save(j)
        return self.running

    def saved(self) -> None:
        """The checkpoints of the last snapshot are on disk."""
        self.clients.saved()


def _finite_jobs(state: State) -> Array:
    """Which jobs have finite numbers only, in all that the server keeps: [J]."""
    sums = np.array([values.reshape(len(values), -1).sum(axis=1) for values in state.values()])
    return np.isfinite(sums).all(axis=0)
