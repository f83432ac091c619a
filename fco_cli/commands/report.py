"""The command `fco-report`: figures, tables, the claims ledger and an HTML page from records."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fco_cli.commands.shell import Parser, handle_version_and_help, one_line_errors, print_line, table_console
from fco_cli.errors import UserError
from fco_cli.files import escape_unprintable
from fco_cli.help import options_of

if TYPE_CHECKING:
    from fco_cli.reporting import Entry, RecordedStudy, Report, Results, Study

OUTPUTS = Path("outputs")
MAX_LISTED = 10  # unreadable records listed on the terminal; the page lists all


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = Parser(
        prog="fco-report",
        description="Turn the records of fco-run into figures, tables, a claims ledger and one page.",
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    parser.add_argument(
        "sources", nargs="*", metavar="FOLDER|EXPERIMENT", default=[str(OUTPUTS)],
        help="folders of records, or experiments, whose records are in outputs/NAME (default: outputs)",
    )  # fmt: skip
    parser.add_argument(
        "--output",
        type=Path,
        default=OUTPUTS / "report",
        metavar="DIR",
        help="folder of the report (default: outputs/report)",
    )
    parser.add_argument(
        "--csv", type=Path, metavar="FILE", help="also write a row per run, with every key of its configuration"
    )
    parser.add_argument(
        "--claims",
        action="store_true",
        help="print the claims of the paper about the experiments that were run, and always add the ledger to the page",
    )
    parser.add_argument(
        "--study", type=Path, action="append", default=[], metavar="DIR",
        help="add the sections and claims of a study of your own: a folder with study.py (docs/reporting.md)",
    )  # fmt: skip
    parser.add_argument(
        "--claims-file", type=Path, action="append", default=[], metavar="FILE",
        help="add the claims of a YAML file to the ledger (docs/reporting.md)",
    )  # fmt: skip
    parser.add_argument(
        "--leaderboard-archive", type=Path, metavar="FILE",
        help="also write the records, tables and data card of the leaderboard as a zip file",
    )  # fmt: skip
    parser.add_argument(
        "--row", action="store_true", help="draw the panels of curves in one row and without a title, as in a paper"
    )
    parser.add_argument(
        "--x", choices=("rounds", "bytes", "seconds"), default="rounds", help="x axis of the curves (default: rounds)"
    )
    return parser


def main(arguments: list[str] | None = None) -> None:
    """Run the command; print one line and exit with code 2 on invalid input."""
    with one_line_errors("fco-report"):
        if not handle_version_and_help():
            report(make_parser().parse_args(arguments))


def report(options: argparse.Namespace) -> None:
    """Read the records, write the report and print its summary."""
    from fco_cli.files import file_status
    from fco_cli.reporting import collect, make_report

    for path in filter(None, (options.csv, options.leaderboard_archive)):
        file_status(path)  # raises for an invalid path before the work starts
    studies = _studies(options)
    folders = [folder for source in options.sources if (folder := _folder_of(source))]
    results = collect(folders)
    _print_left_out(results.left_out)
    if not (results.studies or results.paths or results.glms or results.tables):
        sources = ", ".join(options.sources)
        raise UserError(f"{sources}: no finished records found; create some with: fco-run -m experiment=lasso_i")
    if options.x == "seconds" and not any(run.has_times for study in results.studies for run in study.runs):
        raise UserError("--x seconds: no run has simulated seconds; run with time_model=lognormal or file")
    output = make_report(results, options.output, studies, options.x, options.claims, options.row)
    _print_left_out(results.damaged)
    if options.csv:
        _write_csv(results, options.csv)
    if options.leaderboard_archive:
        _write_archive(results, output, options.leaderboard_archive)
    if options.claims and (entries := [entry for entry in output.ledger if entry.has_records]):
        _print_ledger(entries)
    _print_summary(results, output)


def _studies(options: argparse.Namespace) -> list[Study]:
    """Return the studies of the report: those that ship, those of plug-ins and those of the command line."""
    from fco_cli.reporting import load_claims, load_study
    from fco_cli.studies import all_studies

    return [*all_studies(), *map(load_study, options.study), *map(load_claims, options.claims_file)]


def _folder_of(source: str) -> Path | None:
    """Return the folder of a source on the command line; None for a shipped experiment that has not been run."""
    for folder in (Path(source), OUTPUTS / source):
        if os.path.isdir(folder):  # False for invalid file names, where Path.is_dir raises
            return folder
    if source in options_of("experiment"):
        return None
    known = ", ".join(options_of("experiment"))
    raise UserError(f"{source}: neither a folder nor an experiment; the experiments are {known}")


def _print_left_out(left_out: list[tuple[Path, str]]) -> None:
    for path, reason in left_out[:MAX_LISTED]:
        print(f"fco-report: left out {escape_unprintable(str(path))}: {reason}", file=sys.stderr)
    if len(left_out) > MAX_LISTED:
        print(f"fco-report: left out {len(left_out) - MAX_LISTED} more, listed in the page", file=sys.stderr)


def _write_csv(results: Results, path: Path) -> None:
    from fco_cli.files import write_atomically
    from fco_cli.reporting import as_csv

    write_atomically(path, as_csv(results.table()).encode())


def _write_archive(results: Results, output: Report, path: Path) -> None:
    from fco_cli.studies.leaderboard.archive import archive

    records = archive(results, output.folder, path)
    print_line(f"archive: {path}: {records} records of the leaderboard, tables and data card")


def _print_ledger(ledger: list[Entry]) -> None:
    from rich.table import Table

    table = Table()
    for heading in ("claim", "experiment", "verdict", "claimed", "measured"):
        table.add_column(heading)
    for entry in ledger:
        table.add_row(entry.claim.id, entry.experiment, entry.label, entry.claimed or "-", entry.measured)
    console = table_console()
    if not console.is_terminal:
        console.width = 200  # files and pipes have no width
    console.print(table)


def _is_paper_experiment(name: str) -> bool:
    from fco_cli.studies.leaderboard import LEADERBOARD
    from fco_cli.studies.yuan2021 import SEARCH

    return name not in ("theory", "path", "glm", "table1") and not name.startswith((SEARCH, LEADERBOARD))


def _print_summary(results: Results, output: Report) -> None:
    """Print the figures of every study, the verdicts on the paper's claims if any, and the output paths."""
    for study in results.studies:
        owner = output.owners.get(study.slug, "")
        kinds = output.contents.get(study.slug, [owner] if owner in output.contents else [])
        if kinds:
            print_line(f"{study.slug}: {', '.join(kinds)} from {_runs(study)}")
    known = {*output.owners.values(), *(study.slug for study in results.studies)}
    for slug, kinds in output.contents.items():
        if slug not in known:
            print_line(f"{slug}: {', '.join(kinds)}")
    if output.ledger:
        _print_claims(results, output.ledger)
    print_line(f"figures: {output.page.parent / 'figures'}")
    print_line(f"report: {output.page}")


def _runs(study: RecordedStudy) -> str:
    """Describe a study's number of runs and, for a shipped experiment, its profile."""
    from fco_cli.reporting import is_shipped

    count = f"{len(study.runs)} run{'s' * (len(study.runs) > 1)}"
    return f"{count}, profile {study.profile}" if is_shipped(study) else count


def _print_claims(results: Results, ledger: list[Entry]) -> None:
    from fco_cli.reporting import headline

    missing = [name for name in options_of("experiment") if _is_paper_experiment(name) and results.study(name) is None]
    if missing:
        print_line(f"not run: {', '.join(missing)}")
        print_line(f"  run each with: fco-run -m experiment={missing[0]}, then fco-report again")
    print_line(f"claims: {headline(ledger)}")


if __name__ == "__main__":
    main()
