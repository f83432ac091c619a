"""fco-predict: apply the model of a record to the rows of a new table."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fco_cli.commands.shell import Parser, handle_version_and_help, one_line_errors, print_line

if TYPE_CHECKING:
    import numpy as np


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; invalid input exits with code 2 and one line."""
    with one_line_errors("fco-predict"):
        if not handle_version_and_help():
            predict(_parser().parse_args(arguments))


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = Parser(prog="fco-predict", description=__doc__.split(": ", 1)[1].capitalize())
    parser.add_argument("--version", action="store_true", help="print the version")
    parser.add_argument("record", type=Path, help="folder of the record, as printed by fco-run")
    parser.add_argument(
        "table",
        type=Path,
        help="CSV or Parquet file with the columns of the training data; .npz or .svm if these were",
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="file to write the predictions to (default: stdout)"
    )
    return parser


def predict(options: argparse.Namespace) -> None:
    """Print the predictions, or write them to a file."""
    content = predictions(options.record, options.table)
    if options.output is None:
        print(content, end="")
    else:
        from fco_cli.files import write_atomically

        write_atomically(options.output, content.encode())
        print_line(f"{options.output}: {content.count(chr(10)) - 1} predictions")


def predictions(record: Path, table: Path) -> str:
    """Return the predictions as CSV, a row per row of the table: class probabilities or a predicted number."""
    import numpy as np

    from fco_cli.data.fitted import FittedModel
    from fco_cli.files import as_csv
    from fco_cli.plugins import load_plugins

    load_plugins()
    model = FittedModel.read(record)
    columns = model.columns(model.scores_of(table))
    rows: np.ndarray = np.column_stack(list(columns.values()))
    return as_csv(["row", *columns], ([k, *row] for k, row in enumerate(rows)), ".10g")


if __name__ == "__main__":
    main()
