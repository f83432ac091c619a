"""
Which features are stable?
==========================

Stability selection: in what share of random halves of the rows is a feature selected? Features beyond the threshold are
selected with a bound on the expected number of false ones.
"""

from pathlib import Path

import pandas as pd

import fco_cli.data.example
from fco_cli.api import path
from fco_cli.reporting.figures.paths import draw_stability

table = Path(fco_cli.data.example.__file__).parent / "hospitals.csv"
found = path(
    f"task.path={table}", "task.client=hospital", "task.label=diagnosis", "task.drop=[days,died]",
    "path.subsamples=25",
)  # fmt: skip
stability = found.result["stability"]
frequency = pd.DataFrame({"feature": found.result["features"], "frequency": stability["frequency"]})
print(frequency.sort_values("frequency", ascending=False).to_string(index=False))
figure = draw_stability(found, frequency)
