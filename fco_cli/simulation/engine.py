"""The simulation: rounds over sampled clients for a stack of jobs that differ only along the axis J.

Its caller asks for one round at a time, so that it can show progress, save checkpoints or stop in between. A job's
numbers do not depend on the stack it runs in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fco_cli.algorithms import Algorithm, Cohort, State, Varying
from fco_cli.algorithms.rounds import Costs, Round
from fco_cli.errors import UserError
from fco_cli.problem.layout import Array
from fco_cli.problem.problem import Problem
from fco_cli.simulation.clients import Clients, Here
from fco_cli.simulation.convergence import residual_enough
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

    def advance(self) -> bool:
        """Simulate one round; False if there is nothing left to do."""
        if self.round >= self.rounds:
            return False
        with np.errstate(all="ignore"):  # divergence is detected and recorded; no storm of warnings
            self._advance()
        return True

    def _advance(self) -> None:
        cohort = None if self.sampler is None else self.sampler.cohort(self.round)
        made = self.clients.round(self.algorithm, self.state, cohort)
        finite = _finite_jobs(made.state)
        if self.setup.record_clients and self.round + 1 == self.rounds:
            self._keep_clients(made, cohort)
        self.clients.remember(cohort, made, finite)  # only now: a job that diverges leaves with what it had
        done, before, self.state = self.round + 1, self.state, made.state
        self.counters = self._counted(cohort, made)
        if not finite.all():
            before = self._drop(finite, before)
        if self.running and (done % self.setup.hparams.eval_every == 0 or done == self.rounds):
            metrics = self._evaluate(done)
            sound = self._sound(metrics)
            if not sound.all():
                self._drop(sound, before)
                metrics = {name: values[sound] for name, values in metrics.items()}
            self._record(done, metrics)
            self._count(done)
            if self.setup.hparams.until_converged and self.running:
                self._leave(metrics["kkt_residual"] <= self._enough())
        else:
            self._count(done)

    def _enough(self) -> Array:
        """The KKT residual at which each running job has converged: [J]."""
        return residual_enough(self.setup.problem, self.varying.psi, self.setup.hparams.tolerance)

    def _leave(self, converged: Array) -> None:
        """Jobs that have converged leave the stack, with their models."""
        if converged.any():
            models = self.algorithm.output(self.state)
            for j in np.flatnonzero(converged):
                self.running[j].model = models[j].copy()
            self._keep(~converged)

    def _counted(self, cohort: Cohort | None, made: Round) -> Array:
        """The counters after a round: [COUNTERS, J]."""
        counters = self.counters.copy()
        for counter, count in zip(counters, (*self.algorithm.costs(cohort), made.dropped), strict=True):
            counter += count
        return counters

    def _count(self, done: int) -> None:
        for job, counters in zip(self.running, self.counters.T, strict=True):
            job.round, job.counters = done, counters
        if done == self.rounds and self.running:
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

    def _drop(self, kept: Array, before: State) -> State:
        """Jobs that have diverged leave the stack, with their last model; the state before, of those that stay."""
        models = self.algorithm.output(before)
        for j in np.flatnonzero(~kept):
            self.running[j].diverged, self.running[j].model = self.round + 1, models[j].copy()
        self._keep(kept)
        return {name: values[kept] for name, values in before.items()}

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
        with np.errstate(all="ignore"):
            metrics = self._evaluate(0)
        if not np.isfinite(metrics["objective"]).all():
            raise UserError("task: the objective at the start is beyond all numbers: the data or psi are too large")
        for job in self.running:
            job.history = History(("round", *metrics, *COUNTERS))
        self._record(0, metrics)

    def _evaluate(self, done: int) -> Metrics:
        metrics = evaluate(self.setup.task, self.setup.problem, self.algorithm.output(self.state), self.varying.psi)
        if self.algorithm.personal:
            metrics |= summarized(self.clients.own_metrics(self.algorithm, self.state))
        return metrics | self._spent(done)

    def _spent(self, done: int) -> Metrics:
        """What the messages so far have given away, where the algorithm's transform bounds it."""
        sampled = self.setup.hparams.sampled(self.setup.problem.data.clients)
        evaluations = len(self.running[0].history.rows) + 1
        return self.algorithm.spent(done, sampled, self.counters[-1], self.clients.evaluated(evaluations))

    def _limits(self) -> Metrics:
        """How large a job's metrics may become before it has exploded: [J]."""
        watched = [name for name in WATCHED if name in self.running[0].history]
        start = {name: np.array([abs(job.history[name][0]) for job in self.running]) for name in watched}
        return {name: np.where(first > 0, EXPLOSION * first, np.inf) for name, first in start.items()}

    def _sound(self, metrics: Metrics) -> Array:
        """Which jobs have not exploded: [J]. Weights may be finite where the objective is not."""
        sound = np.ones(len(self.running), dtype=bool)
        for name, limit in self.limits.items():
            sound &= np.isfinite(metrics[name]) & (metrics[name] <= limit)
        return sound

    def _record(self, done: int, metrics: Metrics) -> None:
        """Append an evaluation to the running jobs' histories."""
        if done in self.snapshots:
            for job, model in zip(self.running, self.algorithm.output(self.state), strict=True):
                job.path[done] = as_snapshot(model)
        columns = [values.tolist() for values in (*metrics.values(), *self.counters)]
        rows = zip([done] * len(self.running), *columns, strict=True)
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
