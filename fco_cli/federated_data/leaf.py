"""LEAF's JSON shards: {"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fco_cli.errors import UserError
from fco_cli.federated_data.format import Arrays, first_not_finite
from fco_cli.problem.layout import Array


def read_leaf(source: Path) -> Arrays:
    """A shard, or a folder of them; shards below folders `train` and `test` give the split."""
    shards = [source] if source.is_file() else sorted(source.rglob("*.json"))
    if not shards:
        raise UserError(f"{source}: holds no .json files")
    x, y, client, split = [], [], [], []
    for shard in shards:
        folder = shard.parent.name if shard.parent.name in ("train", "test") else ""
        for user, rows, labels in _read_shard(shard):
            x.append(rows)
            y.append(labels)
            client += [user] * len(labels)
            split += [folder] * len(labels)
    if not x:
        raise UserError(f"{source}: its shards hold no users")
    widths = {rows.shape[1] for rows in x}
    if len(widths) > 1:
        raise UserError(f"{source}: its samples have different numbers of features: {sorted(widths)}")
    arrays = {"x": np.concatenate(x), "y": np.concatenate(y), "client": np.array(client)}
    if all(split):
        arrays["split"] = np.array(split)
    elif any(split):
        raise UserError(f"{source}: some shards are below `train` and `test`, others are not")
    return arrays


def _read_shard(path: Path) -> list[tuple[str, Array, Array]]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as problem:
        raise UserError(f"{path}: cannot be read: {problem.strerror}") from problem
    except ValueError as problem:  # cut off, or not JSON at all
        raise UserError(f"{path}: is not complete JSON: {problem}") from problem
    if not isinstance(content, dict) or not {"users", "user_data"} <= content.keys():
        raise UserError(f"{path}: is not a LEAF shard: it needs users and user_data")
    users = content["users"]
    counts = content.get("num_samples") or [None] * len(users)
    if len(counts) != len(users):
        raise UserError(f"{path}: has {len(users)} users but {len(counts)} num_samples")
    clients = []
    for user, count in zip(users, counts, strict=True):
        try:
            rows = np.array(content["user_data"][user]["x"], dtype=np.float32)
            labels = np.array(content["user_data"][user]["y"])
        except (KeyError, TypeError, ValueError) as problem:
            raise UserError(f"{path}: client {user!r}: x and y must be lists of numbers ({problem})") from problem
        if rows.ndim != 2 or labels.shape != (len(rows),) or count not in (None, len(rows)):
            raise UserError(
                f"{path}: client {user!r}: x has shape {rows.shape}, y {labels.shape}, num_samples says {count}"
            )
        if (row := first_not_finite(rows)) is not None:
            raise UserError(f"{path}: client {user!r}, row {row}: not every feature is a finite number")
        clients.append((str(user), rows, labels))
    return clients
