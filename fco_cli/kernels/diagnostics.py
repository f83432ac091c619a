"""Messages for kernels of users that do not compile: the file, the line and the reason, in one line."""

from __future__ import annotations

import dis
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fco_cli.kernels.compiled import Kernel

PACKAGE = Path(__file__).parents[1]
MAX_REASON = 200  # characters
MISSING_NAME = re.compile(r"NameError: name '(?P<name>\w+)' is not defined")
MISSING_PART = re.compile(r"module '(?P<module>\w+)_[0-9a-f]{32}' has no attribute '(?P<name>\w+)'")
BINDING = re.compile(r"due to \"TypeError: (?P<reason>[^\"]*)\"")
PLACE = re.compile(r"at (?P<path>\S.*?\.py) \((?P<line>\d+)\)")


def explain(kernel: Kernel, problem: Exception) -> str | None:
    """Return the message for an error of Numba in a kernel outside of this package; None for other errors."""
    text = str(problem)
    if part := MISSING_PART.search(text) if isinstance(problem, AttributeError) else None:
        reason = f"{part['module']} has no {part['name']!r}"
        return _at(_place_of_name(kernel, part["name"]), reason)
    if not type(problem).__module__.startswith("numba."):
        return None
    if missing := MISSING_NAME.search(text):
        return _at(_place_of_name(kernel, missing["name"]), f"name {missing['name']!r} is not defined")
    places = ((match["path"], int(match["line"])) for match in PLACE.finditer(text))
    return _at(next((place for place in places if _is_outside(place[0])), None), _reason(text))


def _at(place: tuple[str, int] | None, reason: str) -> str | None:
    return place and f"{place[0]} line {place[1]}: {reason}; kernels are compiled by Numba (CONTRIBUTING.md, Kernels)"


def _reason(text: str) -> str:
    """Return the innermost reason in a message of Numba, without its types."""
    lines = (line.strip() for line in text.splitlines())
    reason = next((line for line in lines if line and not line.startswith("Failed in nopython")), "does not compile")
    reason = re.sub(r"\.?\s+of type .*|\.$", "", reason)
    if call := re.search(r">>> (.*)", text) if reason.endswith("signature:") else None:
        reason = f"no such operation: {call[1]}"
    if reason.startswith("Cannot bind") and (binding := BINDING.search(text)):
        reason = f"wrong arguments: {binding['reason']}"
    return reason if len(reason) <= MAX_REASON else f"{reason[:MAX_REASON]}..."


def _place_of_name(kernel: Kernel, name: str) -> tuple[str, int] | None:
    """Return the file and line where a kernel outside of this package, or one that it calls, reads a name."""
    for template in _with_parts(kernel):
        code = template.python.__code__
        if not _is_outside(code.co_filename):
            continue
        line = code.co_firstlineno
        for instruction in dis.get_instructions(code):
            line = instruction.positions.lineno or line if instruction.positions else line
            if instruction.argval == name:
                return code.co_filename, line
    return None


def _with_parts(kernel: Kernel) -> Iterator[Kernel]:
    """Yield a kernel and all that it calls."""
    yield kernel
    for part in kernel.parts.values():
        for inner in getattr(part, "parts", {}).values() if not hasattr(part, "python") else [part]:
            if hasattr(inner, "python"):
                yield from _with_parts(inner)


def _is_outside(path: str) -> bool:
    return not Path(path).is_relative_to(PACKAGE)
