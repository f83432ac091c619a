"""Software versions stored with a result."""

from __future__ import annotations

import functools
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any


@functools.cache
def software() -> dict[str, Any]:
    """Return the versions of Python, the packages and the source; computed once per process."""
    return {
        "versions": {name: version(name) for name in ("fco-cli", "numpy", "scipy", "numba", "hydra-core")},
        "python": sys.version.split()[0],
        "git_revision": _git_revision(),
    }


def _git_revision() -> str | None:
    """Return the git revision of this software if it runs from a checkout."""
    try:
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
