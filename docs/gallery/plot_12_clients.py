"""
Model quality at each hospital
==============================

Receiver operating characteristics of the cross-validated predictions, for every hospital.
"""

from pathlib import Path

import fco_cli.data.example
from fco_cli.api import path
from fco_cli.reporting.figures.classification import draw_roc

table = Path(fco_cli.data.example.__file__).parent / "hospitals.csv"
selection = path(f"task.path={table}", "task.client=hospital", "task.label=diagnosis", "task.drop=[days,died]")
figure = draw_roc(selection.predictions("1se"))
