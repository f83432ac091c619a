"""The simulation: rounds over sampled clients for a stack of jobs that differ only along the axis J.

Its caller asks for one round at a time, so that it can show progress, save checkpoints or stop in between. A job's
numbers do not depend on the stack it runs in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fco_cli.algorithms import Algorithm, Cohort, State, Varying
from fco_cli.algorithms.rounds import Costs, Round
from fco_cli.errors import UserError
from fco_cli.problem.layout import Array
from fco_cli.problem.problem import Problem
from fco_cli.simulation.convergence import residual_enough
from fco_cli.simulation.evaluate import Metrics, OwnMetrics, evaluate, evaluate_own, summarized
from fco_cli.simulation.hparams import Hparams
from fco_cli.simulation.memory import Saved, client_memory
from fco_cli.simulation.path import Snapshots, as_snapshot, snapshot_rounds
from fco_cli.simulation.sampling import Sampler
from fco_cli.tasks.base import Task

COUNTERS = (*Costs._fields, "clients_dropped")
MOST_PERSONAL = 32 * 2**20  # numbers of personal models that a record keeps
EXPLOSION = 1e12  # times the objective at the start: beyond it no digit means anything, and a constraint may hide why


@dataclass
class Job:
    """One run: where it stands. Plain data, so that a checkpoint is this and nothing else."""

    round: int = 0  # rounds done
    state: State = field(default_factory=dict)  # without the job axis; empty before the first round
    memory: Saved = field(default_factory=dict)  # what its clients remember, as a checkpoint keeps it
    counters: Array = field(default_factory=lambda: np.zeros(len(COUNTERS), dtype=np.int64))
    history: dict[str, list[float]] = field(default_factory=dict)  # metric -> value at every evaluated round
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
        self._adopt(varying)
        self.rounds = 1 if self.algorithm.one_shot else setup.hparams.last_round
        self.sampler = Sampler(setup.problem.data.sizes, setup.hparams, setup.seed, self.algorithm.pace)
        self.snapshots: frozenset[int] = frozenset()
        if setup.record_path and self.algorithm.federated:
            self.snapshots = snapshot_rounds(self.rounds, setup.hparams.eval_every, setup.problem.layout.size)
        w = setup.problem.initial_models(varying.psi, start)
        self.memory = None
        if self.algorithm.remembered:
            self.memory = client_memory(self.algorithm.initial_memory(w), setup.problem.data.clients, folders)
        if jobs[0].round:
            self.state = {name: np.stack([job.state[name] for job in jobs]) for name in jobs[0].state}
            if self.memory is not None:
                for j, job in enumerate(jobs):
                    self.memory.load(j, job.memory)
        else:
            self.state = self.algorithm.initial_state(w)
            self._start()

    def _adopt(self, varying: Varying) -> None:
        self.varying = varying
        self.algorithm = self.setup.algorithm.bind(self.setup.problem, varying)

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
        cohort = self.sampler.cohort(self.round) if self.algorithm.federated else None
        remembered = None if self.memory is None or cohort is None else self.memory.read(cohort.clients)
        made = self.algorithm.round(self.state, cohort, remembered)
        finite = _finite_jobs(made.state)
        if self.setup.record_clients and self.round + 1 == self.rounds:
            self._keep_clients(made, cohort)
        if self.memory is not None and cohort is not None:  # only now: a job that diverges leaves with what it had
            assert made.memory is not None
            assert made.arrived is not None
            self.memory.write(cohort.clients, made.memory, made.arrived & finite)
        done, before, self.state = self.round + 1, self.state, made.state
        before = self._drop(finite, before)
        costs = self.algorithm.costs(cohort)
        counts = np.array([(*costs, clients) for clients in made.dropped[finite]])
        if self.running and (done % self.setup.hparams.eval_every == 0 or done == self.rounds):
            metrics = self._evaluate()
            sound = self._sound(metrics)
            self._drop(sound, before)
            counts = counts[sound]
            metrics = {name: values[sound] for name, values in metrics.items()}
            self._record(done, metrics, counts)
            self._count(done, counts)
            if self.setup.hparams.until_converged and self.running:
                self._leave(metrics["kkt_residual"] <= self._enough())
        else:
            self._count(done, counts)

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

    def _count(self, done: int, counts: Array) -> None:
        for job, count in zip(self.running, counts, strict=True):
            job.round, job.counters = done, job.counters + count
        if done == self.rounds and self.running:
            for job, model in zip(self.running, self.algorithm.output(self.state), strict=True):
                job.model = model.copy()
            if self.algorithm.personal:
                own = self._evaluate_own()
                for j, job in enumerate(self.running):
                    job.own = {name: (clients, values[:, j]) for name, (clients, values) in own.items()}
            self.running, self.finished = [], self.running

    def personal_models(self, job: Job) -> Array | None:
        """[M, P], what the clients of a finished job remember as their own models, unless it is more than is kept."""
        name, problem = self.algorithm.personal, self.setup.problem
        shape = (problem.data.clients, problem.layout.size)
        if self.memory is None or name not in self.algorithm.remembered or np.prod(shape) > MOST_PERSONAL:
            return None
        for j, one in enumerate(self.finished):
            if one is job:
                rows = self.memory.of_job(j, np.arange(problem.data.clients))
                return rows[:, self.algorithm.remembered.index(name)]
        return None  # it has diverged

    def _own_models(self, clients: Array) -> Array:
        """The models [n, J, P] that are the clients' own."""
        name, algorithm = self.algorithm.personal, self.algorithm
        if name in algorithm.remembered:
            assert self.memory is not None
            return self.memory.read(clients)[:, algorithm.remembered.index(name)]
        assert name is not None
        return self.state[name][:, clients].swapaxes(0, 1)

    def _evaluate_own(self) -> OwnMetrics:
        with np.errstate(all="ignore"):
            return evaluate_own(self.setup.problem, len(self.running), self._own_models)

    def _keep_clients(self, made: Round, cohort: Cohort | None) -> None:
        if made.messages is not None and cohort is not None:
            models = self.algorithm.client_models(self.state, made, cohort)
            for j, job in enumerate(self.running):
                job.clients = models[:, j].copy()

    def _drop(self, kept: Array, before: State) -> State:
        """Jobs that have diverged leave the stack, with their last model; the state before, of those that stay."""
        if kept.all():
            return before
        models = self.algorithm.output(before)
        for j in np.flatnonzero(~kept):
            self.running[j].diverged, self.running[j].model = self.round + 1, models[j].copy()
        self._keep(kept)
        return {name: values[kept] for name, values in before.items()}

    def _keep(self, kept: Array) -> None:
        """The stack without the jobs that have ended."""
        self.running = [job for job in self.running if not job.ended]
        self.state = {name: values[kept] for name, values in self.state.items()}
        if self.memory is not None:
            self.memory.keep(kept)
        if self.running:
            self._adopt(self.varying.take(kept))

    def _start(self) -> None:
        """Round 0: the evaluation with which all others are compared."""
        metrics = self._evaluate()
        if not np.isfinite(metrics["objective"]).all():
            raise UserError("task: the objective at the start is beyond all numbers: the data or psi are too large")
        self._record(0, metrics, np.zeros((len(self.running), len(COUNTERS)), np.int64))

    def _evaluate(self) -> Metrics:
        with np.errstate(all="ignore"):
            models = self.algorithm.output(self.state)
            metrics = evaluate(self.setup.task, self.setup.problem, models, self.varying.psi)
            return metrics | (summarized(self._evaluate_own()) if self.algorithm.personal else {})

    def _sound(self, metrics: Metrics) -> Array:
        """Which jobs have not exploded: [J]. Weights may be finite where the objective is not."""
        first = np.array([abs(job.history["objective"][0]) for job in self.running])
        limit = np.where(first > 0, EXPLOSION * first, np.inf)
        return np.isfinite(metrics["objective"]) & (metrics["objective"] <= limit)

    def _record(self, done: int, metrics: Metrics, counts: Array) -> None:
        """Append an evaluation to the running jobs' histories."""
        if done in self.snapshots:
            for job, model in zip(self.running, self.algorithm.output(self.state), strict=True):
                job.path[done] = as_snapshot(model)
        rows = zip(*(values.tolist() for values in metrics.values()), strict=True)
        for job, row, count in zip(self.running, rows, counts, strict=True):
            if not job.history:
                job.history = {name: [] for name in ("round", *metrics, *COUNTERS)}
            numbers = (done, *row, *(job.counters + count).tolist())
            for column, number in zip(job.history.values(), numbers, strict=True):
                column.append(number)

    def why_unfit(self, job: Job) -> str | None:
        """What is wrong with a checkpoint that should go on from here, the start; None if it fits this simulation."""
        wanted = {name: (values.shape[1:], values.dtype) for name, values in self.state.items()}
        if {name: (values.shape, values.dtype) for name, values in job.state.items()} != wanted:
            return "its arrays are not this run's"
        if not 0 < job.round < self.rounds or job.counters.shape != (len(COUNTERS),):
            return "it is of no round of this run"
        evaluated = [0, *range(self.setup.hparams.eval_every, job.round + 1, self.setup.hparams.eval_every)]
        rows = {len(column) for column in job.history.values()}
        if (
            list(job.history) != list(self.running[0].history)
            or job.history["round"] != evaluated
            or rows != {len(evaluated)}
        ):
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
            if self.memory is not None:
                job.memory = self.memory.save(j)
        return self.running

    def saved(self) -> None:
        """The checkpoints of the last snapshot are on disk."""
        if self.memory is not None:
            for j in range(len(self.running)):
                self.memory.saved(j)


def _finite_jobs(state: State) -> Array:
    """Which jobs have finite numbers only, in all that the server keeps: [J]."""
    sums = np.array([values.reshape(len(values), -1).sum(axis=1) for values in state.values()])
    return np.isfinite(sums).all(axis=0)
