"""Simulation of federated rounds for a stack of jobs that differ only along the job axis J.

The caller advances the simulation by one or a few rounds at a time, so that it can show progress, save checkpoints or
stop in between. The results of a job do not depend on its stack or on the number of rounds evaluated in one batch.
"""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import numpy as np

from fco_cli.algorithms import Cohort, State, Varying
from fco_cli.algorithms.round import FederatedRound
from fco_cli.algorithms.rounds import Round
from fco_cli.errors import UserError
from fco_cli.problem.certificate import is_certified, separates_classes
from fco_cli.problem.data import RemoteRows
from fco_cli.problem.layout import Array
from fco_cli.results import SIMULATED_SECONDS
from fco_cli.simulation.clients import Sampler
from fco_cli.simulation.evaluate import (
    History,
    Metrics,
    as_snapshot,
    concatenate,
    evaluate,
    is_gap_due,
    residual_threshold,
    snapshot_rounds,
    summarize_own,
)
from fco_cli.simulation.jobs import COUNTERS, Job, Setup, Step
from fco_cli.simulation.systems.schedule import Plan, UpdateWeights, summarize_weights

MONITORED_METRICS = ("objective", "own_train_loss_worst_decile")  # personal models may diverge on their own
EXPLOSION = 1e12  # a job diverges when a monitored metric exceeds this multiple of its initial value

# An evaluation reads all rows (or a Gram matrix) whether it has one model or many, so several rounds are evaluated in
# one batch. Jobs that have diverged or converged meanwhile are detected only then: the overrun is bounded by a fraction
# of the rounds evaluated before.
MAX_BATCH_MODELS, MAX_BATCH_NUMBERS = 64, 2**18
MAX_OVERRUN = 1 / 8
BATCH_SECONDS = 0.2  # seconds of rounds in one batch


class Simulation:
    """A stack of jobs, all at the same round.

    `folders` has one folder per job for client memory that is too large for this process. `start` [J, P] replaces the
    model's initial weights.
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
        self.finished: list[Job] = []  # jobs that completed the last round, in the order of the stack
        self._bind(varying)
        self.rounds = 1 if self.algorithm.one_shot else setup.hparams.last_round
        self.pause_at = self.rounds  # the caller may set an earlier round, after which `advance` returns False
        self.sampler = self._sampler()
        self.schedule = None if self.sampler is None or setup.network.is_plain else setup.network.schedule(self.sampler)
        self.columns = COUNTERS if self.schedule is None else (*COUNTERS, *self.schedule.columns)
        self.counters = np.zeros((len(self.columns), len(jobs)), np.int64)  # of the running jobs; times in nanoseconds
        if jobs[0].round:
            self.counters = np.array([job.counters for job in jobs]).T
        self._update_weights: dict[int, UpdateWeights] = {}  # by number of rounds
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
            self._evaluate_start()
        self.limits = self._limits()  # of the running jobs

    def _bind(self, varying: Varying) -> None:
        self.varying = varying
        self.algorithm = self.setup.algorithm.bind(self.setup.problem, varying)

    def _sampler(self) -> Sampler | None:
        """Return the sampler of clients and batches; None for a baseline that uses all rows in every step."""
        setup, data, method = self.setup, self.setup.problem.data, self.algorithm
        if method.federated:
            shares, sample_rows = data.shares(setup.hparams.weighting), method.transform.protects_rows
            sampled = method.local_step_rule, shares, sample_rows, method.rounds_per_cohort
            return Sampler(data.sizes, setup.hparams, setup.seed, *sampled)
        if not (batch := method.pooled_batch):
            return None
        pooled = replace(setup.hparams, clients_per_round=1, batch_size=batch, local_epochs=1, last_batch="keep")
        return Sampler(data.sizes.sum(keepdims=True), pooled, setup.seed)

    @property
    def round(self) -> int:
        """Number of completed rounds."""
        return self.running[0].round if self.running else self.rounds

    def advance(self, seconds: float = 0.0) -> bool:
        """Simulate one round, or a batch of rounds for up to `seconds`; return False if no rounds are left."""
        if self.round >= self.pause_at:
            return False
        until = time.monotonic() + seconds
        with np.errstate(all="ignore"):  # divergence is detected and recorded instead
            steps = [self._step(self.round + 1)]
            while steps[-1].done < self.pause_at and self._can_defer_evaluation(steps) and time.monotonic() < until:
                steps.append(self._step(steps[-1].done + 1))
            self._evaluate_pending(steps)
        return True

    def _step(self, done: int) -> Step:
        plan = self._plan(done - 1)
        cohort = None if plan is None else plan.cohort
        has_messages = cohort is None or len(cohort.clients) > 0
        if has_messages:
            result = self.clients.round(self.algorithm, self.state, cohort)
        else:  # no client has responded: the model stays
            result = Round(self.state, np.zeros(len(self.running), np.int64))
        finite = _finite_jobs(result.state)
        if self.setup.record_clients and done == self.rounds:
            self._store_client_models(result, cohort)
        if result.missing:
            for job in self.running:
                job.missing[done] = result.missing
        if has_messages:
            self.clients.update_memory(cohort, result, finite)  # jobs that diverge in this round keep their old memory
        before, self.state, self.counters = self.state, result.state, self._updated_counters(plan, result)
        return Step(done, before, self.state, self.counters, finite)

    def _is_evaluated(self, done: int) -> bool:
        return done % self.setup.hparams.eval_every == 0 or done == self.rounds

    def _can_defer_evaluation(self, steps: list[Step]) -> bool:
        """Return True if another round may run before these steps are evaluated."""
        problem, every, last = self.setup.problem, self.setup.hparams.eval_every, steps[-1]
        # The memory of personal models and of remote clients cannot be restored to an earlier round.
        if self.algorithm.personal or isinstance(problem.data, RemoteRows):
            return False
        if last.done >= self.rounds - self.setup.record_clients or not last.finite.all():
            return False
        jobs, evaluations = len(self.running), (steps[0].done - 1) // every
        max_evaluations = min(MAX_BATCH_MODELS // jobs, int(MAX_OVERRUN * evaluations))
        max_steps = MAX_BATCH_NUMBERS // (jobs * problem.layout.size)
        return len(steps) < max_steps and last.done // every - evaluations < max_evaluations

    def _evaluate_pending(self, steps: list[Step]) -> None:
        """Evaluate and record steps, and remove ended jobs, with the same result as after each single step."""
        if not steps or not self.running:
            return
        if not (finite := steps[0].finite).all():
            self._remove_diverged(finite, steps[0])
            return self._evaluate_pending([step.take(finite) for step in steps])
        evaluated = list(takewhile(lambda step: step.finite.all(), steps))
        for n, (step, metrics) in enumerate(zip(evaluated, self._evaluate(evaluated), strict=True), 1):
            kept = self._finish_step(step, metrics)
            if not kept.all():
                return self._evaluate_pending([later.take(kept) for later in steps[n:]])
        self._evaluate_pending(steps[len(evaluated) :])

    def _finish_step(self, step: Step, metrics: Metrics) -> Array:
        """Record a step and return the mask [J] of jobs that continue; `metrics` is empty if it was not evaluated."""
        kept = self._bounded_jobs(metrics)
        if not kept.all():
            self._remove_diverged(kept, step)
            step, metrics = step.take(kept), {name: values[kept] for name, values in metrics.items()}
        if metrics and self.running:
            self._record(step, metrics | self._privacy_loss(step))
        self._update_jobs(step)
        if metrics and self.running and self.setup.hparams.until_converged:
            ended = self._converged(step, metrics["kkt_residual"])
            ended |= [separates_classes(self.setup.problem, one) for one in metrics["objective"]]
            self._remove_ended(ended, step)
            kept[kept] = ~ended
        return kept

    def _converged(self, step: Step, residuals: Array) -> Array:
        """Return the mask [J] of the running jobs that have converged."""
        problem, psi, tolerance = self.setup.problem, self.varying.psi, self.setup.hparams.tolerance
        thresholds, models = residual_threshold(problem, psi, tolerance), self.algorithm.output(step.state)
        converged = residuals <= thresholds
        for j in np.flatnonzero(converged):
            job = self.running[j]
            if not is_gap_due(job.history["kkt_residual"], thresholds[j]):
                converged[j] = False
            elif models.ndim == 2:
                certified = is_certified(problem, psi[[j]], models[j], tolerance)
                job.certified, converged[j] = certified is True, certified is not False
        return converged

    def _remove_ended(self, ended: Array, step: Step) -> None:
        """Set the models of jobs that need no more rounds, and remove these jobs from the stack."""
        if ended.any():
            models = self.algorithm.output(step.state)
            for j in np.flatnonzero(ended):
                self.running[j].model = models[j].copy()
            self._keep(~ended)

    def _plan(self, round_index: int) -> Plan | None:
        """Return the clients of a round and its simulated time; None for an algorithm that samples none."""
        if self.schedule is not None:
            assert isinstance(self.algorithm, FederatedRound)
            return self.schedule.plan(round_index, self.algorithm)
        return None if self.sampler is None else Plan(self.sampler.cohort(round_index))

    def _updated_counters(self, plan: Plan | None, result: Round) -> Array:
        """Return the counters [columns, J] after a round."""
        counters, cohort = self.counters.copy(), None if plan is None else plan.cohort
        added = [*self.algorithm.costs(cohort), result.dropped]
        if plan is not None and self.schedule is not None:
            added += [plan.absent, plan.nanoseconds][: len(self.schedule.columns)]
        for counter, count in zip(counters, added, strict=True):
            counter += count
        return counters

    def _update_jobs(self, step: Step) -> None:
        """Set the round and the counters of the running jobs; after the last round, finish them."""
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
            self.clients.release()

    def fill_final_state(self, job: Job) -> bool:
        """Set the state and memory of a job that completed the last round; return False for another job."""
        positions = [j for j, finished in enumerate(self.finished) if finished is job]
        for j in positions:
            job.state = {name: values[j] for name, values in self.state.items()}
            job.memory = self.clients.save(j)
        return bool(positions)

    def personal_models(self, job: Job) -> Array | None:
        """Return the personal models [M, P] of a finished job; None if it diverged or the models are too large."""
        positions = [j for j, finished in enumerate(self.finished) if finished is job]
        return self.clients.own_models(self.algorithm, positions[0]) if positions else None

    def update_weights(self, job: Job) -> UpdateWeights | None:
        """Return the weights of clients in an ended job's updates; None if all sampled clients respond."""
        if self.schedule is None or self.setup.network.is_reliable:
            return None
        assert isinstance(self.algorithm, FederatedRound)
        if job.round not in self._update_weights:
            weights, empty = self.setup.network.schedule(self.schedule.sampler).update_weights(
                job.round, self.algorithm
            )
            biased = self.setup.network.is_biased(len(weights))
            self._update_weights[job.round] = summarize_weights(weights, empty, job.round, biased)
        return self._update_weights[job.round]

    def _store_client_models(self, result: Round, cohort: Cohort | None) -> None:
        is_touched = isinstance(self.algorithm, FederatedRound) and self.algorithm.sends_touched_columns
        if cohort is not None and (result.messages is not None or (is_touched and len(cohort.clients))):
            models = self.algorithm.client_models(self.state, result, cohort)
            for j, job in enumerate(self.running):
                job.clients = models[:, j].copy()

    def _remove_diverged(self, kept: Array, step: Step) -> None:
        """Set the models of diverged jobs to those before the step and remove these jobs from the stack."""
        models = self.algorithm.output(step.before)
        for j in np.flatnonzero(~kept):
            self.running[j].diverged, self.running[j].model = step.done, models[j].copy()
        self._keep(kept)

    def _keep(self, kept: Array) -> None:
        """Restrict the stack to the jobs of a mask [J], after the others have ended."""
        self.running = [job for job in self.running if not job.ended]
        self.state = {name: values[kept] for name, values in self.state.items()}
        self.counters = self.counters[:, kept]
        self.limits = {name: values[kept] for name, values in self.limits.items()}
        self.clients.keep(kept)
        if self.running:
            self._bind(self.varying.take(kept))

    def _evaluate_start(self) -> None:
        """Evaluate and record round 0; raise UserError if the objective is not finite."""
        start = Step(0, self.state, self.state, self.counters, np.ones(len(self.running), dtype=bool))
        with np.errstate(all="ignore"):
            (metrics,) = self._evaluate([start])
        if not np.isfinite(metrics["objective"]).all():
            raise UserError("task: the initial objective overflows; rescale the data or reduce the regularization")
        metrics |= self._privacy_loss(start)
        for job in self.running:
            job.history = History(("round", *metrics, *self.columns))
        self._record(start, metrics)

    def _evaluate(self, steps: list[Step]) -> list[Metrics]:
        """Return the metrics of every step; an empty dictionary for rounds without evaluation."""
        evaluated = [step for step in steps if self._is_evaluated(step.done)]
        if not evaluated:
            return [{} for _ in steps]
        models = np.concatenate([self.algorithm.output(step.state) for step in evaluated])
        psi = np.tile(self.varying.psi, len(evaluated)).view(np.recarray)
        metrics = evaluate(self.setup.task, self.setup.problem, models, psi)
        metrics |= concatenate([self.algorithm.state_metrics(step.state) for step in evaluated])
        if self.algorithm.personal:
            metrics |= summarize_own(self.clients.own_metrics(self.algorithm, self.state))
        rows = {name: iter(values.reshape(len(evaluated), -1)) for name, values in metrics.items()}
        is_evaluated = [self._is_evaluated(step.done) for step in steps]
        return [{name: next(values) for name, values in rows.items()} if one else {} for one in is_evaluated]

    def _privacy_loss(self, step: Step) -> Metrics:
        """Return the privacy loss of all messages up to a step, if the algorithm's transform bounds it."""
        sampled = self.setup.hparams.sampled(self.setup.problem.data.clients)
        evaluated = self.clients.evaluated(len(self.running[0].history.rows) + 1)
        participation = None
        if self.sampler is not None and self.algorithm.transform.protects_rows:
            noise = self.setup.task.preparation_noise
            participation = self.sampler.participation(step.done)._replace(preparation_noise=noise)
        dropped = step.counters[len(COUNTERS) - 1]
        return self.algorithm.privacy_spent(step.done, sampled, dropped, evaluated, participation)

    def _limits(self) -> Metrics:
        """Return the values [J] of the monitored metrics above which a job counts as diverged."""
        monitored = [name for name in MONITORED_METRICS if name in self.running[0].history]
        start = {name: np.array([abs(job.history[name][0]) for job in self.running]) for name in monitored}
        return {name: np.where(first > 0, EXPLOSION * first, np.inf) for name, first in start.items()}

    def _bounded_jobs(self, metrics: Metrics) -> Array:
        """Return the mask [J] of jobs whose monitored metrics are within their limits.

        The objective may overflow although all weights are finite.
        """
        bounded = np.ones(len(self.running), dtype=bool)
        for name in self.limits.keys() & metrics.keys():
            bounded &= np.isfinite(metrics[name]) & (metrics[name] <= self.limits[name])
        return bounded

    def _record(self, step: Step, metrics: Metrics) -> None:
        """Append an evaluation to the running jobs' histories."""
        if step.done in self.snapshots:
            for job, model in zip(self.running, self.algorithm.output(step.state), strict=True):
                job.path[step.done] = as_snapshot(model)
        counters = [
            values / 1e9 if name == SIMULATED_SECONDS else values
            for name, values in zip(self.columns, step.counters, strict=True)
        ]
        columns = [values.tolist() for values in (*metrics.values(), *counters)]
        rows = zip([step.done] * len(self.running), *columns, strict=True)
        for job, row in zip(self.running, rows, strict=True):
            job.history.rows.append(row)

    def checkpoint_mismatch(self, job: Job) -> str | None:
        """Return the reason why a checkpoint does not belong to this simulation, at round 0; None if it does."""
        expected = {name: (values.shape[1:], values.dtype) for name, values in self.state.items()}
        if {name: (values.shape, values.dtype) for name, values in job.state.items()} != expected:
            return "its arrays do not match this run"
        if not 0 < job.round < self.rounds or job.counters.shape != (len(self.columns),):
            return "its round does not match this run"
        evaluated = [0, *range(self.setup.hparams.eval_every, job.round + 1, self.setup.hparams.eval_every)]
        if job.history.names != self.running[0].history.names or job.history["round"] != evaluated:
            return "its metrics do not match this run"
        taken = {done for done in self.snapshots if done <= job.round}
        if job.path.keys() != taken or any(
            model.shape != (self.setup.problem.layout.size,) for model in job.path.values()
        ):
            return "its snapshots do not match this run"
        return None

    def snapshot(self) -> list[Job]:
        """Return the running jobs with state and client memory filled in, ready for a checkpoint."""
        for j, job in enumerate(self.running):
            job.state = {name: values[j] for name, values in self.state.items()}
            job.memory = self.clients.save(j)
        return self.running

    def confirm_saved(self) -> None:
        """Confirm that the checkpoints of the last snapshot are on disk."""
        self.clients.confirm_saved()


def _finite_jobs(state: State) -> Array:
    """Return the mask [J] of jobs whose server state is finite."""
    sums = np.array([values.reshape(len(values), -1).sum(axis=1) for values in state.values()])
    return np.isfinite(sums).all(axis=0)
