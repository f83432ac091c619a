"""The options that say what the columns of a table mean."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fco_cli.data.source import Columns


def add_columns(command: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """All but whose row it is and how much it counts; the group, for those who need these too."""
    tables = command.add_argument_group("what the columns of a table mean; all others are features")
    label = tables.add_mutually_exclusive_group()
    label.add_argument("--label", default="y", metavar="COLUMN", help="to predict (default: %(default)s)")
    label.add_argument("--positive", dest="label", metavar="CONDITION", help="a label of 0 and 1, such as 'num>0'")
    event = "the label is a time; 1, or a condition such as 'status==2', where the event happened at it"
    tables.add_argument("--event", metavar="COLUMN", help=event)
    tables.add_argument("--split", default="split", metavar="COLUMN", help="train, val or test, if there is one")
    for option, meaning in (("drop", "no feature"), ("categorical", "categories that are written as numbers")):
        tables.add_argument(
            f"--{option}", default=[], action="append", metavar="COLUMN", help=f"{meaning}; may be repeated"
        )
    missing = "a missing value beside ?, NA, ...: a word, a number, or chol:0 in one column; may be repeated"
    tables.add_argument("--missing", default=[], action="append", metavar="WORD", help=missing)
    tables.add_argument(
        "--names", default="", metavar="A,B,...", help="the columns' names, of a table without a header"
    )
    return tables


def columns_of(options: argparse.Namespace) -> Columns:
    from fco_cli.data.source import Columns

    lists = (tuple(options.drop), tuple(options.categorical), tuple(options.missing))
    names = tuple(name.strip() for name in options.names.split(",")) if options.names else ()
    client, weights = getattr(options, "client", "client"), getattr(options, "weights", None)
    return Columns(options.label, client, options.split, weights, *lists, names, event=options.event)
