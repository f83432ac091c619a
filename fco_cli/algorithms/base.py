"""What every algorithm is: a state of plain arrays, and how a round changes it.

All arrays carry the job axis J first. An algorithm sees psi and h only through `to_dual` and `to_primal`, and the
loss only through `descend` (the problem's three primitives); the kernels `local_steps` are the lines of the
paper's pseudo-code that run on a client.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from fco_cli.problem.compiled import Kernel, copy, is_finite, kernel, specialise
from fco_cli.problem.data import Batches
from fco_cli.problem.layout import Array
from fco_cli.problem.mirror import Geometry
from fco_cli.problem.numbers import Numbers
from fco_cli.problem.problem import Problem

prange = range  # Numba's parallel range in the compiled kernel

State = dict[str, Array]


@dataclass(frozen=True)
class Jobs:
    """What may differ from job to job along the axis J."""

    client_lr: Array  # [J], eta_c
    server_lr: Array  # [J], eta_s
    parameters: Numbers  # [J], the regularizer's numbers

    def __len__(self) -> int:
        return len(self.client_lr)

    def take(self, keep: Array) -> Jobs:
        return Jobs(self.client_lr[keep], self.server_lr[keep], self.parameters[keep])


@dataclass(frozen=True)
class Cohort:
    """The clients of one round: who takes part, in which order they see their rows, what they weigh."""

    clients: Array  # [S]
    order: Array  # rows of the data, the clients' epochs one after another
    edges: Array  # batch k is order[edges[k]:edges[k + 1]]
    first: Array  # [S + 1]; client i has the batches first[i] to first[i + 1]
    weights: Array  # [S]

    @property
    def steps(self) -> Array:
        """K of every client: [S]."""
        return np.diff(self.first)


class Algorithm(ABC):
    """A method with a server state that rounds advance."""

    name: ClassVar[str]
    federated: ClassVar[bool] = False
    one_shot: ClassVar[bool] = False  # done after a single round, whatever `hparams.rounds` says
    settings: ClassVar[frozenset[str]]  # the hyper-parameters that its result depends on

    def __init__(self, problem: Problem, jobs: Jobs) -> None:
        self.problem = problem
        self.jobs = jobs
        self.geometry: Geometry = problem.geometry(jobs.parameters)

    @abstractmethod
    def start(self, w: Array) -> State:
        """The state from which round 0 starts, for w [J, P]."""

    @abstractmethod
    def round(self, state: State, cohort: Cohort | None) -> State:
        """The state after one more round."""

    @abstractmethod
    def output(self, state: State) -> Array:
        """The model w [J, P]."""

    def prox_calls(self, cohort: Cohort | None) -> int:
        """How often a round applies prox (or projects)."""
        return 0


def local_steps(state, t, rate, batches, geometry):  # bound by `specialise` to an algorithm's
    raise NotImplementedError


@kernel
def visit(broadcast, t, rate, x, y, order, edges, first, widths, geometry, messages):
    """Every client of the cohort starts from the broadcast and leaves its final state in messages [S, J, P]."""
    for i in prange(messages.shape[0]):
        state = messages[i]
        for j in range(state.shape[0]):
            copy(broadcast[j], state[j])
        batches = Batches(x, y, order, edges[first[i] : first[i + 1] + 1], widths)
        local_steps(state, t, rate, batches, geometry)


@kernel
def mean_change(messages, broadcast, weights, steps, delta, mean_steps):
    """Delta [J, P]: the weighted mean of message - broadcast over the clients whose message is finite; NaN if none.

    The mean number of steps [J] takes the same weights: the time that psi is owed for Delta.
    """
    for j in range(broadcast.shape[0]):
        total = 0.0
        mean_steps[j] = 0.0
        for k in range(delta.shape[1]):
            delta[j, k] = 0
        for i in range(messages.shape[0]):
            message = messages[i, j]
            check = message.dtype.type(0)
            for k in range(message.shape[0]):
                check += message[k]  # not finite if any entry is not
            if is_finite(check):
                total += weights[i]
                mean_steps[j] += weights[i] * steps[i]
                weight = message.dtype.type(weights[i])
                for k in range(message.shape[0]):
                    delta[j, k] += weight * (message[k] - broadcast[j, k])
        mean_steps[j] /= total
        scale = message.dtype.type(1 / total if total > 0 else np.nan)
        for k in range(broadcast.shape[1]):
            delta[j, k] *= scale


class Federated(Algorithm):
    """The shape that all federated algorithms share: broadcast, local steps, average, server step.

    state["s"] [J, P] is what the server broadcasts (primal or dual); state["t"] [J] is the time for which psi has
    been owed so far, eta_s eta_c r K of the paper.
    """

    federated = True
    settings = frozenset(
        (
            "client_lr",
            "server_lr",
            "rounds",
            "clients_per_round",
            "batch_size",
            "local_epochs",
            "eval_every",
            "weighting",
            "dtype",
        )
    )
    local_steps: ClassVar[Kernel]
    client_prox: ClassVar[bool] = False  # whether every local step applies prox
    server_prox: ClassVar[bool] = False  # whether the server does

    @cached_property
    def _parts(self) -> dict[str, Kernel]:
        """The primitives that the text of `local_steps` may name."""
        problem = self.problem
        return {
            "descend": problem.descend,
            "to_dual": problem.to_dual,
            "to_primal": problem.to_primal,
            "free_primal": problem.free_primal,
            "psi_subgradient": problem.psi_subgradient,
        }

    @cached_property
    def client_steps(self) -> Kernel:
        """`local_steps` bound to the problem: what one client runs."""
        return specialise(self.local_steps, parallel=False, **self._parts)

    @cached_property
    def _visit(self) -> Kernel:
        return specialise(visit, parallel=True, local_steps=self.client_steps)

    def start(self, w: Array) -> State:
        return {"s": w, "t": np.zeros(len(w))}

    def round(self, state: State, cohort: Cohort | None) -> State:
        assert cohort is not None
        broadcast, messages = state["s"], self._messages(state, cohort)
        delta, steps = np.empty_like(broadcast), np.empty(len(broadcast))
        mean_change(messages, broadcast, cohort.weights, cohort.steps, delta, steps)
        return self.server(state, delta, steps)

    def _messages(self, state: State, cohort: Cohort) -> Array:
        """What the clients of the cohort send: [S, J, P]."""
        data, broadcast = self.problem.data, state["s"]
        messages = np.empty((len(cohort.clients), *broadcast.shape), broadcast.dtype)
        self._visit(
            broadcast, state["t"], self.jobs.client_lr, data.x, data.y,
            cohort.order, cohort.edges, cohort.first, self.problem.model.widths, self.geometry, messages,
        )  # fmt: skip
        return messages

    def client_models(self, state: State, cohort: Cohort) -> Array:
        """The models at which the clients of a round end, and in the last place their average: [S + 1, J, P].

        A round is a function of its state and cohort, so this replays the clients' work instead of keeping it.
        """
        messages = self._messages(state, cohort)
        average = np.average(messages, axis=0, weights=cohort.weights)
        steps = np.append(cohort.steps, np.average(cohort.steps, weights=cohort.weights))
        states = np.concatenate([messages, average[None].astype(messages.dtype)])
        return np.stack([self._client_model(s, state["t"], k) for s, k in zip(states, steps, strict=True)])

    def _client_model(self, s: Array, t: Array, steps: float) -> Array:
        """The model that a client's state s [J, P] stands for after its local steps."""
        return s

    @abstractmethod
    def server(self, state: State, delta: Array, steps: Array) -> State:
        """The server's step along Delta; `steps` is the clients' mean K."""

    def prox_calls(self, cohort: Cohort | None) -> int:
        assert cohort is not None
        return int(cohort.steps.sum()) * self.client_prox + self.server_prox

    def _owed(self, steps: Array) -> Array:
        """eta_s eta_c K."""
        return self.jobs.server_lr * self.jobs.client_lr * steps

    def _along(self, s: Array, delta: Array) -> Array:
        """s + eta_s Delta."""
        return s + self.jobs.server_lr.astype(s.dtype)[:, None] * delta

    def _to_primal(self, z: Array, t: Array) -> Array:
        w = np.empty_like(z)
        self.problem.to_primal(z, t, self.geometry, w)
        return w
