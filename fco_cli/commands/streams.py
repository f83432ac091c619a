"""Standard output and error of a command: closed, full, or read by a program that ends early."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from fco_cli.csv_writer import escape_unprintable

if TYPE_CHECKING:
    from rich.console import Console


class OutputError(OSError):
    """Standard output cannot be written: a full disk, for example."""


class Output(io.TextIOWrapper):
    """Standard output, whose faults differ in type from those of other files."""

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
    """Standard error; what it does not take is lost, for there is no other place to say it."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


def prepare_streams() -> None:
    """Open closed streams on the null device, and write characters that an encoding lacks as numbers."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            _occupy(descriptor)
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115
        elif name != "stdin" and type(stream) is io.TextIOWrapper:
            options = {key: getattr(stream, key) for key in ("encoding", "line_buffering", "write_through")}
            kind = Output if name == "stdout" else Messages
            setattr(sys, name, kind(stream.detach(), errors="backslashreplace", **options))


def _occupy(descriptor: int) -> None:
    """Keep a closed standard descriptor from being given to the next file that is opened."""
    try:
        os.fstat(descriptor)
    except OSError:
        opened = os.open(os.devnull, os.O_RDWR)
        if opened != descriptor:
            os.dup2(opened, descriptor)
            os.close(opened)


def flush_streams() -> None:
    """Write what is buffered; raise OSError if standard output does not take it."""
    sys.stderr.flush()
    sys.stdout.flush()


def discard_output() -> None:
    """Send what standard output still holds, and will be given, to the null device."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def say(line: str) -> None:
    """Print a line, with control characters in names and paths made visible."""
    print(escape_unprintable(line), flush=True)


def table_console(width: int | None = None) -> Console:
    """Return a console for tables: text in brackets is text, and a closed pipe is an error like any other."""
    from rich.console import Console

    class TableConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return TableConsole(width=width, markup=False, emoji=False)
