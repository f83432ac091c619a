"""Reader of SQL queries: a text file with the URL of a database (for SQLAlchemy) and one query.

    -- url: postgresql+psycopg://reader:${DB_PASSWORD}@db.hospital.org/registry
    SELECT hospital, age, creatinine, died FROM stays ORDER BY stay

Variables of the environment replace ${NAME} in the URL. The rows are read like those of a CSV file.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fco_cli.data.format import shown
from fco_cli.data.readers.csv_files import TableReader
from fco_cli.data.readers.raw_table import RawTable
from fco_cli.data.readers.source import ReadOptions
from fco_cli.data.readers.tables import Table
from fco_cli.errors import UserError, install_extra
from fco_cli.memory_limit import require_memory

MAX_QUERY = 1 << 20  # bytes
CHUNK_ROWS = 1000
URL = re.compile(r"--\s*url:\s*(\S.*)")
VARIABLE = re.compile(r"\$\{(\w+)\}")
QUERY = re.compile(r"\s*(select|with)\b[^;]*;?\s*", re.IGNORECASE)


class Sql(Table):
    name, suffix = "an SQL query", ".sql"

    def files(self, folder: Path) -> list[Path]:
        """Return no files: a folder of tables may also hold the queries they were made with."""
        return []

    def memory_needed(self, path: Path, options: ReadOptions) -> int:
        return 0  # unknown before the query; `raw` checks the memory while it reads

    def raw(self, path: Path, options: ReadOptions) -> RawTable:
        with _result(path) as result:
            header = [str(name).strip() for name in result.keys()]  # noqa: SIM118  # iteration yields rows
            reader, done = TableReader(path, header, options, is_typed=True), 0
            while rows := result.fetchmany(CHUNK_ROWS):
                reader.add([(done + i, [_cell(value) for value in row]) for i, row in enumerate(rows)])
                done += len(rows)
                require_memory(f"{path}: reading its first {done} rows", 8 * done * len(header))
        if done == 0:
            raise UserError(f"{path}: the query returns no rows")
        table = reader.finish()
        table.unit = "row"
        return table

    def digest(self, path: Path) -> bytes:
        """Return a hash of the result, since the database may change while the query does not."""
        total = hashlib.sha256()
        with _result(path) as result:
            total.update(repr([*result.keys()]).encode())
            while rows := result.fetchmany(CHUNK_ROWS):
                total.update(repr([[_cell(value) for value in row] for row in rows]).encode())
        return total.digest()


@contextmanager
def _result(path: Path) -> Iterator[Any]:
    """Run the query of a file and yield its result; database errors become UserError."""
    try:
        import sqlalchemy
    except ImportError:
        raise UserError(f"{path}: SQL queries need SQLAlchemy: {install_extra('sql')}") from None
    if path.stat().st_size > MAX_QUERY:
        raise UserError(f"{path}: has more than {MAX_QUERY} bytes")
    first, _, query = path.read_text(encoding="utf-8-sig").partition("\n")
    url = URL.fullmatch(first.strip())
    if url is None:
        raise UserError(f"{path}: its first line must be the URL of the database, such as -- url: sqlite:////data/x.db")
    query = re.sub(r"(?m)^\s*--.*$", "", query)
    if QUERY.fullmatch(query) is None:
        raise UserError(f"{path}: after the first line there must be one SELECT query")
    try:
        address = sqlalchemy.make_url(_with_variables(path, url[1].strip()))
    except (sqlalchemy.exc.ArgumentError, ValueError):
        raise UserError(
            f"{path}: the URL in its first line is invalid; use a form such as -- url: sqlite:////data/x.db"
        ) from None
    if address.drivername.startswith("sqlite") and address.database and not Path(address.database).is_file():
        raise UserError(f"{path}: the database {shown(address.database)} does not exist")  # SQLite would create it
    try:
        engine = sqlalchemy.create_engine(address, poolclass=sqlalchemy.pool.NullPool)
        with engine.connect() as connection:
            yield connection.execution_options(stream_results=True).exec_driver_sql(query.strip().rstrip(";"))
    except (sqlalchemy.exc.SQLAlchemyError, ImportError) as problem:
        reason = shown(getattr(problem, "orig", None) or problem)  # without the URL, which may hold a password
        raise UserError(f"{path}: the query failed: {reason}") from problem


def _with_variables(path: Path, url: str) -> str:
    for name in VARIABLE.findall(url):
        if name not in os.environ:
            raise UserError(f"{path}: its URL refers to the environment variable {name}, which is not set")
    return VARIABLE.sub(lambda match: os.environ[match[1]], url)


def _cell(value: object) -> str:
    """Return a value of the database as the text of a cell."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
