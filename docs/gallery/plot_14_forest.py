"""
Intervals, and each hospital's own estimate
===========================================

Odds ratios with confidence intervals from sums over the hospitals, with every hospital's own fit and their
meta-analysis.
"""

from pathlib import Path

import fco_cli.data.example
from fco_cli.api import glm

table = Path(fco_cli.data.example.__file__).parent / "hospitals.csv"
fit = glm(f"task.path={table}", "task.client=hospital", "task.label=diagnosis", "task.drop=[days,died]")
print(fit.summary())
figure = fit.forest(["sex=male"])
