"""Offsets: a column, or the logarithm of an exposure, that is added to the scores with coefficient 1.

An offset o is a change of the labels and weights: y - o for the squared and the Huber loss. For counts with exposure
e = exp(o), the loss e exp(s) - y s is that of the rate y / e with weight e. Exposures are divided by their mean over
the training rows, so that weights have mean 1; the intercept then lacks the logarithm of that mean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fco_cli.data.expressions import Call, Column, Expression
from fco_cli.data.format import Features, FederatedData, shown
from fco_cli.data.subsets import select_columns
from fco_cli.errors import UserError, require
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss

COUNTS, ADDITIVE = "poisson", ("squared", "huber")


@dataclass(frozen=True)
class Offset:
    """Offsets of the rows of a table."""

    expression: Expression
    values: Array  # [N]

    @property
    def name(self) -> str:
        """Name of the feature that has coefficient 1."""
        return offset_name(self.expression)

    def applied(self, data: FederatedData, training: Array, loss: Loss, key: str) -> tuple[FederatedData, float]:
        """Return the data with other labels and weights, and what the intercept of their model lacks."""
        if loss.name in ADDITIVE:
            return replace(data, y=data.y - self.values), 0.0
        allowed = (
            f"null for the {loss.name} loss, except with experiment=glm; {COUNTS} and {', '.join(ADDITIVE)} have one"
        )
        require(loss.name == COUNTS, key, shown(offset_column(self.expression)), allowed)
        largest = float(self.values.max())  # against overflow
        mean = float(np.log(np.exp(self.values[training] - largest).mean())) + largest
        exposure = np.exp(self.values - mean)
        weights = exposure if data.weights is None else data.weights * exposure
        return replace(data, y=data.y / exposure, weights=weights), -mean


def offset_expression(offset: str | None, exposure: str | None) -> Expression | None:
    """Return the offset as an expression of the columns; raise UserError if both are given."""
    require(offset is None or exposure is None, "task.offset", offset, "null with task.exposure: give one of them")
    if exposure is not None:
        return Call("log", (Column(exposure),))
    return None if offset is None else Column(offset)


def offset_column(expression: Expression) -> str:
    """Return the column of an offset."""
    column = expression.arguments[0] if isinstance(expression, Call) else expression
    assert isinstance(column, Column)
    return column.column


def offset_name(expression: Expression) -> str:
    """Return the name of the feature that has coefficient 1."""
    column = offset_column(expression)
    return f"offset({column})" if isinstance(expression, Column) else f"offset(log({column}))"


def split_offset(data: FederatedData, expression: Expression, loss: Loss) -> tuple[FederatedData, Offset]:
    """Return the data without the column of the offset, and the offset."""
    column, key = offset_column(expression), key_of(expression)
    if isinstance(expression, Call):
        allowed = f"null for the {loss.name} loss; counts have an exposure (task.loss={COUNTS})"
        require(loss.name == COUNTS, key, column, allowed)
    require(loss.name != "softmax", key, column, "null for the softmax loss, which has a score per class")
    select_columns(data, [column], key)
    values = offsets_of(data.raw, expression)
    others = [name for name in data.feature_names if name != column]
    return select_columns(data, others, key), Offset(expression, values)


def key_of(expression: Expression) -> str:
    """Return the key that declares an offset."""
    return "task.exposure" if isinstance(expression, Call) else "task.offset"


def offsets_of(table: Features, expression: Expression) -> Array:
    """Return the offsets of the rows of a table; raise UserError if the column is absent or invalid."""
    column, key = offset_column(expression), key_of(expression)
    if column not in table.names:
        raise UserError(f"{table.source}: column {shown(column)!r} of the offset ({key}) not found")
    place = table.names.index(column)
    values = np.asarray(table.x[:, place], dtype=float)
    is_exposure = isinstance(expression, Call)
    wrong = ~np.isfinite(values) | (values <= 0 if is_exposure else False)
    if place in table.levels or wrong.any():
        row = f"row {int(np.argmax(wrong))}: " if wrong.any() else ""
        what = "a number > 0" if is_exposure else "a number"
        raise UserError(f"{table.source}: {row}column {shown(column)!r} ({key}) must be {what} in every row")
    return np.log(values) if is_exposure else values
