"""Properties of a method that follow from its text and its declarations."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator
from typing import Any, Literal

from fco_cli.kernels.compiled import Kernel

# Sums over rows that a client's text computes once: gradients of batches, that of all rows, moments; None: others.
RowSums = Literal["batches", "all_rows", "moments"] | None
ALWAYS_USED = frozenset(("client_lr", "rounds", "eval_every", "weighting", "dtype", "fraction_bits"))
ROW_OPERATIONS: dict[str, RowSums] = {
    "gradient_step": "batches",
    "dual_gradient_step": "batches",
    "assign_gradient": "all_rows",
    "assign_moments": "moments",
}
# Operations that keep a message affine in the gradient, after which they are called.
AFFINE_OPERATIONS = frozenset(("add", "add_multiple", "assign_difference", "assign_scaled_difference"))
BATCHING = frozenset(("batch_size", "local_epochs", "last_batch"))


def derive(kind: Any) -> None:
    """Set `uses`, `uses_mean_gradient`, `row_sums` and `personal` of a class.

    Raise TypeError if a declaration is missing.
    """
    if not isinstance(vars(kind).get("name"), str):
        return  # a base class of methods
    own = vars(kind)
    for declaration in ("broadcast", "sent", "accumulates_messages", "local_steps"):
        # A method with other messages or memory than its base class decides anew whether its server sums messages.
        is_new = declaration == "accumulates_messages" and ("sent" in own or "remembered" in own)
        if not hasattr(kind, declaration) or (is_new and declaration not in own):
            raise TypeError(f"{kind.__name__}: declare `{declaration}` (see fco_cli/algorithms/protocol.py)")
    kind.sent = tuple(sorted(kind.sent, key=lambda array: array.difference))  # residuals belong to the first arrays
    kind.personal = next((array.name for array in kind.remembered if array.personal), None)
    kind.row_sums = _row_sums(kind.local_steps)
    kind.uses_mean_gradient = not _reads_argument(kind.local_steps, "rate")
    uses = set(ALWAYS_USED)
    if "steps" in set(_kernel_names(kind.local_steps)):
        uses |= BATCHING
    if not kind.full_participation:
        uses.add("clients_per_round")
    if kind.normalized is None:
        uses.add("normalize_steps")
    server_reads = set(_attributes(kind, "server_step", set()))
    if "server_lr" in server_reads:
        uses.add("server_lr")
    if kind.uses_mean_gradient and "client_lr" not in server_reads:
        uses.remove("client_lr")  # neither a client nor the server takes a step of this size
    kind.uses = frozenset(uses - {"client_lr", "rounds"} if kind.one_shot else uses)


def _attributes(kind: Any, method: str, seen: set[Any]) -> Iterator[str]:
    """Yield the attributes that a method reads, also in the methods of the class that it calls."""
    for owner in kind.__mro__:
        function = vars(owner).get(method)
        if not isinstance(function, types.FunctionType) or function in seen:
            continue
        seen.add(function)
        for name in function.__code__.co_names:
            yield name
            yield from _attributes(kind, name, seen)
        if "super" not in function.__code__.co_names:
            return


def _kernel_names(template: Kernel) -> Iterator[str]:
    """Yield the global names and attributes that a kernel, or a kernel that it calls, reads."""
    yield from template.python.__code__.co_names
    for part in template.parts.values():
        if isinstance(part, Kernel):
            yield from _kernel_names(part)


def _row_sums(template: Kernel) -> RowSums:
    """Return which sums over rows the text of the local steps reads; None if it reads several of the same rows."""
    calls = list(_row_operations(template))
    if len(calls) != 1:
        return None
    return ROW_OPERATIONS[calls[0]]


def is_affine_in_gradient(template: Kernel) -> bool:
    """Return True if one local step of a kernel computes only affine functions of its one sum over rows."""
    calls = list(operation_names(template))
    positions = [k for k, name in enumerate(calls) if name in ROW_OPERATIONS]
    return len(positions) == 1 and set(calls[positions[0] + 1 :]) <= AFFINE_OPERATIONS


@functools.cache
def _instructions(function: types.FunctionType) -> list[dis.Instruction]:
    """Return the instructions of a function; disassembling one takes longer than anything else in this module."""
    return list(dis.get_instructions(function))


def operation_names(template: Kernel) -> Iterator[str]:
    """Yield the operations (`ops`) of a kernel, and of the kernels that it calls, in the order of the text."""
    instructions = _instructions(template.python)
    for at, following in zip(instructions, [*instructions[1:], None], strict=True):
        if at.opname != "LOAD_GLOBAL":
            continue
        if at.argval == "ops" and following is not None:
            yield following.argval
        elif isinstance(part := template.parts.get(at.argval), Kernel):
            yield from operation_names(part)


def _row_operations(template: Kernel) -> Iterator[str]:
    """Yield the operation of every call in a kernel, and in the kernels that it calls, that reads rows."""
    for at in _instructions(template.python):
        if at.opname in ("LOAD_ATTR", "LOAD_METHOD") and at.argval in ROW_OPERATIONS:
            yield at.argval
        elif at.opname == "LOAD_GLOBAL" and isinstance(part := template.parts.get(at.argval), Kernel):
            yield from _row_operations(part)


def _reads_argument(template: Kernel, name: str) -> bool:
    """Return True if the text of a kernel reads its argument `name`."""
    loads = (at.argval for at in _instructions(template.python) if "LOAD_FAST" in at.opname)
    return any(name in (value if isinstance(value, tuple) else (value,)) for value in loads)
