"""Standard streams of a command that may be closed, full or connected to a pipe without a reader."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from fco_cli.files import escape_unprintable

if TYPE_CHECKING:
    from rich.console import Console


class OutputError(OSError):
    """Error of writing to standard output, such as a full disk."""


class Output(io.TextIOWrapper):
    """Standard output; write errors raise OutputError, or BrokenPipeError for a closed pipe."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as problem:
            raise _output_error(problem) from problem

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as problem:
            raise _output_error(problem) from problem


def _output_error(problem: OSError) -> OSError:
    return problem if isinstance(problem, BrokenPipeError) else OutputError(problem.errno, problem.strerror)


class Messages(io.TextIOWrapper):
    """Standard error; write errors are ignored, because they cannot be reported anywhere."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


def prepare_streams() -> None:
    """Open closed streams on the null device and escape characters that the encoding lacks."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            _reserve_descriptor(descriptor)
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115
        elif name != "stdin" and type(stream) is io.TextIOWrapper:
            options = {key: getattr(stream, key) for key in ("encoding", "line_buffering", "write_through")}
            kind = Output if name == "stdout" else Messages
            setattr(sys, name, kind(stream.detach(), errors="backslashreplace", **options))


def _reserve_descriptor(descriptor: int) -> None:
    """Open a closed standard descriptor on the null device, so that no other file gets its number."""
    try:
        os.fstat(descriptor)
    except OSError:
        opened = os.open(os.devnull, os.O_RDWR)
        if opened != descriptor:
            os.dup2(opened, descriptor)
            os.close(opened)


def flush_streams() -> None:
    """Flush both streams; raise OSError if standard output cannot be written."""
    sys.stderr.flush()
    sys.stdout.flush()


def discard_output() -> None:
    """Redirect standard output, including buffered text, to the null device."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def print_line(line: str) -> None:
    """Print a line, with control characters escaped."""
    print(escape_unprintable(line), flush=True)


def table_console(width: int | None = None) -> Console:
    """Return a console for tables without markup, which raises BrokenPipeError for a closed pipe."""
    from rich.console import Console

    class TableConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return TableConsole(width=width, markup=False, emoji=False)
