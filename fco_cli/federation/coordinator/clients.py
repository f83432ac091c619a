"""Clients at sites, in the place of clients in this process.

The engine runs its rounds, records and checkpoints as ever; only what needs rows or memories is asked of the sites.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fco_cli.algorithms import Algorithm, Cohort, State
from fco_cli.algorithms.protocol import Federated
from fco_cli.algorithms.rounds import Round
from fco_cli.algorithms.transforms import Evaluated
from fco_cli.federation.coordinator.elsewhere import Answers, SiteRows, Specs, masked
from fco_cli.federation.coordinator.sites import Answer, Expected, no_arrays
from fco_cli.federation.message import LARGEST, ArraySpec
from fco_cli.federation.typed import plain
from fco_cli.problem.layout import Array
from fco_cli.problem.numbers import Numbers, stack_numbers
from fco_cli.problem.problem import Problem
from fco_cli.simulation.clients import Clients
from fco_cli.simulation.evaluate import OwnMetrics
from fco_cli.simulation.hparams import Hparams
from fco_cli.simulation.memory import DamagedMemory, Saved

log = logging.getLogger(__name__)


def at_work(rows: SiteRows, hparams: Hparams, seed: int) -> Callable[..., Clients]:
    """Who holds the clients of a simulation with these settings."""

    def hold(problem: Problem, algorithm: Algorithm, w: Array, folders: list[Path] | None) -> Clients:
        return AtSites(rows, problem, algorithm, len(w), hparams, seed)

    return hold


class AtSites(Clients):
    """The clients of a stack of jobs, one at each site."""

    def __init__(
        self, rows: SiteRows, problem: Problem, algorithm: Algorithm, jobs: int, hparams: Hparams, seed: int
    ) -> None:
        self.agreement, self.sites, self.names = rows.agreement, rows.agreement.sites, rows.names
        self.problem, self.hparams, self.seed = problem, hparams, seed
        self.tokens = [secrets.token_hex(16) for _ in range(jobs)]  # under which sites keep the jobs' memories
        self.outcomes: dict[str, list[tuple[int, list[str]]]] = {name: [] for name in self.names}  # not yet told
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
        self._ask("stack", head, arrays)
        self.algorithm, self.stack = algorithm, self.sites.stacks

    def round(self, algorithm: Algorithm, state: State, cohort: Cohort | None) -> Round:
        assert isinstance(algorithm, Federated)
        assert cohort is not None
        self._introduce(algorithm)
        state = algorithm.begun(state, cohort)
        who = [self.names[m] for m in cohort.clients]
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
        shape = (len(self.tokens), self.problem.layout.size)
        if self.sites.mask_bits is not None:
            noise = algorithm.noise_on_mean(cohort)
            head["factors"] = dict(zip(who, algorithm.counted(cohort).factors.tolist(), strict=True))
            head["noise"] = None if noise is None else (noise / np.sqrt(len(who))).tolist()  # of each site's share
            hidden = masked(dict.fromkeys(algorithm.sent, ArraySpec(shape)))
            sent = self.agreement.ask("train", head, received, who, expected=lambda _: hidden)
            answers = Answers(sent, self.sites.mask_bits)
            self.outcomes, self.done = {name: [] for name in self.names}, cohort.round + 1
            total = np.stack([answers.total(name) for name in algorithm.sent])
            return algorithm.concluded_from_sum(state, cohort, total, answers.fits())
        messages = self._messages(algorithm, head, received, who, shape)
        self.done = cohort.round + 1
        return algorithm.concluded(state, cohort, messages, None)

    def _messages(
        self, algorithm: Federated, head: dict[str, Any], received: State, who: list[str], shape: tuple[int, int]
    ) -> Array:
        """[S, sent, J, P]; of a client that did not answer nothing is finite: it weighs nothing, its memory stays."""
        enough = max(1, len(who) - (len(self.sites.names) - self.sites.enough))
        specs = dict.fromkeys(algorithm.sent, ArraySpec(shape, self.problem.dtype, finite=False))
        answers = self.agreement.ask("train", head, received, who, at_least=enough, expected=lambda _: specs)
        messages = np.full((len(who), len(algorithm.sent), *shape), np.nan, self.problem.dtype)
        for i, name in enumerate(who):
            if name in answers:
                self.outcomes[name] = []
                for n, sent in enumerate(algorithm.sent):
                    messages[i, n] = answers[name].arrays[sent]
            else:
                log.warning("%s: no answer in round %d; the round goes on without it", name, head["round"] + 1)
        return messages

    def _ask(
        self, kind: str, head: dict[str, Any], arrays: dict[str, Array] | None = None, expected: Expected = no_arrays
    ) -> dict[str, Answer]:
        """A question to all who train."""
        return self.agreement.ask(kind, head, arrays, self.names, expected=expected)

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
                self.outcomes[self.names[m]].append((cohort.round, tokens))

    @property
    def _remembering(self) -> bool:
        return self.algorithm is not None and len(self.algorithm.kept) > 0

    def own_metrics(self, algorithm: Algorithm, state: State) -> OwnMetrics:
        self._introduce(algorithm)
        answers = self._ask("own", self._about(self.names), expected=self._own_specs)
        self.outcomes = {name: [] for name in self.names}
        found: dict[str, tuple[list[int], list[Array]]] = {}
        for m, (name, answer) in enumerate(answers.items()):
            for metric, numbers in answer.arrays.items():
                if not np.isfinite(numbers).all():
                    log.warning("site %r: the loss of its own model is not finite", name)
                clients, values = found.setdefault(metric, ([], []))
                clients.append(m)
                values.append(numbers)
        return {metric: (np.array(clients), np.stack(values)) for metric, (clients, values) in found.items()}

    def _own_specs(self, name: str) -> Specs:
        """Return the metrics of a site's own models; it may have held-out rows that this problem does not use."""
        held_out, specs = self.problem.held_out, {}
        for part in ("train", "validation"):
            optional = part == "validation" and held_out is None
            if part == "validation" and isinstance(held_out, SiteRows) and name not in held_out.names:
                continue
            loss = ArraySpec((len(self.tokens),), low=0, high=LARGEST, finite=False, optional=optional)
            specs[f"own_{part}_loss"] = loss
            if self.problem.loss.classification:
                specs[f"own_{part}_accuracy"] = ArraySpec(loss.shape, low=0, high=1, optional=optional)
        return specs

    def own_models(self, algorithm: Algorithm, j: int) -> Array | None:
        return None  # they stay at their sites

    def keep(self, jobs: Array) -> None:
        left = [token for token, kept in zip(self.tokens, jobs, strict=True) if not kept]
        if self._remembering:
            self._ask("forget", {"tokens": left})
        self.tokens = [token for token, kept in zip(self.tokens, jobs, strict=True) if kept]

    def save(self, j: int) -> Saved:
        """All jobs' memories reach the sites' disks before the first checkpoint that refers to them."""
        if not self._remembering:
            return {}
        if j == 0:
            self._ask("save", {**self._about(self.names), "round": self.done})
            self.outcomes = {name: [] for name in self.names}
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
        for name, answer in self._ask("load", head).items():
            if not answer.head.known:
                raise DamagedMemory(f"{name} does not know what it remembered in round {self.done}")

    def evaluated(self, evaluations: int) -> Evaluated:
        """Each asks about every part; the test rows once, and once for the gradient that convergence is judged by."""
        parts, test, noise = 1 + (self.problem.held_out is not None), self.problem.test is not None, self.sites.noise
        return Evaluated(evaluations * parts + test + 1, 0.0 if noise is None else noise.multiplier)

    def ended(self) -> None:
        if self._remembering:
            self._ask("forget", {"tokens": self.tokens})


def _flat(numbers: Numbers) -> Array:
    """Records of float64 fields as [J, fields]."""
    return np.frombuffer(numbers.tobytes(), float).reshape(len(numbers), -1)
