"""Clients at remote sites, with the interface of clients in this process (`simulation.clients.Clients`).

Rounds, records and checkpoints stay in the engine; computations on rows or client state are requested from the sites.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from fco_cli.algorithms import Algorithm, Cohort, State
from fco_cli.algorithms.arrays import by_job, slot_count
from fco_cli.algorithms.protocol import Federated
from fco_cli.algorithms.rounds import Round
from fco_cli.algorithms.transforms import Evaluations
from fco_cli.federation.coordinator.remote_rows import SiteRows
from fco_cli.federation.coordinator.responses import Specs
from fco_cli.federation.coordinator.sites import Expected, Response, no_arrays
from fco_cli.federation.message import MAX_MAGNITUDE, ArraySpec, plugin_digests
from fco_cli.federation.sharing import with_fit
from fco_cli.problem.layout import Array, Numbers, stack_numbers
from fco_cli.problem.problem import Problem
from fco_cli.simulation.clients import Clients, ClientsLost
from fco_cli.simulation.evaluate import OwnMetrics
from fco_cli.simulation.hparams import Hparams
from fco_cli.simulation.memory import DamagedMemory, SavedMemory

log = logging.getLogger(__name__)


def remote_clients(rows: SiteRows, hparams: Hparams, seed: int) -> Callable[..., Clients]:
    """Return a factory of the clients of a simulation (`Setup.clients`)."""

    def create(problem: Problem, algorithm: Algorithm, w: Array, folders: list[Path] | None) -> Clients:
        return RemoteClients(rows, problem, algorithm, len(w), hparams, seed)

    return create


class RemoteClients(Clients):
    """Clients of a stack of jobs, one at each site."""

    def __init__(
        self, rows: SiteRows, problem: Problem, algorithm: Algorithm, jobs: int, hparams: Hparams, seed: int
    ) -> None:
        self.agreement, self.sites, self.names, self.fit = rows.agreement, rows.agreement.sites, rows.names, rows.fit
        self.problem, self.hparams, self.seed = problem, hparams, seed
        self.tokens = [secrets.token_hex(16) for _ in range(jobs)]  # keys of the jobs' client state at the sites
        self.outcomes: dict[str, list[tuple[int, list[str]]]] = {name: [] for name in self.names}  # not sent yet
        self.done = 0
        self.missing: set[str] = set()  # sites without a response in the last round
        self.algorithm: Algorithm | None = None
        if self.sites.mask_bits is not None:
            _ = problem.at_start  # while all sites are there: sites do not repeat an answer with fewer sites
        self._send_stack(algorithm)

    def _send_stack(self, algorithm: Algorithm) -> None:
        """Send the algorithm and its parameters to the sites, unless it was sent last."""
        if algorithm is self.algorithm:
            return
        self.sites.stacks += 1
        varying = algorithm.varying
        head = {
            "fit": self.fit,
            "stack": self.sites.stacks,
            "jobs": len(varying),
            "algo": _algorithm_options(algorithm),
            "regularizer": asdict(self.problem.regularizer),
            "mirror": asdict(self.problem.mirror),
            "transform": asdict(algorithm.transform),
            "plugins": plugin_digests(
                algo=algorithm,
                regularizer=self.problem.regularizer,
                mirror=self.problem.mirror,
                transform=algorithm.transform,
                loss=self.problem.loss,
            ),
        }
        arrays = {"client_lr": varying.client_lr, "server_lr": varying.server_lr}
        arrays |= {"psi": _flat(varying.psi), "options": _flat(varying.options)}
        arrays |= {"transform": _flat(stack_numbers([algorithm.transform] * len(varying)))}
        if varying.transform is not None:
            arrays["transform"] = _flat(varying.transform)
        self._request("stack", head, arrays)
        self.algorithm, self.stack = algorithm, self.sites.stacks

    def round(self, algorithm: Algorithm, state: State, cohort: Cohort | None) -> Round:
        assert isinstance(algorithm, Federated)
        assert cohort is not None
        self._send_stack(algorithm)
        state = algorithm.start_round(state, cohort)
        participants = [self.names[m] for m in cohort.clients]
        head = {
            **self._job_header(participants),
            "round": cohort.round,
            "seed": self.seed,
            "batch_size": self.hparams.batch_size,
            "local_epochs": self.hparams.local_epochs,
            "last_batch": self.hparams.last_batch,
            "steps": None if algorithm.local_step_rule == "epochs" else int(cohort.steps[0]),
        }
        received = with_fit({array.name: state[array.name] for array in algorithm.broadcast}, self.fit)
        jobs, size = len(self.tokens), self.problem.layout.size
        shapes = {array.name: array.shape(jobs, size) for array in algorithm.sent}
        if self.sites.mask_bits is not None:
            return self._masked_round(algorithm, state, cohort, head, received, participants, shapes)
        messages, missing = self._messages(algorithm, head, received, participants, shapes)
        self.done = cohort.round + 1
        return algorithm.finish_round(state, cohort, messages, None)._replace(missing=missing)

    def _masked_round(
        self,
        algorithm: Federated,
        state: State,
        cohort: Cohort,
        head: dict[str, Any],
        received: State,
        participants: list[str],
        shapes: dict[str, tuple[int, ...]],
    ) -> Round:
        """Run a round with the sum of the sites that answer; the weights of the others are left out of the mean."""
        noise, jobs, size = algorithm.noise_on_mean(cohort), len(self.tokens), self.problem.layout.size
        head["factors"] = dict(zip(participants, algorithm.message_weights(cohort).factors.tolist(), strict=True))
        if noise is not None:  # enough also if no more sites than needed answer
            head["noise"] = (noise / np.sqrt(self.sites.min_sites)).tolist()
        specs = with_fit({name: ArraySpec(shape) for name, shape in shapes.items()}, self.fit)
        masked = self.agreement.sum("train", head, received, specs)[self.fit]
        self.done = cohort.round + 1
        for name in masked.present:
            self.outcomes[name] = []
        total = np.zeros((slot_count(algorithm.sent, size), jobs, size), np.int64)
        for name, values in by_job(algorithm.sent, total).items():
            values[...] = masked.totals[name]
        present = np.array([name in masked.present for name in participants])
        missing = self._report_missing(cohort.round, [name for name in participants if name not in masked.present])
        result = algorithm.finish_round_from_sum(state, cohort, total, present[:, None] & masked.fits)
        return result._replace(missing=missing)

    def _report_missing(self, round_index: int, names: list[str]) -> tuple[str, ...]:
        """Return the sites without a response in a round, sorted; log those that had one in the last round."""
        for name in set(names) - self.missing:
            log.warning("%s: no response in round %d; the round continues without it", name, round_index + 1)
        self.missing = set(names)
        return tuple(sorted(names))

    def _messages(
        self,
        algorithm: Federated,
        head: dict[str, Any],
        received: State,
        participants: list[str],
        shapes: dict[str, tuple[int, ...]],
    ) -> tuple[Array, tuple[str, ...]]:
        """Return the messages [S, slots, J, P] and the sites without a response.

        Their messages are NaN, which are dropped from the mean.
        """
        least = max(1, len(participants) - (len(self.sites.names) - self.sites.min_sites))
        plain = {name: ArraySpec(shape, self.problem.dtype, finite=False) for name, shape in shapes.items()}
        specs = with_fit(plain, self.fit)
        responses = self.agreement.request(
            "train", head, received, participants, min_responses=least, expected=lambda _: specs
        )
        jobs, size = len(self.tokens), self.problem.layout.size
        messages = np.zeros((len(participants), slot_count(algorithm.sent, size), jobs, size), self.problem.dtype)
        for i, name in enumerate(participants):
            if name in responses:
                self.outcomes[name] = []
                for sent, values in by_job(algorithm.sent, messages[i]).items():
                    values[...] = responses[name].arrays[f"{sent}.{self.fit}"]
            else:
                messages[i] = np.nan
        return messages, self._report_missing(head["round"], [name for name in participants if name not in responses])

    def _request(
        self, kind: str, head: dict[str, Any], arrays: dict[str, Array] | None = None, expected: Expected = no_arrays
    ) -> dict[str, Response]:
        """Send a request to all sites with training rows."""
        return self.agreement.request(kind, head, arrays, self.names, expected=expected)

    def _job_header(self, names: list[str]) -> dict[str, Any]:
        """Return the keys that all requests about client state share."""
        return {
            "stack": self.stack,
            "tokens": self.tokens,
            "outcomes": {name: self.outcomes[name] for name in names if self.outcomes[name]},
        }

    def update_memory(self, cohort: Cohort | None, result: Round, finite: Array) -> None:
        if self._has_memory:
            assert cohort is not None
            assert result.arrived is not None
            for m, accepted in zip(cohort.clients, result.arrived & finite, strict=True):
                tokens = [token for token, used in zip(self.tokens, accepted, strict=True) if used]
                self.outcomes[self.names[m]].append((cohort.round, tokens))

    @property
    def _has_memory(self) -> bool:
        return self.algorithm is not None and len(self.algorithm.client_arrays) > 0

    def own_metrics(self, algorithm: Algorithm, state: State) -> OwnMetrics:
        self._send_stack(algorithm)
        responses = self._request("own", self._job_header(self.names), expected=self._own_specs)
        self.outcomes = {name: [] for name in self.names}
        collected: dict[str, tuple[list[int], list[Array]]] = {}
        for m, (name, response) in enumerate(responses.items()):
            for metric, numbers in response.arrays.items():
                if not np.isfinite(numbers).all():
                    log.warning("site %r: the loss of its personal model is not finite", name)
                clients, values = collected.setdefault(metric, ([], []))
                clients.append(m)
                values.append(numbers)
        return {metric: (np.array(clients), np.stack(values)) for metric, (clients, values) in collected.items()}

    def _own_specs(self, name: str) -> Specs:
        """Return the specs of a site's personal-model metrics; held-out rows are optional if the problem has none."""
        held_out, specs = self.problem.held_out, {}
        for part in ("train", "validation"):
            optional = part == "validation" and held_out is None
            if part == "validation" and isinstance(held_out, SiteRows) and name not in held_out.names:
                continue
            loss = ArraySpec((len(self.tokens),), low=0, high=MAX_MAGNITUDE, finite=False, optional=optional)
            specs[f"own_{part}_loss"] = loss
            if self.problem.loss.classification:
                specs[f"own_{part}_accuracy"] = ArraySpec(loss.shape, low=0, high=1, optional=True)
        return specs

    def own_models(self, algorithm: Algorithm, j: int) -> Array | None:
        return None  # personal models stay at their sites

    def keep(self, jobs: Array) -> None:
        removed = [token for token, kept in zip(self.tokens, jobs, strict=True) if not kept]
        if self._has_memory:
            self._request("forget", {"tokens": removed})
        self.tokens = [token for token, kept in zip(self.tokens, jobs, strict=True) if kept]

    def save(self, j: int) -> SavedMemory:
        """Return the token and round of job j; with the first job, save all jobs' client state at the sites."""
        if not self._has_memory:
            return {}
        if j == 0:
            for name in self._request("save", {**self._job_header(self.names), "round": self.done}):
                self.outcomes[name] = []
        return {"token": np.frombuffer(bytes.fromhex(self.tokens[j]), np.uint8), "round": np.array(self.done)}

    def confirm_saved(self) -> None:
        """Raise ClientsLost if sites that were killed have joined again: a new session continues from the checkpoint.

        Not for methods with client memory, which such a site has lost in part.
        """
        group = self.sites.group
        if group is not None and not self._has_memory and group.have_joined_again():
            names = ", ".join(group.missing)
            self.sites.disconnect()
            raise ClientsLost(f"{names} joined again")

    def load(self, j: int, saved: SavedMemory) -> None:
        if not self._has_memory:
            return
        try:
            self.tokens[j], self.done = saved["token"].tobytes().hex(), int(saved["round"])
        except KeyError as problem:
            raise DamagedMemory("the checkpoint has no token of the sites' client state") from problem
        head = {"stack": self.stack, "tokens": [self.tokens[j]], "round": self.done}
        for name, response in self._request("load", head).items():
            if not response.head.known:
                raise DamagedMemory(f"{name} has no saved client state of round {self.done}")

    def evaluated(self, evaluations: int) -> Evaluations:
        """Count evaluations: one per part each, one on the test rows, and one for the convergence gradient.

        If noise hides single rows, those of one part count: a row is in one part, and training rows have most.
        """
        parts, test, noise = 1 + (self.problem.held_out is not None), self.problem.test is not None, self.sites.noise
        if noise is not None and noise.by_row:
            return Evaluations(evaluations + 1, noise.multiplier)
        return Evaluations(evaluations * parts + test + 1, 0.0 if noise is None else noise.multiplier)

    def release(self) -> None:
        if self._has_memory:
            self._request("forget", {"tokens": self.tokens})


def _flat(numbers: Numbers) -> Array:
    """Return records of float64 fields as an array [J, fields]."""
    return np.frombuffer(numbers.tobytes(), float).reshape(len(numbers), -1)


def _algorithm_options(algorithm: Algorithm) -> dict[str, Any]:
    """Return the options of a bound algorithm; those of the first job if they vary."""
    options = {key.name: getattr(algorithm, key.name) for key in fields(algorithm)}
    return {key: float(value[0]) if key in algorithm.varying_options() else value for key, value in options.items()}
