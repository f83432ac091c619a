"""fco-report: records become figures, tables, a claims ledger and one page."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fco_cli.commands.shell import Parser, answered, one_line_endings
from fco_cli.commands.streams import say, table_console
from fco_cli.csv_writer import escape_unprintable
from fco_cli.errors import UserError
from fco_cli.help import options_of
from fco_cli.reporting.style import LEADERBOARD, SEARCH

if TYPE_CHECKING:
    from fco_cli.reporting.claims import Entry
    from fco_cli.reporting.report import Report
    from fco_cli.reporting.studies import Results, Study

OUTPUTS = Path("outputs")
NAMED = 10  # unreadable records on the terminal; the page lists all


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="fco-report",
        description="Turn the records of fco-run into figures, tables, a claims ledger and one page.",
    )
    made.add_argument("--version", action="store_true", help="print the version")
    made.add_argument(
        "sources", nargs="*", metavar="FOLDER|EXPERIMENT", default=[str(OUTPUTS)],
        help="folders of records, or names of experiments whose records lie in outputs/NAME (default: outputs)",
    )  # fmt: skip
    made.add_argument("--output", type=Path, default=OUTPUTS / "report", metavar="DIR", help="default: outputs/report")
    made.add_argument(
        "--csv", type=Path, metavar="FILE", help="also write a row per run, with every key of its configuration"
    )
    made.add_argument(
        "--claims",
        action="store_true",
        help="print the claims of the paper on what was run, and add the ledger to the page in any case",
    )
    made.add_argument("--x", choices=("rounds", "bytes"), default="rounds", help="the x axis of the curves")
    return made


def main(arguments: list[str] | None = None) -> None:
    """The command; a wrong input is one line and exit code 2."""
    with one_line_endings("fco-report"):
        if not answered():
            report(parser().parse_args(arguments))


def report(options: argparse.Namespace) -> None:
    """The story of one report."""
    from fco_cli.files import file_status
    from fco_cli.reporting.studies import collect

    if options.csv:
        file_status(options.csv)  # a wrong name is refused before the work
    folders = [folder for source in options.sources if (folder := _folder_of(source))]
    results = collect(folders)
    _name_left_out(results.left_out)
    if not results.studies and not results.search and not results.leaderboard and not results.paths:
        places = ", ".join(options.sources)
        raise UserError(f"{places}: no finished records there; fco-run -m experiment=lasso_i makes some")
    from fco_cli.reporting.report import make_report  # matplotlib takes a while

    made = make_report(results, options.output, options.x, options.claims)
    _name_left_out(made.damaged)
    if options.csv:
        _write_csv(results, options.csv)
    if options.claims and (known := [entry for entry in made.ledger if entry.has_records]):
        _print_ledger(known)
    _print_end(results, made)


def _folder_of(source: str) -> Path | None:
    """The folder that a word of the command line means; None for a shipped experiment that has not been run."""
    for folder in (Path(source), OUTPUTS / source):
        if os.path.isdir(folder):  # False for names that no file can have, where Path.is_dir raises
            return folder
    if source in options_of("experiment"):
        return None
    known = ", ".join(options_of("experiment"))
    raise UserError(f"{source}: neither a folder nor an experiment; the experiments are {known}")


def _name_left_out(left_out: list[tuple[Path, str]]) -> None:
    for path, reason in left_out[:NAMED]:
        print(f"fco-report: left out {escape_unprintable(str(path))}: {reason}", file=sys.stderr)
    if len(left_out) > NAMED:
        print(f"fco-report: left out {len(left_out) - NAMED} more, named in the page", file=sys.stderr)


def _write_csv(results: Results, path: Path) -> None:
    from fco_cli.files import write_atomically
    from fco_cli.reporting.text import as_csv

    write_atomically(path, as_csv(results.table()).encode())


def _print_ledger(ledger: list[Entry]) -> None:
    from rich.table import Table

    table = Table()
    for heading in ("claim", "experiment", "verdict", "claimed", "measured"):
        table.add_column(heading)
    for entry in ledger:
        table.add_row(entry.claim.id, entry.experiment, entry.said, entry.claimed or "-", entry.measured)
    console = table_console()
    if not console.is_terminal:
        console.width = 200  # a file or a pipe has no width of its own
    console.print(table)


def _of_the_paper(name: str) -> bool:
    return name not in ("theory", "path") and not name.startswith((SEARCH, LEADERBOARD))


def _print_end(results: Results, made: Report) -> None:
    """Print what was drawn from which records, then the verdict on the paper's claims if there is one."""
    for study in results.studies:
        kinds = ", ".join(one.kind for one in made.figures if one.study is study)
        say(f"{study.slug}: {kinds} from {_runs(study)}")
    for study in results.leaderboard:
        say(f"{study.slug}: leaderboard from {_runs(study)}")
    for path, drawn in made.paths:
        say(f"{path.slug}: {', '.join(drawn)}")
    if made.ledger:
        _print_claims(results, made.ledger)
    say(f"figures: {made.page.parent / 'figures'}")
    say(f"report: {made.page}")


def _runs(study: Study) -> str:
    """Return how many runs a study has, and the profile of a shipped experiment."""
    from fco_cli.reporting.design import is_shipped

    count = f"{len(study.runs)} run{'s' * (len(study.runs) > 1)}"
    return f"{count}, profile {study.profile}" if is_shipped(study) else count


def _print_claims(results: Results, ledger: list[Entry]) -> None:
    from fco_cli.reporting.claims import headline

    missing = [name for name in options_of("experiment") if _of_the_paper(name) and results.study(name) is None]
    if missing:
        say(f"not run: {', '.join(missing)}")
        say(f"  each by: fco-run -m experiment={missing[0]}, then fco-report again")
    say(f"claims: {headline(ledger)}")


if __name__ == "__main__":
    main()
