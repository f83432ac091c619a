"""Machinery of a federated round: running the clients, aggregation, server step and costs.

An author of a method derives from `Federated` (protocol.py) and need not read this module.
"""

from __future__ import annotations

import copy
import importlib
import math
from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from fco_cli.algorithms.arrays import Scalar, Symmetric, Vector, first_slots, names, picker, slot_count, views
from fco_cli.algorithms.base import Proxes
from fco_cli.algorithms.noisy_rows import NoisyRows
from fco_cli.algorithms.numba_backend import BufferPool, Buffers, bound_operations, plain_batches, run_clients
from fco_cli.algorithms.rounds import (
    Aggregates,
    Batches,
    Cohort,
    Costs,
    Memory,
    MessageWeights,
    Participation,
    Round,
    State,
    Varying,
    aggregate,
    aggregate_sum,
    fixed_point_sum,
)
from fco_cli.algorithms.touched import TouchedRows, aggregate_touched, bytes_of_clients, has_touched_messages
from fco_cli.algorithms.transforms import Evaluations, Releases, Transform
from fco_cli.errors import require
from fco_cli.kernels.compiled import Kernel, Namespace, specialize
from fco_cli.kernels.named import named
from fco_cli.problem.data import ClientData
from fco_cli.problem.descent import slice_kernel
from fco_cli.problem.layout import Array
from fco_cli.problem.mirror import Geometry
from fco_cli.problem.models.external import ExternalModel
from fco_cli.problem.private_descent import CohortNoise, private_batches
from fco_cli.problem.problem import Problem
from fco_cli.problem.streams import message_keys


class FederatedRound(NoisyRows):
    """One round: broadcast, local steps, transform of the messages, aggregation, server step."""

    federated: ClassVar[bool] = True
    broadcast: ClassVar[tuple[Vector, ...]]  # declared by the author; see `Federated`
    sent: ClassVar[tuple[Vector, ...]]
    accumulates_messages: ClassVar[bool]
    normalized: ClassVar[bool | None]
    full_participation: ClassVar[bool]
    psi_in_steps: ClassVar[bool]
    proxes: ClassVar[Proxes]
    local_steps: ClassVar[Kernel]
    remember: ClassVar[Kernel]

    @property
    def steps_kernel(self) -> Kernel:
        """Kernel of the local steps; a method may choose one by its options."""
        return self.local_steps

    def initial_memory(self, w: Array) -> State:
        """Return the `remembered` arrays before a client's first round that are not zeros."""
        return {}

    def start_round(self, state: State, cohort: Cohort) -> State:
        """Return the state at the start of a round; the broadcast arrays are taken from it."""
        return state

    @abstractmethod
    def server_step(self, state: State, aggregates: Aggregates) -> State:
        """Return the new state, from the aggregated messages."""

    def effective_steps(self, steps: Array) -> Array:
        """Return the effective number of gradient steps in a message after `steps` [n] local steps: [n, J].

        Equal to `steps` unless local steps damp earlier ones. The server's prox uses the same number.
        """
        return np.full((len(steps), len(self.varying)), steps[:, None], dtype=float)

    def client_model(self, end: Array, state: State, steps: float) -> Array:
        """Return the model for a client's final array [J, P], broadcast[0] plus sent[0], after `steps` local steps."""
        return end

    def other_models(self, received: State, steps: int) -> list[Array]:
        """Return models [J, P] that other broadcast arrays determine, at which clients evaluate rows; sites check them.

        Those that follow from broadcast[0], from its change and from a remembered `model` are not among them.
        """
        return []

    @property
    def bytes_saved(self) -> int | Array:
        """Bytes that the method itself saves in a client's message by compression; [J] if it differs between jobs."""
        return 0

    # Helpers for server steps.

    def _server_update(self, s: Array, delta: Array) -> Array:
        """Return s + eta_s Delta."""
        return s + self.varying.server_lr.astype(s.dtype)[:, None] * delta

    def _step_size(self, steps: Array) -> Array:
        """Return eta_s eta_c K [J], the step size of a whole round and of its prox."""
        return self.varying.server_lr * self.varying.client_lr * steps

    # Machinery.

    def with_transform(self, transform: Transform) -> Self:
        changed = copy.copy(self)
        changed.__dict__["transform"] = transform
        return changed

    @property
    def client_arrays(self) -> tuple[Vector, ...]:
        if not self.transform.residuals:
            return self.remembered
        residuals = (array for array in self.sent if not array.difference)
        return self.remembered + tuple(type(array)(f"left_of_{array.name}") for array in residuals)

    def initial_client_arrays(self, w: Array) -> Array:
        arrays = self.client_arrays
        buffer = np.zeros((slot_count(arrays, w.shape[1]), *w.shape), w.dtype)
        stored = views(arrays, buffer)
        for name, values in self.initial_memory(w).items():
            stored[name][...] = values
        return buffer

    @cached_property
    def operations(self) -> Namespace:
        return bound_operations(self.problem, self.psi_in_steps, self.transform.gradient_step)

    def bind(self, problem: Problem, varying: Varying) -> Self:
        bound = super().bind(problem, varying)
        self.transform.check_problem(problem)
        return bound

    @cached_property
    def client_steps(self) -> Kernel:
        """Kernel of the local steps, bound to the problem."""
        return self.bind_kernel(self.steps_kernel)

    @cached_property
    def _run_clients(self) -> Callable[..., None]:
        if isinstance(model := self.problem.model, ExternalModel):
            # Imported by its name: a static reference would make the backend part of every run's identity.
            return importlib.import_module(model.backend).client_loop(self)
        size = self.problem.layout.size
        client = {
            "local_steps": self.client_steps,
            "encode": self.transform.encode,
            "remember": self.bind_kernel(self.remember),
            "rows": slice_kernel(self.problem.data.x),
            "batches": private_batches if self.transform.protects_rows else plain_batches,
            "memory": picker(self.remembered, size),
            "message": picker(self.sent, size),
        }
        return specialize(run_clients, parallel=True, client=client)

    @property
    def adds_increments(self) -> bool:
        """True if messages are increments that the server may scale, or add to a later state than their start."""
        is_plain = type(self).start_round is FederatedRound.start_round and self.local_step_rule == "epochs"
        others = self.client_arrays or self.accumulates_messages or self.full_participation
        return is_plain and len(self.sent) == 1 and not others

    def check_transform(self, weighting: str) -> None:
        self.transform.check(self, weighting)

    def check_participation(self, sampled: int, clients: int) -> None:
        allowed = f"all {clients} clients: {self.name} requires full participation"
        require(not self.full_participation or sampled == clients, "hparams.clients_per_round", sampled, allowed)

    def client_update(
        self,
        received: State,
        memory: Array,
        rows: ClientData,
        order: Array,
        edges: Array,
        keys: Array | None = None,
        noise: CohortNoise | None = None,
    ) -> tuple[Array, Array]:
        """Run one client's part of a round on its own rows. Return its message and its new memory, both [slots, J, P].

        Batch b is order[edges[b]:edges[b+1]]. `memory` holds the `client_arrays`. Random transforms require keys [1],
        the client's `message_keys`, and transforms that protect rows its noise (`cohort_noise`), which is overwritten.
        """
        cohort = Cohort(np.zeros(1, np.int64), order, edges, np.array([0, len(edges) - 1]), np.ones(1), 1.0, 1.0)
        assert keys is not None or not self.transform.random
        assert noise is not None or not self.transform.protects_rows
        kept = [memory] if self.client_arrays else None
        messages, new_memory = self._messages(received, cohort, kept, rows, keys, noise, self._buffer_pool.new(1))
        return messages[0], new_memory[0]

    @cached_property
    def _received_type(self) -> Any:
        return named(names(self.broadcast))

    def received(self, state: State) -> Any:
        """Return the part of the state that clients receive, by name."""
        return self._received_type(*(state[array.name] for array in self.broadcast))

    @cached_property
    def _buffer_pool(self) -> BufferPool:
        size = self.problem.layout.size
        slots = slot_count(self.sent, size), slot_count(self.client_arrays, size)
        return BufferPool(*slots, (len(self.varying), size), self.problem.dtype)

    def _messages(
        self,
        state: State,
        cohort: Cohort,
        memory: Memory | None,
        rows: ClientData,
        keys: Array | None,
        noise: CohortNoise | None,
        out: Buffers,
    ) -> Buffers:
        """Run the cohort's clients. Return `out`, filled with the transformed messages and the new memory."""
        messages, kept = out
        if memory is not None:
            np.stack(list(memory), out=kept)
        batches = Batches(cohort.order, cohort.edges, cohort.first)
        own = self.problem.model.widths, self.geometry
        self.run_clients(state, messages, kept, rows, cohort.clients, batches, *own, keys, noise)
        return out

    def run_clients(
        self,
        state: State,
        messages: Array,
        kept: Array,
        rows: ClientData | TouchedRows,
        clients: Array,
        batches: Batches,
        widths: Array,
        geometry: Geometry,
        keys: Array | None = None,
        noise: CohortNoise | None = None,
    ) -> None:
        """Run the clients [S] of some rows; fill messages [S, slots, J, P], update the memory `kept` [S, slots, J, P].

        P is that of the state's vectors; `widths` and `geometry` are those of a model of this size.
        """
        keys = np.zeros(len(clients), np.uint64) if keys is None else keys
        self._run_clients(
            self.received(state), kept, messages, self.varying.client_lr, self.varying.options,
            rows.x, rows.targets, rows.offsets, clients, *batches, widths, geometry,
            self._transform_numbers, keys, noise, slot_count(self.remembered, self.problem.layout.size),
        )  # fmt: skip

    @cached_property
    def sends_touched_columns(self) -> bool:
        """True if messages consist of the columns that a client's rows store (touched.py)."""
        return has_touched_messages(self, self.problem)

    def round(self, state: State, cohort: Cohort | None = None, memory: Memory | None = None) -> Round:
        assert cohort is not None
        state = self.start_round(state, cohort)
        if self.sends_touched_columns and cohort.fraction_bits is None:
            aggregates, arrived = aggregate_touched(self, state, cohort, self.message_weights(cohort))
            aggregates = aggregates if cohort.scale == 1 else aggregates.scaled(cohort.scale)
            return Round(self.server_step(state, aggregates), aggregates.dropped, arrived=arrived)
        is_random = self.transform.random or getattr(self.problem.model, "is_random", False)
        keys = message_keys(cohort.seed, cohort.round, cohort.clients) if is_random else None
        out = self._buffer_pool[len(cohort.clients)]
        noise = self.cohort_noise(cohort) if self.transform.protects_rows else None
        messages, kept = self._messages(state, cohort, memory, self.problem.data, keys, noise, out)
        return self.finish_round(state, cohort, messages, kept)

    def messages(self, state: State, cohort: Cohort, keys: Array) -> Array:
        """Return the messages [S, slots, J, P] of a method without client memory; the next call overwrites them."""
        out = self._buffer_pool[len(cohort.clients)]
        return self._messages(state, cohort, None, self.problem.data, keys, None, out)[0]

    def finish_round(self, state: State, cohort: Cohort, messages: Array, memory: Array | None) -> Round:
        """Aggregate the messages [S, slots, J, P] and take the server step; `state` is from `start_round`."""
        aggregates, arrived = self.aggregates(messages, cohort)
        return Round(self.server_step(state, aggregates), aggregates.dropped, messages, memory, arrived)

    def finish_round_from_sum(self, state: State, cohort: Cohort, total: Array, arrived: Array) -> Round:
        """Take the server step from the `fixed_point_sum` of the messages that `arrived` [S, J], noise included."""
        assert cohort.fraction_bits is not None
        weights = self.message_weights(cohort)
        aggregates = aggregate_sum(total, cohort.fraction_bits, self.sent, weights, arrived, self.problem.dtype)
        return Round(self.server_step(state, aggregates), aggregates.dropped, arrived=arrived)

    def aggregates(self, messages: Array, cohort: Cohort) -> tuple[Aggregates, Array]:
        """Return the aggregated messages, with noise if required, and which messages are finite: [S, J]."""
        weights = self.message_weights(cohort)
        if cohort.fraction_bits is None:
            if cohort.absent is not None:
                messages[cohort.absent] = np.nan
            aggregates, arrived = aggregate(messages, self.sent, weights)
        else:
            total, arrived = fixed_point_sum(messages, weights.factors, cohort.fraction_bits, cohort.absent)
            aggregates = aggregate_sum(total, cohort.fraction_bits, self.sent, weights, arrived, messages.dtype)
        if (noise := self.noise_on_mean(cohort)) is not None:
            aggregates = self.transform.with_noise(aggregates, cohort, noise)
        return aggregates if cohort.scale == 1 else aggregates.scaled(cohort.scale), arrived

    def message_weights(self, cohort: Cohort) -> MessageWeights:
        """Return the weights of a cohort's messages."""
        normalized = cohort.normalize if self.normalized is None else self.normalized
        mean_steps = self.effective_steps(np.array([cohort.mean_steps]))[0] if normalized else None
        return MessageWeights(cohort.weights, cohort.total_weight, self.effective_steps(cohort.steps), mean_steps)

    def noise_on_mean(self, cohort: Cohort) -> Array | None:
        """Return the standard deviation [J] of the noise added to this round's mean; None without noise."""
        if not self.transform.noisy:
            return None
        mean_steps = self.message_weights(cohort).mean_steps
        least = self.effective_steps(np.array([cohort.min_steps]))[0]
        largest = np.ones(len(self.varying)) if mean_steps is None else mean_steps / least
        return self.transform.noise_on_mean(cohort, self._transform_numbers, largest)

    def costs(self, cohort: Cohort | None) -> Costs:
        assert cohort is not None
        clients, (up, down, bytes_up, bytes_down) = len(cohort.clients), self.client_costs
        invited = clients if cohort.invited is None else cohort.invited
        all_up, all_down = clients * bytes_up, invited * bytes_down
        if self.sends_touched_columns and cohort.fraction_bits is None and clients:
            touched = int(self._bytes_of_clients[cohort.clients].sum())
            all_up, all_down = touched, touched * invited // clients
        proxed_steps = int(np.maximum(cohort.steps - self.proxes.skipped_steps, 0).sum()) * self.psi_in_steps
        proxes = proxed_steps * self.proxes.step + self.proxes.server * (clients > 0)
        sent = clients * up, invited * down, all_up, all_down
        return Costs(*sent, proxes, int(self.client_gradients(cohort).sum()), queries=clients)

    @cached_property
    def _bytes_of_clients(self) -> Array:
        return bytes_of_clients(self.problem)

    @cached_property
    def client_costs(self) -> tuple[int, int, int | Array, int]:
        """Numbers of vectors and of bytes that one client sends and receives: vectors up, down, bytes up, down."""
        size, itemsize = self.problem.layout.size, self.problem.dtype.itemsize
        up, down = (
            sum(array.slots(size) for array in arrays if not isinstance(array, Scalar))
            for arrays in (self.sent, self.broadcast)
        )
        others = sum(isinstance(array, Scalar) for array in self.sent)
        others -= sum(array.padding(size) for array in self.sent if isinstance(array, Symmetric))
        bytes_up = up * self.transform.bytes_of(size, itemsize, self._transform_numbers) + others * itemsize
        bytes_up = bytes_up - self.bytes_saved
        return up, down, bytes_up, down * size * itemsize

    def client_gradients(self, cohort: Cohort) -> Array:
        """Return the row gradients of every client [S]: rows of all batches, or all rows once for full gradients."""
        in_batches = "batch_size" in self.uses
        return np.diff(cohort.edges[cohort.first]) if in_batches else self.problem.data.sizes[cohort.clients]

    def privacy_spent(
        self,
        rounds: int,
        sampled: int,
        dropped: Array,
        evaluated: Evaluations | None = None,
        participation: Participation | None = None,
    ) -> dict[str, Array]:
        clients, numbers = self.problem.data.clients, self._transform_numbers
        releases = None if participation is None else self.releases(participation)
        return self.transform.privacy_spent(rounds, sampled, clients, dropped, numbers, evaluated, releases)

    def releases(self, participation: Participation) -> Releases:
        """Return the noisy sums over rows that the clients have released."""
        if self.row_sums == "batches":
            return Releases(participation.steps, participation.sampling, participation.preparation_noise)
        change = 1.0 if self.row_sums == "all_rows" else math.sqrt(0.5)  # half of sqrt(2): problem/moments.py
        rounds = participation.rounds
        return Releases(rounds, np.ones(len(rounds)), participation.preparation_noise, change)

    def peak_vectors(self, sampled: int, clients: int, size: int) -> int:
        own = slot_count(self.sent, size) + 2 * slot_count(self.client_arrays, size)
        return super().peak_vectors(sampled, clients, size) + sampled * own

    def client_models(self, state: State, result: Round, cohort: Cohort) -> Array:
        """Return the models; without a remembered `model`, `sent[0]` must be the change of `broadcast[0]`."""
        starts = first_slots(self.remembered, self.problem.layout.size)
        if model := next((array.name for array in self.remembered if array.model), None):
            assert result.memory is not None
            return cohort.append_average(result.memory[:, starts[model]])
        messages = result.messages
        if messages is None:  # those of touched columns are not kept
            messages = self.messages(self.start_round(state, cohort), cohort, np.zeros(len(cohort.clients), np.uint64))
            if cohort.absent is not None:
                messages[cohort.absent] = np.nan
        ends = state[self.broadcast[0].name] + cohort.append_average(messages[:, 0])
        steps = np.append(cohort.steps, np.average(cohort.steps, weights=cohort.weights))
        return np.stack([self.client_model(end, state, k) for end, k in zip(ends, steps, strict=True)])
