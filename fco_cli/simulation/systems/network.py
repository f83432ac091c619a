"""The simulated network of a run: participation, time model and aggregation, and their checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from fco_cli.algorithms import Algorithm
from fco_cli.algorithms.round import FederatedRound
from fco_cli.errors import require
from fco_cli.results import NETWORK
from fco_cli.simulation.clients import Clients
from fco_cli.simulation.systems.aggregation import Aggregation, Synchronous
from fco_cli.simulation.systems.participation import ClientParticipation, UniformParticipation
from fco_cli.simulation.systems.schedule import Schedule
from fco_cli.simulation.systems.time_model import NoTimeModel, TimeModel

if TYPE_CHECKING:
    from fco_cli.simulation.clients import Sampler


@dataclass(frozen=True)
class Network:
    """Participation of the clients, their times, and the server's aggregation rule."""

    participation: ClientParticipation = field(default_factory=UniformParticipation)
    time_model: TimeModel = field(default_factory=NoTimeModel)
    aggregation: Aggregation = field(default_factory=Synchronous)

    @property
    def parts(self) -> dict[str, Any]:
        """The three settings by configuration group."""
        return {group: getattr(self, group) for group in NETWORK}

    @property
    def is_plain(self) -> bool:
        """True if clients are sampled uniformly, all respond, and time is not simulated."""
        return self == Network()

    @property
    def clients(self) -> Callable[..., Clients]:
        """Factory of the clients in this process."""
        return self.aggregation.clients

    @property
    def is_reliable(self) -> bool:
        """True if all clients can be sampled, and all sampled clients respond in time."""
        return type(self.participation) is UniformParticipation and not self.aggregation.depends_on_times

    def is_biased(self, clients: int) -> bool:
        """True if the expected weights of clients in the updates are not proportional to those in the objective."""
        return self.participation.is_biased(clients) or self.aggregation.depends_on_times

    def identity(self) -> dict[str, dict[str, Any]]:
        """Return the settings that a result depends on, by group."""
        identities = (self.participation.identity(), self.time_model.identity(), asdict(self.aggregation))
        return dict(zip(NETWORK, identities, strict=True))

    def schedule(self, sampler: Sampler) -> Schedule:
        """Return the schedule of a run with this sampler."""
        return self.aggregation.schedule(sampler, self.participation, self.time_model)

    def check_clients(self, clients: int) -> None:
        """Raise UserError if a file or number does not match the number of clients."""
        self.participation.check(clients)
        if self.time_model.is_timed:
            self.time_model.speeds(0, clients)

    def check_absent(self, setting: str) -> None:
        """Raise UserError for a network, which a setting does not support."""
        for (group, part), plain in zip(self.parts.items(), Network().parts.values(), strict=True):
            require(part == plain, group, part.name, f"{plain.name}, without options, with {setting}")

    def check(self, method: Algorithm, record_clients: bool) -> None:
        """Raise UserError if the method does not support the settings."""
        if self.is_plain or not isinstance(method, FederatedRound):
            return
        participation, aggregation, transform = self.participation, self.aggregation, method.transform
        allowed = "lognormal or file: the clients' times decide which messages are used"
        is_timed = self.time_model.is_timed or not aggregation.depends_on_times
        require(is_timed, "time_model", self.time_model.name, allowed)
        is_uniform = type(participation) is UniformParticipation
        needs_all = method.full_participation or method.one_shot
        reason = f"{method.name} requires full participation"
        if method.rounds_per_cohort > 1:
            needs_all, reason = True, f"{method.name} keeps its clients for {method.rounds_per_cohort} rounds"
        if transform.noisy or transform.protects_rows:
            needs_all, reason = True, f"the privacy loss of transform={transform.name} assumes uniform sampling"
        require(is_uniform or not needs_all, "participation", participation.name, f"uniform: {reason}")
        if aggregation.is_synchronous:
            deadline = getattr(aggregation, "deadline", None)
            require(deadline is None or not needs_all, "aggregation.deadline", deadline, f"null: {reason}")
        else:
            if not needs_all:
                reason = f"{method.name} cannot add messages from earlier states"
            supported = method.adds_increments and not needs_all
            require(supported, "aggregation", aggregation.name, f"synchronous: {reason}")
            by_round = participation.by_round
            allowed = "uniform or dropout with aggregation=buffered, which has no rounds of clients"
            require(not by_round, "participation", participation.name, allowed)
            allowed = "false with aggregation=buffered: clients start from different states"
            require(not record_clients, "record_clients", True, allowed)
        if participation.reweights:
            allowed = f"false with algo={method.name}, whose server does not only add increments"
            require(method.adds_increments, "participation.reweight", True, allowed)
            allowed = "false with aggregation=buffered, which has no rounds of clients"
            require(aggregation.is_synchronous, "participation.reweight", True, allowed)
