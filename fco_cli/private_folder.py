"""Whether a folder is ours alone, so that what is read from it is what we have written."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def why_unsafe(folder: Path) -> str | None:
    """Who else could put files into the folder, or another folder in its place; None if nobody could."""
    if not hasattr(os, "getuid"):  # Windows: the user's profile is her own
        return None
    if folder.lstat().st_uid != os.getuid() or stat.S_IMODE(folder.lstat().st_mode) != 0o700:
        return "it is not ours alone"
    for place in folder.parents:
        status = place.lstat()
        if status.st_uid not in (os.getuid(), 0):
            return f"{place} belongs to another user"
        by_others = status.st_mode & stat.S_IWOTH
        by_group = status.st_mode & stat.S_IWGRP and not _is_our_own_group(status.st_gid)
        sticky = status.st_mode & stat.S_ISVTX  # as /tmp is: nobody can rename what is not his own
        if (by_others or by_group) and not sticky:
            return f"others can write to {place}"
    return None


def _is_our_own_group(group: int) -> bool:
    """Whether it is the group of one that many systems give each user, whose folders it may write."""
    import grp
    import pwd

    try:
        user, found = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == user and set(found.gr_mem) <= {user}
