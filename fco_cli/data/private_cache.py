"""Cache folders for downloaded and prepared data that no other user can write to."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fco_cli.errors import UserError
from fco_cli.files import cache_folder
from fco_cli.private_folder import unsafe_reason


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
