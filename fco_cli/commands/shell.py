"""Functions shared by the commands: --version and --help, Hydra's entry point, one-line error messages, exit codes."""

from __future__ import annotations

import argparse
import atexit
import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fco_cli import VERSION
from fco_cli.commands.streams import OutputError, discard_output, flush_streams, prepare_streams
from fco_cli.errors import Interrupted, SweepFailed, UserError, is_expected, one_line
from fco_cli.help import GROUPS, options_of, patch_argparse

if TYPE_CHECKING:
    from omegaconf import DictConfig

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


def run_hydra(
    command: str,
    job: Job,
    sweep: Callable[..., list[Any]] | None = None,
    expect: Callable[..., None] | None = None,
) -> None:
    """Compose the configuration of the command line and call `job` with it; with -m, call `sweep` with all of them.

    `expect` is called with some of the configurations of a sweep while the others are composed.
    """
    gc.set_threshold(100_000, 50, 100)  # start-up creates many objects and little garbage
    with one_line_errors(command):
        import hydra

        from fco_cli import theory
        from fco_cli.config import register
        from fco_cli.config.compose import attribute_errors_to_overrides, check_overrides, quote_condition
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
        # argparse needs flags first
        sys.argv[1:] = sorted(sys.argv[1:], key=lambda argument: argument not in ("-m", "--multirun"))
        sys.argv[1:] = map(quote_condition, sys.argv[1:])
        patch_argparse(_refuse_flag)
        os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises instead of printing
        sys.argv[1:] = load_plugins(sys.argv[1:])
        register()
        theory.register()
        check_overrides(sys.argv[1:])
        with attribute_errors_to_overrides(started, "command line"):
            hydra.main(version_base="1.3", config_path="pkg://fco_cli.conf", config_name="config")(guarded)()


def _refuse_flag(message: str) -> NoReturn:
    """Raise UserError for an invalid flag of Hydra's."""
    raise UserError(f"{message}; --hydra-help lists the flags")


@contextmanager
def one_line_errors(command: str) -> Iterator[None]:
    """Convert every exception to a one-line message and an exit code; log tracebacks of internal errors."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on Ctrl-C prints a message
    prepare_streams()
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
    """Append the traceback to the log file and exit with code 1 and a message that names the file."""
    path = error_log()
    trace = "".join(traceback.format_exception(problem))
    summary = f"internal error: {type(problem).__name__}: {one_line(problem)}"[:MAX_ERROR_LENGTH]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{datetime.now().isoformat(timespec='seconds')} {VERSION}: {sys.argv}\n{trace}\n")
    except OSError:
        print(trace, file=sys.stderr, end="")
        exit_with_message(command, 1, f"{summary}; please report it with the traceback above", problem)
    exit_with_message(command, 1, f"{summary}; please report it with the traceback in {path}", problem)


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
