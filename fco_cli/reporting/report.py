"""Assembly of a report: sections of records, those of studies, the ledger and the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fco_cli.errors import UserError
from fco_cli.files import write_atomically
from fco_cli.reporting.claims.ledger import Entry, as_markdown
from fco_cli.reporting.objects import Section, Study, errors_of, is_user_study
from fco_cli.reporting.page.inference import glm_section, table1_section
from fco_cli.reporting.page.render import Context, render_page, render_section
from fco_cli.reporting.page.sections import path_section, place_twin_curves, study_sections, sweep_sections
from fco_cli.reporting.records.select import Choice, choose, in_order
from fco_cli.reporting.records.studies import RecordedStudy, Results
from fco_cli.typed_files import MEBIBYTE, BadRecord, read_bounded

PARTS = ("figures", "tables")  # folders of a report
FILES = ".files"  # names of the figures and tables that the report wrote
MAX_LIST_BYTES = 16 * MEBIBYTE


@dataclass
class Report:
    """Contents of a written report."""

    folder: Path
    studies: list[RecordedStudy]  # with sections of their own
    choices: dict[str, dict[str, Choice]]  # by study and algorithm
    contents: dict[str, list[str]] = field(default_factory=dict)  # kinds of figures by section
    owners: dict[str, str] = field(default_factory=dict)  # names of the studies that show the other recorded studies
    ledger: list[Entry] = field(default_factory=list)  # empty if no record is relevant to a claim
    claims_heading: str = ""
    claims_notes: list[str] = field(default_factory=list)
    highlights: list[str] = field(default_factory=list)  # experiments with a figure in the summary

    @property
    def page(self) -> Path:
        return self.folder / "index.html"


def make_report(
    results: Results,
    folder: Path,
    studies: Sequence[Study] = (),
    x: str = "rounds",
    with_claims: bool = False,
    in_row: bool = False,
) -> Report:
    """Write a report to a folder. Figures and tables of an earlier report there are removed.

    Parameters
    ----------
    results : Results
        Records (`collect`).
    folder : Path
        Folder of the report.
    studies : sequence of Study
        Studies whose sections and claims are added. The sections of a user's own study come first.
    x : {"rounds", "bytes", "seconds"}
        The x axis of the curves; seconds are those of the time model.
    with_claims : bool
        Include the claims of every study; by default only of those about whose claims there are records.
    in_row : bool
        Draw the panels of curves in one row and without a title, as in a paper.
    """
    for part in (folder, *(folder / name for name in PARTS)):
        try:
            part.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise UserError(f"--output: {part} cannot be created: {problem.strerror}") from problem
    owners = {
        one.slug: study.name for study in studies for one in results.studies if one.name.startswith(study.experiments)
    }
    shown = [study for study in results.studies if study.slug not in owners]
    order = [algo for study in studies for algo in study.algorithms]
    choices = {study.slug: in_order(choose(study), order) for study in shown}
    highlights = [name for study in studies for name in study.highlights]
    report = Report(folder, shown, choices, owners=owners, highlights=highlights)
    changed = _times_of_change(folder)
    recorded = study_sections(shown, choices, x, results, in_row)
    own = [table1_section(table) for table in results.tables]
    own += [glm_section(glm, results.damaged) for glm in results.glms]
    paths = Counter(path.result["task"] for path in results.paths)
    own += [path_section(path, paths[path.result["task"]] == 1) for path in results.paths] + recorded
    base = own + sweep_sections(shown, choices)
    added = {study: _add_sections(study, results, base) for study in studies}
    report.contents = {
        section.slug: [one.kind or one.name for one in section.figures] + _pages(section)
        for section in [*base, *(one for sections in added.values() for one in sections)]
    }
    place_twin_curves(recorded, results)
    contexts = {section.slug: render_section(folder, section) for section in base}
    before: list[Context] = []
    after: list[Context] = []
    for study, sections in added.items():
        with errors_of(study):
            rendered = [render_section(folder, section, parallel=not is_user_study(study)) for section in sections]
        (before if is_user_study(study) else after).extend(rendered)
    _judge(report, studies, results, with_claims)
    first = [*before, *(contexts[section.slug] for section in own)]
    page = render_page(results, report, [*before, *contexts.values(), *after], first)
    write_atomically(report.page, page.encode())
    _remove_earlier(folder, changed)
    return report


def _times_of_change(folder: Path) -> dict[str, int]:
    """Return when each figure and table of a report's folder was last changed."""
    files = [path for part in PARTS for path in (folder / part).rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.stat().st_mtime_ns for path in files}


def _remove_earlier(folder: Path, before: dict[str, int]) -> None:
    """Remove what an earlier report wrote and this one has not; list what this one has written."""
    after = _times_of_change(folder)
    written = {name for name, changed in after.items() if before.get(name) != changed}
    with suppress(BadRecord, UnicodeDecodeError):  # no list: nothing is removed
        listed = read_bounded(folder / FILES, MAX_LIST_BYTES).decode().splitlines()
        for name in {*listed} & before.keys() - written:
            (folder / name).unlink(missing_ok=True)
    write_atomically(folder / FILES, "".join(f"{name}\n" for name in sorted(written)).encode())


def _add_sections(study: Study, results: Results, base: list[Section]) -> list[Section]:
    """Add the contents of the study's sections without a heading to the report's; return the others."""
    with errors_of(study):
        sections = study.sections(results)
    known = {section.slug: section for section in base}
    for section in sections:
        if not section.heading and section.slug in known:
            known[section.slug].add(section)
    return [section for section in sections if section.heading]


def _pages(section: Section) -> list[str]:
    return [Path(name).stem for name in section.files if name.endswith(".html")]


def _judge(report: Report, studies: Sequence[Study], results: Results, with_claims: bool) -> None:
    """Add the ledger to the report, and write CLAIMS.md if there is one."""
    headings = []
    for study in studies:
        with errors_of(study):
            entries = study.ledger(results)
        if entries and (with_claims or any(entry.has_records for entry in entries)):
            report.ledger += entries
            report.claims_notes += [study.claims_note] if study.claims_note else []
            headings.append(study.claims_heading)
    if report.ledger:
        report.claims_heading = headings[0] if len(headings) == 1 else Study.claims_heading
        write_atomically(report.folder / "CLAIMS.md", as_markdown(report.ledger).encode())
