"""LEAF's JSON shards: {"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fco_cli.data.format import Arrays, check_unique, first_row, name_array, not_finite, shown
from fco_cli.data.readers.source import Format, ReadOptions, sorted_files
from fco_cli.errors import UserError
from fco_cli.memory_limit import require_memory
from fco_cli.problem.layout import Array

PARTS = ("train", "test")
CHUNK = 1 << 24
# Upper bounds on the CPython memory (bytes) of the objects that start at a JSON character
BYTES = {b",": 40, b"[": 80, b"{": 300, b'"': 40}


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
                objects += sum(chunk.count(character) * size for character, size in BYTES.items())
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
