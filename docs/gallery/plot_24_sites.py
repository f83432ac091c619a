"""
Real sites
==========

A coordinator and four hospitals, each a process with its own file (extra ``federation``). The cross-validated path
between them is bitwise that of a simulation on the pooled file; rows stay at their site.
"""

import tempfile
from pathlib import Path

import numpy as np

from fco_cli.api import path
from fco_cli.commands.federation_demo import Loopback, call, record, simulated_hospitals
from fco_cli.reporting import collect
from fco_cli.reporting.figures.paths import draw_cv

settings = ("task.loss=logistic", "path.strengths=20", "path.folds=5")
folder = Path(tempfile.mkdtemp())
data = simulated_hospitals(folder)
with Loopback(folder / "parties", data, ["--label", "diagnosis"], policy="research") as federation:
    federation.up()
    home, sites = federation.home("coordinator"), f"federation.sites=[{','.join(data)}]"
    where = ("federation=flare", sites, f"federation.home={home}", f"output_dir={folder}/sites")
    call("run", "experiment=path", *settings, *where)
(between,) = collect([folder / "sites"]).paths
figure = draw_cv(between)

# %%
simulated = path(f"task.path={folder}/pooled", "task.label=diagnosis", *settings, f"output_dir={folder}/one")
ours, theirs = (np.load(record(folder / name) / "path.npz") for name in ("sites", "one"))
print("same bits:", all(np.array_equal(ours[key], theirs[key]) for key in ours.files))
