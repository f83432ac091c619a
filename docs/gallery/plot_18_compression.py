"""
Fewer bytes
===========

Full messages, their largest entries with error feedback (topk), and a few bits per number (quantize).
"""

import matplotlib.pyplot as plt

from fco_cli.api import sweep

problem = ("task=lasso", "task.dimension=256", "task.ones=16", "hparams.client_lr=0.003", "hparams.rounds=80")
results = sweep(*problem, "transform=none,topk,quantize")
sent = results.table().set_index("transform.name")["bytes_up"]

# %%
for name, curve in results.rounds().groupby("transform.name"):
    rounds = curve[curve["round"] > 0]
    plt.loglog(rounds["round"] / 80 * sent[name] / 1e6, rounds["objective"], label=name)
plt.xlabel("megabytes sent by the clients")
plt.ylabel("objective")
plt.legend()
