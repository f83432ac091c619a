"""Terms of a model from a data frame, as a scikit-learn transformer: for interactions, splines and folded case.

A receiver of such a pipeline needs this package and must trust the type
`fco_cli.export.terms.TermTransformer`, whose only parameter is the model's JSON text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin

from fco_cli.data.expressions import Expression, Term, evaluate, evaluate_term
from fco_cli.errors import UserError
from fco_cli.problem.layout import Array
from fco_cli.typed_files import converted, parse_json

if TYPE_CHECKING:
    import pandas as pd


class _Column(msgspec.Struct):
    """Column of a JSON model."""

    column: str
    type: str
    missing: list[float | str]
    fill: float | dict[str, float] | None
    cells: list[float | str] = []
    categories: list[str] = []
    unknown: str | None = None


class _Model(msgspec.Struct):
    """Fields of a JSON model that determine its terms."""

    columns: list[_Column]
    terms: list[Term]
    offset: Expression | None
    fold_case: bool


class TermTransformer(TransformerMixin, BaseEstimator):
    """Terms of a model, and its offset in the last column if it has one.

    Parameters
    ----------
    model : str
        The model as JSON (docs/export.md).
    """

    def __init__(self, model: str = "") -> None:
        self.model = model

    def fit(self, X: Any, y: Any = None) -> TermTransformer:
        """Return the transformer: the model is its only state."""
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def transform(self, X: pd.DataFrame) -> Array:
        """Return the terms [N, T] of a data frame with the columns of the model."""
        plain = parse_json(self.model.encode(), "model")
        model = converted(plain, _Model, "model")
        values = _FrameValues(X, model)
        columns = [evaluate_term(term, values, len(X)) for term in model.terms]
        if model.offset is not None:
            columns.append(np.broadcast_to(evaluate(model.offset, values), len(X)))
        return np.stack(columns, axis=1) if columns else np.zeros((len(X), 0))


class _FrameValues:
    """Filled values of the columns of a data frame."""

    def __init__(self, frame: pd.DataFrame, model: _Model) -> None:
        self.frame, self.fold_case = frame, model.fold_case
        self.columns = {column.column: column for column in model.columns}
        if absent := [name for name in self.columns if name not in frame]:
            raise UserError(f"X: column {absent[0]!r} not found; columns are {', '.join(map(str, frame))}")

    def _cells(self, name: str) -> tuple[list[Any], Array]:
        """Return the cells of a column, and which of them are missing."""
        column, own = self.columns[name], self.frame[name]
        missing = own.isna().to_numpy()
        if column.type == "text":
            cells: list[Any] = [str(cell).casefold() if self.fold_case else str(cell) for cell in own.tolist()]
        else:
            cells = own.astype(float).tolist()
        return cells, missing | np.array([cell in column.missing for cell in cells], dtype=bool)

    def number(self, column: str) -> Array:
        """Return a column of numbers [N], filled."""
        cells, missing = self._cells(column)
        fill = self.columns[column].fill
        assert not isinstance(fill, dict)
        return np.where(missing, np.nan if fill is None else fill, np.array(cells, dtype=float))

    def indicator(self, column: str, category: str) -> Array:
        """Return the indicator of a category [N], filled."""
        own = self.columns[column]
        assert isinstance(own.fill, dict)
        cells, missing = self._cells(column)
        known: dict[Any, str] = dict(zip(own.cells, own.categories, strict=True))
        names = [
            None if is_missing else known.get(cell, own.unknown)
            for cell, is_missing in zip(cells, missing, strict=True)
        ]
        return np.array([own.fill[category] if name is None else float(name == category) for name in names])

    def is_missing(self, column: str) -> Array:
        """Return 1 for missing values and 0 for others [N]."""
        return self._cells(column)[1].astype(float)
