"""Base classes of all algorithms: `Algorithm` and `Federated`.

A federated algorithm declares the arrays that the server broadcasts (`broadcast`), that a client stores between rounds
(`remembered`) and that a client sends (`sent`). Two functions define a round: `local_steps` of a client and
`server_step`. Costs, memory bounds, checkpoints and tests are derived from these declarations.

The first axis of every array is the job axis J. An algorithm accesses psi and h only through `to_dual` and
`to_primal`, and the loss only through `descend`.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from fco_cli.algorithms.aggregate import Aggregates, MessageWeights, aggregate, aggregate_sum, fixed_point_sum
from fco_cli.algorithms.client_loop import keep_memory, run_clients
from fco_cli.algorithms.rounds import BufferPool, Buffers, Cohort, Costs, LocalSteps, Memory, Round, State, Varying
from fco_cli.algorithms.transforms import Evaluations, NoTransform, Transform
from fco_cli.errors import require
from fco_cli.kernels.compiled import Kernel, specialize
from fco_cli.kernels.named import named, pick
from fco_cli.problem.data import ClientData, slice_kernel
from fco_cli.problem.layout import Array
from fco_cli.problem.mirror import Geometry
from fco_cli.problem.mirror_maps import Mirror
from fco_cli.problem.numbers import Numbers, record, stack_numbers
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers import Regularizer
from fco_cli.problem.streams import message_keys


@dataclass(kw_only=True)
class Algorithm(ABC):
    """Base class of the `algo` config group; the dataclass fields are the algorithm's options.

    `bind` returns a copy for one problem, in which every float option is an array [J] over the jobs.
    """

    name: str
    federated: ClassVar[bool] = False
    uses_mean_gradient: ClassVar[bool] = False  # True: eta_c is a step along grad F, not along batch gradients
    one_shot: ClassVar[bool] = False  # True: runs a single round and ignores `hparams.rounds`
    remembered: ClassVar[tuple[str, ...]] = ()  # arrays [J, P] that a client stores between rounds
    personal: ClassVar[str | None] = None  # state or memory array that holds the clients' personal models
    transform: ClassVar[Transform] = NoTransform()  # applied to every message; set by `with_transform`
    uses: ClassVar[frozenset[str]]  # hyperparameters that the result depends on

    @classmethod
    def varying_options(cls) -> tuple[str, ...]:
        """Return the options that may differ between jobs."""
        return tuple(field.name for field in fields(cls) if field.type in ("float", float))

    @property
    def numbers(self) -> Numbers:
        """Values of the varying options as a record array [1], readable by kernels."""
        return record({name: getattr(self, name) for name in self.varying_options()})

    def with_transform(self, transform: Transform) -> Self:
        """Return a copy that applies `transform` to its messages; `self` if the algorithm sends none."""
        return self

    def bind(self, problem: Problem, varying: Varying) -> Self:
        """Return a copy bound to a problem and to the parameters of the jobs."""
        bound = copy.copy(self)
        options = {name: np.ascontiguousarray(varying.options[name]) for name in self.varying_options()}
        bound.__dict__ |= {"problem": problem, "varying": varying, "geometry": problem.geometry(varying.psi), **options}
        bound.check_pair(problem.regularizer, problem.mirror)
        bound.check()
        return bound

    problem: ClassVar[Problem]  # set by `bind`; ClassVar because they are not options
    varying: ClassVar[Varying]
    geometry: ClassVar[Geometry]

    @property
    def pooled_batch(self) -> int:
        """Size of the batches drawn from the pooled rows of all clients; 0 if none are drawn."""
        return 0

    @property
    def local_step_rule(self) -> LocalSteps:
        """Rule for the number of local steps per round."""
        return "epochs"

    def check_pair(self, psi: Regularizer, mirror: Mirror) -> None:  # noqa: B027 - optional hook
        """Raise UserError if the regularizer or mirror map is not supported; called before data are loaded."""

    def check(self) -> None:  # noqa: B027
        """Raise UserError if the bound problem is not supported."""

    def check_transform(self, weighting: str) -> None:  # noqa: B027
        """Raise UserError if the transform is not supported."""

    def check_participation(self, sampled: int, clients: int) -> None:  # noqa: B027
        """Raise UserError if the number of clients per round is not supported."""

    @abstractmethod
    def initial_state(self, w: Array) -> State:
        """Return the server's state before the first round, for initial models w [J, P]."""

    def initial_memory(self, w: Array) -> Array:
        """Return a client's `remembered` arrays before its first round: [remembered, J, P]."""
        return np.zeros((len(self.remembered), *w.shape), w.dtype)

    @property
    def client_arrays(self) -> tuple[str, ...]:
        """Names of all arrays that a client stores between rounds: `remembered`, then the transform's residuals."""
        return self.remembered

    def initial_client_arrays(self, w: Array) -> Array:
        """Return a client's `client_arrays` before its first round: [client_arrays, J, P]."""
        residuals = np.zeros((len(self.client_arrays) - len(self.remembered), *w.shape), w.dtype)
        return np.concatenate([self.initial_memory(w), residuals])

    @abstractmethod
    def round(self, state: State, cohort: Cohort | None = None, memory: Memory | None = None) -> Round:
        """Run one round. `memory` holds the `client_arrays` of the cohort's clients and is not modified."""

    @abstractmethod
    def output(self, state: State) -> Array:
        """Return the model w [J, P], or [J, M, P] if the state holds one model per client."""

    def costs(self, cohort: Cohort | None) -> Costs:
        """Return the costs of one round."""
        return Costs()

    def privacy_spent(
        self, rounds: int, sampled: int, dropped: Array, evaluated: Evaluations | None = None
    ) -> dict[str, Array]:
        """Return the privacy metrics [J] after `rounds` rounds (`Transform.privacy_spent`)."""
        return {}

    def peak_vectors(self, sampled: int, clients: int) -> int:
        """Return the peak number of vectors [P] in memory per job: states, temporaries and messages."""
        return 8

    def client_models(self, state: State, made: Round, cohort: Cohort) -> Array:
        """Return the clients' models at the end of round `made`, then their average: [S + 1, J, P]."""
        raise NotImplementedError

    # Helpers for server steps.

    def _column(self, numbers: float | Array) -> Array:
        """Return per-job numbers [J] as [J, 1], for broadcasting against vectors [J, P]."""
        return np.asarray(numbers, self.problem.dtype)[:, None]

    def _to_dual(self, w: Array) -> Array:
        z = np.empty_like(w)
        self.problem.to_dual(w, self.geometry, z)
        return z

    def _to_primal(self, z: Array, t: Array) -> Array:
        w = np.empty_like(z)
        self.problem.to_primal(z, t, self.geometry, w)
        return w


@dataclass(kw_only=True)
class Federated(Algorithm):
    """Base class of federated algorithms. A round is: broadcast, local steps, aggregation, server step."""

    federated: ClassVar[bool] = True
    uses: ClassVar[frozenset[str]] = frozenset(
        ("client_lr", "server_lr", "rounds", "clients_per_round", "batch_size", "local_epochs", "eval_every",
         "weighting", "normalize_steps", "last_batch", "dtype", "fraction_bits")
    )  # fmt: skip
    broadcast: ClassVar[tuple[str, ...]]  # state arrays [J, P] sent to the cohort
    broadcast_scalars: ClassVar[tuple[str, ...]] = ()  # state scalars [J], sent likewise
    sent: ClassVar[tuple[str, ...]]  # arrays [J, P] that a client sends
    delta_arrays: ClassVar[
        tuple[str, ...]
    ] = ()  # last arrays of `sent`: differences to client memory, no residuals needed
    model_in_memory: ClassVar[str | None] = None  # memory array that is the client's model; None: see `client_models`
    normalized: ClassVar[bool | None] = None  # True: messages are divided by K_m; None: hparams.normalize_steps
    full_participation: ClassVar[bool] = False  # True: all clients must participate in every round
    accumulates_messages: ClassVar[bool] = False  # True: the server tracks sum_m p_m of client arrays
    psi_in_steps: ClassVar[bool] = True  # False: psi acts at the server only (OSP, "only server proximal")
    step_proxes: ClassVar[int] = 0  # prox calls per local step
    prox_free_steps: ClassVar[int] = 0  # number of first local steps of a round without prox call
    server_proxes: ClassVar[int] = 0  # prox calls of the server per round

    local_steps: ClassVar[Kernel]
    """Kernel local_steps(received, memory, message, rate, options, batches, geometry): one client's local steps.

    `received` contains the broadcast arrays and scalars, `memory` the `remembered` arrays, updated in place, and
    `message` the `sent` arrays, to be filled; all by name. `rate` is eta_c [J], `options` [J] the float options.
    """

    remember: ClassVar[Kernel] = keep_memory
    """Kernel remember(received, memory, message, rate, options, steps): memory update that depends on the message.

    Runs after the transform, so that client and server compute their updates from the same transformed message.
    """

    def with_transform(self, transform: Transform) -> Self:
        changed = copy.copy(self)
        changed.__dict__["transform"] = transform
        return changed

    @property
    def client_arrays(self) -> tuple[str, ...]:
        if not self.transform.residuals:
            return self.remembered
        return self.remembered + tuple(f"left_of_{name}" for name in self.sent if name not in self.delta_arrays)

    @cached_property
    def _parts(self) -> dict[str, Kernel]:
        """Primitives that `local_steps` may call, bound to the problem."""
        problem = self.problem
        return {
            "descend": problem.descend,
            "to_dual": problem.to_dual,
            "as_dual": problem.as_dual,
            "to_primal": problem.to_primal if self.psi_in_steps else problem.free_primal,
            "descend_dual": problem.descend_dual(self.psi_in_steps),
            "free_primal": problem.free_primal,
            "psi_subgradient": problem.psi_subgradient,
        }

    @cached_property
    def client_steps(self) -> Kernel:
        """Kernel `local_steps`, bound to the problem."""
        return specialize(self.local_steps, parallel=False, **self._parts)

    @cached_property
    def _run_clients(self) -> Kernel:
        return specialize(
            run_clients,
            parallel=True,
            local_steps=self.client_steps,
            encode=self.transform.encode,
            remember=self.remember,
            part=slice_kernel(self.problem.data.x),
            memory_of=pick(self.remembered),
            message_of=pick(self.sent),
        )

    def check_transform(self, weighting: str) -> None:
        self.transform.check(self, weighting)

    def check_participation(self, sampled: int, clients: int) -> None:
        allowed = f"all {clients} clients: {self.name} requires full participation"
        require(not self.full_participation or sampled == clients, "hparams.clients_per_round", sampled, allowed)

    def client_update(
        self, received: State, memory: State, rows: ClientData, order: Array, edges: Array, keys: Array | None = None
    ) -> tuple[State, State]:
        """Run one client's part of a round on its own rows. Return its message and its new memory.

        Batch b is order[edges[b]:edges[b+1]]. Random transforms require keys [1], the client's `message_keys`.
        """
        kept = [np.stack([memory[name] for name in self.client_arrays])] if self.client_arrays else None
        cohort = Cohort(np.zeros(1, np.int64), order, edges, np.array([0, len(edges) - 1]), np.ones(1), 1.0, 1.0)
        assert keys is not None or not self.transform.random
        messages, new_memory = self._messages(received, cohort, kept, rows, keys, self._buffer_pool.new(1))
        return dict(zip(self.sent, messages[0], strict=True)), dict(zip(self.client_arrays, new_memory[0], strict=True))

    @cached_property
    def _transform_numbers(self) -> Numbers:
        """Parameters of the transform [J]."""
        numbers = self.varying.transform
        return stack_numbers([self.transform] * len(self.varying)) if numbers is None else numbers

    def _received(self, state: State) -> Any:
        """Return the part of the state that clients receive, by name."""
        names = self.broadcast + self.broadcast_scalars
        return named(names)(*(state[name] for name in names))

    @cached_property
    def _buffer_pool(self) -> BufferPool:
        shape = len(self.varying), self.problem.layout.size
        return BufferPool(len(self.sent), len(self.client_arrays), shape, self.problem.dtype)

    def _messages(
        self, state: State, cohort: Cohort, memory: Memory | None, rows: ClientData, keys: Array | None, out: Buffers
    ) -> Buffers:
        """Run the cohort's clients. Return `out`, filled with the transformed messages and the new memory."""
        messages, kept = out
        if memory is not None:
            np.stack(list(memory), out=kept)
        keys = np.zeros(len(cohort.clients), np.uint64) if keys is None else keys
        self._run_clients(
            self._received(state), kept, messages, self.varying.client_lr, self.varying.options,
            rows.x, rows.targets, rows.offsets, cohort.clients, cohort.order, cohort.edges, cohort.first,
            self.problem.model.widths, self.geometry, self._transform_numbers, keys, len(self.remembered),
        )  # fmt: skip
        return out

    def round(self, state: State, cohort: Cohort | None = None, memory: Memory | None = None) -> Round:
        assert cohort is not None
        state = self.start_round(state, cohort)
        keys = message_keys(cohort.seed, cohort.round, cohort.clients) if self.transform.random else None
        out = self._buffer_pool[len(cohort.clients)]
        messages, kept = self._messages(state, cohort, memory, self.problem.data, keys, out)
        return self.finish_round(state, cohort, messages, kept)

    def finish_round(self, state: State, cohort: Cohort, messages: Array, memory: Array | None) -> Round:
        """Aggregate the messages [S, sent, J, P] and take the server step; `state` is from `start_round`."""
        aggregates, arrived = self.aggregates(messages, cohort)
        return Round(self.server_step(state, aggregates), aggregates.dropped, messages, memory, arrived)

    def finish_round_from_sum(self, state: State, cohort: Cohort, total: Array, arrived: Array) -> Round:
        """Take the server step from the `fixed_point_sum` of the messages that `arrived` [S, J], noise included."""
        assert cohort.fraction_bits is not None
        weights = self.message_weights(cohort)
        aggregates = aggregate_sum(total, cohort.fraction_bits, self.sent, weights, arrived, self.problem.dtype)
        return Round(self.server_step(state, aggregates), aggregates.dropped, arrived=arrived)

    def start_round(self, state: State, cohort: Cohort) -> State:
        """Return the state at the start of a round; the broadcast arrays and scalars are taken from it."""
        return state

    def aggregates(self, messages: Array, cohort: Cohort) -> tuple[Aggregates, Array]:
        """Return the aggregated messages, with noise if required, and which messages are finite: [S, J]."""
        weights = self.message_weights(cohort)
        if cohort.fraction_bits is None:
            aggregates, arrived = aggregate(messages, self.sent, weights)
        else:
            total, arrived = fixed_point_sum(messages, weights.factors, cohort.fraction_bits)
            aggregates = aggregate_sum(total, cohort.fraction_bits, self.sent, weights, arrived, messages.dtype)
        noise = self.noise_on_mean(cohort)
        return aggregates if noise is None else self.transform.with_noise(aggregates, cohort, noise), arrived

    def message_weights(self, cohort: Cohort) -> MessageWeights:
        """Return the weights of a cohort's messages."""
        normalized = cohort.normalize if self.normalized is None else self.normalized
        mean_steps = self.effective_steps(np.array([cohort.mean_steps]))[0] if normalized else None
        return MessageWeights(cohort.weights, cohort.total_weight, self.effective_steps(cohort.steps), mean_steps)

    def noise_on_mean(self, cohort: Cohort) -> Array | None:
        """Return the standard deviation [J] of the noise added to this round's mean; None without noise."""
        if not self.transform.noisy:
            return None
        return self.transform.noise_on_mean(cohort, self._transform_numbers, self._max_message_factor(cohort))

    def _max_message_factor(self, cohort: Cohort) -> Array:
        """Return the largest factor by which step normalization scales a message: [J]."""
        mean_steps = self.message_weights(cohort).mean_steps
        least = self.effective_steps(np.array([cohort.min_steps]))[0]
        return np.ones(len(self.varying)) if mean_steps is None else mean_steps / least

    def effective_steps(self, steps: Array) -> Array:
        """Return the effective number of gradient steps in a message after `steps` [n] local steps: [n, J].

        Equal to `steps` unless local steps damp earlier ones. The server's prox uses the same number.
        """
        return np.full((len(steps), len(self.varying)), steps[:, None], dtype=float)

    @abstractmethod
    def server_step(self, state: State, aggregates: Aggregates) -> State:
        """Return the new state, from the aggregated messages; `aggregates.steps` is their mean K."""

    def costs(self, cohort: Cohort | None) -> Costs:
        assert cohort is not None
        clients, vector = len(cohort.clients), self.problem.layout.size * self.problem.dtype.itemsize
        up, down = clients * len(self.sent), clients * len(self.broadcast)
        proxed_steps = int(np.maximum(cohort.steps - self.prox_free_steps, 0).sum()) * self.psi_in_steps
        proxes = proxed_steps * self.step_proxes + self.server_proxes
        sent = self.transform.bytes_of(self.problem.layout.size, self.problem.dtype.itemsize, self._transform_numbers)
        return Costs(up, down, up * sent, down * vector, proxes, len(cohort.order))

    def privacy_spent(
        self, rounds: int, sampled: int, dropped: Array, evaluated: Evaluations | None = None
    ) -> dict[str, Array]:
        clients, numbers = self.problem.data.clients, self._transform_numbers
        return self.transform.privacy_spent(rounds, sampled, clients, dropped, numbers, evaluated)

    def peak_vectors(self, sampled: int, clients: int) -> int:
        return super().peak_vectors(sampled, clients) + sampled * (len(self.sent) + 2 * len(self.client_arrays))

    def client_models(self, state: State, made: Round, cohort: Cohort) -> Array:
        """Return the models; without `model_in_memory`, `sent[0]` must be the change of `broadcast[0]`."""
        assert made.memory is not None
        assert made.messages is not None
        if self.model_in_memory is not None:
            return cohort.append_average(made.memory[:, self.remembered.index(self.model_in_memory)])
        ends = state[self.broadcast[0]] + cohort.append_average(made.messages[:, 0])
        steps = np.append(cohort.steps, np.average(cohort.steps, weights=cohort.weights))
        return np.stack([self._client_model(end, state, k) for end, k in zip(ends, steps, strict=True)])

    def _client_model(self, end: Array, state: State, steps: float) -> Array:
        """Return the model for a client's final array `end` [J, P] after `steps` local steps."""
        return end

    # Helpers for server steps.

    def _server_update(self, s: Array, delta: Array) -> Array:
        """Return s + eta_s Delta."""
        return s + self._column(self.varying.server_lr) * delta

    def _step_size(self, steps: Array) -> Array:
        """Return eta_s eta_c K [J], the step size of a whole round and of its prox."""
        return self.varying.server_lr * self.varying.client_lr * steps
