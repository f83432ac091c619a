"""Single precision chooses the same learning rates as double, and its curves look the same in a figure."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.problem.regularizers.nuclear import Nuclear as NuclearNorm
from fco_cli.problem.regularizers.penalties import L1
from fco_cli.simulation.engine import Job, Setup, Simulation
from fco_cli.simulation.hparams import Hparams
from fco_cli.tasks.synthetic import Lasso, Nuclear

pytestmark = [pytest.mark.slow, pytest.mark.machine_code]

COMMON = {"strength": 0.5, "radius": 1.0, "clients": 64, "samples": 128}
TASKS = {
    "lasso": (Lasso(name="lasso", dimension=1024, ones=512, **COMMON), L1(strength=0.5), "f1"),
    "nuclear": (Nuclear(name="nuclear", dimension=32, rank=16, **COMMON), NuclearNorm(strength=0.5), "recovery_error"),
}
PAIRS = np.array([(client, server) for client in (0.0003, 0.001, 0.01) for server in (0.1, 0.3, 1)])
ROUNDS = 100


def curves(name: str, algo: str, dtype: str) -> list[pd.DataFrame | None]:
    """The history of every pair of learning rates; None for one that diverged."""
    task, psi, _ = TASKS[name]
    problem = task.build(0, dtype).to_problem(psi)
    algorithm = all_algorithms()[algo]()
    varying = Varying.from_rates(algorithm, psi, *PAIRS.T.astype(dtype))
    hparams = Hparams(0.001, 1.0, ROUNDS, clients_per_round=10, batch_size=10, local_epochs=1, dtype=dtype)
    jobs = [Job() for _ in PAIRS]
    simulation = Simulation(Setup(task, problem, hparams, 0, algorithm), jobs, varying)
    while simulation.advance():
        pass
    return [None if job.diverged else pd.DataFrame(dict(job.history)).set_index("round") for job in jobs]


def best(name: str, histories: list[pd.DataFrame | None]) -> int:
    metric = TASKS[name][2]
    sign = -1 if metric == "f1" else 1
    scores = [np.inf if h is None else sign * h[metric].iloc[-20:].mean() for h in histories]
    return int(np.argmin(scores))


@pytest.mark.parametrize("algo", ["feddualavg", "feddualavg_osp", "fedmid", "fedmid_osp"])
@pytest.mark.parametrize("name", TASKS)
def test_float32_agrees_with_float64(name, algo):
    double, single = curves(name, algo, "float64"), curves(name, algo, "float32")
    assert [h is None for h in double] == [h is None for h in single]
    assert best(name, double) == best(name, single)
    wide, narrow = double[best(name, double)], single[best(name, single)]
    for metric in ("precision", "recall", "f1", "density", "objective", "validation_loss", "recovery_error", "rank"):
        if metric in wide:
            # two digits of the range that the curve covers; a weight or a singular value at the threshold may tip over
            tolerance = 1 if metric == "rank" else 5e-3 * np.ptp(wide[metric])
            np.testing.assert_allclose(narrow[metric], wide[metric], rtol=0, atol=tolerance, err_msg=metric)
