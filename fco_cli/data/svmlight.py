"""Text files of SVMlight and LIBSVM: a row is `label qid:client column:value column:value ... # comment`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fco_cli.data.format import NOBODY, Arrays, as_names, shown
from fco_cli.data.label import Label
from fco_cli.data.source import Format, Wanted
from fco_cli.errors import UserError
from fco_cli.memory_limit import require_memory
from fco_cli.problem.layout import Array

MAX_LINE = 1 << 25  # characters
BYTES = 32  # of memory for an entry or a row while a file is read: scikit-learn's lists grow by doubling


class Svmlight(Format):
    """One file whose lines say by `qid` whose they are, or a folder with a file for every client.

    Column k of a file is the feature x<k>, whether its numbers begin at 0 or at 1: column 0 may then have no entry.
    Where all labels are -1 and 1, as this format's custom is, they become 0 and 1.
    """

    name, ending, whole = "an svmlight file", ".svm", False
    parser_errors = (ValueError, OverflowError)  # scikit-learn's

    def needs(self, path: Path, wanted: Wanted) -> int:
        count = 0
        with path.open("rb") as file:
            while line := file.readline(MAX_LINE):
                if len(line) == MAX_LINE:
                    raise UserError(f"{path}: has a line of more than {MAX_LINE} characters")
                count += 1 + line.count(b":")
        return BYTES * count

    def read(self, path: Path, wanted: Wanted) -> Arrays:
        from scipy.sparse import csr_array
        from sklearn.datasets import load_svmlight_file

        # scikit-learn refuses columns below 0, twice in a row or out of order
        x, y, query = load_svmlight_file(str(path), zero_based=True, query_id=True)
        if not len(y):
            raise UserError(f"{path}: has no rows")
        require_memory(f"{path}: a model of its {x.shape[1]} features", 8 * x.shape[1])
        arrays = {"x": csr_array(x), "client": _owners(path, query, x.shape[0], wanted)}
        if not wanted.labelled:
            return arrays
        meaning = Label.of(wanted.columns.label, ["y"])
        if meaning.column != "y":
            raise UserError(
                f"{path}: has no column {shown(meaning.column)!r}; the label of an svmlight file is called y"
            )
        classes = {} if meaning.classes is None else {"classes": meaning.classes}
        return arrays | {"y": meaning.apply(y)} | classes

    def join(self, parts: list[tuple[Path, Arrays]]) -> Arrays:
        """Files whose last columns are empty seem narrower than they are."""
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
    name, ending = "a LIBSVM file", ".libsvm"


def _owners(path: Path, query: Array, rows: int, wanted: Wanted) -> Array:
    if wanted.columns.dealt or not wanted.labelled:
        return np.full(rows, NOBODY)
    if len(query) not in (0, rows):
        raise UserError(f"{path}: {len(query)} of its {rows} lines have a qid; all or none must say whose they are")
    if wanted.in_folder:
        if len(query):
            raise UserError(f"{path}: has a qid in its lines, but is one client's file, named after it")
        return as_names(path, "client", [path.stem] * rows)
    if not len(query):
        raise UserError(
            f"{path}: no qid in its lines says whose they are; give a folder with a file for every client, or deal the "
            "rows to clients (task.partition)"
        )
    return query.astype(np.str_)
