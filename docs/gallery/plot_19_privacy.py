"""
Privacy against utility
=======================

Noise that hides single rows, at four levels: the privacy loss epsilon against the accuracy on held-out rows.
"""

import matplotlib.pyplot as plt

from fco_cli.api import sweep

results = sweep(
    "task=digits", "regularizer=l2_squared", "regularizer.strength=0.001", "transform=row_clip_noise",
    "transform.noise_multiplier=1,2,4,8", "hparams.rounds=20",
)  # fmt: skip
table = results.table().sort_values("epsilon")
plt.semilogx(table["epsilon"], table["validation_accuracy"], "o-")
for _, run in table.iterrows():
    noise = f"noise {run['transform.noise_multiplier']:g}"
    plt.annotate(noise, (run["epsilon"], run["validation_accuracy"]), xytext=(6, -12), textcoords="offset points")
plt.margins(0.2)
plt.xlabel("epsilon (smaller is more private)")
plt.ylabel("accuracy on held-out rows")
