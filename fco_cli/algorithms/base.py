"""Base class of all algorithms, with the declarations of its prox calls and its style in figures."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import cached_property
from typing import ClassVar, NamedTuple, Self

import numpy as np

from fco_cli.algorithms.arrays import Vector
from fco_cli.algorithms.numba_backend import bound_operations
from fco_cli.algorithms.rounds import Cohort, Costs, LocalSteps, Memory, Participation, Round, State, Varying
from fco_cli.algorithms.transforms import Evaluations, NoTransform, Transform
from fco_cli.kernels.compiled import Kernel, Namespace, specialize
from fco_cli.problem.layout import Array, Numbers, record
from fco_cli.problem.mirror import Geometry
from fco_cli.problem.mirror_maps import Mirror
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers import Regularizer


class Proxes(NamedTuple):
    """Prox calls of one round."""

    step: int = 0  # per local step
    server: int = 0  # of the server
    skipped_steps: int = 0  # first local steps of a round that call no prox


@dataclass(frozen=True)
class Style:
    """Label and line style of an algorithm in figures and tables.

    Markers and dashes (lengths of dashes and gaps in line widths) are distinguishable in grayscale. The colors of the
    paper's methods are those of Okabe and Ito (2008), which are distinguishable with color blindness.
    """

    label: str = ""  # "": the algorithm's name
    color: str = "#4D4D4D"
    marker: str = "h"
    dashes: tuple[float, ...] = ()
    family: str = "others"  # group of the algorithm on the leaderboard


@dataclass(kw_only=True)
class Algorithm(ABC):
    """Base class of the `algo` config group; the dataclass fields are the algorithm's options.

    `bind` returns a copy for one problem, in which every float option is an array [J] over the jobs.
    """

    name: str
    style: ClassVar[Style] = Style(dashes=(4, 1, 1, 1, 1, 1))  # of this class only; subclasses do not inherit it
    federated: ClassVar[bool] = False
    uses: ClassVar[frozenset[str]]  # hyperparameters that the result depends on
    uses_mean_gradient: ClassVar[bool] = False  # True: eta_c is a step along grad F, not along batch gradients
    one_shot: ClassVar[bool] = False  # True: runs a single round and ignores `hparams.rounds`
    certifies: ClassVar[bool] = False  # True: a one-shot method that certifies its solution
    remembered: ClassVar[tuple[Vector, ...]] = ()  # arrays that a client stores between rounds
    personal: ClassVar[str | None] = None  # name of the state or memory array that holds the clients' personal models
    transform: ClassVar[Transform] = NoTransform()  # applied to every message; set by `with_transform`

    problem: ClassVar[Problem]  # set by `bind`; ClassVar because they are not options
    varying: ClassVar[Varying]
    geometry: ClassVar[Geometry]

    @classmethod
    def varying_options(cls) -> tuple[str, ...]:
        """Return the options that may differ between jobs."""
        return tuple(field.name for field in fields(cls) if field.type in ("float", float))

    @property
    def numbers(self) -> Numbers:
        """Values of the varying options as a record array [1], readable by kernels."""
        return record({name: getattr(self, name) for name in self.varying_options()})

    def with_transform(self, transform: Transform) -> Self:
        """Return a copy that applies `transform` to its messages; `self` if the algorithm sends none."""
        return self

    def bind(self, problem: Problem, varying: Varying) -> Self:
        """Return a copy bound to a problem and to the parameters of the jobs."""
        bound = copy.copy(self)
        options = {name: np.ascontiguousarray(varying.options[name]) for name in self.varying_options()}
        bound.__dict__ |= {"problem": problem, "varying": varying, "geometry": problem.geometry(varying.psi), **options}
        bound.check_pair(problem.regularizer, problem.mirror)
        bound.check()
        return bound

    @cached_property
    def operations(self) -> Namespace:
        """Operations of ops.py as kernels of the problem."""
        return bound_operations(self.problem, psi_in_steps=True)

    def bind_kernel(self, template: Kernel, parallel: bool = False) -> Kernel:
        """Return a kernel with `ops` bound to the problem."""
        return specialize(template, parallel=parallel, ops=self.operations)

    @property
    def minimizes_objective(self) -> bool:
        """True if the round of a one-shot method returns the minimizer of F + psi."""
        return self.certifies

    @property
    def pooled_batch(self) -> int:
        """Size of the batches drawn from the pooled rows of all clients; 0 if none are drawn."""
        return 0

    @property
    def local_step_rule(self) -> LocalSteps:
        """Rule for the number of local steps per round."""
        return "epochs"

    def check_pair(self, psi: Regularizer, mirror: Mirror) -> None:  # noqa: B027 - optional hook
        """Raise UserError if the regularizer or mirror map is not supported; called before data are loaded."""

    def check(self) -> None:  # noqa: B027
        """Raise UserError if the bound problem is not supported."""

    def check_transform(self, weighting: str) -> None:  # noqa: B027
        """Raise UserError if the transform is not supported."""

    def check_participation(self, sampled: int, clients: int) -> None:  # noqa: B027
        """Raise UserError if the number of clients per round is not supported."""

    @property
    def rounds_per_cohort(self) -> int:
        """Number of successive rounds with the same cohort."""
        return 1

    @abstractmethod
    def initial_state(self, w: Array) -> State:
        """Return the server's state before the first round, for initial models w [J, P]."""

    @property
    def client_arrays(self) -> tuple[Vector, ...]:
        """All arrays that a client stores between rounds: `remembered`, then the transform's residuals."""
        return self.remembered

    def initial_client_arrays(self, w: Array) -> Array:
        """Return a client's `client_arrays` before its first round: [slots, J, P]."""
        return np.zeros((0, *w.shape), w.dtype)

    @abstractmethod
    def round(self, state: State, cohort: Cohort | None = None, memory: Memory | None = None) -> Round:
        """Run one round. `memory` holds the `client_arrays` of the cohort's clients and is not modified."""

    @abstractmethod
    def output(self, state: State) -> Array:
        """Return the model w [J, P], or [J, M, P] if the state holds one model per client."""

    def state_metrics(self, state: State) -> dict[str, Array]:
        """Return the method's own metrics of a state, each [J]."""
        return {}

    def contents(self) -> dict[str, str]:
        """Return the digests of the files in the options, by option."""
        return {}

    def costs(self, cohort: Cohort | None) -> Costs:
        """Return the costs of one round."""
        return Costs()

    def privacy_spent(
        self,
        rounds: int,
        sampled: int,
        dropped: Array,
        evaluated: Evaluations | None = None,
        participation: Participation | None = None,
    ) -> dict[str, Array]:
        """Return the privacy metrics [J] after `rounds` rounds (`Transform.privacy_spent`).

        `participation` is required by transforms that protect rows.
        """
        return {}

    def peak_vectors(self, sampled: int, clients: int, size: int) -> int:
        """Return the peak number of vectors [P] in memory per job, P = `size`: states, temporaries and messages."""
        return 8

    def client_models(self, state: State, result: Round, cohort: Cohort) -> Array:
        """Return the clients' models at the end of round `made`, then their average: [S + 1, J, P]."""
        raise NotImplementedError(f"{self.name} has no client models")

    # Helpers for server steps.

    def _column(self, numbers: float | Array) -> Array:
        """Return per-job numbers [J] as [J, 1], for broadcasting against vectors [J, P]."""
        return np.asarray(numbers, self.problem.dtype)[:, None]

    def _to_dual(self, w: Array) -> Array:
        """Return grad h(w)."""
        z = np.empty_like(w)
        self.problem.to_dual(w, self.geometry, z)
        return z

    def _to_primal(self, z: Array, t: Array) -> Array:
        """Return grad (h + t psi)*(z)."""
        w = np.empty_like(z)
        self.problem.to_primal(z, t, self.geometry, w)
        return w
