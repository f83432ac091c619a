"""
Personal models
===============

Ditto keeps a model for every client, close to the shared one. The accuracy of each personal model on its client's rows,
and of the shared model on all rows.
"""

import matplotlib.pyplot as plt
import pandas as pd

from fco_cli.api import run

record = run("task=digits", "algo=ditto", "hparams.rounds=30", "hparams.clients_per_round=all")
personal = pd.read_csv(record.folder / "personal.csv").sort_values("own_train_accuracy")
plt.plot(personal["client"].astype(str), personal["own_train_accuracy"], "o", label="personal models")
plt.axhline(record.final["train_accuracy"], color="black", linestyle="--", label="shared model, all clients")
plt.xlabel("client")
plt.ylabel("accuracy")
plt.legend(loc="lower right")
