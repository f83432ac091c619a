"""
Stability selection
===================

The share of random halves of the rows on which a feature is selected. Features above the threshold are stable, with a
bound on the expected number of false ones.
"""

from pathlib import Path

import pandas as pd

import fco_cli.data.example
from fco_cli.api import path
from fco_cli.reporting.figures.paths import draw_stability

table = Path(fco_cli.data.example.__file__).parent / "hospitals.csv"
selection = path(
    f"task.path={table}", "task.client=hospital", "task.label=diagnosis", "task.drop=[days,died]",
    "path.subsamples=25",
)  # fmt: skip
stability = selection.result["stability"]
frequency = pd.DataFrame({"feature": selection.result["features"], "frequency": stability["frequency"]})
print(frequency.sort_values("frequency", ascending=False).to_string(index=False))
figure = draw_stability(selection, frequency)
