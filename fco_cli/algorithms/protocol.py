"""All that the author of a federated algorithm must read: the class `Federated`.

A method declares the arrays that the server broadcasts, that a client remembers between rounds and that a client sends,
and defines two functions of a round: `local_steps` of a client, written in the operations of ops.py, and `server_step`.
Costs, buffers, checkpoints, masks, the policy of sites and the hyperparameters that the method uses follow from that.
The dataclass fields are the method's options; those of type float may differ between the jobs of a stack, and are
arrays [J] once the method is bound to a problem.

    @dataclass(kw_only=True)
    class FedAvg(Federated):
        name: str = "fedavg"
        broadcast = (Vector("w"),)
        sent = (Vector("w"),)
        accumulates_messages = False

        @staticmethod
        @kernel
        def local_steps(received, memory, message, rate, options, batches, geometry):
            w = ops.copy(received.w)
            for k in range(batches.steps):
                ops.gradient_step(w, w, batches, k, rate)
            ops.assign_difference(message.w, w, received.w)

The first axis of every array is the job axis J. A method accesses psi and h only through `to_dual` and `to_primal`, and
the loss only through gradient steps.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from fco_cli.algorithms.arrays import Matrix, Scalar, Symmetric, Vector
from fco_cli.algorithms.base import Algorithm, Proxes, Style
from fco_cli.algorithms.derivation import derive
from fco_cli.algorithms.numba_backend import keep_memory
from fco_cli.algorithms.round import FederatedRound
from fco_cli.algorithms.rounds import Aggregates, Cohort, Costs, LocalSteps, State
from fco_cli.kernels.compiled import Kernel, kernel
from fco_cli.problem.layout import Array

__all__ = [
    "Aggregates", "Algorithm", "Array", "Cohort", "Costs", "Federated", "LocalSteps", "Matrix", "Proxes", "Scalar",
    "State", "Style", "Symmetric", "Vector", "kernel",
]  # fmt: skip


@dataclass(kw_only=True)
class Federated(FederatedRound):
    """Base class of federated algorithms. A round is: broadcast, local steps, aggregation, server step.

    A method defines `local_steps`, `initial_state`, `server_step` and `output`. It may override these methods of
    `FederatedRound` (round.py), whose defaults suit most methods:

    - `initial_memory(w)`: the remembered arrays before a client's first round that are not zeros;
    - `start_round(state, cohort)`: the state at the start of a round, from which the broadcast arrays are taken;
    - `effective_steps(steps)`: the number of gradient steps that a message amounts to;
    - `client_model(end, state, steps)`: a client's model at the end of a round;
    - `other_models(received, steps)`: models that broadcast arrays other than the first determine;
    - `check_pair(psi, mirror)` and `check()`: refuse problems that the method does not support.

    Helpers for server steps: `_server_update(s, delta)` is s + eta_s Delta, `_step_size(steps)` is eta_s eta_c K,
    `_to_dual(w)`, `_to_primal(z, t)`, and `_column(numbers)`, which broadcasts numbers [J] against vectors [J, P].
    """

    # Declarations. The first three are tuples of Vector [J, P], Matrix [P, J, P], Symmetric [slots, J, P] or Scalar
    # [J]. `broadcast`, `sent` and `accumulates_messages` are mandatory.
    broadcast: ClassVar[tuple[Vector, ...]]  # arrays of the server's state that clients receive
    remembered: ClassVar[tuple[Vector, ...]] = ()  # arrays that a client stores between rounds
    sent: ClassVar[tuple[Vector, ...]]  # arrays that a client sends; the first: the change of broadcast[0]
    # True: the server keeps a running sum of messages, as for control variates. Noise added to messages would then
    # accumulate without bound, so such transforms are refused.
    accumulates_messages: ClassVar[bool]
    normalized: ClassVar[bool | None] = None  # True: messages are divided by K_m; None: as hparams.normalize_steps
    full_participation: ClassVar[bool] = False  # True: all clients must participate in every round
    psi_in_steps: ClassVar[bool] = True  # False: `ops.to_primal` ignores psi (OSP, "only server proximal")
    proxes: ClassVar[Proxes] = Proxes()  # number of prox calls of a round, for its costs

    local_steps: ClassVar[Kernel]
    """Kernel local_steps(received, memory, message, rate, options, batches, geometry): one client's local steps.

    `received` contains the broadcast arrays, `memory` the remembered ones, updated in place, and `message` the sent
    ones, to be filled; all by name. `rate` is eta_c [J], `options` has the float options, each [J]. `batches.steps` is
    K; `batches` and `geometry` are passed on to operations.
    """

    remember: ClassVar[Kernel] = keep_memory
    """Kernel remember(received, memory, message, rate, options, steps): memory update that depends on the message.

    Runs after the transform, so that client and server compute their updates from the same transformed message.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        derive(cls)

    @abstractmethod
    def initial_state(self, w: Array) -> State:
        """Return the server's state before the first round, for initial models w [J, P]."""

    @abstractmethod
    def server_step(self, state: State, aggregates: Aggregates) -> State:
        """Return the new state.

        `aggregates.mean` and `aggregates.sum` are those of the messages by name, `aggregates.steps` is their mean K.
        """

    @abstractmethod
    def output(self, state: State) -> Array:
        """Return the model w [J, P]."""
