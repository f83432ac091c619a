"""Reader of SVMlight and LIBSVM text files; a row is `label qid:client column:value column:value ... # comment`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fco_cli.data.format import UNASSIGNED, Arrays, name_array, shown
from fco_cli.data.readers.cells import Label
from fco_cli.data.readers.source import Format, ReadOptions
from fco_cli.errors import UserError
from fco_cli.memory_limit import require_memory
from fco_cli.problem.layout import Array

MAX_LINE = 1 << 25  # characters
BYTES = 32  # memory per entry or row while reading; the lists of scikit-learn grow by doubling


class Svmlight(Format):
    """One file with the client as `qid` of each line, or a folder with one file per client.

    Column k of a file is the feature x<k>. In a file with columns counted from 1, x0 has no entries.
    Labels -1 and 1 become 0 and 1.
    """

    name, suffix, reads_whole_file = "an svmlight file", ".svm", False
    parser_errors = (ValueError, OverflowError)  # raised by scikit-learn

    def memory_needed(self, path: Path, options: ReadOptions) -> int:
        count = 0
        with path.open("rb") as file:
            while line := file.readline(MAX_LINE):
                if len(line) == MAX_LINE:
                    raise UserError(f"{path}: has a line of more than {MAX_LINE} characters")
                count += 1 + line.count(b":")
        return BYTES * count

    def read(self, path: Path, options: ReadOptions) -> Arrays:
        from scipy.sparse import csr_array
        from sklearn.datasets import load_svmlight_file

        # raises ValueError for negative, repeated or unsorted columns
        x, y, query = load_svmlight_file(str(path), zero_based=True, query_id=True)
        if not len(y):
            raise UserError(f"{path}: has no rows")
        require_memory(f"{path}: a model of its {x.shape[1]} features", 8 * x.shape[1])
        arrays = {"x": csr_array(x), "client": _owners(path, query, x.shape[0], options)}
        if not options.labeled:
            return arrays
        meaning = Label.of(options.columns.label, ["y"])
        if meaning.column != "y":
            raise UserError(
                f"{path}: column {shown(meaning.column)!r} not found; the label of an svmlight file is called y"
            )
        classes = {} if meaning.classes is None else {"classes": meaning.classes}
        return arrays | {"y": meaning.apply(y)} | classes

    def join(self, parts: list[tuple[Path, Arrays]]) -> Arrays:
        """Concatenate the rows, padded to a common width: a file may lack entries in its last columns."""
        width = max(arrays["x"].shape[1] for _, arrays in parts)
        for _, arrays in parts:
            arrays["x"].resize(arrays["x"].shape[0], width)
        _, joined = parts[0]
        if len(parts) > 1:
            from scipy.sparse import vstack

            by_row = {
                name: np.concatenate([arrays[name] for _, arrays in parts]) for name in joined.keys() - {"x", "classes"}
            }
            joined |= by_row | {"x": vstack([arrays["x"] for _, arrays in parts], format="csr")}
        if "y" in joined and np.isin(joined["y"], (-1, 1)).all():
            joined["y"] = (joined["y"] > 0).astype(float)
        return joined


class Libsvm(Svmlight):
    name, suffix = "a LIBSVM file", ".libsvm"


def _owners(path: Path, query: Array, rows: int, options: ReadOptions) -> Array:
    if options.columns.dealt or not options.labeled:
        return np.full(rows, UNASSIGNED)
    if len(query) not in (0, rows):
        raise UserError(f"{path}: {len(query)} of its {rows} lines have a qid; all lines or none must have one")
    if options.in_folder:
        if len(query):
            raise UserError(
                f"{path}: has a qid in its lines, but a file in a folder holds one client, named after the file"
            )
        return name_array(path, "client", [path.stem] * rows)
    if not len(query):
        raise UserError(
            f"{path}: its lines have no qid with the client; give a folder with one file per client, or assign "
            "the rows to clients (task.partition)"
        )
    return query.astype(np.str_)
