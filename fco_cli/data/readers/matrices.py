"""Readers of numeric arrays.

Npz and Npy: the neutral format (data/format.py), as an .npz file or a folder of memory-mapped .npy files.
Svmlight: text files of SVMlight and LIBSVM; a row is `label qid:client column:value column:value ... # comment`.
"""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from fco_cli.data.format import UNASSIGNED, Arrays, check_unique, name_array, shown
from fco_cli.data.readers.cells import Label
from fco_cli.data.readers.source import Format, ReadOptions
from fco_cli.errors import UserError
from fco_cli.memory_limit import in_units, require_memory
from fco_cli.problem.layout import Array

ENCRYPTED = 1  # flag bit of a zip member
DAMAGED = (
    zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError,  # zip archive
    ValueError, SyntaxError, tokenize.TokenError,  # NumPy header, a Python literal
)  # fmt: skip
MAX_HEADER = 10_000  # characters of a .npy header: NumPy's own limit
MAX_LINE = 1 << 25  # characters
ENTRY_BYTES = 32  # memory per entry or row while reading; the lists of scikit-learn grow by doubling


class Npz(Format):
    name, suffix = "an .npz file", ".npz"
    folder_error = "is a folder; give the .npz file in it"
    parser_errors = DAMAGED

    def memory_needed(self, path: Path, options: ReadOptions) -> int:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            check_unique(path, "arrays", [member.filename.removesuffix(".npy") for member in members])
            total = 0
            for member in members:
                name = shown(member.filename)
                if member.flag_bits & ENCRYPTED:
                    raise UserError(f"{path}: {name!r} is encrypted; encrypted .npz files are not supported")
                if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise UserError(f"{path}: {name!r} uses a compression method that NumPy does not support")
                with archive.open(member) as file:
                    total += _declared_bytes(f"{path}: array {name.removesuffix('.npy')!r}", file, member.file_size)
            return total

    def read(self, path: Path, options: ReadOptions) -> Arrays:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}


class Npy(Format):
    """Folder of .npy files, memory-mapped copy-on-write."""

    name, suffix, reads_whole_file = "an .npy file", ".npy", False
    single_file_error = "is one array; give the folder with x.npy, y.npy and client.npy"
    parser_errors = DAMAGED

    def memory_needed(self, path: Path, options: ReadOptions) -> int:
        with path.open("rb") as file:
            _declared_bytes(str(path), file, path.stat().st_size)
        return 0

    def read(self, path: Path, options: ReadOptions) -> Arrays:
        return {path.stem: np.load(path, mmap_mode="c", allow_pickle=False)}

    def join(self, parts: list[tuple[Path, Arrays]]) -> Arrays:
        return {name: array for _, arrays in parts for name, array in arrays.items()}


def _declared_bytes(what: str, file: IO[bytes], size: int) -> int:
    """Return the size in bytes declared by an .npy header; raise UserError for a wrong size or a pickle."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file, max_header_size=MAX_HEADER)
    if dtype.hasobject:
        raise UserError(f"{what} holds Python objects (a pickle), which are never read")
    declared, actual = math.prod(shape) * dtype.itemsize, size - file.tell()
    if declared != actual:
        raise UserError(f"{what} declares {in_units(declared)} but holds {in_units(actual)}")
    return declared


class Svmlight(Format):
    """One file with the client as `qid` of each line, or a folder with one file per client.

    Column k of a file is the feature x<k>. In a file with columns counted from 1, x0 has no entries.
    Labels -1 and 1 become 0 and 1.
    """

    name, suffix, reads_whole_file = "an svmlight file", ".svm", False
    parser_errors = (ValueError, OverflowError)  # raised by scikit-learn

    def memory_needed(self, path: Path, options: ReadOptions) -> int:
        count = 0
        with path.open("rb") as file:
            while line := file.readline(MAX_LINE):
                if len(line) == MAX_LINE:
                    raise UserError(f"{path}: has a line of more than {MAX_LINE} characters")
                count += 1 + line.count(b":")
        return ENTRY_BYTES * count

    def read(self, path: Path, options: ReadOptions) -> Arrays:
        from scipy.sparse import csr_array
        from sklearn.datasets import load_svmlight_file

        # raises ValueError for negative, repeated or unsorted columns
        x, y, query = load_svmlight_file(str(path), zero_based=True, query_id=True)
        if not len(y):
            raise UserError(f"{path}: has no rows")
        require_memory(f"{path}: a model of its {x.shape[1]} features", 8 * x.shape[1])
        arrays = {"x": csr_array(x), "client": _owners(path, query, x.shape[0], options)}
        if not options.labeled:
            return arrays
        meaning = Label.of(options.columns.label, ["y"])
        if meaning.column != "y":
            raise UserError(
                f"{path}: column {shown(meaning.column)!r} not found; the label of an svmlight file is called y"
            )
        classes = {} if meaning.classes is None else {"classes": meaning.classes}
        return arrays | {"y": meaning.apply(y)} | classes

    def join(self, parts: list[tuple[Path, Arrays]]) -> Arrays:
        """Concatenate the rows, padded to a common width: a file may lack entries in its last columns."""
        width = max(arrays["x"].shape[1] for _, arrays in parts)
        for _, arrays in parts:
            arrays["x"].resize(arrays["x"].shape[0], width)
        _, joined = parts[0]
        if len(parts) > 1:
            from scipy.sparse import vstack

            by_row = {
                name: np.concatenate([arrays[name] for _, arrays in parts]) for name in joined.keys() - {"x", "classes"}
            }
            joined |= by_row | {"x": vstack([arrays["x"] for _, arrays in parts], format="csr")}
        if "y" in joined and np.isin(joined["y"], (-1, 1)).all():
            joined["y"] = (joined["y"] > 0).astype(float)
        return joined


class Libsvm(Svmlight):
    name, suffix = "a LIBSVM file", ".libsvm"


def _owners(path: Path, query: Array, rows: int, options: ReadOptions) -> Array:
    if options.columns.dealt or not options.labeled:
        return np.full(rows, UNASSIGNED)
    if len(query) not in (0, rows):
        raise UserError(f"{path}: {len(query)} of its {rows} lines have a qid; all lines or none must have one")
    if options.in_folder:
        if len(query):
            raise UserError(
                f"{path}: has a qid in its lines, but a file in a folder holds one client, named after the file"
            )
        return name_array(path, "client", [path.stem] * rows)
    if not len(query):
        raise UserError(
            f"{path}: its lines have no qid with the client; give a folder with one file per client, or assign "
            "the rows to clients (task.partition)"
        )
    return query.astype(np.str_)
