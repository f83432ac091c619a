"""Simulated network: the clients' participation and times, and the server's aggregation rule (docs/systems.md)."""

from fco_cli.simulation.systems.aggregation import Aggregation, Synchronous, all_aggregations
from fco_cli.simulation.systems.network import Network
from fco_cli.simulation.systems.participation import ClientParticipation, UniformParticipation, all_participations
from fco_cli.simulation.systems.time_model import NoTimeModel, TimeModel, all_time_models

__all__ = [
    "Aggregation", "ClientParticipation", "Network", "NoTimeModel", "Synchronous", "TimeModel", "UniformParticipation",
    "all_aggregations", "all_participations", "all_time_models",
]  # fmt: skip
