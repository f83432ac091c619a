"""Models as scikit-learn pipelines, saved by skops.

A pipeline consists of scikit-learn's own estimators and NumPy functions: a receiver does not need this package. The
only type that skops does not trust by default is `numpy.dtype`, a field of scikit-learn's SimpleImputer. A category
contributes one number per output to the scores, so that one-hot encoding serves missing and unknown cells, too. Terms
with several factors or splines need `TermTransformer`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fco_cli.data.expressions import Call, Column, Expression, Indicator, IsMissing
from fco_cli.errors import UserError, install_extra
from fco_cli.export.model import InputColumn, PortableModel
from fco_cli.export.terms import TermTransformer
from fco_cli.problem.layout import Array


def as_skops(model: PortableModel) -> bytes:
    """Return the pipeline as a skops file."""
    try:
        from skops.io import dumps
    except ImportError as problem:
        raise UserError(f"format: skops is not installed; {install_extra('export')}") from problem
    return dumps(as_pipeline(model))


def as_pipeline(model: PortableModel) -> Any:
    """Return a fitted Pipeline: a data frame with the columns of the table, or a matrix, to predictions."""
    from sklearn.pipeline import Pipeline

    if model.is_matrix:
        coef = np.zeros((len(model.intercept), model.width))
        coef[:, [int(term.name[1:]) for term in model.terms]] = model.coefficients
        return Pipeline([("model", _predictor(model, coef, model.intercept))])
    if model.fold_case or not is_additive(model):
        terms = TermTransformer(model.as_json()).fit(None)
        coef = np.hstack([model.coefficients, np.ones((len(model.intercept), int(model.offset is not None)))])
        return Pipeline([("terms", terms), ("model", _predictor(model, coef, model.intercept))])
    blocks = _Blocks(model)
    return Pipeline(
        [("preparation", blocks.transformer()), ("model", _predictor(model, blocks.coef, blocks.intercept))]
    )


def is_additive(model: PortableModel) -> bool:
    """Return True if every term is a column, an indicator or a missing-value flag."""
    simple = Column | Indicator | IsMissing
    return all(len(term.factors) == 1 and isinstance(term.factors[0], simple) for term in model.terms)


def _predictor(model: PortableModel, coef: Array, intercept: Array) -> Any:
    """Return a fitted scikit-learn model with these coefficients [C, D]."""
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.linear_model import LinearRegression, LogisticRegression

    if model.link in ("logit", "softmax"):
        if len(intercept) == 2:  # LogisticRegression has one score for two classes
            coef, intercept = coef[1:] - coef[:1], intercept[1:] - intercept[:1]
        classifier = LogisticRegression()
        classifier.classes_ = np.array(model.output_classes)
        return _with_coefficients(classifier, coef, intercept)
    linear = _with_coefficients(LinearRegression(), coef[0], float(intercept[0]))
    if model.link != "log":
        return linear
    rates = TransformedTargetRegressor(LinearRegression(), func=np.log, inverse_func=np.exp)
    rates.fit(np.zeros((1, coef.shape[1])), np.ones(1))
    rates.regressor_ = linear
    return rates


def _with_coefficients(estimator: Any, coef: Array, intercept: Any) -> Any:
    estimator.coef_, estimator.intercept_, estimator.n_features_in_ = coef, intercept, coef.shape[-1]
    return estimator


class _Blocks:
    """Transformers of groups of columns, with the coefficients [C, D] of their outputs."""

    def __init__(self, model: PortableModel) -> None:
        self.model, self.intercept = model, model.intercept.copy()
        self.transformers: list[tuple[str, Any, list[str]]] = []
        self.coefs: list[Array] = []
        self.by_factor = {term.factors[0]: own for term, own in zip(model.terms, model.coefficients.T, strict=True)}
        self._add_numbers()
        for column in model.columns:
            self._add_lookup(column)
        if model.offset is not None:
            self._add_offset(model.offset)

    @property
    def coef(self) -> Array:
        return np.concatenate(self.coefs, axis=1) if self.coefs else np.zeros((len(self.intercept), 0))

    def transformer(self) -> Any:
        """Return the fitted ColumnTransformer; its example row fits every transformer with its fill values."""
        import pandas as pd
        from sklearn.compose import ColumnTransformer

        example = pd.DataFrame({column.column: [_example(column)] for column in self.model.columns})
        return ColumnTransformer(self.transformers, sparse_threshold=0).fit(example)

    def _weight(self, factor: Expression) -> Array:
        return self.by_factor.get(factor, np.zeros(len(self.intercept)))

    def _add_numbers(self) -> None:
        """Add the columns of numbers, grouped by their missing-value markers."""
        groups: dict[tuple[Any, ...], list[InputColumn]] = {}
        for column in self.model.columns:
            if column.type == "number" and (Column(column.column) in self.by_factor or not self.by_factor):
                markers = tuple(number for number in column.missing if number != column.fill)
                groups.setdefault((column.fill is None, *markers), []).append(column)
        for (is_complete, *own), columns in groups.items():
            names = [column.column for column in columns]
            imputer = "passthrough" if is_complete else _imputer(own)
            self.transformers.append((f"numbers {len(self.transformers)}", imputer, names))
            self.coefs.append(np.stack([self._weight(Column(name)) for name in names], axis=1))

    def _add_lookup(self, column: InputColumn) -> None:
        """Add the contributions of categories and of missing values, relative to that of unknown cells."""
        from sklearn.preprocessing import OneHotEncoder

        flag = self._weight(IsMissing(column.column))
        if column.type == "number":
            if not flag.any():
                return
            cells, unknown = {}, np.zeros_like(flag)
            missing = flag
        else:
            assert isinstance(column.fill, dict)
            by_category = {name: self._weight(Indicator(column.column, name)) for name in column.fill}
            filled = sum((share * by_category[name] for name, share in column.fill.items()), np.zeros_like(flag))
            cells = {cell: by_category[name] for cell, name in zip(column.cells, column.categories, strict=True)}
            unknown = filled if column.unknown is None else by_category[column.unknown]
            missing = filled + flag
        cells |= dict.fromkeys(column.missing, missing)
        cells = {cell: cells[cell] for cell in sorted(cells)} | {np.nan: missing}
        dtype = object if column.type == "text" else float
        encoder = OneHotEncoder(
            categories=[np.array(list(cells), dtype)], handle_unknown="ignore", sparse_output=False, dtype=np.float64
        )
        self.transformers.append((f"categories of {column.column}", encoder, [column.column]))
        self.coefs.append(np.stack([own - unknown for own in cells.values()], axis=1))
        self.intercept += unknown

    def _add_offset(self, offset: Expression) -> None:
        from sklearn.preprocessing import FunctionTransformer

        transform: Any = "passthrough"
        if isinstance(offset, Call):
            transform, (offset,) = FunctionTransformer(np.log), offset.arguments
        assert isinstance(offset, Column)
        self.transformers.append(("offset", transform, [offset.column]))
        self.coefs.append(np.ones((len(self.intercept), 1)))


def _imputer(markers: list[float]) -> Any:
    """Return the imputer of NaN and of markers; each is fitted to a row of fill values."""
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import Pipeline

    imputers = [SimpleImputer(missing_values=one, keep_empty_features=True) for one in (np.nan, *markers)]
    return Pipeline([(f"imputer {k}", one) for k, one in enumerate(imputers)])


def _example(column: InputColumn) -> Any:
    """Return a cell that fits the transformers of a column."""
    if column.type == "number":
        return 1.0 if column.fill is None else column.fill
    return column.cells[0] if column.cells else ("" if column.type == "text" else 0.0)
