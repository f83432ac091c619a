"""What the commands share: quick answers, Hydra's entry, one line for every bad end."""

from __future__ import annotations

import argparse
import atexit
import gc
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from fco_cli import VERSION
from fco_cli.errors import Interrupted, SweepFailed, UserError, is_foreseen, one_line
from fco_cli.help import GROUPS, options_of

if TYPE_CHECKING:
    from omegaconf import DictConfig

Job = Callable[["DictConfig"], Any]


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
    """Every foreseen way to fail has its exit code and says itself in one line."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on Ctrl-C has its line, too
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that knows no Greek gets a number, no traceback
    try:
        yield
    except Interrupted as problem:
        end(command, problem.exit_code, "stopped; the same command continues from what is saved")
    except KeyboardInterrupt:  # before there was anything to save, or a second one
        end(command, 130, "stopped at once")
    except BrokenPipeError:  # who reads has left, as `head` does: nobody is there to be told
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except SweepFailed as problem:
        end(command, 1, str(problem))
    except MemoryError as problem:
        end(command, 2, f"task: not enough memory: {one_line(problem)}")
    except Exception as problem:
        if not is_foreseen(problem):
            raise
        end(command, 2, one_line(problem) + _meant_by(getattr(problem, "override", None)))


def _meant_by(word: str | None) -> str:
    """What a word without = was meant to be, where the word after it or an option of that name tells."""
    if word is None or "=" in word or word not in sys.argv[1:]:
        return ""
    after = sys.argv[sys.argv.index(word) + 1 :][:1]
    meant = [f"{word}={option}" for option in after if word in GROUPS and option in options_of(word)]
    meant += [f"{group}={word}" for group in GROUPS if word in options_of(group)]
    return f"; did you mean {' or '.join(meant)}?" if meant else ""


def end(command: str, exit_code: int, message: str) -> None:
    """Say why in one line (a failed sweep: a line for each run), and end the process."""
    shown = "".join(c if c.isprintable() or (c == "\n" and exit_code == 1) else repr(c)[1:-1] for c in message)
    print(f"{command}: {shown}", file=sys.stderr)
    sys.exit(exit_code)


def leave(command: str) -> None:
    """End the process at once: to take its objects apart, one by one, takes Python a tenth of a second.

    Who has threads is left to Python, which waits for them.
    """
    if threading.active_count() == 1:
        with one_line_endings(command):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
