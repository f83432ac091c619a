"""Rounds on sparse rows, with messages that consist of the columns that a client's rows store.

A gradient of a linear model is zero in all other columns. If a method adds only gradients of batches to the one vector
that it receives, and sends the change of that vector, the change is zero there as well. The cohort then runs on compact
vectors, a group of clients at a time, and the means have the bits of those of full vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fco_cli.algorithms.arrays import Scalar, Vector
from fco_cli.algorithms.derivation import operation_names
from fco_cli.algorithms.rounds import Aggregates, Batches, Cohort, MessageWeights, RunningMean, State
from fco_cli.algorithms.transforms import NoTransform
from fco_cli.kernels.compiled import kernel
from fco_cli.problem.data import ClientData, RemoteRows, SparseRows
from fco_cli.problem.layout import Array
from fco_cli.problem.mirror import Geometry
from fco_cli.problem.models.linear import SparseLinear
from fco_cli.problem.problem import Problem

if TYPE_CHECKING:
    from fco_cli.algorithms.round import FederatedRound

# Operations of local steps that change a vector only in the columns of the batches, or compute such a change.
SPARSE_OPERATIONS = frozenset(("copy", "buffer_like", "gradient_step", "dual_gradient_step", "assign_difference"))
INDEX_BYTES = 4  # of a column in a message
MAX_NUMBERS = 2**22  # in the messages of a group of clients


class TouchedRows(NamedTuple):
    """Rows of some clients, restricted to the columns that they store."""

    x: SparseRows
    targets: Array
    offsets: Array
    places: Array  # [P'], indices of the compact weights in the full vector
    geometry: Geometry
    widths: Array


def has_touched_messages(method: FederatedRound, problem: Problem) -> bool:
    """Return True if the messages of a method are zero outside of the columns that a client's rows store."""
    if isinstance(problem.data, RemoteRows):
        return False
    model = problem.model
    if type(model) is not SparseLinear or not isinstance(problem.data.x, SparseRows) or model.site_bias:
        return False
    received = [array for array in method.broadcast if not isinstance(array, Scalar)]
    is_one_vector = [(type(array), array.name) for array in received] == [
        (Vector, array.name) for array in method.sent
    ] and len(method.sent) == 1
    if not is_one_vector:
        return False
    operations = set(operation_names(method.steps_kernel))  # of some methods known after `bind` only
    is_separable = problem.is_separable or "dual_gradient_step" not in operations
    has_plain_messages = isinstance(method.transform, NoTransform) and not method.client_arrays
    return is_separable and has_plain_messages and operations <= SPARSE_OPERATIONS


@kernel
def count_columns(x, offsets, last_client, counts):
    """Compute the number of distinct columns in the rows of every client; `last_client` [features] is -1."""
    for m in range(counts.shape[0]):
        counts[m] = 0
        for e in range(x.starts[offsets[m]], x.starts[offsets[m + 1]]):
            column = x.columns[e]
            if last_client[column] != m:
                last_client[column] = m
                counts[m] += 1


def bytes_of_clients(problem: Problem) -> Array:
    """Return the bytes of every client's message [M]: columns and their weights, or a full vector if it is smaller."""
    data, model = problem.data, problem.model
    counts = np.empty(data.clients, np.int64)
    count_columns(data.x, data.offsets, np.full(data.x.features, -1), counts)
    itemsize, outputs = problem.dtype.itemsize, int(model.widths[-1])
    return np.minimum(counts * (INDEX_BYTES + outputs * itemsize) + outputs * itemsize, problem.layout.size * itemsize)


def touched_rows(problem: Problem, geometry: Geometry, clients: Array) -> TouchedRows:
    """Return the rows of some clients, with the compact geometry of the columns that they store."""
    data, x = problem.data, problem.data.x
    offsets, rows = _joined(data.offsets[clients], data.offsets[clients + 1])
    starts, entries = _joined(x.starts[rows], x.starts[rows + 1])
    used, columns = np.unique(x.columns[entries], return_inverse=True)
    features, (_, outputs) = len(used), problem.model.widths
    weights = (np.arange(outputs)[:, None] * x.features + used).ravel()
    places = np.append(weights, outputs * x.features + np.arange(outputs))
    table = geometry.table.copy()
    table[0, :2], table[1, :2] = (0, len(weights)), (len(weights), len(places))
    compact = SparseRows(x.values[entries], columns.astype(x.columns.dtype), starts, features)
    own = Geometry(geometry.psi, geometry.h, table, geometry.per_weight[places])
    return TouchedRows(compact, data.targets[rows], offsets, places, own, np.array([features, outputs]))


def _joined(first: Array, last: Array) -> tuple[Array, Array]:
    """Return the offsets of ranges in their concatenation, and the concatenation."""
    offsets = np.append(0, np.cumsum(last - first))
    return offsets, np.repeat(first - offsets[:-1], last - first) + np.arange(offsets[-1])


def groups_of(data: ClientData, clients: Array, jobs: int, outputs: int) -> Iterator[slice]:
    """Yield the positions of successive clients whose messages together have at most MAX_NUMBERS numbers."""
    stored = (data.x.starts[data.offsets[clients + 1]] - data.x.starts[data.offsets[clients]] + 1) * jobs * outputs
    low, total = 0, 0
    for i, own in enumerate(stored.tolist()):
        if i > low and (i + 1 - low) * (total + own) > MAX_NUMBERS:
            yield slice(low, i)
            low, total = i, 0
        total += own
    yield slice(low, len(clients))


def batches_of_group(cohort: Cohort, group: slice) -> Batches:
    """Return the batches of some successive clients of a cohort."""
    first = cohort.first[group.start : group.stop + 1]
    edges = cohort.edges[first[0] : first[-1] + 1]
    return Batches(cohort.order[edges[0] : edges[-1]], edges - edges[0], first - first[0])


def aggregate_touched(
    method: FederatedRound, state: State, cohort: Cohort, weights: MessageWeights
) -> tuple[Aggregates, Array]:
    """Run the cohort's clients. Return their aggregated messages, and which are finite: [S, J]."""
    (sent,), problem, jobs = method.sent, method.problem, len(method.varying)
    mean = RunningMean(weights, (1, jobs, problem.layout.size), problem.dtype)
    for group in groups_of(problem.data, cohort.clients, jobs, int(problem.model.widths[-1])):
        rows = touched_rows(problem, method.geometry, cohort.clients[group])
        messages = np.zeros((len(rows.offsets) - 1, 1, jobs, len(rows.places)), problem.dtype)
        compact = {sent.name: np.ascontiguousarray(state[sent.name][:, rows.places])}
        method.run_clients(
            {**state, **compact}, messages, messages[:, :0], rows, np.arange(len(messages)),
            batches_of_group(cohort, group), rows.widths, rows.geometry,
        )  # fmt: skip
        if cohort.absent is not None:
            messages[cohort.absent[group]] = np.nan
        mean.add(messages, group, rows.places)
    return mean.aggregates(method.sent), mean.arrived
