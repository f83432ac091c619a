"""fco-track: send finished records to a tracker, such as those that it missed while it was unavailable."""

from __future__ import annotations

import argparse
from pathlib import Path

from fco_cli.commands.shell import Parser, handle_version_and_help, one_line_errors, print_line
from fco_cli.errors import UserError, require


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; invalid input exits with code 2 and one line, a failed upload with code 1."""
    with one_line_errors("fco-track"):
        if not handle_version_and_help():
            track(_parser().parse_args(arguments))


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = Parser(prog="fco-track", description=__doc__.split(": ", 1)[1].capitalize())
    parser.add_argument("--version", action="store_true", help="print the version")
    parser.add_argument("folder", type=Path, help="folder of records; its runs appear together")
    parser.add_argument("settings", nargs="+", help="tracking=mlflow tracking.uri=..., as for fco-run")
    return parser


def track(options: argparse.Namespace) -> None:
    """Send the records below a folder that the tracker does not have."""
    from fco_cli.config import register
    from fco_cli.config.compose import check_overrides, compose
    from fco_cli.errors import SweepFailed
    from fco_cli.experiments import tracking_of
    from fco_cli.reporting import collect
    from fco_cli.reporting.tracked import sweep_figures, tracked_run
    from fco_cli.tracking import Sweep, Upload

    register()
    for text in options.settings:
        require(text.startswith(("tracking=", "tracking.")), "settings", text, "tracking=... and tracking.key=...")
    check_overrides(options.settings)
    tracking = tracking_of([compose(options.settings)])
    require(tracking.is_active, "tracking", tracking.name, "another: the tracker that the records are sent to")
    require(options.folder.is_dir(), "folder", str(options.folder), "a folder of records")
    runs = [tracked_run(run) for study in collect([options.folder]).studies for run in study.runs]
    if not runs:
        raise UserError(f"folder: {options.folder} has no finished records; run fco-run first, or give another folder")
    upload = Upload(tracking, Sweep.of({run.experiment for run in runs}, [run.run_id for run in runs]))
    upload.add(runs)
    upload.close(lambda: sweep_figures([options.folder]))
    if upload.failed:
        raise SweepFailed(f"{len(runs) - upload.count} of {len(runs)} runs were not sent")
    others = "; it had the others" if upload.count < len(runs) else ""
    print_line(f"{upload.count} of {len(runs)} runs sent to {tracking.destination}{others}")


if __name__ == "__main__":
    main()
