"""Keys of tasks on tables that define the terms of the model: `task.formula`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fco_cli.data.formula import Formula, parse
from fco_cli.errors import require
from fco_cli.tasks.base import Task


@dataclass(kw_only=True)
class ModelTerms(Task):
    """Base class of tasks whose features may be the terms of a formula."""

    formula: str | None = None  # right side of a formula, such as age * sex + bs(chol, df=4); null: all columns

    def parsed_formula(self) -> Formula | None:
        """Return the formula, or None; raise UserError if it is invalid."""
        return None if self.formula is None else parse(self.formula)

    def check_terms(self, ranges: Any) -> None:
        """Raise UserError for an invalid formula, or one with declared ranges."""
        allowed = "null with task.ranges, which have no statistics of terms"
        require(self.formula is None or ranges is None, "task.formula", self.formula, allowed)
        self.parsed_formula()

    def unused_terms(self) -> set[str]:
        """Return the keys that are not used and do not affect the identity of a run."""
        return {key for key in ("formula",) if getattr(self, key) is None}
