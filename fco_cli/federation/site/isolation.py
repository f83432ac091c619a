"""Combinations of answers about models, over all runs: none may be a sum over few rows.

A gradient is a sum over rows x_i with weights l'(s_i), the slopes of the loss at the scores of the model, so that a
combination of answered gradients is a sum with a combination of their slopes. Models with neither, one, the other and
both of two coefficients have slopes that cancel for all rows outside of a cross cell, without knowledge of any row. A
loss is a sum of losses of rows, and the bias row of a Hessian one with second derivatives. The ledger therefore stores
an orthonormal basis of the answered weights of the rows, and a model is refused if the span of these and of its own
holds a vector that is next to 0 for all but few rows. Answers about different folds, preparations and files share
the rows, and therefore the basis.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fco_cli.data.format import shown
from fco_cli.errors import UserError
from fco_cli.federation.policy import POLICY_FILE, Policy, Refusal, plural
from fco_cli.federation.site.cells import KnownCells, are_in_small_cells, column_cells
from fco_cli.federation.site.ledger import Ledger
from fco_cli.federation.site.rows import Fit
from fco_cli.kernels.compiled import Kernel, specialize
from fco_cli.problem.curvature import observe_curvature, observe_loss
from fco_cli.problem.data import ClientData
from fco_cli.problem.descent import cached_by_format, row_loop
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss
from fco_cli.problem.models.linear import Model
from fco_cli.problem.risk import scores_of

# Shares of the squared norm of a combination that few rows have. Slopes of steps or categories cancel to rounding;
# those of numbers are smooth functions, of which a combination that the analyst cannot compute without the rows is
# next to 0 for all but the outermost rows. In a small cross cell, three digits are enough.
ISOLATED = 1 - 1e-11
ISOLATED_IN_CELL = 1 - 1e-5
SIGNAL = 1e3  # least norm of a combination relative to the rounding of its terms, for three digits
MAX_WORK = 5e7  # multiplications of the search for few rows, per request
FILE = "models.bin"  # in the folder of the ledger
ROWS, SLOPES, LOSSES = range(3)  # kinds of records
HEADER = 2 * 8  # bytes of a record's kind and length


class RowSpan:
    """Span of vectors over rows, with an orthonormal basis."""

    def __init__(self) -> None:
        self.size, self._vectors = 0, np.zeros((0, 0))
        self.leverage = np.zeros(0)  # [N], squared norms of the projections of the rows' indicators

    @property
    def basis(self) -> Array:
        """Orthonormal vectors [size, N]."""
        return self._vectors[: self.size]

    def resize(self, rows: int) -> None:
        """Add rows that are 0 in all vectors."""
        grown = np.zeros((len(self._vectors), rows))
        grown[:, : self._vectors.shape[1]] = self._vectors
        self._vectors, self.leverage = grown, np.append(self.leverage, np.zeros(rows - len(self.leverage)))

    def append(self, vector: Array) -> None:
        """Append a vector that is orthonormal to the basis; it may lack the last rows."""
        if self.size == len(self._vectors):
            self._vectors = np.vstack([self._vectors, np.zeros((max(self.size, 8), self._vectors.shape[1]))])
        self._vectors[self.size, : len(vector)] = vector
        self.leverage[: len(vector)] += vector**2
        self.size += 1

    def truncate(self, size: int) -> None:
        """Remove the last vectors."""
        self._vectors[size:] = 0
        self.size, self.leverage = size, (self._vectors[:size] ** 2).sum(axis=0)

    def extend(self, vectors: Array, least: float) -> None:
        """Append what vectors [K, N] add to the span, if its norm is `least` or more of theirs."""
        for vector in vectors:
            norm = np.linalg.norm(vector)
            if not (0 < norm < np.inf):
                continue
            rest = vector / norm
            for _ in range(2):  # the second time removes rounding of the first
                rest = rest - (self.basis @ rest) @ self.basis
            if (norm := np.linalg.norm(rest)) > least:
                self.append(rest / norm)

    def isolated_rows(self, few: int, in_cell: Array) -> Array:
        """Return at most `few` rows that have almost all of some vector of the span; none if there are no such rows.

        `in_cell` are rows in small cross cells, for which the smaller share counts.

        One of these rows has a share 1 / few of the vector, and the projection of its indicator is largest at the
        others, unless many other vectors of the span have large values there.
        """
        few = min(few, len(self.leverage))
        seeds = np.flatnonzero(self.leverage >= ISOLATED_IN_CELL / few)
        most = max(int(MAX_WORK / (self.size * len(self.leverage))), 16) if self.size else 0
        seeds = seeds[np.argsort(-self.leverage[seeds], kind="stable")][:most]
        if not len(seeds):
            return seeds
        projections = self.basis[:, seeds].T @ self.basis
        rows = np.argpartition(-np.abs(projections), few - 1, axis=1)[:, :few]
        own = self.basis.T[rows]  # [seeds, few, size]
        shares, vectors = np.linalg.eigh(own @ own.transpose(0, 2, 1))
        isolated = np.flatnonzero(shares[:, -1] >= np.where(in_cell[seeds], ISOLATED_IN_CELL, ISOLATED))
        if not len(isolated):
            return isolated
        first = isolated[0]
        return np.sort(rows[first][vectors[first, :, -1] ** 2 > 1 - ISOLATED_IN_CELL])


class KnownModels:
    """Weights of the rows in all answers about models of one site, stored in its ledger."""

    def __init__(self, ledger: Ledger, policy: Policy, hashes: Array) -> None:
        """`hashes` [N] are those of the rows of the site's file."""
        self.ledger, self.policy, self.hashes = ledger, policy, hashes
        self.spans = {SLOPES: RowSpan(), LOSSES: RowSpan()}
        self.places: dict[int, int] = {}  # of rows in the vectors, by hash
        self.position = 0  # in the ledger's file
        self._cells = KnownCells(policy.min_rows, are_in_small_cells)
        self._in_cell = np.zeros(0, bool)

    def check(self, weights: dict[int, Array], data: ClientData, rows: Array, least: float) -> Array:
        """Record weights [K, n] of data, by kind; return few of its rows that they isolate instead, if any.

        `rows` are their numbers in the file, and `least` is the smallest relative norm of a combination that exact
        answers resolve.
        """
        isolated = np.zeros(0, int)

        def new(content: bytes) -> tuple[int, bytes]:
            nonlocal isolated
            used, added = self._read(content), b""
            self.position += used
            self.policy.check_numbers(len(self.hashes) * sum(span.size for span in self.spans.values()))
            if missing := [one for one in self.hashes.tolist() if one not in self.places]:
                added += _record(ROWS, np.array(missing, np.uint64))
                self._add_rows(missing)
            places = np.array([self.places[one] for one in self.hashes[rows].tolist()])
            self._in_cell[places] |= self._cells.of(data)
            before = {kind: span.size for kind, span in self.spans.items()}
            for kind, own in weights.items():
                span, vectors = self.spans[kind], np.zeros((len(own), len(self.places)))
                vectors[:, places] = own
                span.extend(vectors, least)
                if span.size > before[kind] and not len(isolated):
                    isolated = span.isolated_rows(self.policy.min_rows - 1, self._in_cell)
            if len(isolated):
                for kind, span in self.spans.items():
                    span.truncate(before[kind])
                isolated = np.flatnonzero(np.isin(places, isolated))
            for kind, span in self.spans.items():
                added += b"".join(_record(kind, vector) for vector in span.basis[before[kind] :])
            return used, added

        self.position = self.ledger.append(FILE, self.position, new)
        return isolated

    def _add_rows(self, hashes: list[int]) -> None:
        for one in hashes:
            self.places[one] = len(self.places)
        self._in_cell = np.append(self._in_cell, np.zeros(len(self.places) - len(self._in_cell), bool))
        for span in self.spans.values():
            span.resize(len(self.places))

    def _read(self, content: bytes) -> int:
        """Read complete records, those of other processes; return their bytes."""
        place = 0
        while place + HEADER <= len(content):
            kind, length = np.frombuffer(content, np.uint64, 2, place).tolist()
            if kind not in (ROWS, SLOPES, LOSSES) or (kind != ROWS and length > len(self.places)):
                raise UserError(f"{self.ledger.folder / FILE}: is damaged; the site answers nothing without its ledger")
            if place + HEADER + 8 * length > len(content):
                break  # a process was killed before it answered
            values = np.frombuffer(content, np.uint64 if kind == ROWS else float, length, place + HEADER)
            if kind == ROWS:
                self._add_rows(values.tolist())
            else:
                self.spans[kind].append(values)
            place += HEADER + 8 * length
        return place


def _record(kind: int, values: Array) -> bytes:
    return np.array([kind, len(values)], np.uint64).tobytes() + values.tobytes()


def check_models(
    known: KnownModels, loss: Loss, fit: Fit, parts: Sequence[str], data: ClientData, steps: Sequence[Array],
    gradient: bool = True, value: bool = True, hessian: bool = False,
) -> None:  # fmt: skip
    """Raise Refusal if answers about models, with all earlier ones, could be combined to a sum over few rows.

    `data` are the rows of these parts of a fit. An answer is a sum over `steps` of numbers about models [J, P].
    """
    model = fit.linear()
    weights: dict[int, list[Array]] = {SLOPES: [], LOSSES: []}
    with np.errstate(all="ignore"):
        made = [_weights_of(loss, model, data, w) for w in steps]
    losses, slopes, curvatures = (np.sum(one, axis=0) for one in zip(*made, strict=True))
    weights[LOSSES] += [losses] if value else []
    weights[SLOPES] += ([slopes] if gradient else []) + ([curvatures] if hessian else [])
    rows = np.concatenate([fit.split.rows_of(part) for part in parts])
    least = SIGNAL * float(np.finfo(data.x.dtype).eps)
    given = {kind: np.vstack(own) for kind, own in weights.items() if own}
    isolated = known.check(given, data, rows, least)
    if not len(isolated):
        return
    used = np.concatenate([w[:, : -model.outputs].reshape(-1, model.features) for w in steps]).any(axis=0)
    columns = _columns_of_cell(data, isolated, used, known.policy.min_rows)
    limit = f"the site's policy allows {known.policy.min_rows} or more ({POLICY_FILE}: min_rows)"
    remedy = "drop or merge columns with rare combinations of values"
    if columns:
        names = [shown(fit.rows().features[one]) for one in columns]
        remedy = f"drop or merge the columns {names[0]} and {names[1]}"
    raise Refusal(
        f"a model of which the answer, with earlier ones, is a sum over {plural(len(isolated), 'row')} requested; "
        f"{limit}; {remedy}, or agree on a policy with noise (min_noise)"
    )


@cached_by_format
def _loop(data: ClientData, model: Model, loss: Loss) -> Kernel:
    """Return the loop that replaces scores by slopes and records losses and, if it has any, second derivatives."""
    value = {"value": loss.bound_kernel("value")}
    if loss.curvature is None:
        return row_loop(data, model, loss, specialize(observe_loss, on_row=value))
    curvature = {"curvature": loss.bound_kernel("curvature")}
    return row_loop(data, model, loss, specialize(observe_curvature, on_row=value | curvature))


def _weights_of(loss: Loss, model: Model, data: ClientData, w: Array) -> tuple[Array, Array, Array]:
    """Return losses [J, N], slopes [J C, N] and second derivatives [J C (C + 1) / 2, N] of rows at models [J, P]."""
    slopes = scores_of(model, data, w)
    jobs, outputs, rows = slopes.shape
    pairs = 0 if loss.curvature is None else outputs * (outputs + 1) // 2
    observed = np.zeros((jobs, rows)), np.zeros((jobs, pairs, rows))
    _loop(data, model, loss)(slopes, data.targets, np.arange(rows), observed, True)
    return observed[0], slopes.reshape(-1, rows).astype(float), observed[1].reshape(-1, rows)


def _columns_of_cell(data: ClientData, rows: Array, used: Array, least: int) -> tuple[int, int] | None:
    """Return the columns of the smallest cross cell with one of some rows; None if none has fewer than `least` rows.

    Only the `used` columns [F], with a weight in the models, are searched.
    """
    cells, columns = column_cells(data.x, least)
    cells, columns = cells[used[columns]], columns[used[columns]]
    counts = cells.astype(float) @ cells.T
    counts[~(cells[:, rows].astype(float) @ cells[:, rows].T > 0)] = np.inf
    if counts.min(initial=np.inf) >= least:
        return None
    first, second = np.unravel_index(counts.argmin(), counts.shape)
    return int(columns[first]), int(columns[second])
