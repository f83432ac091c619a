"""Parts of a report: sections, figures and tables, made from records, and studies, which define them.

A study is a subclass of `Study`, in this package, in a plug-in, or in a folder of the user's own
(`fco-report --study FOLDER`). Parts hold content only; `page/render.py` writes their files and their HTML.

A user's study is loaded from its folder, claims from a file.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import os
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from fco_cli.errors import UserError
from fco_cli.reporting.claims.claim_tests import KINDS
from fco_cli.reporting.claims.evidence import Test
from fco_cli.reporting.claims.ledger import Claim, Entry, check_test, evaluate, read_claims
from fco_cli.reporting.records.studies import RecordedStudy, Results
from fco_cli.reporting.text import printable
from fco_cli.typed_files import MEBIBYTE, BadRecord, read_bounded

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing
    from pandas import DataFrame

CLAIMS = "claims.yaml"
MAX_CLAIMS_BYTES = 4 * MEBIBYTE
MODULE = "study"
PACKAGE = "fco_user_study"  # prefix of the modules of users' studies
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Figure:
    """A figure: `figures/NAME.png` and `.pdf`, and `.csv` if its numbers are given."""

    name: str
    draw: Callable[[], Drawing] | bytes  # returns a matplotlib figure; or the PNG of a recorded figure, not written
    caption: str = ""
    numbers: DataFrame | None = None  # plotted numbers
    kind: str = ""  # name within its section, such as "curves"
    number: str = ""  # in a publication, such as "Figure 3"
    alt: str = ""  # description for readers who cannot see it; by default the caption
    wide: bool = False  # as wide as a journal page instead of a column
    before: str = ""  # kind of the figure that it precedes when it is added to a section
    alone: bool = False  # replaces the other figures when it is added to a section


@dataclass(frozen=True)
class Table:
    """A table on the page, and in `tables/NAME` in the given formats if it has a name."""

    frame: DataFrame  # cells may be numbers, text, or a Spread, which becomes three columns of the CSV
    name: str = ""
    caption: str = ""
    formats: tuple[str, ...] = ("csv",)  # of csv, md, tex
    shown: DataFrame | None = None  # text on the page; by default the frame with four digits
    folded: bool = False  # shown on request, with the caption as its title


@dataclass
class Section:
    """A section of the page, with its files. Its contents are shown in the order of the fields."""

    slug: str  # identifier, unique in a report
    heading: str = ""  # without one, its contents are added to the section with the same slug
    text: str = ""
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)  # folded, with their headings as titles
    menu: str = ""  # short heading
    number: str = ""  # in a publication, such as "Figure 3"
    command: str = ""  # that creates its records
    warning: str = ""
    links: list[tuple[str, str]] = field(default_factory=list)  # label and file, after the text
    files: dict[str, bytes] = field(default_factory=dict)  # other files below the report's folder; pages are linked
    study: RecordedStudy | None = None  # whose claims, animation and configuration are shown

    def add(self, other: Section) -> None:
        """Add the contents of another section."""
        if alone := [figure for figure in other.figures if figure.alone]:
            self.figures[:] = alone
        else:
            for figure in other.figures:
                kinds = [one.kind for one in self.figures]
                place = kinds.index(figure.before) if figure.before in kinds else len(kinds)
                self.figures.insert(place, figure)
        self.notes += other.notes
        self.tables += other.tables
        self.sections += other.sections
        self.links += other.links
        self.files |= other.files


class Study:
    """Sections and claims about records, such as those of a paper.

    A subclass defines `name` and any of the other members.
    """

    name: ClassVar[str]
    claims_heading: ClassVar[str] = "Claims"
    claims_note: ClassVar[str] = ""  # shown with the ledger
    experiments: ClassVar[tuple[str, ...]] = ()  # prefixes of experiments that only the sections of this study show
    algorithms: ClassVar[tuple[str, ...]] = ()  # the first ones in legends and tables, in this order
    highlights: ClassVar[tuple[str, ...]] = ()  # experiments with a figure in the summary, the first ones available
    tests: ClassVar[tuple[Test, ...]] = ()  # of claims, in addition to those of the library

    def sections(self, results: Results) -> list[Section]:
        """Return the sections, made from the records."""
        return []

    @cached_property
    def claims(self) -> list[Claim]:
        """The claims, by default those of `claims.yaml` in the folder of the class's module."""
        path = Path(inspect.getfile(type(self))).with_name(CLAIMS)
        return self.read_claims(path) if path.is_file() else []

    def read_claims(self, path: Path) -> list[Claim]:
        """Read claims that use the tests of the library and of this study; raise UserError if one is invalid."""
        place = printable(str(path))
        try:
            text = read_bounded(path, MAX_CLAIMS_BYTES).decode()
        except (BadRecord, UnicodeDecodeError) as problem:
            raise UserError(f"{place}: cannot be read: {printable(str(problem))}") from problem
        return read_claims(text, place, self.all_tests)

    def check_claims(self) -> None:
        """Raise UserError if a claim names an unknown test or has arguments that the test does not take."""
        for claim in self.claims:
            check_test(claim, f"{self.name}: {claim.id}", self.all_tests)

    @property
    def all_tests(self) -> dict[str, Test]:
        return KINDS | {test.__name__: test for test in self.tests}

    def undecided(self, study: RecordedStudy) -> str:
        """Return why a recorded study cannot decide claims; empty if it can."""
        return ""

    def ledger(self, results: Results) -> list[Entry]:
        """Return the verdicts on the claims."""
        self.check_claims()
        return evaluate(self.claims, results, self.undecided, self.all_tests)


class ClaimsFile(Study):
    """Claims of a file, without sections."""

    def __init__(self, path: Path) -> None:
        self.name = printable(path.stem)  # type: ignore[misc]  # of the file, not of the class
        self.claims = self.read_claims(path)


def load_claims(path: Path) -> Study:
    """Return a study that consists of the claims of a YAML file."""
    return ClaimsFile(path)


def load_study(folder: Path) -> Study:
    """Return the study that `study.py` in a folder defines; with `claims.yaml` alone, only its claims.

    No other file of the folder is executed, unless `study.py` imports it (`from .figures import ...`).
    """
    place = f"--study: {printable(str(folder))}"
    if not os.path.isdir(folder):  # False for invalid file names, where Path.is_dir raises
        raise UserError(f"{place}: not a folder; give one with a file {MODULE}.py (docs/reporting.md)")
    if not (folder / f"{MODULE}.py").is_file():
        if (folder / CLAIMS).is_file():
            return ClaimsFile(folder / CLAIMS)
        raise UserError(f"{place}: neither {MODULE}.py nor {CLAIMS} found (docs/reporting.md)")
    with user_errors(folder):
        kinds = _studies_in(folder)
        if len(kinds) != 1:
            count = f"{len(kinds)} classes define" if kinds else "no class defines"
            raise UserError(f"{place}: {count} a study; define one subclass of fco_cli.reporting.Study with a name")
        study = kinds[0]()
        study.check_claims()  # before the report is made
    return study


def _studies_in(folder: Path) -> list[type[Study]]:
    """Import `study.py` in a new package; return the subclasses of Study that it defines."""
    package = types.ModuleType(f"{PACKAGE}_{next(_numbers)}")
    package.__path__ = [str(folder.resolve())]
    sys.modules[package.__name__] = package
    name = f"{package.__name__}.{MODULE}"
    members = vars(importlib.import_module(name)).values()
    classes = [one for one in members if isinstance(one, type) and issubclass(one, Study)]
    return [one for one in classes if one.__module__ == name and isinstance(vars(one).get("name"), str)]


def is_user_study(study: Study | type[Study]) -> bool:
    """Return True for a study that was loaded from a folder or a file."""
    kind = study if isinstance(study, type) else type(study)
    return issubclass(kind, ClaimsFile) or kind.__module__.startswith(PACKAGE)


@contextmanager
def errors_of(study: Study) -> Iterator[None]:
    """Convert errors in the code of a user's study to UserError."""
    if not is_user_study(study):
        yield
        return
    with user_errors(Path(inspect.getfile(type(study))).parent):
        yield


@contextmanager
def user_errors(folder: Path) -> Iterator[None]:
    """Convert errors in the code of a folder to UserError, with the last of its lines that was executed."""
    try:
        yield
    except UserError:
        raise
    except Exception as problem:
        text = printable(f"{type(problem).__name__}: {' '.join(str(problem).split())}", max_length=400)
        own = str(folder.resolve())
        lines = [(one.filename, one.lineno) for one in traceback.extract_tb(problem.__traceback__)]
        if isinstance(problem, SyntaxError) and problem.filename:
            lines.append((problem.filename, problem.lineno))
            text = printable(f"SyntaxError: {problem.msg}")
        file, line = next(((f, n) for f, n in reversed(lines) if f.startswith(own)), (own, None))
        where = f"{os.path.relpath(file)}, line {line}" if line else str(folder)
        raise UserError(f"--study: {printable(where)}: {text}") from problem
