"""Command-line options for the roles of the columns of a table."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fco_cli.data.readers.source import Columns


def add_columns(command: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the options for all roles except client and weights, and return their group."""
    tables = command.add_argument_group("roles of the columns of a table; all other columns are features")
    label = tables.add_mutually_exclusive_group()
    label.add_argument("--label", default="y", metavar="COLUMN", help="label (default: %(default)s)")
    label.add_argument(
        "--positive", dest="label", metavar="CONDITION", help="condition that defines a binary label, such as 'num>0'"
    )
    event = "event indicator (0 or 1), or a condition such as 'status==2'; the label is then a time"
    tables.add_argument("--event", metavar="COLUMN", help=event)
    tables.add_argument(
        "--split", default="split", metavar="COLUMN", help="train, val or test; optional (default: %(default)s)"
    )
    for option, meaning in (("drop", "column to ignore"), ("categorical", "categories that are written as numbers")):
        tables.add_argument(
            f"--{option}", default=[], action="append", metavar="COLUMN", help=f"{meaning}; may be repeated"
        )
    missing = "additional missing-value marker: a text, a number, or chol:0 for one column; may be repeated"
    tables.add_argument("--missing", default=[], action="append", metavar="WORD", help=missing)
    tables.add_argument("--names", default="", metavar="A,B,...", help="column names of a table without a header")
    return tables


def columns_of(options: argparse.Namespace) -> Columns:
    """Return the column roles of the parsed options."""
    from fco_cli.data.readers.source import Columns

    lists = (tuple(options.drop), tuple(options.categorical), tuple(options.missing))
    names = tuple(name.strip() for name in options.names.split(",")) if options.names else ()
    client, weights = getattr(options, "client", "client"), getattr(options, "weights", None)
    return Columns(options.label, client, options.split, weights, *lists, names, event=options.event)
