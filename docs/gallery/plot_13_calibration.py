"""
Calibration by hospital
=======================

Predicted against observed risk, with intervals, for every hospital.
"""

from pathlib import Path

import fco_cli.data.example
from fco_cli.api import path
from fco_cli.reporting.figures.classification import draw_client_calibration

table = Path(fco_cli.data.example.__file__).parent / "hospitals.csv"
selection = path(f"task.path={table}", "task.client=hospital", "task.label=diagnosis", "task.drop=[days,died]")
figure = draw_client_calibration(selection.predictions("1se"))
