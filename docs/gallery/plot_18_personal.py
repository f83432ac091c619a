"""
Personal models
===============

Ditto keeps a model for every client, pulled towards the shared one. How much each gains on its own rows:
"""

import matplotlib.pyplot as plt
import pandas as pd

from fco_cli.api import run

record = run("task=digits", "algo=ditto", "hparams.rounds=30", "hparams.clients_per_round=all")
personal = pd.read_csv(record.folder / "personal.csv")
print(personal.head())
numbers = personal.select_dtypes("number")
plt.plot(numbers.iloc[:, -1].sort_values().to_numpy(), "o")
plt.xlabel("client, sorted")
plt.ylabel(numbers.columns[-1])
