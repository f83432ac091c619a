"""Memory available to the process, and a check before large allocations."""

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
    """Return the memory limit of this process in bytes: physical memory, cgroup limits or `ulimit -v`.

    The currently free memory is not considered, so that the same command always has the same result. If the limit is
    unknown (Windows), it is sys.maxsize.
    """
    return min([sys.maxsize, *_physical(), *_cgroup_limits(), *_address_space()])


def require_memory(what: str, needed: int) -> None:
    """Raise UserError if `needed` bytes exceed the limit; `what` starts the line, as `task.samples=1e9: the data`."""
    if needed > machine_memory():
        raise UserError(
            f"{what} would take {in_units(needed)} of memory; this machine has {in_units(machine_memory())}"
        )


def in_units(count: int) -> str:
    """Return a number of bytes as text with a unit; the integer may be larger than any float."""
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
    """Yield the memory limits of the process's cgroup and of its parents, for versions 1 and 2 of Linux cgroups."""
    try:
        groups = [line.split(":", 2) for line in own.read_text(encoding="utf-8").splitlines()]
    except OSError:  # not Linux
        return
    for _, controllers, path in groups:
        if controllers not in ("", "memory"):
            continue
        top, file = (root, "memory.max") if controllers == "" else (root / "memory", "memory.limit_in_bytes")
        group = PurePosixPath(path)
        for ancestor in (group, *group.parents):
            try:
                limit = (top / str(ancestor).lstrip("/") / file).read_text(encoding="utf-8").strip()
            except OSError:  # the root has no limit, and a container may not see all parents
                continue
            if limit.isdecimal():  # not "max", which is no limit
                yield int(limit)
