"""From files of any known kind to checked clients' data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from fco_cli.errors import UserError
from fco_cli.federated_data.format import Arrays, FederatedData, from_arrays, map_arrays, read_arrays
from fco_cli.federated_data.leaf import read_leaf
from fco_cli.federated_data.tables import SUFFIXES, Columns, read_tables
from fco_cli.federated_data.tff import read_tff

KINDS = {"npz": (".npz",), "npy": (".npy",), "leaf": (".json",), "tff": (".h5",), "table": SUFFIXES}


def kind_of(source: Path) -> str:
    """What a file or folder holds, by the endings of its names."""
    if not source.exists():
        raise UserError(f"{source}: no such file or folder")
    files = [source] if source.is_file() else [path for path in sorted(source.rglob("*")) if path.is_file()]
    suffixes = {path.suffix for path in files}
    kinds = [kind for kind, endings in KINDS.items() if suffixes & set(endings)]
    if source.is_dir() and kinds == ["npz"]:
        raise UserError(f"{source}: is a folder; name the .npz file in it")
    if source.is_file() and kinds == ["npy"]:
        raise UserError(f"{source}: is one array; name the folder with x.npy, y.npy and client.npy")
    if len(kinds) != 1:
        found = " and ".join(kinds) or "nothing that is known"
        raise UserError(
            f"{source}: holds {found}; it must hold files of one kind: .npz, .npy, .json, .h5, .csv or .parquet"
        )
    return kinds[0]


def read(source: Path, columns: Columns | None = None, min_samples: int = 0) -> FederatedData:
    """Read and check data of any known kind."""
    columns = columns or Columns()
    readers: dict[str, Callable[[], Arrays]] = {
        "npz": lambda: read_arrays(source),
        "npy": lambda: map_arrays(source),
        "leaf": lambda: read_leaf(source),
        "tff": lambda: read_tff(source),
        "table": lambda: read_tables(source, columns),
    }
    return from_arrays(str(source), readers[kind_of(source)](), min_samples)


def fingerprint(source: Path) -> str:
    """A hash of the content of a file or folder, whatever its path: what a result depends on."""
    files = [source] if source.is_file() else sorted(path for path in source.rglob("*") if path.is_file())
    if not files:
        raise UserError(f"{source}: no such file or folder, or an empty one")
    stamps = tuple((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files)
    return _fingerprint(stamps)


@lru_cache(maxsize=16)
def _fingerprint(stamps: tuple[tuple[str, int, int], ...]) -> str:
    """Once for all runs of a sweep, as long as size and time of change stay as they are."""
    total = hashlib.sha256()
    for name, _, _ in stamps:
        with Path(name).open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()
