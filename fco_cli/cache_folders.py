"""Folders of the user's cache, and the check that no other user can write to them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fco_cli.errors import UserError
from fco_cli.files import lock


def cache_folder(name: str) -> Path:
    """Return a folder of the user's cache: ~/.cache/fco/<name> on Linux, or below $XDG_CACHE_HOME."""
    from platformdirs import user_cache_path

    return user_cache_path("fco", appauthor=False) / name


@contextmanager
def exclusive_access(folder: Path) -> Iterator[None]:
    """Create and lock a cache folder; other processes wait."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise UserError(f"{folder}: cannot be written: {problem.strerror} (XDG_CACHE_HOME moves it)") from problem
    with lock(folder / ".lock", wait=True):
        yield


def private_cache(name: str) -> Path:
    """Return the cache folder of that name, created if necessary; raise UserError if another user can write to it."""
    home = cache_folder(name)
    try:
        for folder in (home.parent, home):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        raise UserError(f"{home}: cannot be written: {problem.strerror} (XDG_CACHE_HOME moves it)") from problem
    return require_private(Path(os.path.realpath(home)))  # resolve links, so that they cannot be changed later


def require_private(folder: Path) -> Path:
    """Return the folder if no other user can write to it, with read access removed; otherwise raise UserError."""
    try:
        status = folder.lstat()
        ours = not hasattr(os, "getuid") or status.st_uid == os.getuid()
        if ours and stat.S_ISDIR(status.st_mode) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            folder.chmod(0o700)
        reason = unsafe_reason(folder) if folder.is_dir() and not folder.is_symlink() else "it is not a folder"
    except OSError as problem:
        raise UserError(f"{folder}: cannot be used: {problem.strerror} (XDG_CACHE_HOME moves it)") from problem
    if reason:
        raise UserError(
            f"{folder}: is not used because another user may have written to it: {reason}; "
            "remove it, or move the cache with XDG_CACHE_HOME"
        )
    return folder


def unsafe_reason(folder: Path) -> str | None:
    """Return the reason why another user could write to the folder or replace it; None if no one can."""
    if not hasattr(os, "getuid"):  # on Windows the user's profile is private
        return None
    if folder.lstat().st_uid != os.getuid() or stat.S_IMODE(folder.lstat().st_mode) != 0o700:
        return "it is not private (owner and mode 700)"
    for parent in folder.parents:
        status = parent.lstat()
        if status.st_uid not in (os.getuid(), 0):
            return f"{parent} belongs to another user"
        by_others = status.st_mode & stat.S_IWOTH
        by_group = status.st_mode & stat.S_IWGRP and not _is_private_group(status.st_gid)
        is_sticky = status.st_mode & stat.S_ISVTX  # as /tmp: users can rename only their own files
        if (by_others or by_group) and not is_sticky:
            return f"others can write to {parent}"
    return None


def _is_private_group(group: int) -> bool:
    """Return True for a group with the user as its only member, which many systems create for each user."""
    import grp
    import pwd

    try:
        user, entry = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(group)
    except KeyError:
        return False
    return entry.gr_name == user and set(entry.gr_mem) <= {user}
