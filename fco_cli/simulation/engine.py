"""The simulation: rounds over sampled clients for a stack of jobs that differ only along the axis J.

Its caller asks for one round at a time, so that it can show progress, save checkpoints or stop in between. A job's
numbers do not depend on the stack it runs in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from fco_cli.algorithms import Algorithm, Cohort, Jobs, State
from fco_cli.algorithms.base import Federated
from fco_cli.problem.layout import Array
from fco_cli.problem.problem import Problem
from fco_cli.simulation.evaluate import Metrics, evaluate
from fco_cli.simulation.sampling import sample_cohort
from fco_cli.simulation.settings import Settings
from fco_cli.tasks.base import Task

COUNTERS = ("vectors_up", "vectors_down", "bytes_up", "bytes_down", "prox_calls")


@dataclass
class Job:
    """One run: where it stands. Plain data, so that a checkpoint is this and nothing else."""

    round: int = 0  # rounds done
    state: State = field(default_factory=dict)  # without the job axis; empty before the first round
    counters: Array = field(default_factory=lambda: np.zeros(len(COUNTERS), dtype=np.int64))
    history: dict[str, list[float]] = field(default_factory=dict)  # metric -> value at every evaluated round
    seconds: float = 0.0  # of work so far, over all sessions
    diverged: int | None = None  # the round in which no client had a finite update
    model: Array | None = None  # the output, set when the job ends
    clients: Array | None = None  # [S + 1, P], the last round's client models and their average, where asked for

    @property
    def ended(self) -> bool:
        return self.model is not None


@dataclass(frozen=True)
class Experiment:
    """All that the jobs of a stack have in common."""

    task: Task
    problem: Problem
    settings: Settings
    seed: int
    algorithm: Callable[[Problem, Jobs], Algorithm]
    record_clients: bool = False  # keep the client models of the last round


class Simulation:
    """A stack of jobs, all at the same round, on its way to the end."""

    def __init__(self, experiment: Experiment, jobs: list[Job], varying: Jobs) -> None:
        self.experiment = experiment
        self.running = list(jobs)
        self.rounds = experiment.settings.rounds
        self._adopt(varying)
        if self.algorithm.one_shot:
            self.rounds = 1
        if jobs[0].state:
            self.state = {name: np.stack([job.state[name] for job in jobs]) for name in jobs[0].state}
        else:
            self.state = self.algorithm.start(experiment.problem.start(varying.parameters))
            self._record(0)

    def _adopt(self, varying: Jobs) -> None:
        self.varying = varying
        self.algorithm = self.experiment.algorithm(self.experiment.problem, varying)

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
        problem, settings = self.experiment.problem, self.experiment.settings
        cohort = None
        if self.algorithm.federated:
            cohort = sample_cohort(problem.data, settings, self.experiment.seed, self.round)
        before, self.state = self.state, self.algorithm.round(self.state, cohort)
        finite = np.isfinite(self.state["s"].reshape(len(self.running), -1).sum(axis=1))
        if not finite.all():
            self._drop(~finite, before)
            before = {name: values[finite] for name, values in before.items()}
        if not self.running:
            return
        done, counters = self.round + 1, self.running[0].counters + self._cost(cohort)
        for job in self.running:
            job.round, job.counters = done, counters
        if done % settings.eval_every == 0 or done == self.rounds:
            self._record(done)
        if done == self.rounds:
            for job, model in zip(self.running, self.algorithm.output(self.state), strict=True):
                job.model = model.copy()
            if self.experiment.record_clients and isinstance(self.algorithm, Federated) and cohort is not None:
                clients = self.algorithm.client_models(before, cohort)
                for j, job in enumerate(self.running):
                    job.clients = clients[:, j].copy()
            self.running = []

    def _drop(self, diverged: Array, before: State) -> None:
        """Jobs that have diverged leave the stack, with their last finite model."""
        models = self.algorithm.output(before)
        for j in np.flatnonzero(diverged):
            self.running[j].diverged, self.running[j].model = self.round + 1, models[j].copy()
        self.running = [job for job in self.running if not job.ended]
        self.state = {name: values[~diverged] for name, values in self.state.items()}
        self._adopt(self.varying.take(~diverged))

    def _cost(self, cohort: Cohort | None) -> Array:
        """A round's communication and prox calls; every client receives and sends one vector."""
        problem, vectors = self.experiment.problem, 0 if cohort is None else len(cohort.clients)
        size = vectors * problem.layout.size * problem.dtype.itemsize
        return np.array([vectors, vectors, size, size, self.algorithm.prox_calls(cohort)])

    def _record(self, done: int) -> None:
        """Append an evaluation to the running jobs' histories."""
        models, parameters = self.algorithm.output(self.state), self.varying.parameters
        metrics: Metrics = evaluate(self.experiment.task, self.experiment.problem, models, parameters)
        rows = zip(*(values.tolist() for values in metrics.values()), strict=True)
        for job, row in zip(self.running, rows, strict=True):
            if not job.history:
                job.history = {name: [] for name in ("round", *metrics, *COUNTERS)}
            numbers = (done, *row, *job.counters.tolist())
            for column, number in zip(job.history.values(), numbers, strict=True):
                column.append(number)

    def snapshot(self) -> list[Job]:
        """The running jobs with their states filled in, for a checkpoint."""
        for j, job in enumerate(self.running):
            job.state = {name: values[j] for name, values in self.state.items()}
        return self.running
