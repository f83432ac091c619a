"""Readers of clients' data in any supported file format."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np

from fco_cli.data.format import Features, FederatedData, from_arrays
from fco_cli.data.readers.benchmarks import Leaf, Tff
from fco_cli.data.readers.csv_files import Csv, Tsv
from fco_cli.data.readers.matrices import Libsvm, Npy, Npz, Svmlight
from fco_cli.data.readers.parquet import Parquet
from fco_cli.data.readers.raw_table import RawTable
from fco_cli.data.readers.source import Columns, Format, ReadOptions, Source, check_memory, find_source, read_arrays
from fco_cli.data.readers.sql import Sql
from fco_cli.data.readers.tables import Table
from fco_cli.data.sparse import is_sparse, with_sparse_rows
from fco_cli.errors import UserError
from fco_cli.problem.data import Rows

FORMATS: tuple[Format, ...] = (Npz(), Npy(), Leaf(), Tff(), Csv(), Tsv(), Parquet(), Sql(), Svmlight(), Libsvm())

ClientChoice = Callable[[list[str]], list[str]]  # selects clients from the sorted names of all


def all_clients(clients: list[str]) -> list[str]:
    """Select all clients."""
    return clients


def read(
    path: Path,
    columns: Columns | None = None,
    min_samples: int = 0,
    choose: ClientChoice = all_clients,
    min_clients: int = 2,
) -> FederatedData:
    """Read and validate data of the selected clients that have at least `min_samples` samples."""
    source = find_source(path, FORMATS)
    arrays = read_arrays(source, _read_options(source, columns, choose))
    data = from_arrays(str(path), arrays, min_samples, min_clients)
    if choose is all_clients or source.format.selects_clients:
        return data
    return data.take(np.isin(data.client, choose(data.clients.tolist())))


def read_single_client(path: Path, name: str, columns: Columns | None = None) -> FederatedData:
    """Read the rows of one client, a site of a federation; `name` replaces client names in the file."""
    source = find_source(path, FORMATS)
    arrays = read_arrays(source, ReadOptions(columns or Columns(), all_clients, in_folder=True))
    data = from_arrays(str(path), arrays | {"client": np.full(len(arrays.get("y", ())), name)}, min_clients=1)
    if is_sparse(data.x):
        raise UserError(
            f"{path}: has sparse rows, which are supported only in simulations; the data of a site must be a table"
        )
    return data


def read_features(path: Path, columns: Columns | None = None) -> Features:
    """Read the features of a table for prediction; labels, clients and splits are not required."""
    source = find_source(path, FORMATS)
    if not isinstance(source.format, Table):
        raise UserError(
            f"{path}: must be a table: {', '.join(kind.suffix for kind in FORMATS if isinstance(kind, Table))}"
        )
    options = ReadOptions(columns or Columns(), all_clients, source.in_folder, labeled=False)
    arrays = read_arrays(source, options)
    rows = len(arrays["x"])
    return from_arrays(str(path), arrays | {"y": np.zeros(rows)}, min_clients=0).raw


def read_sparse_rows(path: Path, features: int, columns: Columns | None = None) -> Rows:
    """Read sparse rows for prediction with a model of `features` features."""
    source = find_source(path, FORMATS)
    arrays = with_sparse_rows(
        str(path), read_arrays(source, ReadOptions(columns or Columns(), all_clients, source.in_folder, False))
    )
    x: Rows = arrays.get("x")
    if not is_sparse(x):
        raise UserError(f"{path}: must hold sparse rows, as in the training data of the model: .npz, .svm or .libsvm")
    if isinstance(source.format, Svmlight) and x.shape[1] < features:
        x.resize(x.shape[0], features)
    if x.shape[1] != features:
        raise UserError(f"{path}: its rows have {x.shape[1]} features, the model has {features}")
    rows = x.shape[0]
    return from_arrays(str(path), {"x": x, "y": np.zeros(rows), "client": np.zeros(rows, int)}, min_clients=0).x


def read_raw_tables(path: Path, columns: Columns | None = None) -> list[RawTable] | None:
    """Read the files of a table without validating their columns; return None for other formats."""
    source = find_source(path, FORMATS)
    if not isinstance(source.format, Table):
        return None
    options = _read_options(source, columns, all_clients)
    check_memory(source, options)
    tables = []
    for file in source.files:
        with source.format.as_user_error(file):
            tables.append(source.format.raw(file, options))
    return tables


def fingerprint(path: Path, columns: Columns | None = None, choose: ClientChoice = all_clients) -> str:
    """Return a hash of the format of the files, their content and, in a folder, their names.

    Only files that would be read are hashed, after the checks of source.py.
    """
    return source_fingerprint(find_source(path, FORMATS), columns, choose)


def source_fingerprint(source: Source, columns: Columns | None = None, choose: ClientChoice = all_clients) -> str:
    """Return the fingerprint of an examined source."""
    with source.format.as_user_error(source.path):
        stamps = tuple((file.stat().st_size, file.stat().st_mtime_ns) for file in source.files)
    return _fingerprint(source, stamps, columns, choose)


@lru_cache(maxsize=16)
def _fingerprint(
    source: Source, stamps: tuple[tuple[int, int], ...], columns: Columns | None, choose: ClientChoice
) -> str:
    """Compute the fingerprint; cached for the runs of a sweep while sizes and modification times are unchanged."""
    check_memory(source, _read_options(source, columns, choose))
    total = hashlib.sha256(source.format.name.encode())
    for path in source.files:
        with source.format.as_user_error(path):
            name = path.relative_to(source.path).as_posix() if source.in_folder else ""
            total.update(hashlib.sha256(name.encode()).digest() + source.format.digest(path))
    return total.hexdigest()


def _read_options(source: Source, columns: Columns | None, choose: ClientChoice) -> ReadOptions:
    """Return the selection; the first file determines the clients, so that train and test have the same ones."""
    selected: list[str] = []
    if columns is not None and columns.event is not None and not isinstance(source.format, Table):
        raise UserError(f"{source.path}: this format has no event column; use negative labels for censored times")

    def chosen(clients: list[str]) -> list[str]:
        if not selected:
            selected.extend(choose(clients))
        return selected

    return ReadOptions(columns or Columns(), chosen, source.in_folder)
