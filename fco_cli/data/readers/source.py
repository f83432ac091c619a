"""Validation of data files before they are read.

The checks, in this order: files are regular, of one known format, and not links out of their folder; their declared
content fits into memory and is in proportion to their size. Only then are they read or hashed. Known parser errors for
damaged files become a UserError with the file name; any other exception is a bug. Subclasses of `Format` implement
what is specific to a file format.
"""

from __future__ import annotations

import hashlib
import os
import stat
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fco_cli.data.format import ROW_ARRAYS, Arrays, shown
from fco_cli.data.readers.numerals import DECIMALS
from fco_cli.errors import UserError, require
from fco_cli.memory_limit import in_units, require_memory

MAX_RATIO = 200  # of memory for reading to size on disk, if reading takes more than SMALL_BYTES
SMALL_BYTES = 64 << 20
SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".ods")
UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class Columns:
    """Roles of the columns of a table and missing-value markers; all other columns are features."""

    label: str = "y"  # a column, or a condition on one: num>0
    client: str = "client"  # for a single table
    split: str = "split"  # optional
    weights: str | None = None  # sample weights
    drop: tuple[str, ...] = ()  # columns to ignore
    categorical: tuple[str, ...] = ()  # categories that are written as numbers
    missing: tuple[str, ...] = ()  # additional missing-value markers: a text, a number, age:0
    names: tuple[str, ...] = ()  # column names of a table without a header
    dealt: bool = False  # rows will be partitioned into simulated clients; a client column is ignored
    event: str | None = None  # a column or condition: 1 for an event, 0 for censoring; the label is then a time
    patient: str | None = None  # rows of one patient stay together in splits and folds
    decimal: str | None = None  # decimal separator, "." or ","; None: recognized in every column
    derive: tuple[str, ...] = ()  # columns from dates: age=years_between(birth, admission)
    map: tuple[str, ...] = ()  # new names: old=new for a column, column:old=new for a text in it
    fold_case: bool = False  # names of clients, categories and classes that differ only in case are equal

    def __post_init__(self) -> None:
        require(self.decimal in (None, *DECIMALS), "decimal", self.decimal, "one of " + ", ".join(map(repr, DECIMALS)))


@dataclass(frozen=True)
class ReadOptions:
    """Selection of what to read from the files."""

    columns: Columns
    clients: Callable[[list[str]], list[str]]  # selects clients from the sorted names of all
    in_folder: bool  # several files in a folder, not a single file
    labeled: bool = True  # False: only features, for prediction


class Format(ABC):
    """Base class of file formats."""

    name: ClassVar[str]
    suffix: ClassVar[str]
    reads_whole_file: ClassVar[bool] = True  # reading loads the whole file into memory
    selects_clients: ClassVar[bool] = False  # reads only the rows of selected clients
    single_file_error: ClassVar[str] = ""  # error for a single file, if not supported
    folder_error: ClassVar[str] = ""  # error for a folder, if not supported
    parser_errors: ClassVar[
        tuple[type[Exception], ...]
    ] = ()  # for damaged files, in addition to OSError and UnicodeDecodeError

    def as_user_error(self, path: Path) -> AbstractContextManager[None]:
        """Convert the errors of this format's parser for a damaged file into UserError."""
        return as_user_error(path, self.name, self.parser_errors)

    def files(self, folder: Path) -> list[Path]:
        """Return the files of a folder that have this format."""
        return sorted_files(folder, self.suffix)

    def split_of(self, path: Path) -> str:
        """Return the split of a file among several, train or test; empty if it has none."""
        return ""

    @abstractmethod
    def memory_needed(self, path: Path, options: ReadOptions) -> int:
        """Return the bytes of memory for the rows, from the declarations in the file; read no data."""

    @abstractmethod
    def read(self, path: Path, options: ReadOptions) -> Arrays:
        """Read the arrays of one file."""

    def digest(self, path: Path) -> bytes:
        """Return a hash of the content of one file."""
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()

    def join(self, parts: list[tuple[Path, Arrays]]) -> Arrays:
        """Concatenate the rows of all files."""
        first_path, first = parts[0]
        if len(parts) == 1:
            return first
        for path, arrays in parts[1:]:
            different = first.keys() ^ arrays.keys()
            if different:
                raise UserError(
                    f"{path}: differs from {first_path.name}: only one of them has {', '.join(sorted(different))}"
                )
            if arrays["x"].shape[1] != first["x"].shape[1]:
                counts = f"{arrays['x'].shape[1]} features, those of {first_path.name} have {first['x'].shape[1]}"
                raise UserError(f"{path}: its samples have {counts}")
        by_row = first.keys() & {"x", *ROW_ARRAYS}
        return first | {name: np.concatenate([arrays[name] for _, arrays in parts]) for name in by_row}


@dataclass(frozen=True)
class Source:
    """Files of a path and their format."""

    path: Path
    format: Format
    files: tuple[Path, ...]
    in_folder: bool

    @property
    def size(self) -> int:
        """Total size of the files in bytes."""
        return sum(file.stat().st_size for file in self.files)


def find_source(path: Path, formats: Sequence[Format]) -> Source:
    """Return the files to read and their format, without opening them."""
    with as_user_error(path, "a file or folder"):
        if not str(path).isprintable():  # such as surrogates, escape sequences or newlines
            raise UserError(f"{shown(path)}: a path must be printable text")
        if not path.exists():
            raise UserError(f"{path}: no such file or folder")
        if path.is_dir():
            candidates = [(kind, files) for kind in formats if (files := kind.files(path))]
        else:
            candidates = [(kind, [path]) for kind in formats if path.suffix == kind.suffix]
        if len(candidates) != 1:
            kinds = " and ".join(kind.suffix for kind, _ in candidates) or "no known format"
            allowed = ", ".join(kind.suffix for kind in formats)
            if path.suffix.lower() in SPREADSHEETS:
                raise UserError(f"{path}: is a spreadsheet; save its sheet as `CSV UTF-8`")
            raise UserError(f"{path}: holds {kinds}; must hold files of one format: {allowed}")
        kind, files = candidates[0]
        if reason := kind.folder_error if path.is_dir() else kind.single_file_error:
            raise UserError(f"{path}: {reason}")
        for file in files:
            check_file(file)
            if file != path:
                _check_location(file, path)
        return Source(path, kind, tuple(files), path.is_dir())


def check_file(file: Path) -> None:
    """Raise UserError if a file is empty or not a regular file (such as a pipe, which could be endless)."""
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{shown(file)}: is not a regular file")
    if status.st_size == 0:
        raise UserError(f"{shown(file)}: is empty")


def _check_location(file: Path, folder: Path) -> None:
    """Raise UserError if a file in a folder is a link out of it or has an unprintable name."""
    if not file.name.isprintable():
        raise UserError(f"{folder}: holds {shown(file.name)!r}; a file's name must be printable text")
    if not Path(os.path.realpath(file)).is_relative_to(os.path.realpath(folder)):
        raise UserError(f"{file}: is a link to a file outside of {folder}; such links are not followed")


def check_memory(source: Source, options: ReadOptions) -> None:
    """Raise UserError if reading would take too much memory, according to the declarations in the files."""
    needed = 0
    for file in source.files:
        with source.format.as_user_error(file):
            if source.format.reads_whole_file:
                require_memory(f"{file}: reading it", file.stat().st_size)
            needed += source.format.memory_needed(file, options)
    require_memory(f"{source.path}: reading it", needed)
    if needed > max(SMALL_BYTES, MAX_RATIO * source.size):
        raise UserError(
            f"{source.path}: would take {in_units(needed)} of memory, more than {MAX_RATIO} times its size: "
            "possibly a decompression bomb; if not, save it with less compression"
        )


def read_arrays(source: Source, options: ReadOptions) -> Arrays:
    """Check the memory that the files need, and read them."""
    check_memory(source, options)
    parts = []
    splits = [source.format.split_of(file) if len(source.files) > 1 else "" for file in source.files]
    if any(splits) and not all(splits):
        raise UserError(f"{source.path}: all files or none must be named `train` or `test`")
    for file, split in zip(source.files, splits, strict=True):
        with source.format.as_user_error(file):
            arrays = source.format.read(file, options)
            parts.append((file, arrays | {"split": np.full(len(arrays["x"]), split)} if split else arrays))
    return source.format.join(parts)


@contextmanager
def as_user_error(path: Path, what: str, expected: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Convert errors of the system and of a parser into UserError; `expected` are the exceptions of the parser.

    Other exceptions are bugs and propagate.
    """
    damaged: tuple[type[Exception], ...] = (OSError, UnicodeDecodeError, *expected)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    except UserError:
        raise
    except MemoryError as problem:
        raise UserError(f"{shown(path)}: not enough memory to read it") from problem
    except damaged as problem:
        if isinstance(problem, OSError) and problem.strerror:  # from the system, not from a parser
            raise UserError(f"{shown(path)}: cannot be read: {problem.strerror}") from problem
        if isinstance(problem, UnicodeDecodeError):
            byte = problem.object[problem.start]
            kind = "UTF-16" if problem.object[:2] in UTF_16_MARKS else f"not UTF-8 text: invalid byte {byte:#04x}"
            raise UserError(f"{shown(path)}: is {kind}; save it as UTF-8 (`CSV UTF-8` in a spreadsheet)") from problem
        reason = shown(problem) or type(problem).__name__
        raise UserError(f"{shown(path)}: is not {what} that can be read: {reason}") from problem


def sorted_files(folder: Path, suffix: str) -> list[Path]:
    """Return the non-hidden files of a folder with the given suffix, sorted by name."""
    return sorted(path for path in folder.iterdir() if path.suffix == suffix and not path.name.startswith("."))
