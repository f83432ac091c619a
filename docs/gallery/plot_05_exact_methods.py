"""
Biased and exact methods
========================

FedDualAvg ends near the optimum, at a distance that depends on its client rate. With control variates (ZHJ)
only the noise of the batches is left. The gap is measured from a certified optimum.
"""

from fco_cli.api import run, sweep

problem = ("task=lasso", "task.dimension=64", "task.ones=8", "task.clients=16", "hparams.clients_per_round=all")
best = run(*problem, "algo=optimum").final["objective"]
results = sweep(*problem, "algo=feddualavg,zhj", "hparams.client_lr=auto", "hparams.rounds=100")

# %%
import matplotlib.pyplot as plt

from fco_cli.reporting import algorithm_style, line_options

for algo, curve in results.rounds().groupby("algo"):
    style = algorithm_style(algo)
    plt.semilogy(curve["round"], curve["objective"] - best, label=style.label, markevery=10, **line_options(style))
plt.xlabel("round")
plt.ylabel("objective - optimum")
plt.legend()
