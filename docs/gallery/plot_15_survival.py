"""
Survival in four hospitals
==========================

A Cox model with a separate baseline hazard for every hospital, and the Kaplan-Meier curves.
"""

from pathlib import Path

import matplotlib.pyplot as plt

import fco_cli.data.example
from fco_cli.api import glm

table = Path(fco_cli.data.example.__file__).parent / "hospitals.csv"
fit = glm(
    f"task.path={table}", "task.client=hospital", "task.label=days", "task.event=died", "task.loss=cox",
    "task.drop=[diagnosis]",
)  # fmt: skip
print(fit.summary())

# %%
for hospital, curve in fit.survival.reset_index().groupby("client"):
    plt.step([0, *curve["time"]], [1, *curve["survival"]], where="post", label=hospital)
plt.xlabel("days")
plt.ylabel("survival")
plt.legend()
