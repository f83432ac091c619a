"""
From a table to a sparse model
==============================

A table of four hospitals, a path over strengths with cross-validation, and the model of the one-standard-error rule.
"""

from pathlib import Path

import fco_cli.data.example
from fco_cli.api import path
from fco_cli.reporting.figures.paths import draw_cv

table = Path(fco_cli.data.example.__file__).parent / "hospitals.csv"
selection = path(f"task.path={table}", "task.client=hospital", "task.label=diagnosis", "task.drop=[days,died]")
print(selection.models["1se"])
figure = draw_cv(selection)
