"""Check that only the current user can write to a folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path


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
