"""Readers of clients' data, one class per file format.

`source.py` checks files before they are read and defines the base class `Format`; `tables.py` is the base of the table
formats; `any_format.py` lists all formats and reads a path in whichever format it has.
"""

from fco_cli.data.readers.any_format import (
    FORMATS,
    all_clients,
    fingerprint,
    read,
    read_features,
    read_raw_tables,
    read_single_client,
    read_sparse_rows,
    source_fingerprint,
)

__all__ = [
    "FORMATS",
    "all_clients",
    "fingerprint",
    "read",
    "read_features",
    "read_raw_tables",
    "read_single_client",
    "read_sparse_rows",
    "source_fingerprint",
]
