"""Portable models: a linear model with its preparation, as a description from which all formats are made.

The score of output c is intercept[c] + the sum over terms of coefficients[c] times the product of the term's factors
(data/expressions.py), plus the offset. The link maps scores to predictions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fco_cli.data.expressions import Column, Expression, Indicator, IsMissing, Term, nodes_of
from fco_cli.data.fitted import FittedModel
from fco_cli.data.offsets import offset_column
from fco_cli.data.preparation import OTHER, Preparation
from fco_cli.data.readers.cells import CellParser, Renaming, category_name, parse_number
from fco_cli.errors import UserError
from fco_cli.problem.layout import Array
from fco_cli.problem.losses.base import LINKS

FORMAT, VERSION = "fco linear model", 1


@dataclass(frozen=True)
class InputColumn:
    """Column of a table that a model reads: numbers, or categories that are written as numbers (codes) or texts."""

    column: str
    type: str  # number, code or text
    missing: list[Any]  # cells that are missing values, in addition to empty cells
    fill: float | dict[str, float] | None  # of a missing number, or of the indicators; None: must not be missing
    cells: list[Any] = field(default_factory=list)  # known cells of codes and texts
    categories: list[str] = field(default_factory=list)  # the category of each of them
    unknown: str | None = None  # category of other cells; None: they are missing


@dataclass(frozen=True)
class PortableModel:
    """Fitted linear model that no longer depends on its record."""

    link: str
    classes: list[str] | None
    columns: list[InputColumn]
    terms: list[Term]
    coefficients: Array  # [C, terms]
    intercept: Array  # [C]
    offset: Expression | None = None  # added to the scores
    is_matrix: bool = False  # rows are one matrix with a column per feature, such as sparse rows
    width: int = 0  # number of columns of that matrix
    fold_case: bool = False  # texts are compared in lower case
    site_intercepts: dict[str, float] = field(default_factory=dict)  # of the training clients, by name

    @property
    def output_classes(self) -> list[str]:
        """Names of the classes; those without names are numbered."""
        count = {"logit": 2, "softmax": len(self.intercept)}[self.link]
        return [str(k) for k in range(count)] if self.classes is None else self.classes

    def without_zeros(self) -> PortableModel:
        """Return the model without terms of weight 0, and without columns that no term uses."""
        kept = np.flatnonzero(self.coefficients.any(axis=0))
        terms = [self.terms[k] for k in kept]
        expressions = [factor for term in terms for factor in term.factors]
        expressions += [] if self.offset is None else [self.offset]
        used = {node.column for one in expressions for node in nodes_of(one) if hasattr(node, "column")}
        columns = [one for one in self.columns if one.column in used] or self.columns[:1]
        return replace(self, terms=terms, coefficients=self.coefficients[:, kept], columns=columns)

    def as_json(self) -> str:
        """Return the model as JSON; docs/export.md describes the fields."""
        terms = [
            {"name": term.name, "factors": msgspec.to_builtins(term.factors), "coefficients": own}
            for term, own in zip(self.terms, self.coefficients.T.tolist(), strict=True)
        ]
        is_classifier = self.link in ("logit", "softmax")
        plain = {
            "format": FORMAT,
            "version": VERSION,
            "link": self.link,
            "classes": self.output_classes if is_classifier else None,
            "fold_case": self.fold_case,
            "columns": [_plain(column) for column in self.columns],
            "intercept": self.intercept.tolist(),
            "site_intercepts": self.site_intercepts,
            "offset": msgspec.to_builtins(self.offset),
            "terms": terms,
        }
        return json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(column: InputColumn) -> dict[str, Any]:
    """Return the fields of a column for JSON; numbers have no categories."""
    plain = msgspec.to_builtins(column)
    keys = ("column", "type", "missing", "fill") if column.type == "number" else plain
    return {key: plain[key] for key in keys}


def model_of_record(record: Path) -> PortableModel:
    """Return the model of a record; raise UserError if it has none, or none that can be exported."""
    from fco_cli.data.fitted import read_site_intercepts
    from fco_cli.plugins import load_plugins

    load_plugins()
    fitted = FittedModel.read(record)
    if fitted.link not in LINKS:
        raise UserError(f"{record}: the link {fitted.link!r} of a plug-in cannot be exported; use fco-predict")
    if fitted.preparation is None:
        names = [f"x{k}" for k in range(fitted.coef.shape[1])]
        model = _of_matrix(names, fitted.link, fitted.classes, fitted.coef, fitted.intercept)
    else:
        model = _of_preparation(fitted, fitted.preparation)
    return replace(model, site_intercepts=read_site_intercepts(record)).without_zeros()


def _of_matrix(
    names: list[str], link: str, classes: list[str] | None, coef: Array, intercept: Array, is_matrix: bool = True
) -> PortableModel:
    """Return the model of rows without preparation."""
    columns = [InputColumn(name, "number", [], None) for name in names]
    terms = [Term(name, (Column(name),)) for name in names]
    return PortableModel(link, classes, columns, terms, coef, intercept, is_matrix=is_matrix, width=len(names))


def model_of_estimator(estimator: Any) -> PortableModel:
    """Return the model of a fitted estimator; raise UserError if it is not a linear model of this package."""
    from fco_cli.problem.losses import Logistic, Softmax

    if not hasattr(estimator, "coef_") or not hasattr(estimator, "n_features_in_"):
        raise UserError(
            f"model: got {type(estimator).__name__}, must be a record, its folder, or a fitted estimator of "
            "fco_cli.estimators"
        )
    coef, intercept = np.atleast_2d(estimator.coef_).astype(float), np.atleast_1d(estimator.intercept_).astype(float)
    if (classes := getattr(estimator, "classes_", None)) is not None:
        link = Logistic.link if len(classes) == 2 else Softmax.link
        classes = [category_name(one) if isinstance(one, int | float) else str(one) for one in classes.tolist()]
    else:
        link = estimator._loss().link
    names = getattr(estimator, "feature_names_in_", None)
    own = [f"x{k}" for k in range(coef.shape[1])] if names is None else [str(name) for name in names]
    return _of_matrix(own, link, classes, coef, intercept, is_matrix=names is None).without_zeros()


def _of_preparation(fitted: FittedModel, preparation: Preparation) -> PortableModel:
    table = preparation.table
    header = [*preparation.columns, *(marker.rpartition(":")[0] for marker in table.missing)]
    cells = CellParser.from_markers(table.missing, header)
    renaming = Renaming.of("map", table.map, preparation.columns, table.fold_case, labeled=False)
    columns = [
        _categorical(preparation, name, cells, renaming)
        if name in preparation.categories
        else InputColumn(name, "number", _missing_numbers(name, cells, renaming), fill)
        for name, fill in zip(preparation.columns, preparation.fill, strict=True)
    ]
    if preparation.offset is not None:
        columns.append(InputColumn(offset_column(preparation.offset), "number", [], None))
    return PortableModel(
        fitted.link, fitted.classes, columns, terms_of(preparation), fitted.coef, fitted.intercept, preparation.offset,
        fold_case=table.fold_case,
    )  # fmt: skip


def terms_of(preparation: Preparation) -> list[Term]:
    """Return the features of a preparation as terms."""
    if preparation.terms:
        return preparation.terms
    flagged, terms = set(preparation.flagged), list[Term]()
    for column in preparation.columns:
        encoding = preparation.categories.get(column)
        if encoding is None:
            terms.append(Term(column, (Column(column),)))
        else:
            names = encoding.names[encoding.indicators]
            terms += [Term(f"{column}={name}", (Indicator(column, name),)) for name in names]
        if column in flagged:
            terms.append(Term(f"{column} is missing", (IsMissing(column),)))
    return terms


def _missing_numbers(column: str, cells: CellParser, renaming: Renaming) -> list[float]:
    """Return the numbers that are missing values in a column; a unit is not part of the column's name in the file."""
    own = set(cells.missing_numbers)
    for name in (column, column.rpartition(" [")[0]):
        renamed = (parse_number(cell) for cell in renaming.missing_cells(name, cells))
        own |= cells.missing_by_column.get(name, set()) | {number for number in renamed if number is not None}
    return sorted(own)


def _categorical(preparation: Preparation, column: str, cells: CellParser, renaming: Renaming) -> InputColumn:
    encoding = preparation.categories[column]
    known = [name for name in encoding.names if name != OTHER]
    renamed = {old: new for old, new in renaming.texts.get(column, {}).items() if new in known}
    literal = [name for name in known if name not in renamed.values()]
    numbers = {name: parse_number(name) for name in [*literal, *renamed]}
    is_code = bool(numbers) and all(
        number is not None and category_name(number) == name for name, number in numbers.items()
    )
    if is_code:
        pairs: dict[Any, str] = {float(name): renamed.get(name, name) for name in numbers}
        missing: list[Any] = _missing_numbers(column, cells, renaming)
    else:
        pairs = {name: name for name in known} | renamed
        missing = sorted(cells.missing_texts.union(renaming.missing_cells(column, cells)))
    pairs = {cell: name for cell, name in pairs.items() if cell not in missing}
    unknown = OTHER if encoding.names[:1] == [OTHER] else None
    fill = dict(zip(encoding.names, encoding.fill, strict=True))
    return InputColumn(column, "code" if is_code else "text", missing, fill, list(pairs), list(pairs.values()), unknown)
