"""How it is optimised: the paper's algorithms and the baselines."""

from fco_cli.algorithms.base import Algorithm, Cohort, Jobs, State
from fco_cli.algorithms.baselines import Centralized, Local, Optimum
from fco_cli.algorithms.fedavg import FedAvg, FedAvgSubgradient
from fco_cli.algorithms.feddualavg import FedDualAvg, FedDualAvgOsp
from fco_cli.algorithms.fedmid import FedMid, FedMidOsp

ALGORITHMS: dict[str, type[Algorithm]] = {
    algorithm.name: algorithm
    for algorithm in (
        FedAvg, FedAvgSubgradient, FedMid, FedMidOsp, FedDualAvg, FedDualAvgOsp, Centralized, Local, Optimum,
    )
}  # fmt: skip

__all__ = ["ALGORITHMS", "Algorithm", "Cohort", "Jobs", "State"]
