"""Coefficients of a model: names, terms, and the map from prepared features to the units of the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fco_cli.data.fitted import LinearModel
from fco_cli.data.format import format_list
from fco_cli.data.preparation import OTHER, Preparation
from fco_cli.data.terms import reference
from fco_cli.errors import UserError, require
from fco_cli.problem.layout import Array
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.problem import Problem

INTERCEPT = "(Intercept)"
DEPENDENT = 1e-10  # relative pivots below belong to columns that depend linearly on others
LISTED = 6  # names in a message


@dataclass(frozen=True)
class Design:
    """Weights that are estimated, A of the P weights of a model, and their meaning.

    Coefficients are listed with the intercept first, for every class; the first class of a softmax loss is the
    reference and has none.
    """

    names: list[str]  # [A], of the coefficients
    terms: dict[str, Array]  # coefficients of every column of the table
    columns: Array  # [A], sorted indices of the estimated weights
    start: Array  # [P]; weights that are not estimated keep these values
    to_units: Array  # [A, A], estimated weights to coefficients
    intercepts: Array  # indices of the intercepts
    constant: list[str]  # features that have the same value in all rows and are left out
    references: list[str]  # indicators of reference categories, left out

    def coefficients(self, w: Array) -> Array:
        """Return the coefficients [..., A] of weights [..., A]."""
        return w @ self.to_units.T

    def covariance(self, matrix: Array) -> Array:
        """Return the covariance matrix [A, A] of the coefficients, given that of the weights."""
        return self.to_units @ matrix @ self.to_units.T

    def columns_without(self, coefficients: Array) -> Array:
        """Return the sorted columns without the weights of some coefficients other than intercepts."""
        return np.setdiff1d(self.columns, self.columns[self.weights_of(coefficients)])

    def weights_of(self, coefficients: Array) -> Array:
        """Return the positions in `columns` of the weights that belong to coefficients."""
        return self._own_weights[coefficients]

    @cached_property
    def _own_weights(self) -> Array:
        """Position in `columns` of the weight of every coefficient; an intercept shares its bias with no other."""
        own = self.to_units != 0
        own[self.intercepts] &= ~own[np.setdiff1d(np.arange(len(own)), self.intercepts)].any(axis=0)
        return own.argmax(axis=1)


def design_of(problem: Problem, drop: Sequence[str] = ()) -> Design:
    """Return the design of a problem; `drop` are features, or columns of the table, that are left out.

    A feature after those of the preparation is an offset: its coefficient is 1.
    """
    model = problem.model
    require(isinstance(model, Linear), "model", type(model).__name__, "linear for inference")
    assert isinstance(model, Linear)
    outputs, features = model.outputs, model.features
    preparation = problem.description.preparation if isinstance(problem.description, LinearModel) else None
    names = list(problem.features or (f"x{k}" for k in range(features)))
    mean, scale = np.zeros(features), np.ones(features)
    if preparation is not None and preparation.mean:
        mean[: len(preparation.mean)], scale[: len(preparation.mean)] = preparation.mean, preparation.scale
    has_offset = preparation is not None and len(preparation.features) < features
    offset = names[-1] if has_offset else None
    constant = [] if preparation is None else list(preparation.constant)
    references = _references(preparation)
    own_terms = [_term(name, preparation) for name in names]
    if preparation is not None and preparation.terms:
        own_terms = [term.group for term in preparation.terms] + own_terms[len(preparation.terms) :]
    for name in drop:
        require(name in names or name in own_terms, "glm.drop", name, f"features or columns: {format_list(names)}")
    left_out = {*constant, *references, *drop, offset}
    kept = np.array([k for k in range(features) if not {names[k], own_terms[k]} & left_out], dtype=int)
    has_bias = problem.loss.client_loss is None and not model.site_bias
    classes = _classes(problem, outputs)
    start = np.zeros(problem.layout.size)
    if offset is not None:
        start[names.index(offset)] = 1
    estimated = [c * features + k for c, _ in classes for k in kept]
    estimated += [outputs * features + c for c, _ in classes] if has_bias else []
    columns = np.array(sorted(estimated), dtype=int)
    position = {column: k for k, column in enumerate(columns.tolist())}
    labels: list[str] = []
    terms: dict[str, list[int]] = {}
    rows, intercepts = [], []
    for c, prefix in classes:
        if has_bias:
            row = np.zeros(len(columns))
            row[position[outputs * features + c]] = 1
            for k in kept:
                row[position[c * features + k]] = -mean[k] / scale[k]
            intercepts.append(len(labels))
            labels.append(prefix + INTERCEPT)
            rows.append(row)
        for k in kept:
            row = np.zeros(len(columns))
            row[position[c * features + k]] = 1 / scale[k]
            terms.setdefault(own_terms[k], []).append(len(labels))
            labels.append(prefix + names[k])
            rows.append(row)
    return Design(
        labels, {name: np.array(places) for name, places in terms.items()}, columns, start,
        np.array(rows).reshape(len(labels), len(columns)), np.array(intercepts, dtype=int), constant, references,
    )  # fmt: skip


def _classes(problem: Problem, outputs: int) -> list[tuple[int, str]]:
    """Return the outputs that have coefficients, each with the prefix of its names."""
    if outputs == 1:
        return [(0, "")]
    names = getattr(problem.description, "classes", None) or [str(c) for c in range(outputs)]
    return [(c, f"{names[c]}: ") for c in range(1, outputs)]


def _references(preparation: Preparation | None) -> list[str]:
    """Return the indicators of reference categories: the first category of a column that has an indicator for each."""
    if preparation is None:
        return []
    if preparation.terms:  # a formula has left them out already
        own = [f"{column}={reference(encoding)}" for column, encoding in preparation.categories.items()]
        return [name for name in own if name not in preparation.features]
    references = []
    for column, encoding in preparation.categories.items():
        if len(encoding.names) > 2:
            references.append(f"{column}={next(name for name in encoding.names if name != OTHER)}")
    return references


def _term(feature: str, preparation: Preparation | None) -> str:
    """Return the column of the table that a feature belongs to."""
    for column in () if preparation is None else preparation.categories:
        if feature.startswith(f"{column}="):
            return column
    return feature


def check_rank(hessian: Array, names: Sequence[str], by_client: bool) -> None:
    """Raise UserError if columns depend linearly on others, given the Hessian [A, A] and the names of its columns.

    `by_client` is True if only differences within a client count.
    """
    diagonal = np.diag(hessian)
    for name, own in zip(names, diagonal, strict=True):
        if not own > 1e-12 * max(diagonal.max(), 1e-300):
            where = " within any client" if by_client else ""
            raise UserError(f"glm: {name} does not vary{where}; remove it: glm.drop=[{name}]")
    scaled = hessian / np.sqrt(np.outer(diagonal, diagonal))
    for k in range(1, len(names)):
        before = scaled[:k, :k]
        share = np.linalg.solve(before, scaled[:k, k])
        if 1 - scaled[:k, k] @ share < DEPENDENT:
            others = [names[i] for i in np.flatnonzero(np.abs(share) > 1e-5).tolist()]
            shown = ", ".join(others[:LISTED]) + (", ..." if len(others) > LISTED else "")
            raise UserError(f"glm: {names[k]} is collinear with {shown}; remove one of them: glm.drop=[{names[k]}]")
