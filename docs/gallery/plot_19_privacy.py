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
for _, run in results.table().sort_values("epsilon").iterrows():
    noise = run["transform.noise_multiplier"]
    plt.semilogx(run["epsilon"], run["validation_accuracy"], "o", label=f"noise {noise:g}")
plt.xlabel("epsilon (smaller is more private)")
plt.ylabel("accuracy on held-out rows")
plt.legend()
