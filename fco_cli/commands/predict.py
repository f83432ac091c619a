"""fco-predict: what a record's model says of the rows of a new table."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fco_cli.commands.shell import answered, end
from fco_cli.errors import UserError, one_line

if TYPE_CHECKING:
    import numpy as np


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and do it; what the user got wrong is said in one line, exit code 2."""
    if answered():
        return
    parser = argparse.ArgumentParser(prog="fco-predict", description=__doc__.split(": ", 1)[1].capitalize())
    parser.add_argument("--version", action="store_true", help="print the version")
    parser.add_argument("record", type=Path, help="the folder that fco-run printed")
    parser.add_argument(
        "table",
        type=Path,
        help="CSV or Parquet, with the columns that the model has learnt from; .npz or .svm, if it was that",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="where to write the predictions (default: here)")
    options = parser.parse_args(arguments)
    try:
        content = predictions(options.record, options.table)
        if options.output is None:
            print(content, end="")
        else:
            from fco_cli.files import write_atomically

            write_atomically(options.output, content.encode())
            print(f"{options.output}: {content.count(chr(10)) - 1} predictions")
    except UserError as problem:
        end("fco-predict", 2, one_line(problem))


def predictions(record: Path, table: Path) -> str:
    """Return CSV: a row per row of the table; a probability for every class, or the predicted number."""
    import numpy as np

    from fco_cli.csv_writer import as_csv
    from fco_cli.federated_data.fitted import FittedModel

    model = FittedModel.read(record)
    columns = model.columns(model.scores(model.rows(table)))
    rows: np.ndarray = np.column_stack(list(columns.values()))
    return as_csv(["row", *columns], ([k, *row] for k, row in enumerate(rows)), ".10g")


if __name__ == "__main__":
    main()
