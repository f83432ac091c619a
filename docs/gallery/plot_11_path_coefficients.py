"""
Coefficients along the path
===========================

Each line is the weight of a feature as the penalty becomes weaker.
"""

from pathlib import Path

import fco_cli.data.example
from fco_cli.api import path
from fco_cli.reporting.figures.paths import draw_coefficients

table = Path(fco_cli.data.example.__file__).parent / "hospitals.csv"
selection = path(f"task.path={table}", "task.client=hospital", "task.label=diagnosis", "task.drop=[days,died]")
figure = draw_coefficients(selection)
