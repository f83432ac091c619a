"""Sparse rows in the CSR format of `scipy.sparse`.

In the neutral format (format.py) four arrays replace x, with the names that `scipy.sparse.save_npz` uses:

    data      [stored]  numbers: the stored entries, row by row; all finite (absent entries are 0, not missing)
    indices   [stored]  whole numbers: their columns, unique in each row
    indptr    [N + 1]   row i has the entries indptr[i] to indptr[i + 1] - 1
    shape     [2]       N and d
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fco_cli.errors import UserError
from fco_cli.memory_limit import require_memory
from fco_cli.problem.data import Rows, SparseRows
from fco_cli.problem.layout import Array

if TYPE_CHECKING:
    from scipy.sparse import csr_array

PARTS = ("data", "indices", "indptr", "shape")
SCIPY_METADATA = ("format", "_is_array")  # further arrays of scipy.sparse.save_npz
MAX_FEATURES = 2**31 - 1


def with_sparse_rows(source: str, arrays: dict[str, Array]) -> dict[str, Array]:
    """Return the arrays with x in place of the four arrays of sparse rows, if these are present."""
    if "x" in arrays or not {"indptr", "format"} & arrays.keys():
        return arrays
    if "format" in arrays and arrays["format"].tobytes().replace(b"\0", b"") != b"csr":
        raise UserError(f"{source}: holds a sparse matrix that is not in CSR format; save x.tocsr()")
    if missing := [name for name in PARTS if name not in arrays]:
        raise UserError(f"{source}: array {missing[0]!r} is missing; sparse rows need {', '.join(PARTS)}")
    rest = {name: array for name, array in arrays.items() if name not in PARTS + SCIPY_METADATA}
    return {"x": _rows(source, *(arrays[name] for name in PARTS)), **rest}


def _rows(source: str, data: Array, indices: Array, indptr: Array, shape: Array) -> csr_array:
    from scipy.sparse import csr_array  # slow to import

    for name, array, kinds, length in (
        ("data", data, "biuf", data.size), ("indices", indices, "iu", data.size), ("shape", shape, "iu", 2),
    ):  # fmt: skip
        if array.dtype.kind not in kinds or array.shape != (length,):
            expected = f"{length} {'numbers' if name == 'data' else 'whole numbers'}"
            raise UserError(f"{source}: array {name!r} holds {array.dtype.name} {array.shape}, must be {expected}")
    rows, features = (int(size) for size in shape)
    if rows < 1 or not 1 <= features <= MAX_FEATURES:
        raise UserError(f"{source}: array 'shape' is {rows} x {features}, must be at least 1 x 1, at most N x 2^31 - 1")
    require_memory(f"{source}: a model of its {features} features", 8 * features)
    is_valid = indptr.dtype.kind in "iu" and indptr.shape == (rows + 1,) and indptr[0] == 0 and indptr[-1] == data.size
    if not is_valid or (indptr[1:] < indptr[:-1]).any():
        raise UserError(
            f"{source}: array 'indptr' must be {rows + 1} row starts: nondecreasing whole numbers from 0 to {data.size}"
        )
    if data.size and not (indices.min() >= 0 and indices.max() < features):
        invalid = indices.min() if indices.min() < 0 else indices.max()
        raise UserError(f"{source}: array 'indices' holds {invalid}, must hold columns from 0 to {features - 1}")
    if data.dtype not in (np.float32, np.float64):
        data = data.astype(float)
    dtype = np.int32 if data.size < 2**31 else np.int64  # scipy would copy one array if the types differed
    index = (indices.astype(dtype, copy=False), indptr.astype(dtype, copy=False))
    x = csr_array((data, *index), shape=(rows, features))
    x.sort_indices()
    repeated = np.flatnonzero(x.indices[1:] == x.indices[:-1]) + 1
    repeated = repeated[~np.isin(repeated, x.indptr)]  # without the first entries of rows
    if len(repeated):
        row = row_of(x, repeated[0])
        raise UserError(f"{source}: row {row}: column {x.indices[repeated[0]]} is stored twice")
    return x


def row_of(x: csr_array, entry: int) -> int:
    """Return the row of a stored entry."""
    return int(np.searchsorted(x.indptr, entry, side="right")) - 1


def sparse_arrays(x: csr_array) -> dict[str, Array]:
    """Return the four arrays of the neutral format."""
    return {"data": x.data, "indices": x.indices, "indptr": x.indptr, "shape": np.array(x.shape)}


def as_sparse_rows(x: csr_array, values: Array) -> SparseRows:
    """Return the rows in the format of the kernels, with the given values."""
    return SparseRows(values, x.indices.astype(np.int32, copy=False), x.indptr.astype(np.int64), x.shape[1])


def is_sparse(x: Rows) -> bool:
    return not isinstance(x, np.ndarray)
