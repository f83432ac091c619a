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
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NoReturn

import numpy as np

from fco_cli.errors import UserError
from fco_cli.files import write_atomically
from fco_cli.memory_limit import require_memory
from fco_cli.problem.data import ClientData
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss

NEEDED, OPTIONAL = ("x", "y", "client"), ("split", "features", "classes")
SPLITS = ("train", "val", "test")
MAX_NAME = 1000  # characters; arrays of text give every name the room of the longest
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
        raise UserError(f"{self.source}: client {shown(self.client[row])!r}, row {row}: {problem}")

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
        return ClientData(self._cast(x, dtype), self._cast(y, dtype), start)

    def owners(self, training: Array, held_out: Array) -> Array:
        """Of two masks over the rows: which of the clients that train every client of the other rows is; -1 if none."""
        names, apart = np.unique(self.client[training]), np.unique(self.client[held_out])
        places = np.searchsorted(names, apart).clip(max=len(names) - 1)
        return np.where(names[places] == apart, places, -1)

    def _cast(self, values: Array, dtype: str) -> Array:
        """In the precision of a run, which must have room for them."""
        with np.errstate(over="ignore"):
            cast = np.ascontiguousarray(values, dtype)
        if (
            values.dtype.kind == "f"
            and values.dtype.itemsize > cast.dtype.itemsize
            and first_not_finite(cast) is not None
        ):
            largest = f"{np.abs(values).max():.3g}"
            raise UserError(f"{self.source}: values of up to {largest} are too large for {dtype} (hparams.dtype)")
        return cast


def save(data: FederatedData, path: Path) -> None:
    """Write the file, whole or not at all."""
    optional = {name: getattr(data, name) for name in OPTIONAL if getattr(data, name) is not None}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, x=data.x, y=data.y, client=data.client, **optional)
    write_atomically(Path(path), buffer.getvalue())


def from_arrays(source: str, arrays: Arrays, min_samples: int = 0, min_clients: int = 2) -> FederatedData:
    """Check everything that does not depend on the loss, without clients of fewer than `min_samples` rows."""
    for name in NEEDED:
        if name not in arrays:
            raise UserError(f"{source}: array {name!r} is missing; needed are x, y and client")
    for name in arrays:
        if name not in NEEDED + OPTIONAL:
            known = f"beside x, y and client there are {_list(OPTIONAL)}"
            raise UserError(f"{source}: array {shown(name)!r} is unknown; {known}")
    x = arrays["x"]
    _shape(source, "x", x, x.ndim == 2 and x.size > 0, "rows and columns, [N, d]")
    for name in ("y", "client", "split"):
        if name in arrays:
            array = arrays[name]
            _shape(source, name, array, array.shape == (len(x),), f"a value for each of the {len(x)} rows of x")
    for name in ("features", "classes"):
        if name in arrays:
            _shape(source, name, arrays[name], arrays[name].ndim == 1, "a list of names")
    if "features" in arrays and len(arrays["features"]) != x.shape[1]:
        raise UserError(f"{source}: array 'features' has {len(arrays['features'])} names for {x.shape[1]} columns of x")
    for name in ("x", "y"):
        if arrays[name].dtype.kind not in "biuf":
            raise UserError(f"{source}: array {name!r} must hold numbers, not {shown(arrays[name].dtype)}")
    texts = {name: _names(source, name, arrays[name]) for name in ("client", *OPTIONAL) if name in arrays}
    for name in ("features", "classes"):
        if name in texts:
            check_different(source, name, texts[name].tolist())
    data = FederatedData(source, x, arrays["y"], **texts)
    _check_values(data)
    if min_samples > 0:
        _, member, sizes = np.unique(data.client, return_inverse=True, return_counts=True)
        data = data.take(sizes[member] >= min_samples)
    _check_clients(data, min_clients)
    return data


def _shape(source: str, name: str, array: Array, right: bool, wanted: str) -> None:
    if not right:
        raise UserError(f"{source}: array {name!r} has shape {shown(array.shape)}, must be {wanted}")


def _names(source: str, name: str, array: Array) -> Array:
    """As text that can be written and printed, whatever wrote it."""
    if array.dtype.kind not in "USiu":
        raise UserError(f"{source}: array {name!r} must hold names or whole numbers, not {shown(array.dtype)}")
    width = 21 if array.dtype.kind in "iu" else max(1, array.dtype.itemsize // (4 if array.dtype.kind == "U" else 1))
    require_memory(f"{source}: array {name!r}", 4 * width * len(array))
    try:
        text = np.ascontiguousarray(array, dtype=np.str_)
    except UnicodeDecodeError:
        raise UserError(f"{source}: array {name!r} holds bytes that are not text") from None
    codes = text.astype(text.dtype.newbyteorder("="), copy=False).view(np.uint32)
    if ((codes >= 0xD800) & (codes <= 0xDFFF) | (codes > 0x10FFFF)).any():
        raise UserError(f"{source}: array {name!r} holds codes that are no characters")
    return text


def as_names(source: object, what: str, names: Sequence[str]) -> Array:
    """Names from a file as an array, none of them longer than is good for the others."""
    longest = max(names, key=len, default="")
    if len(longest) > MAX_NAME:
        raise UserError(
            f"{source}: {what} {shown(longest, 40)!r} has {len(longest)} characters; at most {MAX_NAME} will do"
        )
    if "\0" in "".join(names):
        raise UserError(f"{source}: {what}: a name holds the character NUL")
    require_memory(f"{source}: {what}", 4 * len(longest) * len(names))
    return np.array(names, dtype=np.str_)


def check_different(source: object, what: str, names: Sequence[str]) -> None:
    """Of two features with one name nobody could tell which is meant."""
    if len(set(names)) < len(names):
        twice = [name for name, count in Counter(names).items() if count > 1]
        raise UserError(f"{source}: {what}: given more than once: {listed(twice)}")


def listed(names: Iterable[object], most: int = 10) -> str:
    """Names for a message, on one line, whatever is in them."""
    names = list(names)
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(shown(name, 40) for name in names[:most]) + rest


def shown(text: object, most: int = 200) -> str:
    """Text that a file or a parser has made, for a line on a terminal: short, printable, encodable."""
    line = " ".join(str(text).split())
    line = line if len(line) <= most else line[: most - 3] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in line)


def _check_values(data: FederatedData) -> None:
    for name in ("x", "y"):
        values = getattr(data, name)
        if (row := first_not_finite(values)) is not None:
            cells = np.atleast_1d(values[row])
            column = int(np.argmin(np.isfinite(cells)))
            what = "the label" if name == "y" else f"feature {shown(data.feature_names[column])!r}"
            data.fail(row, f"{what} is {cells[column]}; every value must be finite")
    if data.split is not None and not (known := np.isin(data.split, SPLITS)).all():
        row = int(np.argmin(known))
        data.fail(row, f"split is {shown(data.split[row])!r}; it must be one of {_list(SPLITS)}")


def _check_clients(data: FederatedData, min_clients: int) -> None:
    clients, first, sizes = np.unique(data.client, return_index=True, return_counts=True)
    if len(clients) < min_clients:
        raise UserError(f"{data.source}: has {len(clients)} client; at least {min_clients} are needed")
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
