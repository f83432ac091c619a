"""Combinations of answers about models, over all runs: none may be a sum over few rows.

A gradient is a sum over rows x_i with weights l'(s_i), the slopes of the loss at the scores of the model, so that a
combination of answered gradients is a sum with a combination of their slopes. Models with neither, one, the other and
both of two coefficients have slopes that cancel for all rows outside of a cross cell, without knowledge of any row. A
loss is a sum of losses of rows, and the bias row of a Hessian one with second derivatives. The ledger therefore stores
an orthonormal basis of the answered weights of the rows. A model is refused if the span of the basis and of its weights
holds a vector that is almost 0 outside of a small cross cell of two or three columns. Answers about different folds,
preparations and files share the rows, and therefore the basis.

Many answers about one small part, or about two parts that differ by few rows, determine these rows although they are
few for the whole table. The combinations that concern only such rows are therefore counted, relative to their values.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakValueDictionary

import numpy as np

from fco_cli.data.format import shown
from fco_cli.errors import UserError
from fco_cli.federation.policy import POLICY_FILE, Refusal, plural
from fco_cli.federation.site.cells import rare_values, small_cells
from fco_cli.federation.site.disclosure import Disclosure
from fco_cli.federation.site.rows import Fit, Prepared
from fco_cli.kernels.compiled import Kernel, specialize
from fco_cli.problem.curvature import observe_curvature, observe_loss
from fco_cli.problem.data import ClientData
from fco_cli.problem.descent import cached_by_format, row_loop
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss
from fco_cli.problem.models.linear import Model
from fco_cli.problem.risk import blas, scores_of

ISOLATED = 1 - 1e-6  # share of a combination's squared norm that few rows have: all others disturb its third digit
SIGNAL = 1e3  # least norm of a combination relative to the rounding of its terms, for three digits
SMALL = 0.1  # relative norm of a projection whose rounding counts
FILE = "models.bin"  # in the folder of the ledger
ROWS, SLOPES, LOSSES, CURVATURES = range(4)  # kinds of records
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
            rest = rest - (self.basis @ rest) @ self.basis
            if np.linalg.norm(rest) < SMALL:  # remove the rounding of the first time
                rest = rest - (self.basis @ rest) @ self.basis
            if (norm := np.linalg.norm(rest)) > least:
                self.append(rest / norm)

    def isolated(self, sets: Array) -> int | None:
        """Return the first of the sets of rows [S, few], padded by -1, that has almost all of some vector of the span.

        The largest eigenvalue of a set's block of the projection matrix is that share.
        """
        if not self.size or not len(sets):
            return None
        leverage = np.append(self.leverage, 0.0)
        for k in np.flatnonzero(leverage[sets].sum(axis=1) >= ISOLATED):
            own = self.basis[:, sets[k][sets[k] >= 0]]
            if np.linalg.eigvalsh(own.T @ own)[-1] >= ISOLATED:
                return int(k)
        return None

    def combinations_in(self, rows: Array) -> int:
        """Return the number of independent vectors of the span that have almost all of their norm in rows [N]."""
        own = self.basis[:, rows]
        return int((np.linalg.eigvalsh(own @ own.T if len(own) < own.shape[1] else own.T @ own) >= ISOLATED).sum())


class KnownModels:
    """Weights of the rows in all answers about models of one site, stored in its ledger."""

    def __init__(self, disclosure: Disclosure) -> None:
        self.disclosure, self.ledger, self.policy = disclosure, disclosure.ledger, disclosure.policy
        self.spans = {SLOPES: RowSpan(), LOSSES: RowSpan(), CURVATURES: RowSpan()}
        self.places: dict[int, int] = {}  # of rows in the vectors, by hash
        self.position = 0  # in the ledger's file
        self._cells: dict[tuple[int, ...], set[tuple[str, ...]]] = {}  # columns of small cells, by hashes of rows
        self._sets: list[list[int]] = []  # places of the rows of these cells, padded by -1
        self._own: Array | None = None  # places of the file's rows
        self._parts: tuple[int, Array] = (0, np.zeros((1, 0), np.float32))  # row subsets in the ledger: number, masks
        self._prepared: WeakValueDictionary[int, Prepared] = WeakValueDictionary()  # of which the cells are known

    def check(
        self, loss: Loss, fit: Fit, parts: Sequence[str], data: ClientData, steps: Sequence[Array],
        gradient: bool = True, value: bool = True, hessian: bool = False,
    ) -> None:  # fmt: skip
        """Record models; raise Refusal if answers about them and all earlier ones could be combined to one of few rows.

        `data` are the rows of these parts of a fit. An answer is a sum over `steps` of numbers about models [J, P].
        Refusals are counted like those of steep models. With noise in every answer, no combination is exact.
        """
        if not self.policy.refuse_differences or self.policy.min_noise > 0:
            return
        model = fit.linear()
        with np.errstate(all="ignore"):
            made = [_weights_of(loss, model, data, w) for w in steps]
        losses, slopes, curvatures = (np.sum(one, axis=0) for one in zip(*made, strict=True))
        weights = {LOSSES: losses[: len(losses) * value]}
        weights[CURVATURES] = curvatures[: len(curvatures) * hessian]
        weights[SLOPES] = np.vstack([slopes[: len(slopes) * gradient], weights[CURVATURES]])
        rows = np.concatenate([fit.split.rows_of(part) for part in parts])
        self._find_cells(fit)
        isolated = self._add(weights, rows, SIGNAL * float(np.finfo(data.x.dtype).eps))
        if isolated is None:
            return
        self.ledger.charge({"steep_models": (None, "")}, {"steep_models": 1})
        weighted = np.concatenate([w[:, : -model.outputs].reshape(-1, model.features) for w in steps]) != 0
        names = fit.rows().features
        used = {shown(name) for name, one in zip(names, np.logical_or.reduce(weighted), strict=True) if one}
        cell = max(self._cells[isolated], key=lambda columns: len(used & {*columns}) - len(columns))
        limit = f"the site's policy allows {self.policy.min_rows} or more ({POLICY_FILE}: min_rows)"
        remedy = f"drop or merge the columns {', '.join(cell[:-1])} and {cell[-1]}"
        if len(cell) == 1:
            remedy = f"drop the column {cell[0]}, or merge its rare values"
        raise Refusal(
            f"answers whose combination is a sum over {plural(len(isolated), 'row')} requested; {limit}; {remedy}, or "
            "use min_noise"
        )

    def _find_cells(self, fit: Fit) -> None:
        """Find the small cross cells of all parts of a fit once."""
        prepared = fit.rows()
        if self._prepared.get(id(prepared)) is prepared:
            return
        self._prepared[id(prepared)] = prepared
        names, least = [*prepared.features, *fit.split.names], self.policy.min_rows
        training = fit.split.training_table()
        for part, used in zip(("training", "held_out", "test"), fit.split.parts, strict=True):
            if (data := fit.part(part)) is not None:
                hashes = self.disclosure.row_hashes[fit.split.rows_of(part)]
                table = self.disclosure.merge_levels(fit.split.table(used), training)
                found = [(rows, [column]) for rows, column in rare_values(data.x, least)]
                for rows, columns in (*found, *small_cells(data.x, least, table)):
                    cell = tuple(sorted(hashes[rows].tolist()))
                    self._cells.setdefault(cell, set()).add(tuple(shown(names[one]) for one in columns))

    def _add(self, weights: dict[int, Array], rows: Array, least: float) -> tuple[int, ...] | None:
        """Record weights [K, n] of some rows of the file, by kind; return a cell that they isolate instead, if any.

        `least` is the smallest relative norm of a combination that exact answers resolve.
        """
        isolated: int | None = None
        excess: int | None = None  # rows about which too many numbers are requested
        cells = list(self._cells)

        def new(content: bytes) -> tuple[int, bytes]:
            nonlocal isolated, excess
            used, added = self._read(content), b""
            self.position += used
            self.policy.check_numbers(len(self.disclosure.row_hashes) * sum(span.size for span in self.spans.values()))
            if self._own is None:
                if missing := [one for one in self.disclosure.row_hashes.tolist() if one not in self.places]:
                    added += _record(ROWS, np.array(missing, np.uint64))
                    self._add_rows(missing)
                self._own = np.array([self.places[one] for one in self.disclosure.row_hashes.tolist()])
            for cell in cells[len(self._sets) :]:
                places = [self.places[one] for one in cell]
                self._sets.append(places + [-1] * (self.policy.min_rows - 1 - len(places)))
            before = {kind: span.size for kind, span in self.spans.items()}
            for kind, own in weights.items():
                span, vectors = self.spans[kind], np.zeros((len(own), len(self.places)))
                vectors[:, self._own[rows]] = own
                span.extend(vectors, least)
                if span.size > before[kind] and isolated is None:
                    isolated = span.isolated(np.array(self._sets))
            if isolated is None and any(span.size > before[kind] for kind, span in self.spans.items()):
                excess = self._excess()
            if isolated is not None or excess is not None:
                for kind, span in self.spans.items():
                    span.truncate(before[kind])
            for kind, span in self.spans.items():
                added += b"".join(_record(kind, vector) for vector in span.basis[before[kind] :])
            return used, added

        with blas().limit(limits=1, user_api="blas"):  # several threads take longer for products of this size
            self.position = self.ledger.append(FILE, self.position, new)
        if excess is not None:
            limit = f"the site's policy allows {self.policy.max_equations_per_value:g} per value"
            raise Refusal(
                f"too many numbers about {plural(excess, 'row')} (a part, or the difference of two) requested over all "
                f"runs; {limit} ({POLICY_FILE}: max_equations_per_value); use larger parts"
            )
        return None if isolated is None else cells[isolated]

    def _excess(self) -> int | None:
        """Return the size of a row subset, or of the difference of two, about which the spans have too many numbers.

        A combination of gradients has a number for every value of a row, a loss one, and a Hessian half as many for
        every column. Traces of the projection matrices are upper bounds of the numbers of combinations.
        """
        limit = self.policy.max_equations_per_value
        if limit is None:
            return None
        values, masks = self.disclosure.data.x.shape[1] + 1, self._masks()
        amounts = {SLOPES: 1.0, LOSSES: 1 / values, CURVATURES: values / 2}  # in gradients
        allowed = limit * self.disclosure.sites * _differences(masks @ masks.T)
        most = sum(
            amounts[kind] * _differences((masks * span.leverage.astype(np.float32)) @ masks.T)
            for kind, span in self.spans.items()
        )
        for one, other in np.argwhere(np.triu(most > allowed, 1)).tolist():
            rows = masks[one] != masks[other]
            used = sum(amounts[kind] * span.combinations_in(rows) for kind, span in self.spans.items() if span.size)
            if used > limit * self.disclosure.sites * rows.sum():
                return int(rows.sum())
        return None

    def _masks(self) -> Array:
        """Return the row subsets of the ledger as masks [S, N] of places, an empty one first."""
        paths = sorted(self.ledger.folder.glob("*.npy"))
        if self._parts[0] != len(paths) or self._parts[1].shape[1] != len(self.places):
            masks = np.zeros((1 + len(paths), len(self.places)), np.float32)
            for mask, path in zip(masks[1:], paths, strict=True):
                hashes = np.load(path, allow_pickle=False).tolist()
                mask[[self.places[one] for one in hashes if one in self.places]] = 1
            self._parts = len(paths), masks
        return self._parts[1]

    def _add_rows(self, hashes: list[int]) -> None:
        for one in hashes:
            self.places[one] = len(self.places)
        for span in self.spans.values():
            span.resize(len(self.places))

    def _read(self, content: bytes) -> int:
        """Read complete records, those of other processes; return their bytes."""
        place = 0
        while place + HEADER <= len(content):
            kind, length = np.frombuffer(content, np.uint64, 2, place).tolist()
            if kind not in (ROWS, *self.spans) or (kind != ROWS and length > len(self.places)):
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


def _differences(overlaps: Array) -> Array:
    """Return the sums over the symmetric differences of sets, from those over their intersections [S, S]."""
    own = np.diag(overlaps)
    return own[:, None] + own - 2 * overlaps


def _record(kind: int, values: Array) -> bytes:
    return np.array([kind, len(values)], np.uint64).tobytes() + values.tobytes()


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
