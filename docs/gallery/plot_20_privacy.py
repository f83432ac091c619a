"""
Privacy against utility
=======================

Noise that hides single rows, at several levels: the privacy loss epsilon against the accuracy.
"""

import matplotlib.pyplot as plt

from fco_cli.api import run

for noise in (1, 2, 4, 8):
    record = run(
        "task=digits", "regularizer=l2_squared", "regularizer.strength=0.001", "transform=row_clip_noise",
        f"transform.noise_multiplier={noise}", "hparams.rounds=20",
    )  # fmt: skip
    plt.plot(record.final["epsilon"], record.final["validation_accuracy"], "o", label=f"noise {noise}")
plt.xlabel("epsilon")
plt.ylabel("accuracy")
plt.legend()
