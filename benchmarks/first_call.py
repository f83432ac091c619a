"""Processor time of the first call, which compiles, and of the second: `python -m benchmarks.first_call`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.results import Cell, format_cell, save

COMMANDS = ("task=lasso hparams.rounds=1", "task=nuclear hparams.rounds=1")
SCRIPT = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, capture_output=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime)
"""


def seconds(folder: Path, arguments: str) -> float:
    """Return the processor time of a command with the cache of compiled kernels in a folder."""
    command = [str(Path(sys.executable).with_name("fco-run")), *arguments.split(), "force=true"]
    environment = os.environ | {"XDG_CACHE_HOME": str(folder)}
    line = [sys.executable, "-c", SCRIPT, *command, f"output_dir={folder / 'outputs'}"]
    return float(subprocess.run(line, check=True, capture_output=True, text=True, env=environment).stdout)


def main() -> None:
    rows: list[list[Cell]] = []
    for arguments in COMMANDS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            first, second = seconds(folder, arguments), seconds(folder, arguments)
        rows.append([f"`fco-run {arguments}`", first, second, first - second])
        print(" | ".join(map(format_cell, rows[-1])), flush=True)
    columns = ["command", "first call, s of processor time", "second call", "compilation"]
    save("first_call", "python -m benchmarks.first_call", columns, rows)


if __name__ == "__main__":
    main()
