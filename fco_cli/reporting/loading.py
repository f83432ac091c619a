"""Loading of a user's study from a folder, and of claims from a file."""

from __future__ import annotations

import importlib
import inspect
import itertools
import os
import sys
import traceback
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fco_cli.errors import UserError
from fco_cli.reporting.objects import CLAIMS, Study
from fco_cli.reporting.text import printable

MODULE = "study"
PACKAGE = "fco_user_study"  # prefix of the modules of users' studies
_numbers = itertools.count(1)


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
    """Import `study.py` as a module of a package of its own; return the subclasses of Study that it defines."""
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
