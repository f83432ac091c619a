"""The paper's statements, side by side with what the algorithms do: a cell for every (R, K, M, eta_c).

Constants of the proofs are kept, nothing is hidden in "up to a constant": theorem 0 is the paper's `small_lr`,
theorems 1 and 2 are `thm:1` and `thm:2`, the lemmas `pia:general`, `bounded_gradient` and `quad:stability`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from fco_cli.errors import UserError, require
from fco_cli.problem.layout import Array
from fco_cli.problem.regularizers.boxes import LinfBall
from fco_cli.problem.regularizers.penalties import L1
from fco_cli.theory.instance import Instance
from fco_cli.theory.measure import Watched, small_client_lr, watch

THEOREM_0, THEOREM_0_FEDMID = "theorem 0", "theorem 0, fedmid"
PERTURBED, THEOREM_1, THEOREM_2 = "perturbed iterates", "theorem 1", "theorem 2"
STABILITY_1, STABILITY_2 = "stability, bounded gradients", "stability, quadratic"
MOST_ROUNDS, MOST_STEPS, MOST_DIMENSIONS = 100_000, 10_000, 10_000
MOST_UPDATES = 10**11  # of a weight: hours; the default grid has 3e8
STATEMENTS = (THEOREM_0, THEOREM_0_FEDMID, PERTURBED, THEOREM_1, STABILITY_1, THEOREM_2, STABILITY_2)


@dataclass
class Grid:
    """The `theory` node of the configuration: where the statements are checked."""

    rounds: list[int]  # R
    steps: list[int]  # K
    clients: list[int]  # M, even or 1
    rates: list[float]  # eta_c L; for theorem 0, eta K L
    seeds: int
    dimension: int
    noise: float  # sigma
    spread: float  # zeta
    strength: float  # of |w|_1
    radius: float  # of the box for theorem 1

    def __post_init__(self) -> None:
        for key in ("rounds", "steps", "clients", "rates"):
            values = getattr(self, key)
            ordered = len(values) > 0 and min(values) > 0 and sorted(set(values)) == list(values)
            require(ordered, f"theory.{key}", list(values), "a list of positive numbers, ascending")
        require(
            max(self.rates) <= 0.25, "theory.rates", list(self.rates), "at most 1/4: the theorems need eta_c <= 1/(4L)"
        )
        pairs = all(m == 1 or m % 2 == 0 for m in self.clients) and max(self.clients) <= 128
        require(pairs, "theory.clients", list(self.clients), "1 or even numbers up to 128: clients come in pairs")
        require(self.seeds >= 1, "theory.seeds", self.seeds, "a whole number >= 1; two at least are run")
        require(self.dimension >= 2, "theory.dimension", self.dimension, "a whole number >= 2")
        for key in ("noise", "spread", "strength", "radius"):
            value = getattr(self, key)
            require(0 < value < np.inf, f"theory.{key}", value, "a finite number > 0")
        for key, most in (("rounds", MOST_ROUNDS), ("steps", MOST_STEPS)):
            require(getattr(self, key)[-1] <= most, f"theory.{key}", list(getattr(self, key)), f"at most {most}")
        require(self.dimension <= MOST_DIMENSIONS, "theory.dimension", self.dimension, f"at most {MOST_DIMENSIONS}")
        steps = sum(self.rounds) * sum(self.steps) * sum(self.clients) * len(self.rates) * self.seeds
        if steps * self.dimension > MOST_UPDATES:
            raise UserError(
                f"theory: theory.seeds={self.seeds} with these lists and dimension is {steps * self.dimension:.2g} "
                f"updates of a weight, must be at most {MOST_UPDATES:.0e}: fewer seeds, or shorter lists"
            )

    @property
    def base(self) -> tuple[int, int, int, float]:
        """The cell that the sweeps of the figure go through: R, K, M, eta_c L."""
        return tuple(values[len(values) // 2] for values in (self.rounds, self.steps, self.clients, self.rates))  # type: ignore[return-value]

    def instance(self, clients: int, box: bool = False) -> Instance:
        regularizer = LinfBall(radius=self.radius) if box else L1(strength=self.strength)
        return Instance.with_clients(
            clients, self.dimension, self.spread, bounded=box, noise=self.noise, regularizer=regularizer
        )


@dataclass(frozen=True)
class Cell:
    """One statement at one place: the mean over the seeds, twice its standard error, and the bound."""

    statement: str
    rounds: int
    steps: int
    clients: int
    rate: float
    measured: float
    error: float
    bound: float

    @property
    def holds(self) -> bool:
        """With the whole confidence band below the bound (rounding aside, for 0 <= 0 at K = 1)."""
        return bool(self.measured + self.error <= self.bound * (1 + 1e-9) + 1e-25)

    @property
    def slack(self) -> float:
        """How many times the bound is the measurement; NaN where both are 0."""
        return self.bound / self.measured if self.measured > 1e-20 else np.nan


@dataclass(frozen=True)
class Findings:
    """All cells, and the key identity's error per round for both algorithms at the base cell."""

    cells: list[Cell]
    identity: dict[str, Array]  # algorithm -> [R]


def check(grid: Grid, progress: Callable[[str], None] = lambda line: None) -> Findings:
    """Measure every statement in every cell."""
    cells: list[Cell] = []
    for clients in grid.clients:
        for steps in grid.steps:
            progress(f"theory: M = {clients}, K = {steps}")
            cells += check_configuration(grid, clients, steps)
    _, steps, clients, rate = grid.base
    identity = {}
    for name in ("feddualavg", "fedmid"):
        instance = grid.instance(clients)
        rates = np.array([rate / instance.smoothness])
        identity[name] = watch(instance, rates, steps, grid.rounds, 0, name, identity=True).identity[:, 0]
    return Findings(cells, identity)


def check_configuration(grid: Grid, clients: int, steps: int, algorithm: str = "feddualavg") -> Iterator[Cell]:
    """The cells of one (M, K), for all R and eta_c; `algorithm` other than feddualavg should break them."""
    seeds = range(max(2, grid.seeds))  # a band needs two
    plain, box = grid.instance(clients), grid.instance(clients, box=True)
    rates = np.array(grid.rates) / plain.smoothness
    yield from _shadow_cells(
        grid, plain, rates, steps, [watch(plain, rates, steps, grid.rounds, seed, algorithm) for seed in seeds]
    )
    yield from _box_cells(
        grid, box, rates, steps, [watch(box, rates, steps, grid.rounds, seed, algorithm) for seed in seeds]
    )
    for statement, name in ((THEOREM_0, algorithm), (THEOREM_0_FEDMID, "fedmid")):
        gaps = np.array([small_client_lr(plain, rates / steps, steps, grid.rounds, seed, name) for seed in seeds])
        for i, rounds in enumerate(grid.rounds):
            eta = rates / steps
            bound = plain.divergence / (eta * steps * rounds) + 3 * eta * plain.noise**2 / clients
            yield from _cells(statement, grid, i, steps, clients, gaps[:, i], bound)


def _shadow_cells(grid: Grid, one: Instance, rates: Array, steps: int, runs: list[Watched]) -> Iterator[Cell]:
    gaps = np.array([run.gaps for run in runs])  # [seeds, R's, J]
    drift = np.array([run.drift for run in runs])  # [seeds, R, K + 1, J]
    drift_dual = np.array([run.drift_dual for run in runs])
    smoothness, sigma, zeta = one.smoothness, one.sigma_dual, one.zeta
    stability = 7 * rates**2 * steps * sigma**2 + 14 * rates**2 * steps**2 * zeta**2
    for i, rounds in enumerate(grid.rounds):
        start = one.divergence / (rates * steps * rounds)
        perturbation = smoothness * drift[:, :rounds, :steps].mean(axis=(0, 1, 2))
        bound = start + rates * one.noise**2 / one.clients + perturbation
        yield from _cells(PERTURBED, grid, i, steps, one.clients, gaps[:, i], bound)
        bound = start + rates * sigma**2 / one.clients + smoothness * stability
        yield from _cells(THEOREM_2, grid, i, steps, one.clients, gaps[:, i], bound)
        largest = _largest(drift_dual[:, :rounds])
        yield from _cells(STABILITY_2, grid, i, steps, one.clients, largest, stability)


def _box_cells(grid: Grid, one: Instance, rates: Array, steps: int, runs: list[Watched]) -> Iterator[Cell]:
    gaps, drift = np.array([run.gaps for run in runs]), np.array([run.drift for run in runs])
    stability = 4 * rates**2 * (steps - 1) ** 2 * one.gradient_bound**2
    for i, rounds in enumerate(grid.rounds):
        start = one.divergence / (rates * steps * rounds)
        bound = start + rates * one.noise**2 / one.clients + one.smoothness * stability
        yield from _cells(THEOREM_1, grid, i, steps, one.clients, gaps[:, i], bound)
        largest = _largest(drift[:, :rounds, :steps])  # this lemma is about k < K
        yield from _cells(STABILITY_1, grid, i, steps, one.clients, largest, stability)


def _largest(drift: Array) -> Array:
    """The seeds' values [seeds, J] at the (r, k) where their mean is largest."""
    flat = drift.reshape(len(drift), -1, drift.shape[-1])
    where = flat.mean(axis=0).argmax(axis=0)
    return np.take_along_axis(flat, where[None, None], axis=1)[:, 0]


def _cells(
    statement: str, grid: Grid, i: int, steps: int, clients: int, values: Array, bounds: Array
) -> Iterator[Cell]:
    """One per rate, from the seeds' values [seeds, J]."""
    errors = 2 * values.std(axis=0, ddof=1) / np.sqrt(len(values))
    for rate, value, error, bound in zip(grid.rates, values.mean(axis=0), errors, bounds, strict=True):
        yield Cell(statement, grid.rounds[i], steps, clients, rate, float(value), float(error), float(bound))
