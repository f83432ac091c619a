"""fco-reproduce: every experiment whose data are at hand, then one report of all (`make reproduce-figures`).

With --leaderboard: the comparison of all methods (`make leaderboard`).
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

from fco_cli.commands.shell import Parser, answered, end, one_line_endings
from fco_cli.errors import UserError
from fco_cli.help import options_of
from fco_cli.reporting.style import LEADERBOARD, SEARCH
from fco_cli.simulation.stop import SIGNALS

FCO_RUN = [sys.executable, "-m", "fco_cli.commands.run"]
FIGURES = Path("outputs/figures")
FIXED_SCALE = ("curse", "curse_one_epoch", "theory")  # made of a few short runs: fewer rounds are no use
QUICK = ("lasso_i", "nuclear_i", "fmri_sim", "curse")  # at profile=quick, unless others are named
ON_DEMAND = (SEARCH, LEADERBOARD, "path")  # those that begin so take as long as all the others, or your data


def main(arguments: list[str] | None = None) -> None:
    """The command; a place that cannot be written to is one line and exit code 2."""
    with one_line_endings("fco-reproduce"):
        if answered():
            return
        options = _options(arguments)
        try:
            reproduce(options)
        except OSError as problem:
            if problem.filename is None:  # of standard output, or Hydra's, for a configuration that it does not find
                raise
            raise UserError(f"{problem.filename}: cannot be read or written: {problem.strerror}") from problem


def reproduce(options: argparse.Namespace) -> None:
    """Run what is missing, report what is there, and say what was left out and what failed, and why."""
    skipped = {} if options.download else _without_data(options.experiments)
    failed: dict[str, str] = {}
    folders: list[str] = []
    for name in options.experiments:
        if name in skipped:
            continue
        profile = "paper" if name in FIXED_SCALE and options.profile != "quick" else options.profile
        print(f"== {name}, profile {profile}", flush=True)
        exit_code, last_words = run_experiment(name, profile, options.algo)
        if exit_code > 2 or exit_code < 0:  # a signal: whoever sent it means all of us
            sys.exit(exit_code)
        if exit_code:
            failed[name] = last_words.removeprefix("fco-run: ")
        folder = Path(f"outputs/{name}" if profile == "paper" else f"outputs/{profile}/{name}")
        if name == "theory":  # draws its own figure
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


def _options(arguments: list[str] | None) -> argparse.Namespace:
    known = options_of("experiment")
    parser = Parser(prog="fco-reproduce", description=__doc__)
    parser.add_argument("--version", action="store_true", help="print the version")
    parser.add_argument(
        "experiments", nargs="*", metavar="EXPERIMENT",
        help=f"default: all but {', '.join(ON_DEMAND)}; at profile quick {', '.join(QUICK)}",
    )  # fmt: skip
    parser.add_argument("--profile", choices=options_of("profile"), default="paper")
    parser.add_argument("--leaderboard", action="store_true", help="the experiments that compare all methods")
    parser.add_argument("--algo", default="", help="run this method alone, and report it with what is there")
    parser.add_argument("--download", action="store_true", help="fetch data that are not here, instead of skipping")
    options = parser.parse_args(arguments)
    if options.algo and options.algo not in options_of("algo"):
        end("fco-reproduce", 2, f"--algo: got {options.algo}, must be one of {', '.join(options_of('algo'))}")
    for name in options.experiments:
        if name not in known:
            end("fco-reproduce", 2, f"{name}: no such experiment; the experiments are {', '.join(known)}")
    if options.leaderboard:
        options.experiments += [name for name in known if name.startswith(LEADERBOARD)]
    if not options.experiments:
        options.experiments = [name for name in known if not name.startswith(ON_DEMAND)]
        if options.profile == "quick":
            options.experiments = list(QUICK)
    return options


def _without_data(experiments: list[str]) -> dict[str, str]:
    """The experiments whose data are not on this machine, and what they wait for; nothing is started to find out."""
    from hydra import compose
    from omegaconf import OmegaConf

    from fco_cli import theory
    from fco_cli.config.compose import shipped

    theory.register()
    missing = {}
    with shipped():
        for name in experiments:
            task = OmegaConf.to_object(compose("config", [f"experiment={name}"]).task)
            if reason := task.missing_data():  # type: ignore[union-attr]
                missing[name] = reason
    return missing


def run_experiment(name: str, profile: str, algo: str = "") -> tuple[int, str]:
    """Run an experiment; its exit code, and the last line of what it said on the way, which is passed on."""
    words = [f"experiment={name}", f"profile={profile}", *([f"algo={algo}"] if algo else [])]
    line = ""
    with (
        subprocess.Popen(
            [*FCO_RUN, "-m", *words], stderr=subprocess.PIPE, encoding="utf-8", errors="replace"
        ) as process,
        _passing_on_signals_to(process),
    ):
        assert process.stderr is not None
        for line in process.stderr:
            print(line, end="", file=sys.stderr, flush=True)
    return process.returncode, line.strip()


@contextmanager
def _passing_on_signals_to(process: subprocess.Popen[str]) -> Iterator[None]:
    """The experiment saves its checkpoints and ends, and we end with its exit code."""

    def pass_on(number: int, _frame: object) -> None:
        if number == signal.SIGTERM:  # a terminal sends the others to both of us
            process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    main()
