"""Run every experiment whose data are available, then write one report (`make reproduce-figures`).

With --leaderboard: compare all methods (`make leaderboard`).
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fco_cli.commands.shell import (
    Parser,
    exit_with_message,
    handle_version_and_help,
    one_line_errors,
    register_plugins,
)
from fco_cli.errors import UserError
from fco_cli.help import options_of
from fco_cli.simulation.process import SIGNALS

FCO_RUN = [sys.executable, "-m", "fco_cli.commands.run"]
FIGURES = Path("outputs/figures")
FIXED_SCALE = ("curse", "curse_one_epoch", "theory")  # short experiments, run at full scale unless profile=quick
QUICK = ("lasso_i", "nuclear_i", "fmri_sim", "curse")  # default experiments at profile=quick


def main(arguments: list[str] | None = None) -> None:
    """Run the command; print one line and exit with code 2 on invalid input or a path that is not writable."""
    with one_line_errors("fco-reproduce"):
        if handle_version_and_help():
            return
        options = _options(arguments)
        try:
            reproduce(options)
        except OSError as problem:
            if problem.filename is None:  # from standard output, or Hydra's for a missing configuration
                raise
            raise UserError(f"{problem.filename}: cannot be read or written: {problem.strerror}") from problem


def reproduce(options: argparse.Namespace) -> None:
    """Run the missing experiments, write the report, and print what was skipped or failed and why."""
    skipped = {} if options.download else _missing_data(options.experiments)
    failed: dict[str, str] = {}
    folders: list[str] = []
    for name in options.experiments:
        if name in skipped:
            continue
        profile = "paper" if name in FIXED_SCALE and options.profile != "quick" else options.profile
        print(f"== {name}, profile {profile}", flush=True)
        exit_code, final_message = run_experiment(name, profile, options.algo)
        if exit_code > 2 or exit_code < 0:  # ended by a signal, which applies to all experiments
            sys.exit(exit_code)
        if exit_code:
            failed[name] = final_message.removeprefix("fco-run: ")
        folder = Path(f"outputs/{name}" if profile == "paper" else f"outputs/{profile}/{name}")
        if name == "theory":  # has its own figure
            FIGURES.mkdir(parents=True, exist_ok=True)
            for path in folder.glob("theory.p*"):
                shutil.copy(path, FIGURES)
        if folder.is_dir():
            folders.append(str(folder))
    if any(Path(folder).name != "theory" for folder in folders):
        report = [sys.executable, "-m", "fco_cli.commands.report", *folders, "--output", "outputs/report"]
        if subprocess.run(report).returncode == 0:
            shutil.copytree("outputs/report/figures", FIGURES, dirs_exist_ok=True)
        else:
            failed["the report"] = "see above"
    for name, reason in skipped.items():
        print(f"skipped {name}: {reason}")
    for name, reason in failed.items():
        print(f"fco-reproduce: failed: {name}: {reason}", file=sys.stderr)
    sys.exit(1 if failed else 0)


def on_demand() -> tuple[str, ...]:
    """Return prefixes of experiments that run only on request: long ones, and those on the user's data."""
    from fco_cli.studies.leaderboard import Leaderboard
    from fco_cli.studies.yuan2021 import SEARCH

    return SEARCH, *Leaderboard.experiments, "path", "glm", "table1"


def _options(arguments: list[str] | None) -> argparse.Namespace:
    from fco_cli.studies.leaderboard import Leaderboard

    known = options_of("experiment")
    parser = Parser(prog="fco-reproduce", description=__doc__)
    parser.add_argument("--version", action="store_true", help="print the version")
    parser.add_argument(
        "experiments", nargs="*", metavar="EXPERIMENT",
        help=f"default: all but {', '.join(on_demand())}; at profile quick {', '.join(QUICK)}",
    )  # fmt: skip
    parser.add_argument("--profile", choices=options_of("profile"), default="paper")
    parser.add_argument("--leaderboard", action="store_true", help="run the experiments that compare all methods")
    only = "run only this method, which may be one of FCO_PLUGINS; the report includes all existing records"
    parser.add_argument("--algo", default="", help=only)
    parser.add_argument("--download", action="store_true", help="download missing data instead of skipping experiments")
    options = parser.parse_args(arguments)
    if options.algo and options.algo not in options_of("algo"):
        register_plugins()
    if options.algo and options.algo not in options_of("algo"):
        exit_with_message(
            "fco-reproduce", 2, f"--algo: got {options.algo}, must be one of {', '.join(options_of('algo'))}"
        )
    for name in options.experiments:
        if name not in known:
            exit_with_message("fco-reproduce", 2, f"{name}: no such experiment; the experiments are {', '.join(known)}")
    if options.leaderboard:
        options.experiments += [name for name in known if name.startswith(Leaderboard.experiments)]
    if not options.experiments:
        options.experiments = [name for name in known if not name.startswith(on_demand())]
        if options.profile == "quick":
            options.experiments = list(QUICK)
    return options


def _missing_data(experiments: list[str]) -> dict[str, str]:
    """Return the experiments whose data are not on this machine, with the reasons; nothing is run to find out."""
    from hydra import compose
    from omegaconf import OmegaConf

    from fco_cli import theory
    from fco_cli.config.compose import initialized_hydra

    theory.register()
    missing = {}
    with initialized_hydra():
        for name in experiments:
            task = OmegaConf.to_object(compose("config", [f"experiment={name}"]).task)
            if reason := task.missing_data():  # type: ignore[union-attr]
                missing[name] = reason
    return missing


def run_experiment(name: str, profile: str, algo: str = "") -> tuple[int, str]:
    """Run an experiment and forward its stderr; return its exit code and the last line of stderr."""
    overrides = [f"experiment={name}", f"profile={profile}", *([f"algo={algo}"] if algo else [])]
    line = ""
    with (
        subprocess.Popen(
            [*FCO_RUN, "-m", *overrides], stderr=subprocess.PIPE, encoding="utf-8", errors="replace"
        ) as process,
        _forward_signals(process),
    ):
        assert process.stderr is not None
        for line in process.stderr:
            print(line, end="", file=sys.stderr, flush=True)
    return process.returncode, line.strip()


@contextmanager
def _forward_signals(process: subprocess.Popen[str]) -> Iterator[None]:
    """Forward signals to the experiment, which saves its checkpoints and exits; its exit code becomes ours."""

    def forward(number: int, _frame: object) -> None:
        if number == signal.SIGTERM:  # a terminal sends the other signals to both processes
            process.send_signal(number)

    previous = {number: signal.signal(number, forward) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    main()
