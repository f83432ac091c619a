"""Keys of tasks on tables that define the terms of the model: `task.formula`, `task.offset` and `task.exposure`."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from fco_cli.data.expressions import Expression
from fco_cli.data.formula import Formula, parse
from fco_cli.data.offsets import offset_expression
from fco_cli.errors import require
from fco_cli.tasks.base import Task


@dataclass(kw_only=True)
class ModelTerms(Task):
    """Base class of tasks whose features may be the terms of a formula, and whose scores may have an offset."""

    formula: str | None = None  # right side of a formula, such as age * sex + bs(chol, df=4); null: all columns
    offset: str | None = None  # column that is added to the scores
    exposure: str | None = None  # column whose logarithm is added to the scores of counts

    keeps_offset: ClassVar[bool] = False  # the offset is an additional last feature, whose weight must be 1

    def for_inference(self, exposure: str | None) -> Self:
        """Return this task for `experiment=glm`: without validation rows, with the offset as a feature."""
        other = copy.copy(self.cross_validated())
        if exposure is not None:
            allowed = "null with task.exposure or task.offset, which have the same meaning"
            require(self.exposure in (None, exposure) and self.offset is None, "glm.exposure", exposure, allowed)
            other.exposure = exposure
        other.__dict__["keeps_offset"] = True
        return other

    def parsed_formula(self) -> Formula | None:
        """Return the formula, or None; raise UserError if it is invalid."""
        return None if self.formula is None else parse(self.formula)

    def offset_expression(self) -> Expression | None:
        """Return the offset, or None; raise UserError if there are two."""
        return offset_expression(self.offset, self.exposure)

    def check_terms(self, ranges: Any) -> None:
        """Raise UserError for an invalid formula or offset, or with declared ranges."""
        for key in ("formula", "offset", "exposure"):
            value = getattr(self, key)
            allowed = "null with task.ranges, which are those of the features"
            require(value is None or ranges is None, f"task.{key}", value, allowed)
        _ = self.parsed_formula(), self.offset_expression()

    def unused_terms(self) -> set[str]:
        """Return the keys that are not used and do not affect the identity of a run."""
        return {key for key in ("formula", "offset", "exposure") if getattr(self, key) is None}
