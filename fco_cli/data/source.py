"""The gate for data files: no reader sees a file that has not been looked at here.

In this order: regular files of one known kind that lie where they seem to lie; what they declare fits into memory and
is in proportion to their size; only then are they read, or hashed. What a parser is known to say of a damaged file
becomes one line that names the file; any other exception is a bug of ours. A format says what is its own (`Format`),
and cannot go round the rest.
"""

from __future__ import annotations

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

from fco_cli.data.format import BY_ROW, Arrays, shown
from fco_cli.errors import UserError
from fco_cli.memory_limit import in_units, require_memory

MAX_RATIO = 200  # of the memory that reading takes to the size on disk, for what takes more than...
SMALL_BYTES = 64 << 20


@dataclass(frozen=True)
class Columns:
    """What the columns and cells of a table mean; all columns that are not named here are features."""

    label: str = "y"  # a column, or a condition on one: num>0
    client: str = "client"  # of a single table
    split: str = "split"  # if there is one
    weights: str | None = None  # how much a row counts
    drop: tuple[str, ...] = ()  # no features
    categorical: tuple[str, ...] = ()  # categories, although they are written as numbers
    missing: tuple[str, ...] = ()  # what stands for a missing value beside the usual: a word, a number, age:0
    names: tuple[str, ...] = ()  # of the columns of a table without a header
    dealt: bool = False  # the rows will be dealt to clients: a client column is left out
    event: str | None = None  # the label is a time; this column, or a condition on one, says what happened at it


@dataclass(frozen=True)
class Wanted:
    """What is to be read of the files."""

    columns: Columns
    clients: Callable[[list[str]], list[str]]  # the chosen ones, from the sorted names of all
    in_folder: bool  # the files of a folder, not one alone
    labelled: bool = True  # False: the features alone, to be predicted from


class Format(ABC):
    """A kind of file, as much of it as is its own."""

    name: ClassVar[str]
    ending: ClassVar[str]
    whole: ClassVar[bool] = True  # a file is in memory as a whole while it is read
    chooses: ClassVar[bool] = False  # the rows of clients who are not wanted are not read
    not_alone: ClassVar[str] = ""  # why a single file is not enough, if so
    not_in_folder: ClassVar[str] = ""  # why a folder will not do, if so
    parser_errors: ClassVar[
        tuple[type[Exception], ...]
    ] = ()  # of a damaged file, beside OSError and UnicodeDecodeError

    def understood(self, path: Path) -> AbstractContextManager[None]:
        """Refuse a file of this kind in one line if its parser does; the parser's errors and no others."""
        return understood(path, self.name, self.parser_errors)

    def files(self, folder: Path) -> list[Path]:
        """Those of a folder that are read."""
        return in_order(folder, self.ending)

    def split_of(self, path: Path) -> str:
        """The part, train or test, for which a file among several stands; empty if it stands for none."""
        return ""

    @abstractmethod
    def needs(self, path: Path, wanted: Wanted) -> int:
        """The bytes of memory that its rows take, by what the file declares; reads no data."""

    @abstractmethod
    def read(self, path: Path, wanted: Wanted) -> Arrays:
        """The arrays of one file."""

    def join(self, parts: list[tuple[Path, Arrays]]) -> Arrays:
        """The rows of all files, one file after another."""
        first_path, first = parts[0]
        if len(parts) == 1:
            return first
        for path, arrays in parts[1:]:
            odd = first.keys() ^ arrays.keys()
            if odd:
                raise UserError(
                    f"{path}: differs from {first_path.name}: only one of them has {', '.join(sorted(odd))}"
                )
            if arrays["x"].shape[1] != first["x"].shape[1]:
                counts = f"{arrays['x'].shape[1]} features, those of {first_path.name} have {first['x'].shape[1]}"
                raise UserError(f"{path}: its samples have {counts}")
        by_row = first.keys() & {"x", *BY_ROW}
        return first | {name: np.concatenate([arrays[name] for _, arrays in parts]) for name in by_row}


@dataclass(frozen=True)
class Source:
    """What a path turned out to be."""

    path: Path
    format: Format
    files: tuple[Path, ...]
    in_folder: bool

    @property
    def size(self) -> int:
        return sum(file.stat().st_size for file in self.files)


def examine(path: Path, formats: Sequence[Format]) -> Source:
    """Which files would be read, and by which format; opens none of them."""
    with understood(path, "a file or folder"):
        if not str(path).isprintable():  # half a character from another encoding, an escape sequence, a line's end
            raise UserError(f"{shown(path)}: a path must be printable text")
        if not path.exists():
            raise UserError(f"{path}: no such file or folder")
        if path.is_dir():
            found = [(kind, files) for kind in formats if (files := kind.files(path))]
        else:
            found = [(kind, [path]) for kind in formats if path.suffix == kind.ending]
        if len(found) != 1:
            kinds = " and ".join(kind.ending for kind, _ in found) or "nothing that is known"
            allowed = ", ".join(kind.ending for kind in formats)
            raise UserError(f"{path}: holds {kinds}; it must hold files of one kind: {allowed}")
        kind, files = found[0]
        if reason := kind.not_in_folder if path.is_dir() else kind.not_alone:
            raise UserError(f"{path}: {reason}")
        for file in files:
            check_file(file)
            if file != path:
                _check_place(file, path)
        return Source(path, kind, tuple(files), path.is_dir())


def check_file(file: Path) -> None:
    """A pipe or a device would never end."""
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{shown(file)}: is not a regular file")
    if status.st_size == 0:
        raise UserError(f"{shown(file)}: is empty")


def _check_place(file: Path, folder: Path) -> None:
    """A link out of a folder would read what nobody meant to give."""
    if not file.name.isprintable():
        raise UserError(f"{folder}: holds {shown(file.name)!r}; a file's name must be printable text")
    if not Path(os.path.realpath(file)).is_relative_to(os.path.realpath(folder)):
        raise UserError(f"{file}: is a link to a file outside of {folder}, which is not followed")


def admit(source: Source, wanted: Wanted) -> None:
    """Refuse what would take too much memory, by what the files declare of themselves."""
    needed = 0
    for file in source.files:
        with source.format.understood(file):
            if source.format.whole:
                require_memory(f"{file}: reading it", file.stat().st_size)
            needed += source.format.needs(file, wanted)
    require_memory(f"{source.path}: reading it", needed)
    if needed > max(SMALL_BYTES, MAX_RATIO * source.size):
        raise UserError(
            f"{source.path}: would take {in_units(needed)} of memory, more than {MAX_RATIO} times its size: looks like "
            "a bomb; if it is not, save it with less compression"
        )


def read_arrays(source: Source, wanted: Wanted) -> Arrays:
    """Let files in, and read them."""
    admit(source, wanted)
    parts = []
    splits = [source.format.split_of(file) if len(source.files) > 1 else "" for file in source.files]
    if any(splits) and not all(splits):
        raise UserError(f"{source.path}: some files stand for `train` or `test`, others do not")
    for file, split in zip(source.files, splits, strict=True):
        with source.format.understood(file):
            arrays = source.format.read(file, wanted)
            parts.append((file, arrays | {"split": np.full(len(arrays["x"]), split)} if split else arrays))
    return source.format.join(parts)


@contextmanager
def understood(path: Path, what: str, expected: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Raise UserError for what the system and a parser say of a damaged file; `expected` are the parser's errors.

    Any other exception is a bug of ours and passes.
    """
    damaged: tuple[type[Exception], ...] = (OSError, UnicodeDecodeError, *expected)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    except UserError:
        raise
    except MemoryError as problem:
        raise UserError(f"{shown(path)}: there is not enough memory to read it") from problem
    except damaged as problem:
        if isinstance(problem, OSError) and problem.strerror:  # the system's word, not a parser's
            raise UserError(f"{shown(path)}: cannot be read: {problem.strerror}") from problem
        if isinstance(problem, UnicodeDecodeError):
            byte = problem.object[problem.start]
            raise UserError(
                f"{shown(path)}: is not UTF-8 text: byte {byte:#04x} is no character; save it as UTF-8"
            ) from problem
        reason = shown(problem) or type(problem).__name__
        raise UserError(f"{shown(path)}: is not {what} that can be read: {reason}") from problem


def in_order(folder: Path, ending: str) -> list[Path]:
    """The files of a folder with an ending, by name, without hidden ones."""
    return sorted(path for path in folder.iterdir() if path.suffix == ending and not path.name.startswith("."))
