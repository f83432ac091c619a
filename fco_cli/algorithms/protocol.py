"""What an algorithm is.

A federated method is four small things: the arrays that the server broadcasts, those that a client remembers between
rounds, those that it sends, and two functions, what a client does with its rows (`local_steps`) and what the server
does with the clients' messages (`server_step`). Costs, memory, checkpoints and tests follow from these declarations;
the simulation and a real site call the same `client_update`.

All arrays carry the job axis J first. An algorithm sees psi and h only through `to_dual` and `to_primal`, and the loss
only through `descend`.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from fco_cli.algorithms.aggregate import Aggregates, Counted, aggregate, of_sum, summed
from fco_cli.algorithms.rounds import Cohort, Costs, Memory, Pace, Room, Rooms, Round, State, Varying, and_average
from fco_cli.algorithms.transforms import Evaluated, NoTransform, Transform
from fco_cli.algorithms.visit import nothing_more, visit
from fco_cli.errors import require
from fco_cli.kernels.compiled import Kernel, specialize
from fco_cli.kernels.named import named, pick
from fco_cli.problem.data import ClientData, part_of
from fco_cli.problem.layout import Array
from fco_cli.problem.mirror import Geometry
from fco_cli.problem.mirror_maps import Mirror
from fco_cli.problem.numbers import Numbers, record, stack_numbers
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers import Regularizer
from fco_cli.problem.streams import message_keys


@dataclass(kw_only=True)
class Algorithm(ABC):
    """The `algo` group: the fields are an algorithm's options, and its schema.

    `bind` makes an algorithm that runs on a problem; there every option that is a float is a vector over the jobs.
    """

    name: str
    federated: ClassVar[bool] = False
    steps_on_mean: ClassVar[bool] = False  # whether eta_c is a step along grad F, and not along a client's batch's
    one_shot: ClassVar[bool] = False  # done after a single round, whatever `hparams.rounds` says
    remembered: ClassVar[tuple[str, ...]] = ()  # the names of what every client keeps between rounds, each [J, P]
    personal: ClassVar[str | None] = None  # the array, of the state or remembered, that is every client's own model
    transform: ClassVar[Transform] = NoTransform()  # what its messages go through; `through` sets another
    uses: ClassVar[frozenset[str]]  # the hyper-parameters that its result depends on

    @classmethod
    def varying_options(cls) -> tuple[str, ...]:
        """The options that may differ along the job axis."""
        return tuple(field.name for field in fields(cls) if field.type in ("float", float))

    @property
    def numbers(self) -> Numbers:
        """Their values in this run, as kernels read them: [1]."""
        return record({name: getattr(self, name) for name in self.varying_options()})

    def through(self, transform: Transform) -> Self:
        """This algorithm with a transform of its messages; itself where it sends none."""
        return self

    def bind(self, problem: Problem, varying: Varying) -> Self:
        """This algorithm at work on a problem, with the stack's numbers."""
        bound = copy.copy(self)
        options = {name: np.ascontiguousarray(varying.options[name]) for name in self.varying_options()}
        bound.__dict__ |= {"problem": problem, "varying": varying, "geometry": problem.geometry(varying.psi), **options}
        bound.check_pair(problem.regularizer, problem.mirror)
        bound.check()
        return bound

    problem: ClassVar[Problem]  # what `bind` adds; no options, hence no fields
    varying: ClassVar[Varying]
    geometry: ClassVar[Geometry]

    @property
    def pooled_batch(self) -> int:
        """The size of the batches that it draws from all clients' rows as if they were one's; 0: it draws none."""
        return 0

    @property
    def pace(self) -> Pace:
        """How many local steps its clients take in a round."""
        return "epochs"

    def check_pair(self, psi: Regularizer, mirror: Mirror) -> None:  # noqa: B027 - most algorithms take every one
        """Refuse a regularizer or a mirror map that this algorithm cannot work with, before any data are built."""

    def check(self) -> None:  # noqa: B027
        """Refuse a problem that this algorithm cannot solve."""

    def check_transform(self, weighting: str) -> None:  # noqa: B027
        """Refuse a transform that this algorithm's messages cannot go through."""

    def check_participation(self, sampled: int, clients: int) -> None:  # noqa: B027
        """Refuse a number of clients per round that this algorithm cannot work with."""

    @abstractmethod
    def initial_state(self, w: Array) -> State:
        """The state before the first round, for w_0 [J, P]."""

    def initial_memory(self, w: Array) -> Array:
        """What every client remembers before its first round: [remembered, J, P]."""
        return np.zeros((len(self.remembered), *w.shape), w.dtype)

    @property
    def kept(self) -> tuple[str, ...]:
        """The names of all that a client keeps between rounds: what it remembers, then what its transform does."""
        return self.remembered

    def initial_kept(self, w: Array) -> Array:
        """The same before its first round: [kept, J, P]."""
        left_out = np.zeros((len(self.kept) - len(self.remembered), *w.shape), w.dtype)
        return np.concatenate([self.initial_memory(w), left_out])

    @abstractmethod
    def round(self, state: State, cohort: Cohort | None = None, memory: Memory | None = None) -> Round:
        """One more round; `memory` is that of the cohort's clients, and is not changed."""

    @abstractmethod
    def output(self, state: State) -> Array:
        """The model w [J, P]; [J, M, P] where every client has its own."""

    def costs(self, cohort: Cohort | None) -> Costs:
        return Costs()

    def spent(self, rounds: int, sampled: int, dropped: Array, evaluated: Evaluated | None = None) -> dict[str, Array]:
        """Metrics [J] of what so many rounds give away (`Transform.spent`); `dropped` [J] messages were not finite."""
        return {}

    def vectors_at_work(self, sampled: int, clients: int) -> int:
        """How many vectors of P numbers a job holds at a time: states, temporaries and messages."""
        return 8

    def client_models(self, state: State, made: Round, cohort: Cohort) -> Array:
        """The models at which the clients of a round end, and in the last place their average: [S + 1, J, P].

        `state` is the one before the round that `made` is.
        """
        raise NotImplementedError

    # What the formulas are written in.

    def _column(self, numbers: float | Array) -> Array:
        """Numbers [J], an option for example, as [J, 1], to stand beside vectors [J, P]."""
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
    """Broadcast, local steps, mean, server step."""

    federated: ClassVar[bool] = True
    uses: ClassVar[frozenset[str]] = frozenset(
        ("client_lr", "server_lr", "rounds", "clients_per_round", "batch_size", "local_epochs", "eval_every",
         "weighting", "normalize_steps", "last_batch", "dtype", "fraction_bits")
    )  # fmt: skip
    broadcast: ClassVar[tuple[str, ...]]  # vectors of the state, [J, P], that every client of the cohort receives
    clocks: ClassVar[tuple[str, ...]] = ()  # and numbers of it, [J], such as the cumulative step size
    sent: ClassVar[tuple[str, ...]]  # what a client sends, each [J, P]
    differences: ClassVar[tuple[str, ...]] = ()  # the last of these, whose `remember` makes up for what gets lost
    own_model: ClassVar[str | None] = None  # what of its memory is a client's model; none: see `client_models`
    normalized: ClassVar[bool | None] = None  # whether the mean divides messages by K_m; none: hparams.normalize_steps
    everybody: ClassVar[bool] = False  # whether all clients must take part in every round
    keeps_sum: ClassVar[bool] = False  # whether the server adds up messages to the sum of what all clients remember
    psi_in_steps: ClassVar[bool] = True  # whether local steps know psi; false: "only server proximal" (OSP)
    step_proxes: ClassVar[int] = 0  # prox calls of a local step
    free_steps: ClassVar[int] = 0  # how many of a round's first local steps need none
    server_proxes: ClassVar[int] = 0  # and of the server, in a round

    local_steps: ClassVar[Kernel]
    """local_steps(received, memory, message, rate, options, batches, geometry): what one client does in a round.

    `received` has the broadcast and the clocks by name, `memory` what the client remembers, to be changed in place,
    `message` what it sends, to be filled; `rate` is eta_c [J], `options` [J] has the algorithm's own numbers by name.
    """

    remember: ClassVar[Kernel] = nothing_more
    """remember(received, memory, message, rate, options, steps): what of its memory follows from what it sent.

    Changed here, in place, and not by `local_steps`: server and client then conclude from the same message, whatever
    it has gone through.
    """

    def through(self, transform: Transform) -> Self:
        changed = copy.copy(self)
        changed.__dict__["transform"] = transform
        return changed

    @property
    def kept(self) -> tuple[str, ...]:
        if not self.transform.residuals:
            return self.remembered
        return self.remembered + tuple(f"left_of_{name}" for name in self.sent if name not in self.differences)

    @cached_property
    def _parts(self) -> dict[str, Kernel]:
        """The primitives that the text of `local_steps` may name."""
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
        """`local_steps` bound to the problem."""
        return specialize(self.local_steps, parallel=False, **self._parts)

    @cached_property
    def _visit(self) -> Kernel:
        return specialize(
            visit,
            parallel=True,
            local_steps=self.client_steps,
            encode=self.transform.encode,
            remember=self.remember,
            part=part_of(self.problem.data.x),
            memory_of=pick(self.remembered),
            message_of=pick(self.sent),
        )

    def check_transform(self, weighting: str) -> None:
        self.transform.check(self, weighting)

    def check_participation(self, sampled: int, clients: int) -> None:
        whole = f"all {clients} clients: {self.name} is wrong where some do not take part"
        require(not self.everybody or sampled == clients, "hparams.clients_per_round", sampled, whole)

    def client_update(
        self, received: State, memory: State, rows: ClientData, order: Array, edges: Array, keys: Array | None = None
    ) -> tuple[State, State]:
        """What a client does in a round, from its own rows alone: what it sends, and what it then keeps.

        Batch b is the rows order[edges[b]:edges[b+1]]; a random transform needs keys [1], the client's message_keys.
        The simulation calls the same machine code.
        """
        kept = [np.stack([memory[name] for name in self.kept])] if self.kept else None
        alone = Cohort(np.zeros(1, np.int64), order, edges, np.array([0, len(edges) - 1]), np.ones(1), 1.0, 1.0)
        assert keys is not None or not self.transform.random
        messages, then = self._messages(received, alone, kept, rows, keys, self._rooms.new(1))
        named_memory = dict(zip(self.kept, then[0], strict=True))
        return dict(zip(self.sent, messages[0], strict=True)), named_memory

    @cached_property
    def _transform_numbers(self) -> Numbers:
        """[J]."""
        given = self.varying.transform
        return stack_numbers([self.transform] * len(self.varying)) if given is None else given

    def _received(self, state: State) -> Any:
        """What of the state a client receives, by name."""
        names = self.broadcast + self.clocks
        return named(names)(*(state[name] for name in names))

    @cached_property
    def _rooms(self) -> Rooms:
        vectors = len(self.varying), self.problem.layout.size
        return Rooms(len(self.sent), len(self.kept), vectors, self.problem.dtype)

    def _messages(
        self, state: State, cohort: Cohort, memory: Memory | None, rows: ClientData, keys: Array | None, room: Room
    ) -> Room:
        """What arrives of the cohort's messages, and what its clients then keep."""
        messages, kept = room
        if memory is not None:
            np.stack(list(memory), out=kept)
        keys = np.zeros(len(cohort.clients), np.uint64) if keys is None else keys
        self._visit(
            self._received(state), kept, messages, self.varying.client_lr, self.varying.options,
            rows.x, rows.targets, rows.offsets, cohort.clients, cohort.order, cohort.edges, cohort.first,
            self.problem.model.widths, self.geometry, self._transform_numbers, keys, len(self.remembered),
        )  # fmt: skip
        return room

    def round(self, state: State, cohort: Cohort | None = None, memory: Memory | None = None) -> Round:
        assert cohort is not None
        state = self.begun(state, cohort)
        keys = message_keys(cohort.seed, cohort.round, cohort.clients) if self.transform.random else None
        room = self._rooms[len(cohort.clients)]
        return self.concluded(state, cohort, *self._messages(state, cohort, memory, self.problem.data, keys, room))

    def concluded(self, state: State, cohort: Cohort, messages: Array, memory: Array | None) -> Round:
        """What the server makes of the messages [S, sent, J, P], wherever they come from; `state` has begun."""
        aggregates, arrived = self.aggregates(messages, cohort)
        new = self.server_step(state, aggregates)
        return Round(new, aggregates.dropped, messages, memory, arrived)

    def concluded_from_sum(self, state: State, cohort: Cohort, total: Array, arrived: Array) -> Round:
        """The same where the server knows the sum in fixed point only (`summed`), and whose message counts in it; noise
        that the mean must have is in the sum already."""
        assert cohort.fraction_bits is not None
        found = of_sum(total, cohort.fraction_bits, self.sent, self.counted(cohort), arrived, self.problem.dtype)
        new = self.server_step(state, found)
        return Round(new, found.dropped, arrived=arrived)

    def begun(self, state: State, cohort: Cohort) -> State:
        """The server's state when a round begins, and the cohort is known; clients receive theirs from this one."""
        return state

    def aggregates(self, messages: Array, cohort: Cohort) -> tuple[Aggregates, Array]:
        """What the server sees of the messages, and which of them arrived: finite, [S, J]."""
        counted = self.counted(cohort)
        if cohort.fraction_bits is None:
            found, arrived = aggregate(messages, self.sent, counted)
        else:
            total, arrived = summed(messages, counted.factors, cohort.fraction_bits)
            found = of_sum(total, cohort.fraction_bits, self.sent, counted, arrived, messages.dtype)
        noise = self.noise_on_mean(cohort)
        return found if noise is None else self.transform.with_noise(found, cohort, noise), arrived

    def counted(self, cohort: Cohort) -> Counted:
        """How the messages of a cohort count."""
        normalized = cohort.normalize if self.normalized is None else self.normalized
        mean_steps = self.gradients_in(np.array([cohort.mean_steps]))[0] if normalized else None
        return Counted(cohort.weights, cohort.all_weights, self.gradients_in(cohort.steps), mean_steps)

    def noise_on_mean(self, cohort: Cohort) -> Array | None:
        """The deviation [J] of the noise that this round's mean must have, if any."""
        if not self.transform.noisy:
            return None
        return self.transform.noise_on_mean(cohort, self._transform_numbers, self._largest(cohort))

    def _largest(self, cohort: Cohort) -> Array:
        """How often a client's message may count at most: [J]."""
        mean_steps, least = self.counted(cohort).mean_steps, self.gradients_in(np.array([cohort.least_steps]))[0]
        return np.ones(len(self.varying)) if mean_steps is None else mean_steps / least

    def gradients_in(self, steps: Array) -> Array:
        """How many gradients a client's change holds after so many local steps, and so for how many of them psi has to
        act: steps [n] -> [n, J]. One each, unless local steps forget what they went before."""
        return np.full((len(steps), len(self.varying)), steps[:, None], dtype=float)

    @abstractmethod
    def server_step(self, state: State, aggregates: Aggregates) -> State:
        """The server's step, from the clients' mean messages; their mean K is `aggregates.steps`."""

    def costs(self, cohort: Cohort | None) -> Costs:
        assert cohort is not None
        clients, vector = len(cohort.clients), self.problem.layout.size * self.problem.dtype.itemsize
        up, down = clients * len(self.sent), clients * len(self.broadcast)
        proxed_steps = int(np.maximum(cohort.steps - self.free_steps, 0).sum()) * self.psi_in_steps
        proxes = proxed_steps * self.step_proxes + self.server_proxes
        sent = self.transform.bytes_of(self.problem.layout.size, self.problem.dtype.itemsize, self._transform_numbers)
        return Costs(up, down, up * sent, down * vector, proxes, len(cohort.order))

    def spent(self, rounds: int, sampled: int, dropped: Array, evaluated: Evaluated | None = None) -> dict[str, Array]:
        clients, numbers = self.problem.data.clients, self._transform_numbers
        return self.transform.spent(rounds, sampled, clients, dropped, numbers, evaluated)

    def vectors_at_work(self, sampled: int, clients: int) -> int:
        return super().vectors_at_work(sampled, clients) + sampled * (len(self.sent) + 2 * len(self.kept))

    def client_models(self, state: State, made: Round, cohort: Cohort) -> Array:
        """For methods whose clients remember their models, or send how far a broadcast array has moved: that whose name
        is the first of both lists."""
        assert made.memory is not None
        assert made.messages is not None
        if self.own_model is not None:
            return and_average(made.memory[:, self.remembered.index(self.own_model)], cohort)
        ends = state[self.broadcast[0]] + and_average(made.messages[:, 0], cohort)
        steps = np.append(cohort.steps, np.average(cohort.steps, weights=cohort.weights))
        return np.stack([self._client_model(end, state, k) for end, k in zip(ends, steps, strict=True)])

    def _client_model(self, end: Array, state: State, steps: float) -> Array:
        """The model that stands for a client's array [J, P] after its local steps."""
        return end

    # What the formulas are written in.

    def _along(self, s: Array, delta: Array) -> Array:
        """s + eta_s Delta."""
        return s + self._column(self.varying.server_lr) * delta

    def _step_size(self, steps: Array) -> Array:
        """eta_s eta_c K: how far a round goes, and so for how long psi acts in it."""
        return self.varying.server_lr * self.varying.client_lr * steps
