"""Readers of the neutral format (data/format.py): an .npz file, or a folder of memory-mapped .npy files."""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from fco_cli.data.format import Arrays, check_unique, shown
from fco_cli.data.readers.source import Format, ReadOptions
from fco_cli.errors import UserError
from fco_cli.memory_limit import in_units

ENCRYPTED = 1  # flag bit of a zip member
DAMAGED = (
    zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError,  # zip archive
    ValueError, SyntaxError, tokenize.TokenError,  # NumPy header, a Python literal
)  # fmt: skip
MAX_HEADER = 10_000  # characters of a .npy header: NumPy's own limit


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
