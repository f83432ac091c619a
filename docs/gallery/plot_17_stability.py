"""
Which features are stable?
==========================

Stability selection: in how many random halves of the rows is a feature selected?
"""

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

import fco_cli.data.example
from fco_cli.api import path

table = Path(fco_cli.data.example.__file__).parent / "hospitals.csv"
found = path(
    f"task.path={table}", "task.client=hospital", "task.label=diagnosis", "task.drop=[days,died]",
    "path.strengths=20", "path.folds=3", "path.subsamples=25",
)  # fmt: skip
stable = pd.read_csv(found.folder / "stability.csv")
print(stable.head())
plt.barh(stable.iloc[:, 0], stable["frequency"])
plt.xlabel("share of the halves that select the feature")
