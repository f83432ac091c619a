"""The neutral format of clients' data: an .npz file with a row per sample.

    x         [N, d]  numbers: the features
    y         [N]     numbers: the labels (classes are 0, 1, 2, ...)
    client    [N]     the client of each row: names or whole numbers
    split     [N]     optional: train, val or test
    weights   [N]     optional: sample weights, >= 0
    patient   [N]     optional: names or whole numbers; rows of one patient stay together in splits and folds
    features  [d]     optional: feature names
    classes   [C]     optional: class names
    categories, category_of  [K]  optional: category names, and the index (from 0) of the feature of each category;
                      x holds the index (from 0) of a category among the categories of its feature

NaN in x is a missing value (preparation.py handles it). Sparse rows (sparse.py) may replace x; they have no missing
values and no categories.
A folder with these arrays as x.npy, y.npy, ... is equivalent and memory-mapped: x may be larger than the memory.
Pickles are never read, and the size of an .npz file is checked before it is read. An error is one line with the file
and, if it concerns one row, the client and the row number (from 0).
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NoReturn

import numpy as np

from fco_cli.data.sparse import as_sparse_rows, is_sparse, row_of, sparse_arrays, with_sparse_rows
from fco_cli.errors import UserError
from fco_cli.files import write_atomically
from fco_cli.memory_limit import require_memory
from fco_cli.problem.data import ClientData, Rows
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss

REQUIRED, OPTIONAL = (
    ("x", "y", "client"),
    ("split", "weights", "patient", "features", "classes", "categories", "category_of"),
)
ROW_ARRAYS = ("y", "client", "split", "weights", "patient")
TEXT_ARRAYS = ("client", "split", "patient", "features", "classes", "categories")
UNASSIGNED = "all"  # the client of rows that are not assigned to clients yet
SPLITS = ("train", "val", "test")
MAX_NAME_LENGTH = 1000  # characters; a text array stores every name in the width of the longest
CHUNK_ROWS = 4096

Arrays = dict[str, Array]  # by the names above, not yet validated


@dataclass(frozen=True)
class Features:
    """Rows before preparation: numbers, indices of categories, NaN for missing values."""

    source: str
    x: Array  # [N, d]
    names: list[str]
    levels: dict[int, list[str]]  # category names by feature, for categorical features only


@dataclass(frozen=True)
class FederatedData:
    """Validated rows of all clients; `source` is the file name for error messages."""

    source: str
    x: Rows  # [N, d], dense or sparse (csr_array)
    y: Array
    client: Array  # strings
    split: Array | None = None
    features: Array | None = None
    classes: Array | None = None
    weights: Array | None = None
    categories: Array | None = None
    category_of: Array | None = None
    patient: Array | None = None  # strings

    @cached_property
    def clients(self) -> Array:
        """Sorted client names."""
        return np.unique(self.client)

    @property
    def feature_names(self) -> list[str]:
        return [f"x{k}" for k in range(self.x.shape[1])] if self.features is None else self.features.tolist()

    @property
    def raw(self) -> Features:
        """The unprepared features, as input of a preparation."""
        return Features(self.source, self.x, self.feature_names, self.levels)

    @cached_property
    def levels(self) -> dict[int, list[str]]:
        """Category names by feature."""
        if self.categories is None or self.category_of is None:
            return {}
        return {int(k): self.categories[self.category_of == k].tolist() for k in np.unique(self.category_of)}

    def by_client(self) -> Iterator[tuple[str, Features]]:
        """Yield the name and the rows of every client, sorted by name."""
        order, x = np.argsort(self.client, kind="stable"), self.x
        names, sizes = np.unique(self.client, return_counts=True)
        is_sorted = bool((np.diff(order) > 0).all())
        for name, low, high in zip(names.tolist(), np.cumsum(sizes) - sizes, np.cumsum(sizes), strict=True):
            yield (
                name,
                Features(
                    self.source, x[low:high] if is_sorted else x[order[low:high]], self.feature_names, self.levels
                ),
            )

    def fail(self, row: int, problem: str) -> NoReturn:
        """Raise UserError for an invalid row."""
        raise UserError(f"{self.source}: client {shown(self.client[row])!r}, row {row}: {problem}")

    def take(self, rows: Array) -> FederatedData:
        """Return the rows of a mask or an index array; a mask of all rows makes no copy."""
        if rows.dtype == bool and rows.all():
            return self
        by_row = {name: getattr(self, name)[rows] for name in ("x", *ROW_ARRAYS) if getattr(self, name) is not None}
        return replace(self, **by_row)

    def as_clients(self, dtype: str) -> ClientData:
        """Return the rows grouped by client, sorted by client name; rows of a client keep their order."""
        _, member, sizes = np.unique(self.client, return_inverse=True, return_counts=True)
        start = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        x, y, weights = self.x, self.y, self.weights
        groups = None if self.patient is None else np.unique(self.patient, return_inverse=True)[1]
        if (np.diff(member) < 0).any():
            order = np.argsort(member, kind="stable")
            x, y, weights = x[order], y[order], None if weights is None else weights[order]
            groups = None if groups is None else groups[order]
        weights = None if weights is None else self._cast(weights, dtype)
        rows = as_sparse_rows(x, self._cast(x.data, dtype)) if is_sparse(x) else self._cast(x, dtype)
        return ClientData(rows, self._cast(y, dtype), start, weights, groups=groups)

    def training_index(self, training: Array, held_out: Array) -> Array:
        """Return, for every client with held-out rows, its index among the training clients, or -1.

        `training` and `held_out` are masks over the rows.
        """
        names, held_out_names = np.unique(self.client[training]), np.unique(self.client[held_out])
        index = np.searchsorted(names, held_out_names).clip(max=len(names) - 1)
        return np.where(names[index] == held_out_names, index, -1)

    def model_clients(self, dtype: str) -> ClientData:
        """Return the rows grouped by client; raise UserError if the squared norm of a row could overflow."""
        clients = self.as_clients(dtype)
        values: Array = self.x.data if is_sparse(self.x) else self.x
        largest = max(float(values.max(initial=0)), -float(values.min(initial=0)))
        limit = float(np.sqrt(np.finfo(dtype).max / max(1, self.x.shape[1])))
        if largest > limit:
            raise UserError(
                f"{self.source}: a feature value of magnitude {largest:.3g} is too large; the limit is {limit:.2g} in "
                f"{dtype}: standardize the features, change the unit of the column, or drop it (drop)"
            )
        return clients

    def _cast(self, values: Array, dtype: str) -> Array:
        """Return the values in the precision of the run; raise UserError if they overflow."""
        with np.errstate(over="ignore"):
            cast = np.ascontiguousarray(values, dtype)
        if (
            values.dtype.kind == "f"
            and values.dtype.itemsize > cast.dtype.itemsize
            and first_row(np.isinf, cast) is not None
        ):
            largest = f"{np.nanmax(np.abs(values)):.3g}"
            raise UserError(f"{self.source}: values of up to {largest} are too large for {dtype} (hparams.dtype)")
        return cast


def save(data: FederatedData, path: Path) -> None:
    """Write the data to an .npz file, atomically."""
    optional = {name: getattr(data, name) for name in OPTIONAL if getattr(data, name) is not None}
    buffer = io.BytesIO()
    rows = sparse_arrays(data.x) if is_sparse(data.x) else {"x": data.x}
    np.savez_compressed(buffer, allow_pickle=False, **rows, y=data.y, client=data.client, **optional)
    write_atomically(Path(path), buffer.getvalue())


def from_arrays(source: str, arrays: Arrays, min_samples: int = 0, min_clients: int = 2) -> FederatedData:
    """Validate arrays of the neutral format and drop clients with fewer than `min_samples` rows.

    Checks that depend on the loss are in `check_labels`.
    """
    arrays = with_sparse_rows(source, arrays)
    for name in REQUIRED:
        if name not in arrays:
            raise UserError(f"{source}: array {name!r} is missing; required arrays are x, y and client")
    for name in arrays:
        if name not in REQUIRED + OPTIONAL:
            known = f"arrays are x, y, client and, optionally, {', '.join(OPTIONAL)}"
            raise UserError(f"{source}: array {shown(name)!r} is unknown; {known}")
    x = arrays["x"]
    if x.ndim == 2 and not x.shape[0]:
        raise UserError(f"{source}: has no rows")
    _check_shape(source, "x", x, x.ndim == 2 and min(x.shape) > 0, "rows and columns, [N, d]")
    for name in ROW_ARRAYS:
        if name in arrays:
            array = arrays[name]
            is_valid = array.shape == x.shape[:1]
            _check_shape(source, name, array, is_valid, f"one value for each of the {x.shape[0]} rows of x")
    for name in ("features", "classes", "categories", "category_of"):
        if name in arrays:
            _check_shape(source, name, arrays[name], arrays[name].ndim == 1, "a list of names")
    if "features" in arrays and len(arrays["features"]) != x.shape[1]:
        raise UserError(f"{source}: array 'features' has {len(arrays['features'])} names for {x.shape[1]} columns of x")
    for name in ("x", "y", "weights"):
        if name in arrays and arrays[name].dtype.kind not in "biuf":
            raise UserError(f"{source}: array {name!r} must hold numbers, not {shown(arrays[name].dtype)}")
    arrays |= {name: _in_double_precision(arrays[name]) for name in ("x", "y", "weights") if name in arrays}
    x = arrays["x"]
    texts = {name: _text_array(source, name, arrays[name]) for name in TEXT_ARRAYS if name in arrays}
    for name in ("features", "classes"):
        if name in texts:
            check_unique(source, name, texts[name].tolist())
    plain = {name: arrays[name] for name in ("weights", "category_of") if name in arrays}
    data = FederatedData(source, x, arrays["y"], **texts, **plain)
    _check_values(data)
    _check_categories(data)
    if min_samples > 0:
        _, member, sizes = np.unique(data.client, return_inverse=True, return_counts=True)
        data = data.take(sizes[member] >= min_samples)
    _check_clients(data, min_clients, min_samples)
    return data


def _in_double_precision(values: Rows) -> Rows:
    """Return extended-precision values in double precision; values that overflow become infinite."""
    if values.dtype.kind != "f" or values.dtype.itemsize <= 8:
        return values
    with np.errstate(over="ignore"):
        return values.astype(float)


def _check_shape(source: str, name: str, array: Array, is_valid: bool, expected: str) -> None:
    if not is_valid:
        raise UserError(f"{source}: array {name!r} has shape {shown(array.shape)}, must be {expected}")


def _text_array(source: str, name: str, array: Array) -> Array:
    """Return an array of names as text; raise UserError if a name is not valid Unicode."""
    if array.dtype.kind not in "USiu":
        raise UserError(f"{source}: array {name!r} must hold names or whole numbers, not {shown(array.dtype)}")
    width = 21 if array.dtype.kind in "iu" else max(1, array.dtype.itemsize // (4 if array.dtype.kind == "U" else 1))
    require_memory(f"{source}: array {name!r}", 4 * width * len(array))
    try:
        text = np.ascontiguousarray(array, dtype=np.str_)
    except UnicodeDecodeError:
        raise UserError(f"{source}: array {name!r} holds bytes that are not valid text") from None
    codes = text.astype(text.dtype.newbyteorder("="), copy=False).view(np.uint32)
    if ((codes >= 0xD800) & (codes <= 0xDFFF) | (codes > 0x10FFFF)).any():
        raise UserError(f"{source}: array {name!r} holds invalid Unicode code points")
    return text


def name_array(source: object, what: str, names: Sequence[str]) -> Array:
    """Return names as an array; raise UserError if a name is too long or contains NUL."""
    longest = max(names, key=len, default="")
    if len(longest) > MAX_NAME_LENGTH:
        raise UserError(
            f"{source}: {what} {shown(longest, 40)!r} has {len(longest)} characters; at most "
            f"{MAX_NAME_LENGTH} are allowed"
        )
    if "\0" in "".join(names):
        raise UserError(f"{source}: {what}: a name contains the character NUL")
    require_memory(f"{source}: {what}", 4 * len(longest) * len(names))
    return np.array(names, dtype=np.str_)


def check_unique(source: object, what: str, names: Sequence[str]) -> None:
    """Raise UserError if a name occurs more than once."""
    if len(set(names)) < len(names):
        repeated = [name for name, count in Counter(names).items() if count > 1]
        raise UserError(f"{source}: {what}: given more than once: {format_list(repeated)}")


def format_list(names: Iterable[object], most: int = 10) -> str:
    """Return names for a message, on one line, at most `most` of them."""
    names = list(names)
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(shown(name, 40) for name in names[:most]) + rest


def shown(text: object, most: int = 200) -> str:
    """Return untrusted text for one line on a terminal: shortened, printable and encodable."""
    line = " ".join(str(text).split())
    line = line if len(line) <= most else line[: most - 3] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in line)


def _check_values(data: FederatedData) -> None:
    if is_sparse(data.x):
        _check_stored(data)
    elif (row := first_row(np.isinf, data.x)) is not None:
        column = int(np.argmax(np.isinf(data.x[row])))
        name = _feature_name(data, column)
        data.fail(row, f"feature {name!r} is {data.x[row, column]}; every value must be finite")
    if (row := first_row(not_finite, data.y)) is not None:
        data.fail(row, f"the label is {data.y[row]}; every label must be finite")
    if data.weights is not None and (wrong := ~((data.weights >= 0) & np.isfinite(data.weights))).any():
        row = int(np.argmax(wrong))
        data.fail(row, f"its weight is {data.weights[row]:g}; a weight must be a number >= 0")
    if data.split is not None and not (known := np.isin(data.split, SPLITS)).all():
        row = int(np.argmin(known))
        data.fail(row, f"split is {shown(data.split[row])!r}; it must be one of {', '.join(SPLITS)}")


def _check_stored(data: FederatedData) -> None:
    """Check sparse rows: absent entries are 0, so there are no missing values and no categories."""
    if data.categories is not None or data.category_of is not None:
        advice = "encode each category as a column of 0 and 1"
        raise UserError(f"{data.source}: sparse rows cannot have categories; {advice}")
    if (entry := first_row(not_finite, data.x.data)) is not None:
        value, name = data.x.data[entry], _feature_name(data, int(data.x.indices[entry]))
        data.fail(row_of(data.x, entry), f"feature {name!r} is {value}; every stored value must be finite")


def _feature_name(data: FederatedData, column: int) -> str:
    return f"x{column}" if data.features is None else shown(data.features[column])


def _check_categories(data: FederatedData) -> None:
    """Raise UserError if x holds an invalid category index."""
    if data.categories is None and data.category_of is None:
        return
    names, feature_of = data.categories, data.category_of
    if names is None or feature_of is None or feature_of.shape != names.shape or feature_of.dtype.kind not in "iu":
        raise UserError(
            f"{data.source}: arrays 'categories' and 'category_of' must have the same length: category names and the "
            "feature index of each"
        )
    if len(feature_of) and not (feature_of.min() >= 0 and feature_of.max() < data.x.shape[1]):
        raise UserError(f"{data.source}: array 'category_of' must hold indices from 0 to {data.x.shape[1] - 1}")
    for feature, levels in data.levels.items():
        name = shown(data.feature_names[feature])
        check_unique(data.source, f"categories of {name!r}", levels)
        codes = data.x[:, feature]
        if (wrong := ~(np.isnan(codes.astype(float)) | np.isin(codes, np.arange(len(levels))))).any():
            row, allowed = int(np.argmax(wrong)), f"it must be a category index from 0 to {len(levels) - 1}"
            data.fail(row, f"feature {name!r} is {codes[row]:g}; {allowed}")


def check_complete(data: FederatedData, advice: str) -> None:
    """Raise UserError if a value is missing."""
    if (row := first_row(np.isnan, data.x)) is not None:
        name = data.feature_names[int(np.argmax(np.isnan(data.x[row])))]
        data.fail(row, f"feature {shown(name)!r} is missing; {advice}")


def _check_clients(data: FederatedData, min_clients: int, min_samples: int) -> None:
    """Raise UserError for too few clients; and for a single row, often a sum over the others, unless it is allowed."""
    if min_clients == 0:
        return  # rows for prediction
    clients, first, sizes = np.unique(data.client, return_index=True, return_counts=True)
    if len(clients) < min_clients:
        left = f"s with min_samples={min_samples}, which drops smaller ones" if min_samples > 0 else ""
        raise UserError(f"{data.source}: has {len(clients)} client{left}; at least {min_clients} are required")
    if sizes.min() < 2 and min_samples != 1:
        advice = "every client needs at least 2 (min_samples=2 drops it, min_samples=1 keeps it)"
        data.fail(int(first[np.argmin(sizes)]), f"the client's only sample; {advice}")


def not_finite(values: Array) -> Array:
    return ~np.isfinite(values)


def first_row(wrong: Callable[[Array], Array], values: Array) -> int | None:
    """Return the first row with a value for which `wrong` is true, or None; check in chunks to save memory."""
    if values.dtype.kind == "f":
        for low in range(0, len(values), CHUNK_ROWS):
            mask = wrong(values[low : low + CHUNK_ROWS])
            if mask.any():
                return low + int(np.argmax(mask.reshape(len(mask), -1).any(axis=1)))
    return None


def check_labels(data: FederatedData, loss: Loss) -> int:
    """Return the number of model outputs for the loss; raise UserError if the loss does not accept the labels."""
    y, classes = data.y, None if data.classes is None else len(data.classes)
    if not (fits := loss.accepts_labels(y, classes)).all():
        row, needed = int(np.argmin(fits)), f"the {loss.name} loss needs {loss.describe_labels(classes)}"
        if not fits.any():
            raise UserError(f"{data.source}: no label is valid: {needed}")
        data.fail(row, f"label {y[row]:g}; {needed}")
    if data.classes is not None and len(data.classes) > 2 and not loss.classification:
        names = format_list(data.classes)
        raise UserError(f"{data.source}: the labels are the classes {names}; the {loss.name} loss needs numbers")
    check_labels_differ(data)
    return loss.outputs(y, classes)


def check_labels_differ(data: FederatedData) -> None:
    if len(np.unique(data.y)) < 2:
        raise UserError(f"{data.source}: every label is {data.y[0]:g}; at least two different labels are required")
