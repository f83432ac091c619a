"""Readers of the formats of two federated benchmarks, LEAF and TensorFlow Federated.

LEAF: JSON shards {"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}.
TensorFlow Federated: HDF5 files with examples/<client>/pixels and examples/<client>/label.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fco_cli.data.format import Arrays, check_unique, first_row, name_array, not_finite, shown
from fco_cli.data.readers.source import Format, ReadOptions, sorted_files
from fco_cli.errors import UserError, install_extra
from fco_cli.memory_limit import require_memory
from fco_cli.problem.layout import Array

PARTS = ("train", "test")
CHUNK = 1 << 24  # bytes
# Upper bounds on the CPython memory (bytes) of the objects that start at a JSON character
JSON_BYTES = {b",": 40, b"[": 80, b"{": 300, b'"': 40}


class Leaf(Format):
    """One shard or a folder of shards; subfolders `train` and `test` define the split."""

    name, suffix = "a LEAF shard", ".json"

    def files(self, folder: Path) -> list[Path]:
        folders = [folder, *(folder / part for part in PARTS)]
        return [path for part in folders if part.is_dir() for path in sorted_files(part, self.suffix)]

    def split_of(self, path: Path) -> str:
        return path.parent.name if path.parent.name in PARTS else ""

    def memory_needed(self, path: Path, options: ReadOptions) -> int:
        objects, numbers = path.stat().st_size, 0
        with path.open("rb") as file:
            if file.read(CHUNK).lstrip()[:1] != b"{":
                raise UserError(f"{path}: is not a LEAF shard: it does not start with a brace")
            file.seek(0)
            while chunk := file.read(CHUNK):
                objects += sum(chunk.count(character) * size for character, size in JSON_BYTES.items())
                numbers += chunk.count(b",")
        require_memory(f"{path}: reading it", objects)  # freed before the next shard is read
        return 8 * numbers  # single precision, twice: per shard and concatenated

    def read(self, path: Path, options: ReadOptions) -> Arrays:
        try:
            content = json.loads(path.read_bytes(), object_pairs_hook=_check_unique_keys)
        except RecursionError:
            raise UserError(f"{path}: is not a LEAF shard: its lists are nested too deeply") from None
        except ValueError as problem:  # truncated, or not JSON
            raise UserError(f"{path}: is not valid JSON: {shown(problem)}") from problem
        users, counts, data = _parts(path, content)
        rows, labels = [], []
        for user, count in zip(users, counts, strict=True):
            x, y = _client(f"{path}: client {shown(user)!r}", data[user], count)
            rows.append(x)
            labels.append(y)
        widths = {x.shape[1] for x in rows}
        if len(widths) > 1:
            raise UserError(f"{path}: its samples have different numbers of features: {sorted(widths)}")
        names = name_array(path, "user", users)
        return {
            "x": np.concatenate(rows),
            "y": np.concatenate(labels),
            "client": np.repeat(names, [len(y) for y in labels]),
        }


def _check_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        check_unique("its objects", "keys", [key for key, _ in pairs])
    return content


def _parts(path: Path, content: Any) -> tuple[list[str], list[int | None], dict[str, Any]]:
    """Return the users, their sample counts and their data; raise UserError if they are inconsistent."""
    if not isinstance(content, dict) or not {"users", "user_data"} <= content.keys():
        raise UserError(f"{path}: is not a LEAF shard: it must have users and user_data")
    users, data = content["users"], content["user_data"]
    if not isinstance(users, list) or not all(isinstance(user, str) for user in users):
        raise UserError(f"{path}: is not a LEAF shard: users must be a list of names")
    if not users:
        raise UserError(f"{path}: holds no users")
    check_unique(path, "users", users)
    if not isinstance(data, dict) or data.keys() != set(users):
        raise UserError(f"{path}: is not a LEAF shard: the keys of user_data must be the users")
    counts = content.get("num_samples")
    counts = [None] * len(users) if counts is None else counts
    if not isinstance(counts, list) or len(counts) != len(users):
        given = f"{len(counts)} num_samples" if isinstance(counts, list) else "num_samples that is not a list"
        raise UserError(f"{path}: has {len(users)} users but {given}")
    return users, counts, data


def _client(where: str, content: Any, count: Any) -> tuple[Array, Array]:
    if not isinstance(content, dict) or not {"x", "y"} <= content.keys():
        raise UserError(f"{where}: must have x and y")
    try:
        rows, labels = np.array(content["x"]), np.array(content["y"])
    except (TypeError, ValueError, OverflowError) as problem:
        raise UserError(f"{where}: x and y must be lists of numbers ({shown(problem)})") from problem
    for name, array in (("x", rows), ("y", labels)):
        if array.dtype.kind not in "biuf":
            raise UserError(f"{where}: {name} must be lists of numbers with at most 19 digits")
    if rows.ndim != 2 or labels.shape != (len(rows),) or count not in (None, len(rows)):
        raise UserError(f"{where}: x has shape {rows.shape}, y {labels.shape}, num_samples is {shown(count, 40)}")
    with np.errstate(over="ignore"):
        rows = rows.astype(np.float32)
    if (row := first_row(not_finite, rows)) is not None:
        raise UserError(f"{where}, row {row}: every feature must be finite in single precision")
    return rows, labels


class Tff(Format):
    """One file, or a folder with ..._train.h5 and ..._test.h5; only the selected clients are read."""

    name, suffix, reads_whole_file, selects_clients = "one of TensorFlow Federated's files", ".h5", False, True
    parser_errors = (KeyError, RuntimeError, ValueError, TypeError)  # as raised by h5py

    def files(self, folder: Path) -> list[Path]:
        """Return the files, training files first: they determine the selected clients."""
        return sorted(sorted_files(folder, self.suffix), key=lambda path: self.split_of(path) == "test")

    def split_of(self, path: Path) -> str:
        return "test" if "test" in path.stem else "train"

    def memory_needed(self, path: Path, options: ReadOptions) -> int:
        with _clients(path, options) as clients:
            sizes = [math.prod(part.shape) * part.dtype.itemsize for _, *parts in clients for part in parts]
            return 2 * sum(sizes)  # per client, and concatenated

    def read(self, path: Path, options: ReadOptions) -> Arrays:
        x, y, names = [], [], []
        with _clients(path, options) as clients:
            for name, pixels, labels in clients:
                if not pixels.shape or labels.shape != pixels.shape[:1]:
                    shapes = f"pixels have shape {pixels.shape}, label {labels.shape}"
                    raise UserError(f"{path}: client {shown(name)!r}: {shapes}; both must have one row per sample")
                x.append(pixels[()].reshape(len(labels), math.prod(pixels.shape[1:])))
                y.append(labels[()])
                names.append(name)
        if not x:
            raise UserError(f"{path}: has no clients")
        return {
            "x": np.concatenate(x),
            "y": np.concatenate(y),
            "client": np.repeat(name_array(path, "client", names), [len(labels) for labels in y]),
        }


@contextmanager
def _clients(path: Path, options: ReadOptions) -> Iterator[Iterator[tuple[str, Any, Any]]]:
    """Open the file and return an iterator over name, pixels and labels of the selected clients, not yet read."""
    try:
        import h5py
    except ImportError:
        raise UserError(f"{path}: HDF5 files need h5py: {install_extra('femnist')}") from None
    with h5py.File(path, "r") as file:
        examples = _member(path, file, "examples", h5py.Group)
        if invalid := [name for name in examples if isinstance(name, bytes)]:
            raise UserError(f"{path}: client {invalid[0]!r}: its name is not text")
        chosen = options.clients(sorted(examples))

        def each() -> Iterator[tuple[str, Any, Any]]:
            for name in chosen:
                if name in examples:
                    client = _member(path, examples, name, h5py.Group)
                    yield name, *(_dataset(path, client, part) for part in ("pixels", "label"))

        yield each()


def _member(path: Path, group: Any, name: str, kind: type) -> Any:
    """Return a member of a group; raise UserError if it is a link, which could lead to another file or form a cycle."""
    import h5py

    where = f"{path}: {shown(group.name)}/{shown(name)}"
    link = group.get(name, getlink=True)
    if link is None:
        raise UserError(f"{where}: not found")
    if not isinstance(link, h5py.HardLink):
        raise UserError(f"{where}: is a link; links are not followed")
    member = group[name]
    if not isinstance(member, kind):
        raise UserError(f"{where}: is not a {kind.__name__.lower()}")
    return member


def _dataset(path: Path, client: Any, name: str) -> Any:
    import h5py

    dataset = _member(path, client, name, h5py.Dataset)
    where = f"{path}: {shown(dataset.name)}"
    if dataset.external or dataset.is_virtual:
        raise UserError(f"{where}: its values are in another file; external files are not read")
    if dataset.shape is None or dataset.dtype.kind not in "biuf":
        raise UserError(f"{where}: must hold numbers, not {shown(dataset.dtype)}")
    return dataset
