"""fco-reproduce: every experiment whose data are at hand, then one report of all (`make reproduce-figures`)."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from fco_cli import VERSION
from fco_cli.help import options_of

FIGURES = Path("outputs/figures")
FIXED_SCALE = ("curse", "curse_one_epoch", "theory")  # made of a few short runs: a smaller scale is no use


def main() -> None:
    """Run what is missing, report what is there, and say what was left out and why."""
    parser = argparse.ArgumentParser(prog="fco-reproduce", description=__doc__)
    parser.add_argument("--version", action="version", version=VERSION)
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help="default: all")
    parser.add_argument("--profile", choices=options_of("profile"), default="paper")
    arguments = parser.parse_args()
    known = options_of("experiment")
    for name in arguments.experiments:
        if name not in known:
            sys.exit(_end(2, f"{name}: no such experiment; the experiments are {', '.join(known)}"))
    skipped: dict[str, str] = {}
    folders: list[str] = []
    failed = False
    for name in arguments.experiments or known:
        profile = "paper" if name in FIXED_SCALE else arguments.profile
        print(f"== {name}, profile {profile}", flush=True)
        exit_code, last_words = _run(name, profile)
        if exit_code == 2:
            skipped[name] = last_words.removeprefix("fco-run: ")
            continue
        if exit_code > 2:
            sys.exit(exit_code)
        failed |= exit_code != 0
        if name == "theory":  # draws its own figure
            FIGURES.mkdir(parents=True, exist_ok=True)
            for path in Path("outputs/theory").glob("theory.p*"):
                shutil.copy(path, FIGURES)
        else:
            folders.append(f"outputs/{name}" if profile == "paper" else f"outputs/{profile}/{name}")
    if folders:
        report = [sys.executable, "-m", "fco_cli.commands.report", *folders, "--output", "outputs/report"]
        failed |= subprocess.run(report).returncode != 0
        shutil.copytree("outputs/report/figures", FIGURES, dirs_exist_ok=True)
    for name, reason in skipped.items():
        print(f"skipped {name}: {reason}")
    sys.exit(1 if failed else 0)


def _run(experiment: str, profile: str) -> tuple[int, str]:
    """Run an experiment; its exit code, and the last line of what it said on the way, which is passed on."""
    command = [sys.executable, "-m", "fco_cli.commands.run", "-m", f"experiment={experiment}", f"profile={profile}"]
    line = ""
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            print(line, end="", file=sys.stderr, flush=True)
    return process.returncode, line.strip()


def _end(exit_code: int, message: str) -> int:
    print(f"fco-reproduce: {message}", file=sys.stderr)
    return exit_code


if __name__ == "__main__":
    main()
