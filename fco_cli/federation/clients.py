"""Clients at sites, in the place of clients in this process.

The engine runs its rounds, records and checkpoints as ever; only what needs rows or memories is asked of the sites.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fco_cli.algorithms import Algorithm, Cohort, State
from fco_cli.algorithms.protocol import Federated
from fco_cli.algorithms.rounds import Round
from fco_cli.federation.message import Message
from fco_cli.federation.sites import Sites, from_site
from fco_cli.federation.typed import plain
from fco_cli.problem.data import Elsewhere
from fco_cli.problem.layout import Array
from fco_cli.problem.numbers import Numbers, stack_numbers
from fco_cli.problem.problem import Problem
from fco_cli.problem.risk import Evaluation, ordered_sum
from fco_cli.simulation.clients import Clients
from fco_cli.simulation.evaluate import OwnMetrics
from fco_cli.simulation.hparams import Hparams
from fco_cli.simulation.memory import DamagedMemory, Saved

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class SiteRows(Elsewhere):
    """The rows of one part, training or held out, at their sites."""

    sites: Sites = field(kw_only=True)
    part: str = field(kw_only=True)
    classification: bool = field(kw_only=True)
    answers: dict[bytes, dict[str, Message]] = field(kw_only=True)  # the last evaluation, shared by both parts

    def risk(self, weights: Array) -> Callable[..., Evaluation]:
        def at(w: Array, gradient: bool = True) -> Evaluation:
            return self._evaluated(np.ascontiguousarray(w, dtype=float), weights)

        return at

    def _evaluated(self, w: Array, weights: Array) -> Evaluation:
        """sum_m p_m F_m, its gradient and the share of the rows that are right, from the sites' own."""
        values, gradients, hits = [], [], []
        for name, answer in self._asked(w).items():
            with from_site(name):
                values.append(answer.wanted(f"{self.part}_value", (len(w),), float))
                if self.part == "training":
                    gradients.append(answer.wanted("gradient", w.shape, float))
                if self.classification:
                    hits.append(answer.wanted(f"{self.part}_hits", (len(w),), float))
        value = ordered_sum(weights[:, None] * np.stack(values))
        gradient = ordered_sum(weights[:, None, None] * np.stack(gradients)) if gradients else np.empty((0, w.shape[1]))
        return Evaluation(value, gradient, np.sum(hits, axis=0) / self.sizes.sum() if hits else None)

    def sums(self, w: Array, width: int) -> Array | None:
        """What every site knows of its scores, [M, J, width]; nothing where one of them does not tell."""
        parts = []
        for name, answer in self._asked(np.ascontiguousarray(w, dtype=float)).items():
            if f"{self.part}_sums" not in answer.arrays:
                return None
            with from_site(name):
                parts.append(answer.wanted(f"{self.part}_sums", (len(w), width), float))
        return np.stack(parts)

    def _asked(self, w: Array) -> dict[str, Message]:
        """The sites' answers about these models; the last ones are kept, for there is more than one use of them."""
        test = self.part == "test"  # which is asked about once, at the end
        key = bytes([test]) + w.tobytes()
        if key not in self.answers:
            self.answers.clear()
            self.answers[key] = self.sites.ask("evaluate", {"jobs": len(w), "test": test}, {"w": w})
        return self.answers[key]

    def smoothness(self, seed: int, batch_size: int) -> float:
        answers = self.sites.ask("curvature", {"seed": seed, "batch_size": batch_size})
        largest = 0.0
        for name, answer in answers.items():
            with from_site(name):
                largest = max(largest, float(answer.wanted("largest", (1,), float)[0]))
        return largest

    def clients_at_work(self, hparams: Hparams, seed: int) -> Callable[..., Clients]:
        """Who holds the clients of a simulation with these settings."""

        def hold(problem: Problem, algorithm: Algorithm, w: Array, folders: list[Path] | None) -> Clients:
            return AtSites(self.sites, problem, algorithm, len(w), hparams, seed)

        return hold


class AtSites(Clients):
    """The clients of a stack of jobs, one at each site."""

    def __init__(
        self, sites: Sites, problem: Problem, algorithm: Algorithm, jobs: int, hparams: Hparams, seed: int
    ) -> None:
        self.sites, self.problem, self.hparams, self.seed = sites, problem, hparams, seed
        self.tokens = [secrets.token_hex(16) for _ in range(jobs)]  # under which sites keep the jobs' memories
        self.outcomes: dict[str, list[tuple[int, list[str]]]] = {name: [] for name in sites.names}  # not yet told
        self.done = 0
        self.algorithm: Algorithm | None = None
        self._introduce(algorithm)

    def _introduce(self, algorithm: Algorithm) -> None:
        """Tell the sites the algorithm and its numbers, unless they know."""
        if algorithm is self.algorithm:
            return
        self.sites.stacks += 1
        varying = algorithm.varying
        head = {
            "stack": self.sites.stacks,
            "jobs": len(varying),
            "algo": plain(algorithm),
            "regularizer": asdict(self.problem.regularizer),
            "mirror": asdict(self.problem.mirror),
            "transform": asdict(algorithm.transform),
        }
        arrays = {"client_lr": varying.client_lr, "server_lr": varying.server_lr}
        arrays |= {"psi": _flat(varying.psi), "options": _flat(varying.options)}
        arrays |= {"transform": _flat(stack_numbers([algorithm.transform] * len(varying)))}
        if varying.transform is not None:
            arrays["transform"] = _flat(varying.transform)
        self.sites.ask("stack", head, arrays)
        self.algorithm, self.stack = algorithm, self.sites.stacks

    def round(self, algorithm: Algorithm, state: State, cohort: Cohort | None) -> Round:
        assert isinstance(algorithm, Federated)
        assert cohort is not None
        self._introduce(algorithm)
        state = algorithm.begun(state, cohort)
        who = [self.sites.names[m] for m in cohort.clients]
        head = {
            **self._about(who),
            "round": cohort.round,
            "seed": self.seed,
            "batch_size": self.hparams.batch_size,
            "local_epochs": self.hparams.local_epochs,
            "last_batch": self.hparams.last_batch,
            "steps": None if algorithm.pace == "epochs" else int(cohort.steps[0]),
        }
        received = {name: state[name] for name in algorithm.broadcast + algorithm.clocks}
        enough = max(1, len(who) - (len(self.sites.names) - self.sites.enough))
        answers = self.sites.ask("train", head, received, who, at_least=enough)
        shape = (len(self.tokens), self.problem.layout.size)
        # Of a client that did not answer nothing is finite: it weighs nothing, and its memory stays as it was.
        messages = np.full((len(who), len(algorithm.sent), *shape), np.nan, self.problem.dtype)
        for i, name in enumerate(who):
            if name in answers:
                self.outcomes[name] = []
                with from_site(name):
                    for n, sent in enumerate(algorithm.sent):
                        messages[i, n] = answers[name].wanted(sent, shape, self.problem.dtype)
            else:
                log.warning("%s: no answer in round %d; the round goes on without it", name, cohort.round + 1)
        self.done = cohort.round + 1
        return algorithm.concluded(state, cohort, messages, None)

    def _about(self, who: list[str]) -> dict[str, Any]:
        return {
            "stack": self.stack,
            "tokens": self.tokens,
            "outcomes": {name: self.outcomes[name] for name in who if self.outcomes[name]},
        }

    def remember(self, cohort: Cohort | None, made: Round, finite: Array) -> None:
        if self._remembering:
            assert cohort is not None
            assert made.arrived is not None
            for m, counted in zip(cohort.clients, made.arrived & finite, strict=True):
                tokens = [token for token, here in zip(self.tokens, counted, strict=True) if here]
                self.outcomes[self.sites.names[m]].append((cohort.round, tokens))

    @property
    def _remembering(self) -> bool:
        return self.algorithm is not None and len(self.algorithm.kept) > 0

    def own_metrics(self, algorithm: Algorithm, state: State) -> OwnMetrics:
        self._introduce(algorithm)
        answers = self.sites.ask("own", self._about(self.sites.names))
        self.outcomes = {name: [] for name in self.sites.names}
        found: dict[str, tuple[list[int], list[Array]]] = {}
        for m, (name, answer) in enumerate(answers.items()):
            with from_site(name):
                for metric in answer.arrays:
                    clients, values = found.setdefault(metric, ([], []))
                    clients.append(m)
                    values.append(answer.wanted(metric, (len(self.tokens),), float))
        return {metric: (np.array(clients), np.stack(values)) for metric, (clients, values) in found.items()}

    def own_models(self, algorithm: Algorithm, j: int) -> Array | None:
        return None  # they stay at their sites

    def keep(self, jobs: Array) -> None:
        left = [token for token, kept in zip(self.tokens, jobs, strict=True) if not kept]
        if self._remembering:
            self.sites.ask("forget", {"tokens": left})
        self.tokens = [token for token, kept in zip(self.tokens, jobs, strict=True) if kept]

    def save(self, j: int) -> Saved:
        """All jobs' memories reach the sites' disks before the first checkpoint that refers to them."""
        if not self._remembering:
            return {}
        if j == 0:
            self.sites.ask("save", {**self._about(self.sites.names), "round": self.done})
            self.outcomes = {name: [] for name in self.sites.names}
        return {"token": np.frombuffer(bytes.fromhex(self.tokens[j]), np.uint8), "round": np.array(self.done)}

    def saved(self) -> None: ...

    def load(self, j: int, saved: Saved) -> None:
        if not self._remembering:
            return
        try:
            self.tokens[j], self.done = saved["token"].tobytes().hex(), int(saved["round"])
        except KeyError as problem:
            raise DamagedMemory("the checkpoint does not say where the sites' memories are") from problem
        head = {"stack": self.stack, "tokens": [self.tokens[j]], "round": self.done}
        for name, answer in self.sites.ask("load", head).items():
            with from_site(name):
                if not answer.value("known", bool):
                    raise DamagedMemory(f"{name} does not know what it remembered in round {self.done}")

    def ended(self) -> None:
        if self._remembering:
            self.sites.ask("forget", {"tokens": self.tokens})


def _flat(numbers: Numbers) -> Array:
    """Records of float64 fields as [J, fields]."""
    return np.frombuffer(numbers.tobytes(), float).reshape(len(numbers), -1)
