"""What the commands share: quick answers, Hydra's entry, one line for every bad end."""

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
from fco_cli.errors import Interrupted, SweepFailed, UserError, is_foreseen, one_line
from fco_cli.help import GROUPS, options_of

if TYPE_CHECKING:
    from omegaconf import DictConfig

Job = Callable[["DictConfig"], Any]
LONGEST_BUG = 400  # characters of an internal error's line
PIPE_CLOSED = 141  # 128 + SIGPIPE, as a shell reports a program that writes to a closed pipe


class Parser(argparse.ArgumentParser):
    """A parser of options that refuses wrong ones in one line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.prog} --help lists the options")


def answered(help_text: Callable[[], str] | None = None) -> bool:
    """Whether the command line asks for the version only, or for help; answered at once, before anything is loaded."""
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
    """Compose the command line's configuration and call `job` with it; with -m, `sweep` with all of them.

    Until all are composed, `expect` is called with some of those that are.
    """
    gc.set_threshold(100_000, 50, 100)  # start-up makes a great many objects and no garbage
    with one_line_endings(command):
        import hydra

        from fco_cli import hydra_on_314, theory
        from fco_cli.config import register
        from fco_cli.config.compose import blaming_words
        from fco_cli.config.words import check_words, quoted

        begun: list[bool] = []  # whether the configuration is composed and our own work has begun

        def guarded(config: DictConfig) -> Any:
            begun.append(True)
            with one_line_endings(command):  # Hydra must not see our exceptions: it would add lines of its own
                return job(config)

        def guarded_sweep(*arguments: Any, **options: Any) -> list[Any]:
            begun.append(True)
            assert sweep is not None
            return sweep(*arguments, **options)

        guarded.sweep = guarded_sweep if sweep else None  # type: ignore[attr-defined]  # the fused launcher looks for it
        guarded.expect = expect  # type: ignore[attr-defined]  # and for this
        sys.argv[1:] = sorted(sys.argv[1:], key=lambda word: word not in ("-m", "--multirun"))  # argparse: flags first
        sys.argv[1:] = map(quoted, sys.argv[1:])
        hydra_on_314.mend()
        os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, and we say it in one line
        register()
        theory.register()
        _compose_once()
        argparse.ArgumentParser.error = _refuse_flag  # type: ignore  # its own prints eight lines
        check_words(sys.argv[1:])
        with blaming_words(begun, "command line"):
            hydra.main(version_base="1.3", config_path="pkg://fco_cli.conf", config_name="config")(guarded)()


def _refuse_flag(_: object, message: str) -> NoReturn:
    raise UserError(f"{message}; --hydra-help lists the flags")


def _compose_once() -> None:
    """Spare Hydra the composition from which it reads nothing but hydra.mode, where only -m could have set that."""
    from hydra._internal.hydra import Hydra

    options = ("-cd", "--config-dir", "-cn", "--config-name", "-cp", "--config-path")  # of a user's own files
    if not any("hydra.mode" in argument or argument.startswith(options) for argument in sys.argv[1:]):
        Hydra.get_mode = lambda self, config_name, overrides: None  # type: ignore[method-assign]


@contextmanager
def one_line_endings(command: str) -> Iterator[None]:
    """Give every way to fail its exit code and one line; a bug also leaves its traceback in a log file."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on Ctrl-C has its line, too
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
        end(command, problem.exit_code, "stopped; the same command continues from what is saved")
    except KeyboardInterrupt:  # before there was anything to save, or a second one
        end(command, 130, "stopped at once")
    except BrokenPipeError:  # the reader has left, as `head` does: nobody is there to be told
        discard_output()
        sys.exit(PIPE_CLOSED)
    except OutputError as problem:
        discard_output()
        end(command, 2, f"standard output: cannot be written: {problem.strerror}")
    except SweepFailed as problem:
        end(command, 1, str(problem))
    except MemoryError as problem:
        end(command, 2, f"task: not enough memory: {one_line(problem)}")
    except Exception as problem:
        if not is_foreseen(problem):
            _end_with_bug(command, problem)
        end(command, 2, one_line(problem) + _meant_by(getattr(problem, "override", None)))


def _check_environment() -> None:
    """Raise UserError for what Numba would answer with a traceback when it is imported."""
    threads = os.environ.get("NUMBA_NUM_THREADS", "")
    if threads.strip().lstrip("+-").isdecimal() and int(threads) < 1:
        raise UserError(f"NUMBA_NUM_THREADS: got {threads!r}, must be a whole number of at least 1")


def _end_with_bug(command: str, problem: Exception) -> NoReturn:
    """Say that it is our fault, and where the traceback is."""
    path = error_log()
    trace = "".join(traceback.format_exception(problem))
    what = f"internal error: {type(problem).__name__}: {one_line(problem)}"[:LONGEST_BUG]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{datetime.now().isoformat(timespec='seconds')} {VERSION}: {sys.argv}\n{trace}\n")
    except OSError:
        print(trace, file=sys.stderr, end="")
        end(command, 1, f"{what}; please report it with the traceback above", problem)
    end(command, 1, f"{what}; please report it with the traceback in {path}", problem)


def error_log() -> Path:
    """Return the file that keeps the tracebacks of internal errors: ~/.local/state/fco/log/errors.log on Linux."""
    from platformdirs import user_log_path

    return user_log_path("fco", appauthor=False) / "errors.log"


def _meant_by(word: str | None) -> str:
    """What a word without = was meant to be, where the word after it or an option of that name tells."""
    if word is None or "=" in word or word not in sys.argv[1:]:
        return ""
    after = sys.argv[sys.argv.index(word) + 1 :][:1]
    meant = [f"{word}={option}" for option in after if word in GROUPS and option in options_of(word)]
    meant += [f"{group}={word}" for group in GROUPS if word in options_of(group)]
    return f"; did you mean {' or '.join(meant)}?" if meant else ""


def end(command: str, exit_code: int, message: str, cause: BaseException | None = None) -> NoReturn:
    """Say why in one line (a failed sweep: a line for each run), and end the process."""
    shown = "".join(c if c.isprintable() or (c == "\n" and exit_code == 1) else repr(c)[1:-1] for c in message)
    print(f"{command}: {shown}", file=sys.stderr)
    raise SystemExit(exit_code) from cause


def leave(command: str) -> None:
    """End the process at once: to take its objects apart, one by one, takes Python a tenth of a second.

    Who has threads is left to Python, which waits for them.
    """
    if threading.active_count() == 1:
        with one_line_endings(command):
            atexit._run_exitfuncs()
            flush_streams()
            os._exit(0)
