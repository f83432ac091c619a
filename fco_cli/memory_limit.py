"""How much memory there is, and the one refusal of what would take more, before it is asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

from fco_cli.errors import UserError

UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")


@cache
def machine_memory() -> int:
    """Bytes that this process could ever have: the machine's, or what its cgroup or `ulimit -v` leaves of them.

    Not what is free at this moment: the same command must get the same answer tomorrow. Where nothing is known
    (Windows) it is more than anything could need, and nothing is refused.
    """
    return min([sys.maxsize, *_physical(), *_cgroup_limits(), *_address_space()])


def require_memory(what: str, needed: int) -> None:
    """Refuse what needs more bytes than there are; `what` begins the line, as in `task.samples=1e9: the data`."""
    if needed > machine_memory():
        raise UserError(
            f"{what} would take {in_units(needed)} of memory; this machine has {in_units(machine_memory())}"
        )


def in_units(count: int) -> str:
    """Bytes for people; any integer, also one that no float can hold."""
    scale = next((k for k in range(len(UNITS)) if count < 1000 ** (k + 1)), len(UNITS))
    if scale == len(UNITS):
        return f"more than 1000 {UNITS[-1]}"
    return f"{count} bytes" if scale == 0 else f"{count / 1000**scale:.4g} {UNITS[scale]}"


def _physical() -> Iterator[int]:
    if hasattr(os, "sysconf"):
        yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _address_space() -> Iterator[int]:
    try:
        import resource
    except ImportError:  # Windows
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        yield limit


def _cgroup_limits(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> Iterator[int]:
    """The limits of the process's cgroup and of all above it, in version 2 (first line) and 1 of Linux' scheme."""
    try:
        groups = [line.split(":", 2) for line in own.read_text(encoding="utf-8").splitlines()]
    except OSError:  # not Linux
        return
    for _, controllers, path in groups:
        if controllers not in ("", "memory"):
            continue
        top, file = (root, "memory.max") if controllers == "" else (root / "memory", "memory.limit_in_bytes")
        group = PurePosixPath(path)
        for place in (group, *group.parents):
            try:
                limit = (top / str(place).lstrip("/") / file).read_text(encoding="utf-8").strip()
            except OSError:  # the root has none, and a container may see less than its path says
                continue
            if limit.isdecimal():  # "max": none
                yield int(limit)
