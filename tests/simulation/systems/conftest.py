from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fco_cli.simulation.clients import Sampler
from fco_cli.simulation.hparams import Hparams
from fco_cli.simulation.systems import Network
from fco_cli.simulation.systems.time_model import Lognormal, TimesFromFile


class Costs:
    """Costs of a client's part of a round."""

    client_costs = (1, 1, 1000, 2000)

    def client_gradients(self, cohort):
        return np.diff(cohort.edges[cohort.first])


@pytest.fixture(scope="session")
def costs():
    return Costs()


@pytest.fixture(scope="session")
def make_sampler():
    def make(sizes=(5, 9, 7, 4, 6, 8), sampled=3, weighting="uniform", seed=0):
        return Sampler(np.array(sizes), Hparams(0.1, 1.0, 5, sampled, 4, 1, weighting=weighting), seed)

    return make


@pytest.fixture(scope="session")
def on_network(make_setup):
    """Return a function that builds a setup on a simulated network."""

    def make(network: Network, algo="feddualavg", task="lasso", **changes):
        return replace(make_setup(task, algo, **changes), network=network, clients=network.clients)

    return make


@pytest.fixture
def speeds_file(tmp_path):
    """Return a function that writes speeds, one tuple per client, and returns the time model that reads them."""

    def write(*rows):
        path = tmp_path / "speeds.csv"
        lines = ["client,gradient_seconds,up_bandwidth,down_bandwidth,latency"]
        path.write_text("\n".join([*lines, *(",".join(map(str, (m, *row))) for m, row in enumerate(rows)), ""]))
        return TimesFromFile(path=str(path))

    return write


EQUAL = Lognormal(gradient_sigma=0.0, bandwidth_sigma=0.0, latency_sigma=0.0)


@pytest.fixture(scope="session")
def equal_times():
    return EQUAL
