"""The fMRI task at the size of the paper, with random scans: 59 clients x 18 scans x 39,912 voxels.

Its run time is measured in benchmarks/."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource
import numpy as np
from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.problem.data import ClientData
from fco_cli.problem.regularizers.penalties import L1
from fco_cli.simulation.engine import Job, Setup, Simulation
from fco_cli.simulation.hparams import Hparams
from fco_cli.tasks.fmri import classification
from fco_cli.tasks.fmri import Fmri

def sessions(count, seed):
    x = np.random.default_rng(seed).standard_normal((count, 18, 39912), dtype=np.float32)
    return ClientData.of_equal_clients(x, np.tile(np.repeat(np.float32([1, 0]), 9), (count, 1)))

task = Fmri(name="fmri", strength=1e-3, radius=1.0, data_dir=None, train_subjects=[1], validation_subjects=[2])
problem = classification(sessions(59, 0), sessions(12, 1)).to_problem(L1(strength=1e-3))
hparams = Hparams(0.01, 1.0, 5, 20, 1, 1, dtype="float32")
algorithm = all_algorithms()["feddualavg"]()
varying = Varying.from_rates(algorithm, problem.regularizer, np.array([0.01]), np.array([1.0]))
simulation = Simulation(Setup(task, problem, hparams, 0, algorithm), [Job()], varying)
while simulation.advance():
    pass
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
@pytest.mark.machine_code
def test_data_and_state_take_under_1500_megabytes() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=600, check=True)
    assert int(done.stdout) < 1_500_000
