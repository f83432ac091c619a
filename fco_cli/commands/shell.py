"""Functions shared by the commands.

--version and --help, Hydra's entry point, one-line error messages and exit codes; standard streams that may be closed,
full or connected to a pipe without a reader; options for the roles of the columns of a table.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import io
import logging
import os
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fco_cli import VERSION
from fco_cli.errors import Interrupted, SweepFailed, UserError, is_expected, one_line
from fco_cli.files import escape_unprintable
from fco_cli.help import GROUPS, options_of, patch_argparse

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from rich.console import Console

    from fco_cli.data.readers.source import Columns

Job = Callable[["DictConfig"], Any]
MAX_ERROR_LENGTH = 400  # characters of the message of an internal error
PIPE_CLOSED = 141  # 128 + SIGPIPE, the exit code that shells report for writing to a closed pipe


class Parser(argparse.ArgumentParser):
    """Argument parser that reports invalid options in one line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.prog} --help lists the options")


def handle_version_and_help(help_text: Callable[[], str] | None = None) -> bool:
    """Print the help or the version if requested and return True; called before slow imports."""
    if help_text and {"-h", "--help"} & set(sys.argv[1:]):
        print(help_text(), end="")
    elif "--version" in sys.argv[1:]:
        print(VERSION)
    else:
        return False
    return True


def register_plugins(overrides: Sequence[str] = ()) -> None:
    """Load the plug-ins of the overrides, of FCO_PLUGINS and of installed packages, and register their options."""
    from fco_cli.config import register
    from fco_cli.plugins import load_plugins

    load_plugins(overrides)
    register()


FOR_HYDRA = re.compile(r"-|[+~]*hydra\b")  # flags of Hydra, and overrides of its own configuration


def run_hydra(
    command: str,
    job: Job,
    sweep: Callable[..., list[Any]] | None = None,
    expect: Callable[..., None] | None = None,
    print_searches: Callable[..., None] | None = None,
    print_launched: Callable[..., None] | None = None,
) -> None:
    """Compose the configuration of the command line and call `job` with it; with -m, call `sweep` with all of them.

    `expect` is called with some of the configurations of a sweep while the others are composed, `print_searches` with
    the records of hydra/sweeper=search, `print_launched` with the values of jobs that another launcher has run.
    """
    gc.set_threshold(100_000, 50, 100)  # start-up creates many objects and little garbage
    with one_line_errors(command):
        import hydra

        from fco_cli import theory
        from fco_cli.config import register
        from fco_cli.config.compose import (
            attribute_errors_to_overrides,
            check_overrides,
            initialized_hydra,
            quote_texts,
        )
        from fco_cli.plugins import load_plugins

        started: list[bool] = []  # not empty once the configuration is composed and the job has started

        def guarded(config: DictConfig) -> Any:
            started.append(True)
            with one_line_errors(command):  # Hydra would add lines to uncaught exceptions
                return job(config)

        def guarded_sweep(*arguments: Any, **options: Any) -> list[Any]:
            started.append(True)
            assert sweep is not None
            return sweep(*arguments, **options)

        guarded.sweep = guarded_sweep if sweep else None  # type: ignore[attr-defined]  # called by the fused launcher
        guarded.expect = expect  # type: ignore[attr-defined]  # likewise
        guarded.print_searches = print_searches  # type: ignore[attr-defined]  # called by the sweepers
        guarded.print_launched = print_launched  # type: ignore[attr-defined]  # likewise
        # argparse needs flags first
        sys.argv[1:] = sorted(sys.argv[1:], key=lambda argument: argument not in ("-m", "--multirun"))
        sys.argv[1:] = map(quote_texts, sys.argv[1:])
        patch_argparse(_refuse_flag)
        os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises instead of printing
        sys.argv[1:] = load_plugins(sys.argv[1:])
        register()
        theory.register()
        check_overrides(sys.argv[1:])
        with attribute_errors_to_overrides(started, "command line"):
            if any(FOR_HYDRA.match(argument) for argument in sys.argv[1:]):
                hydra.main(version_base="1.3", config_path="pkg://fco_cli.conf", config_name="config")(guarded)()
            else:  # one run: hydra.main would compose the configuration twice, the first time to read hydra.mode
                with initialized_hydra() as application:
                    application.run("config", guarded, sys.argv[1:])


def _refuse_flag(message: str) -> NoReturn:
    """Raise UserError for an invalid flag of Hydra's."""
    raise UserError(f"{message}; --hydra-help lists the flags")


@contextmanager
def one_line_errors(command: str) -> Iterator[None]:
    """Convert every exception to a one-line message and an exit code; log tracebacks of internal errors."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on Ctrl-C prints a message
    prepare_streams()
    warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)  # figures show a box instead
    try:
        _check_environment()
        try:
            yield
        except SystemExit:
            flush_streams()
            raise
        flush_streams()
    except Interrupted as problem:
        exit_with_message(command, problem.exit_code, "stopped; the same command continues from what is saved")
    except KeyboardInterrupt:  # before anything was saved, or a second Ctrl-C
        exit_with_message(command, 130, "stopped")
    except BrokenPipeError:  # the reader has exited, as `head` does; no message is needed
        discard_output()
        sys.exit(PIPE_CLOSED)
    except OutputError as problem:
        discard_output()
        exit_with_message(command, 2, f"standard output: cannot be written: {problem.strerror}")
    except SweepFailed as problem:
        exit_with_message(command, 1, str(problem))
    except MemoryError as problem:
        exit_with_message(command, 2, f"task: not enough memory: {one_line(problem)}")
    except Exception as problem:
        if not is_expected(problem):
            _exit_with_internal_error(command, problem)
        exit_with_message(command, 2, one_line(problem) + _suggestion(getattr(problem, "override", None)))


def _check_environment() -> None:
    """Raise UserError for environment variables with which Numba cannot be imported."""
    threads = os.environ.get("NUMBA_NUM_THREADS", "")
    if threads.strip().lstrip("+-").isdecimal() and int(threads) < 1:
        raise UserError(f"NUMBA_NUM_THREADS: got {threads!r}, must be a whole number of at least 1")


def _exit_with_internal_error(command: str, problem: Exception) -> NoReturn:
    """Append the traceback to the log file and exit with a message that names the file, and with code 1.

    With code 2 if a plug-in raised the exception; the message then names its file and line.
    """
    from fco_cli.problem.registry import plugin_line

    path, place = error_log(), plugin_line(problem)
    trace = "".join(traceback.format_exception(problem))
    error = f"{type(problem).__name__}: {one_line(problem)}"
    summary = (f"internal error: {error}" if place is None else f"plugins: {place}: {error}")[:MAX_ERROR_LENGTH]
    code, advice = (1, "please report it with the traceback") if place is None else (2, "the traceback is")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{datetime.now().isoformat(timespec='seconds')} {VERSION}: {sys.argv}\n{trace}\n")
    except OSError:
        print(trace, file=sys.stderr, end="")
        exit_with_message(command, code, f"{summary}; {advice} above", problem)
    exit_with_message(command, code, f"{summary}; {advice} in {path}", problem)


def error_log() -> Path:
    """Return the log file of internal errors, ~/.local/state/fco/log/errors.log on Linux."""
    from platformdirs import user_log_path

    return user_log_path("fco", appauthor=False) / "errors.log"


def _suggestion(argument: str | None) -> str:
    """Return "; did you mean group=option?" for an argument without = that names a group or an option."""
    if argument is None or "=" in argument or argument not in sys.argv[1:]:
        return ""
    following = sys.argv[sys.argv.index(argument) + 1 :][:1]
    candidates = [
        f"{argument}={option}" for option in following if argument in GROUPS and option in options_of(argument)
    ]
    candidates += [f"{group}={argument}" for group in GROUPS if argument in options_of(group)]
    return f"; did you mean {' or '.join(candidates)}?" if candidates else ""


def exit_with_message(command: str, exit_code: int, message: str, cause: BaseException | None = None) -> NoReturn:
    """Print a one-line message to stderr (for a failed sweep, a line per run) and exit."""
    printable = "".join(c if c.isprintable() or (c == "\n" and exit_code == 1) else repr(c)[1:-1] for c in message)
    print(f"{command}: {printable}", file=sys.stderr)
    raise SystemExit(exit_code) from cause


def exit_process(command: str) -> None:
    """Exit without freeing all objects, which takes Python 0.1 s.

    If other threads are running, return, so that Python waits for them.
    """
    if threading.active_count() == 1:
        with one_line_errors(command):
            atexit._run_exitfuncs()
            flush_streams()
            os._exit(0)


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
            handlers = [
                handler for handler in logging.getLogger().handlers if getattr(handler, "stream", None) is stream
            ]
            setattr(sys, name, kind(stream.detach(), errors="backslashreplace", **options))
            for handler in handlers:  # in processes of other launchers Hydra has configured them before
                vars(handler)["stream"] = getattr(sys, name)


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


def add_columns(command: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the options for all roles except client and weights, and return their group."""
    tables = command.add_argument_group("roles of the columns of a table; all other columns are features")
    label = tables.add_mutually_exclusive_group()
    label.add_argument("--label", default="y", metavar="COLUMN", help="label (default: %(default)s)")
    label.add_argument(
        "--positive", dest="label", metavar="CONDITION", help="condition that defines a binary label, such as 'num>0'"
    )
    event = "event indicator (0 or 1), or a condition such as 'status==2'; the label is then a time"
    tables.add_argument("--event", metavar="COLUMN", help=event)
    tables.add_argument(
        "--split", default="split", metavar="COLUMN", help="train, val or test; optional (default: %(default)s)"
    )
    for option, meaning in (
        ("drop", "column to ignore"),
        ("categorical", "categories, or classes of the label, that are written as numbers"),
    ):
        tables.add_argument(
            f"--{option}", default=[], action="append", metavar="COLUMN", help=f"{meaning}; may be repeated"
        )
    tables.add_argument(
        "--patient", metavar="COLUMN", help="patient of each row; rows of one patient stay together in splits and folds"
    )
    cells = command.add_argument_group("cells and names of a table")
    missing = "additional missing-value marker: a text, a number, or chol:0 for one column; may be repeated"
    cells.add_argument("--missing", default=[], action="append", metavar="WORD", help=missing)
    cells.add_argument(
        "--decimal", metavar="MARK", help="decimal separator, . or , (default: recognized in every column)"
    )
    derive = "column from two dates: 'age=years_between(birth, admission)', or days_between; may be repeated"
    cells.add_argument("--derive", default=[], action="append", metavar="RULE", help=derive)
    rename = "new name of a column, old=new, or of a text in a column, sex:M=male; may be repeated"
    cells.add_argument("--map", default=[], action="append", metavar="RULE", help=rename)
    cells.add_argument(
        "--fold-case", action="store_true", help="names of clients, categories and classes are equal in any case"
    )
    cells.add_argument("--names", default="", metavar="A,B,...", help="column names of a table without a header")
    return tables


def columns_of(options: argparse.Namespace) -> Columns:
    """Return the column roles of the parsed options."""
    from fco_cli.data.readers.source import Columns

    missing = tuple("--" if text == [] else text for text in options.missing)  # argparse reads --missing=-- as []
    lists = (tuple(options.drop), tuple(options.categorical), missing)
    names = tuple(name.strip() for name in options.names.split(",")) if options.names else ()
    client, weights = getattr(options, "client", "client"), getattr(options, "weights", None)
    return Columns(
        options.label, client, options.split, weights, *lists, names, event=options.event, patient=options.patient,
        decimal=options.decimal, derive=tuple(options.derive), map=tuple(options.map), fold_case=options.fold_case,
    )  # fmt: skip
