"""Run every experiment whose data are available, then write one report (`make reproduce-figures`).

With --leaderboard: compare all methods (`make leaderboard`). With --algo: a method, such as that of your own file,
on these problems with their certified optimum.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fco_cli.commands.shell import (
    Parser,
    exit_with_message,
    handle_version_and_help,
    one_line_errors,
    print_line,
    register_plugins,
)
from fco_cli.errors import UserError
from fco_cli.help import options_of
from fco_cli.simulation.process import SIGNALS

FCO_RUN = [sys.executable, "-m", "fco_cli.commands.run"]
FIGURES = Path("outputs/figures")
REPORT = Path("outputs/report")
TABLE = REPORT / "tables" / "leaderboard.csv"
OPTIMUM = "optimum"
FIXED_SCALE = ("curse", "curse_one_epoch", "theory")  # short experiments, run at full scale unless profile=quick
QUICK = ("lasso_i", "nuclear_i", "fmri_sim", "curse")  # default experiments at profile=quick
QUICK_LEADERBOARD = ("few_rounds", "successors", "successors_low_rank_i")  # those of --leaderboard at profile=quick
QUICK_WITH_MODEL = ("successors_digits",)  # with --model: the metrics of the others need their own models
QUICK_COST = "most of the time is the compilation of about 40 methods, once on this machine"


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


@dataclass
class Outcome:
    """Experiments that succeeded, those that were skipped or failed, with the reasons, and folders of records."""

    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    succeeded: set[str] = field(default_factory=set)
    folders: list[str] = field(default_factory=list)


def reproduce(options: argparse.Namespace) -> None:
    """Run the missing experiments, write the report, and print what was skipped or failed and why."""
    if options.leaderboard and options.profile == "quick":
        print(f"leaderboard, one seed: {', '.join(options.experiments)}; {QUICK_COST}", flush=True)
    outcome = Outcome({} if options.download else _missing_data(options.experiments))
    for name in options.experiments:
        if name not in outcome.skipped:
            _run(name, options, outcome)
    folders, failed = outcome.folders, outcome.failed
    if any(Path(folder).name != "theory" for folder in folders):
        report = [sys.executable, "-m", "fco_cli.commands.report", *folders, "--output", str(REPORT)]
        if subprocess.run(report).returncode == 0:
            shutil.copytree(REPORT / "figures", FIGURES, dirs_exist_ok=True)
            _print_places(options.methods)
        else:
            failed["the report"] = "see above"
    for name, reason in outcome.skipped.items():
        print(f"skipped {name}: {reason}")
    for name, reason in failed.items():
        print(f"fco-reproduce: failed: {name}: {reason}", file=sys.stderr)
    if options.methods and not outcome.succeeded and not failed:
        raise UserError(f"--algo: no experiment was run with {', '.join(options.methods)}; see the reasons above")
    sys.exit(1 if failed else 0)


def _run(name: str, options: argparse.Namespace, outcome: Outcome) -> None:
    """Run one experiment, with every method of --algo in turn: a method that it refuses is skipped."""
    profile = "paper" if name in FIXED_SCALE and options.profile != "quick" else options.profile
    left_out = _left_out(name) if options.methods else {}
    for method in options.methods or [""]:
        label = f"{name} with {method}" if method else name
        if method in left_out:
            outcome.skipped[label] = left_out[method]
            continue
        print(f"== {label}, profile {profile}", flush=True)
        exit_code, final_message = run_experiment(name, profile, [*_algo(name, method), *options.overrides])
        message = final_message.removeprefix("fco-run: ")
        if exit_code > 2 or exit_code < 0:  # ended by a signal, which applies to all experiments
            sys.exit(exit_code)
        if exit_code == 2 and (method or options.overrides):
            outcome.skipped[label] = message
        elif exit_code:
            outcome.failed[label] = message
        else:
            outcome.succeeded.add(name)
    folder = Path(f"outputs/{name}" if profile == "paper" else f"outputs/{profile}/{name}")
    if name == "theory":  # has its own figure
        FIGURES.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("theory.p*"):
            shutil.copy(path, FIGURES)
    if folder.is_dir():
        outcome.folders.append(str(folder))


def _algo(experiment: str, method: str) -> list[str]:
    """Return the override of the algorithm; a problem of the leaderboard also requires its certified optimum."""
    if not method:
        return []
    needs_optimum = _is_leaderboard(experiment) and method != OPTIMUM
    return [f"algo={method},{OPTIMUM}" if needs_optimum else f"algo={method}"]


def _left_out(experiment: str) -> dict[str, str]:
    """Return the methods that the grid of an experiment leaves out, with the reason."""
    from hydra import compose

    from fco_cli.config.compose import initialized_hydra

    with initialized_hydra():
        config = compose("config", [f"experiment={experiment}"], return_hydra_config=True)
    reason = "the method does not support this problem (hydra.sweeper.grid_of: null)"
    return {str(algo): reason for algo, grid in config.hydra.sweeper.grid_of.items() if grid is None}


def _print_places(methods: list[str]) -> None:
    """Print the places of methods on the problems of the leaderboard's table."""
    if not methods or not TABLE.is_file():
        return
    with TABLE.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if row["algo"] in methods:
            count = sum(other["problem"] == row["problem"] for other in rows)
            print_line(f"{row['algo']}: place {row['place']} of {count}, {row['exactness']}: {row['problem']}")


def on_demand() -> tuple[str, ...]:
    """Return prefixes of experiments that run only on request: long ones, and those on the user's data."""
    from fco_cli.studies.leaderboard import Leaderboard
    from fco_cli.studies.yuan2021 import SEARCH

    return SEARCH, *Leaderboard.experiments, "path", "glm", "table1"


def _options(arguments: list[str] | None) -> argparse.Namespace:
    known = options_of("experiment")
    parser = Parser(prog="fco-reproduce", description=__doc__)
    parser.add_argument("--version", action="store_true", help="print the version")
    parser.add_argument(
        "experiments", nargs="*", metavar="EXPERIMENT",
        help=f"default: all but {', '.join(on_demand())}; at profile quick {', '.join(QUICK)}",
    )  # fmt: skip
    parser.add_argument("--profile", choices=options_of("profile"), default="paper")
    parser.add_argument(
        "--leaderboard",
        action="store_true",
        help=f"run the experiments that compare all methods; at profile quick only {', '.join(QUICK_LEADERBOARD)}, "
        f"with --model {', '.join(QUICK_WITH_MODEL)}",
    )
    parser.add_argument(
        "--algo", default="", metavar="NAME|FILE.py",
        help="run only this method, or the methods of a file; problems of the leaderboard are run with their certified "
        "optimum; the report includes all existing records",
    )  # fmt: skip
    parser.add_argument(
        "--model", default="", metavar="FILE.py[:NAME]",
        help="run with this model: the option of the group `model` or the torch.nn.Module of a file; problems "
        "of the leaderboard need a convex one, which `convex = True` in the class states",
    )  # fmt: skip
    parser.add_argument("--download", action="store_true", help="download missing data instead of skipping experiments")
    options = parser.parse_args(arguments)
    options.methods, options.overrides = _methods_and_overrides(options)
    for name in options.experiments:
        if name not in known:
            exit_with_message("fco-reproduce", 2, f"{name}: no such experiment; the experiments are {', '.join(known)}")
    if options.leaderboard:
        problems = [name for name in known if _is_leaderboard(name)]
        quick = QUICK_WITH_MODEL if options.model else QUICK_LEADERBOARD
        options.experiments += [name for name in problems if options.profile != "quick" or name in quick]
    if not options.experiments:
        options.experiments = [name for name in known if not name.startswith(on_demand())]
        if options.profile == "quick":
            options.experiments = list(QUICK)
    return options


def _is_leaderboard(experiment: str) -> bool:
    from fco_cli.studies.leaderboard import Leaderboard

    return experiment.startswith(Leaderboard.experiments)


def _methods_and_overrides(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Return the methods of --algo, and the overrides that load plug-ins and choose the model."""
    plugins: list[str] = []
    methods = _methods(options.algo, plugins) if options.algo else []
    model = _model(options.model, plugins) if options.model else []
    listed = ",".join("'" + path.replace("'", r"\'") + "'" for path in dict.fromkeys(plugins))
    return methods, [*([f"plugins=[{listed}]"] if listed else []), *model]


def _methods(given: str, plugins: list[str]) -> list[str]:
    if given in options_of("algo"):
        return [given]
    if _is_file(given):
        names = _classes_of(given, "algo")
        if not names:
            raise UserError(f"--algo: {given} defines no algorithm with a name (CONTRIBUTING.md)")
        plugins.append(given)
        return names
    register_plugins()
    if given not in options_of("algo"):
        exit_with_message("fco-reproduce", 2, f"--algo: got {given}, must be one of {', '.join(options_of('algo'))}")
    return [given]


def _model(given: str, plugins: list[str]) -> list[str]:
    file, _, name = given.partition(":")
    if name:
        return ["model=torch", f"model.module={given}"]
    if not _is_file(file):
        if file not in options_of("model"):
            known = ", ".join(options_of("model"))
            raise UserError(f"--model: got {file}, must be FILE.py, FILE.py:NAME or one of {known}")
        return [f"model={file}"]
    from fco_cli.problem.models.torch_source import modules_in
    from fco_cli.problem.registry import NothingRegisteredError

    try:
        names, is_plugin = _classes_of(file, "model"), True
    except NothingRegisteredError:
        names, is_plugin = modules_in(Path(file)), False
    if len(names) != 1:
        count = f"{len(names)} models" if names else "no model"
        raise UserError(f"--model: {file} defines {count}; define one ModelChoice, or give FILE.py:NAME of a module")
    if not is_plugin:
        return ["model=torch", f"model.module={file}:{names[0]}"]
    plugins.append(file)
    return [f"model={names[0]}"]


def _is_file(given: str) -> bool:
    return given.endswith(".py") or os.sep in given


def _classes_of(file: str, group: str) -> list[str]:
    """Load a plug-in; return the names of its classes of a group."""
    from fco_cli.problem.registry import FAMILIES, load_plugin

    register_plugins([f"plugins=['{file}']"])
    module = load_plugin(file).module
    return sorted(name for name, kind in FAMILIES[group].classes() if kind.__module__ == module)


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


def run_experiment(name: str, profile: str, more: list[str]) -> tuple[int, str]:
    """Run an experiment and forward its stderr; return its exit code and the last line of stderr."""
    overrides = [f"experiment={name}", f"profile={profile}", *more]
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
