"""The neutral format of clients' data: an .npz file with a row per sample.

    x         [N, d]  numbers: the features
    y         [N]     numbers: the labels (classes are 0, 1, 2, ...)
    client    [N]     whose row it is: names or whole numbers
    split     [N]     optional: train, val or test
    features  [d]     optional: the features' names
    classes   [C]     optional: the classes' names

A folder with these arrays as x.npy, y.npy, ... is the same, read by memory map: x may be larger than the memory.
Everything is read without pickle, an .npz file not before its size is known. Whatever is wrong is said in one line that
names the file and, where there is one, the client and the row (counted from 0).
"""

from __future__ import annotations

import io
import zipfile
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NoReturn

import numpy as np

from fco_cli.errors import UserError
from fco_cli.files import write_atomically
from fco_cli.problem.data import ClientData
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss

NEEDED, OPTIONAL = ("x", "y", "client"), ("split", "features", "classes")
SPLITS = ("train", "val", "test")
MAX_BYTES = 8 << 30  # of all arrays together
MAX_RATIO = 200  # of compression, for files that unpack to more than...
SMALL_BYTES = 64 << 20
ROWS_AT_ONCE = 4096

Arrays = dict[str, Array]  # by the names above, not yet checked


@dataclass(frozen=True)
class FederatedData:
    """Rows of many clients, checked; `source` is the file that messages name."""

    source: str
    x: Array
    y: Array
    client: Array  # strings
    split: Array | None = None
    features: Array | None = None
    classes: Array | None = None

    @cached_property
    def clients(self) -> Array:
        """The clients' names, sorted."""
        return np.unique(self.client)

    @property
    def feature_names(self) -> list[str]:
        return [f"x{k}" for k in range(self.x.shape[1])] if self.features is None else self.features.tolist()

    def fail(self, row: int, problem: str) -> NoReturn:
        """The one wording for a bad row."""
        raise UserError(f"{self.source}: client {str(self.client[row])!r}, row {row}: {problem}")

    def take(self, rows: Array) -> FederatedData:
        """Some of the rows, by mask or index; all of them stay where they are, be it on disk."""
        if rows.dtype == bool and rows.all():
            return self
        split = None if self.split is None else self.split[rows]
        parts = (self.x[rows], self.y[rows], self.client[rows], split, self.features, self.classes)
        return FederatedData(self.source, *parts)

    def as_clients(self, dtype: str) -> ClientData:
        """One client after another, sorted by name; rows keep their order."""
        _, member, sizes = np.unique(self.client, return_inverse=True, return_counts=True)
        start = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        x, y = self.x, self.y
        if (np.diff(member) < 0).any():
            order = np.argsort(member, kind="stable")
            x, y = x[order], y[order]
        return ClientData(np.ascontiguousarray(x, dtype), np.ascontiguousarray(y, dtype), start)


def load(path: Path) -> FederatedData:
    """Read and check a file in the neutral format."""
    return from_arrays(str(path), read_arrays(Path(path)))


def read_arrays(path: Path) -> Arrays:
    """The arrays of an .npz file, no larger than it said before they were read."""
    _check_before_reading(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as problem:
        raise UserError(f"{path}: cannot be read: {problem}") from problem


def map_arrays(folder: Path) -> Arrays:
    """The arrays of a folder of .npy files, left on disk; what is written to them stays in memory."""
    try:
        return {path.stem: np.load(path, mmap_mode="c", allow_pickle=False) for path in sorted(folder.glob("*.npy"))}
    except (OSError, ValueError, EOFError) as problem:
        raise UserError(f"{folder}: cannot be mapped: {problem}") from problem


def save(data: FederatedData, path: Path) -> None:
    """Write the file, whole or not at all."""
    optional = {name: getattr(data, name) for name in OPTIONAL if getattr(data, name) is not None}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, x=data.x, y=data.y, client=data.client, **optional)
    write_atomically(Path(path), buffer.getvalue())


def _check_before_reading(path: Path) -> None:
    """Refuse by the sizes that the file declares, before a byte of an array is unpacked."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            total = sum(member.file_size for member in members)
            if total > MAX_BYTES:
                raise UserError(f"{path}: unpacks to {total / 1e9:.1f} GB; at most {MAX_BYTES / 1e9:.1f} GB are read")
            if total > SMALL_BYTES and total > MAX_RATIO * path.stat().st_size:
                raise UserError(f"{path}: unpacks to more than {MAX_RATIO} times its size: looks like a zip bomb")
            for member in members:
                _check_header(path, archive, member)
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, zlib.error) as problem:
        raise UserError(f"{path}: is not an .npz file that can be read: {problem}") from problem


def _check_header(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    name = member.filename.removesuffix(".npy")
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        held = member.file_size - file.tell()
    if dtype.hasobject:
        raise UserError(f"{path}: array {name!r} holds Python objects (a pickle), which are never read")
    declared = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if declared != held:
        raise UserError(f"{path}: array {name!r} declares {declared / 1e9:.3g} GB but holds {held / 1e9:.3g} GB")


def from_arrays(source: str, arrays: Arrays, min_samples: int = 0) -> FederatedData:
    """Check everything that does not depend on the loss, without clients of fewer than `min_samples` rows."""
    for name in NEEDED:
        if name not in arrays:
            raise UserError(f"{source}: array {name!r} is missing; needed are x, y and client")
    for name in arrays:
        if name not in NEEDED + OPTIONAL:
            raise UserError(f"{source}: array {name!r} is unknown; beside x, y and client there are {_list(OPTIONAL)}")
    x, y, client = arrays["x"], arrays["y"], arrays["client"]
    _shape(source, "x", x, x.ndim == 2 and x.size > 0, "rows and columns, [N, d]")
    for name in ("y", "client", "split"):
        if name in arrays:
            array = arrays[name]
            _shape(source, name, array, array.shape == (len(x),), f"a value for each of the {len(x)} rows of x")
    for name in OPTIONAL[1:]:
        if name in arrays:
            arrays[name] = _names(source, name, arrays[name])
            _shape(source, name, arrays[name], arrays[name].ndim == 1, "a list of names")
    if "features" in arrays and len(arrays["features"]) != x.shape[1]:
        raise UserError(f"{source}: array 'features' has {len(arrays['features'])} names for {x.shape[1]} columns of x")
    for name in ("x", "y"):
        if arrays[name].dtype.kind not in "biuf":
            raise UserError(f"{source}: array {name!r} must hold numbers, not {arrays[name].dtype}")
    split = _names(source, "split", arrays["split"]) if "split" in arrays else None
    names = _names(source, "client", client)
    data = FederatedData(source, x, y, names, split, arrays.get("features"), arrays.get("classes"))
    _check_values(data)
    if min_samples > 0:
        _, member, sizes = np.unique(names, return_inverse=True, return_counts=True)
        data = data.take(sizes[member] >= min_samples)
    _check_clients(data)
    return data


def _shape(source: str, name: str, array: Array, right: bool, wanted: str) -> None:
    if not right:
        raise UserError(f"{source}: array {name!r} has shape {array.shape}, must be {wanted}")


def _names(source: str, name: str, array: Array) -> Array:
    if array.dtype.kind not in "USiu":
        raise UserError(f"{source}: array {name!r} must hold names or whole numbers, not {array.dtype}")
    try:
        return array.astype(np.str_)
    except UnicodeDecodeError:
        raise UserError(f"{source}: array {name!r} holds bytes that are not text") from None


def _check_values(data: FederatedData) -> None:
    for name in ("x", "y"):
        values = getattr(data, name)
        if (row := first_not_finite(values)) is not None:
            cells = np.atleast_1d(values[row])
            column = int(np.argmin(np.isfinite(cells)))
            what = "the label" if name == "y" else f"feature {data.feature_names[column]!r}"
            data.fail(row, f"{what} is {cells[column]}; every value must be finite")
    if data.split is not None and not (known := np.isin(data.split, SPLITS)).all():
        row = int(np.argmin(known))
        data.fail(row, f"split is {str(data.split[row])!r}; it must be one of {_list(SPLITS)}")


def _check_clients(data: FederatedData) -> None:
    clients, first, sizes = np.unique(data.client, return_index=True, return_counts=True)
    if len(clients) < 2:
        raise UserError(f"{data.source}: has {len(clients)} client; at least 2 are needed")
    if sizes.min() < 2:
        small = "the client's only sample; every client needs at least 2 (fco-data convert --min-samples 2 drops it)"
        data.fail(int(first[np.argmin(sizes)]), small)


def first_not_finite(values: Array) -> int | None:
    """The first row with NaN or infinity; a few rows at a time, for x may fill half of the memory."""
    if values.dtype.kind == "f":
        for low in range(0, len(values), ROWS_AT_ONCE):
            finite = np.isfinite(values[low : low + ROWS_AT_ONCE])
            if not finite.all():
                return low + int(np.argmin(finite.reshape(len(finite), -1).all(axis=1)))
    return None


def check_labels(data: FederatedData, loss: Loss) -> int:
    """Refuse labels that the loss has no meaning for; return how many scores a model of it needs."""
    y, classes = data.y, None if data.classes is None else len(data.classes)
    if not (fits := loss.takes(y, classes)).all():
        row = int(np.argmin(fits))
        data.fail(row, f"label {y[row]:g}; the {loss.name} loss needs {loss.allowed(classes)}")
    return loss.outputs(y, classes)


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names)
