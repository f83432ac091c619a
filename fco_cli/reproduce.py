"""fco-reproduce: every experiment whose data are at hand, then one report of all (`make reproduce-figures`)."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from fco_cli.help import options_of

FIXED_SCALE = ("curse", "curse_one_epoch", "theory")  # made of a few short runs: a smaller scale is no use


def main() -> None:
    """Run what is missing, report what is there, and say what was left out and why."""
    parser = argparse.ArgumentParser(prog="fco-reproduce", description=__doc__)
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
        command = [sys.executable, "-m", "fco_cli.run", "-m", f"experiment={name}", f"profile={profile}"]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        sys.stderr.write(done.stderr)
        if done.returncode == 2:
            skipped[name] = done.stderr.strip().splitlines()[-1].removeprefix("fco-run: ")
            continue
        if done.returncode > 2:
            sys.exit(done.returncode)
        failed |= done.returncode != 0
        folders.append(f"outputs/{name}" if profile == "paper" else f"outputs/{profile}/{name}")
    if folders:
        report = [sys.executable, "-m", "fco_cli.reporting.cli", *folders, "--output", "outputs/report"]
        failed |= subprocess.run(report).returncode != 0
        shutil.copytree("outputs/report/figures", Path("outputs/figures"), dirs_exist_ok=True)
    for name, reason in skipped.items():
        print(f"skipped {name}: {reason}")
    sys.exit(1 if failed else 0)


def _end(exit_code: int, message: str) -> int:
    print(f"fco-reproduce: {message}", file=sys.stderr)
    return exit_code


if __name__ == "__main__":
    main()
