"""Comparison of measurements with the bounds of the paper, one cell for each (R, K, M, eta_c), and its summary.

The bounds have the constants of the proofs. Theorem 0 is `small_lr` in the source of the paper, theorems 1 and 2 are
`thm:1` and `thm:2`, the lemmas are `pia:general`, `bounded_gradient` and `quad:stability`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import numpy as np

from fco_cli.errors import UserError, require
from fco_cli.files import as_csv
from fco_cli.problem.layout import Array
from fco_cli.problem.regularizers.penalties import L1
from fco_cli.problem.regularizers.sets import LinfBall
from fco_cli.theory.instance import Instance
from fco_cli.theory.measure import Measurements, gaps_with_small_client_lr, measure

THEOREM_0, THEOREM_0_FEDMID = "theorem 0", "theorem 0, fedmid"
PERTURBED, THEOREM_1, THEOREM_2 = "perturbed iterates", "theorem 1", "theorem 2"
STABILITY_1, STABILITY_2 = "stability, bounded gradients", "stability, quadratic"
MAX_ROUNDS, MAX_STEPS, MAX_DIMENSIONS = 100_000, 10_000, 10_000
MAX_UPDATES = 10**11  # updates of a weight, which take hours; the default grid has 3e8
STATEMENTS = (THEOREM_0, THEOREM_0_FEDMID, PERTURBED, THEOREM_1, STABILITY_1, THEOREM_2, STABILITY_2)
AXES = {"rounds": "R", "steps": "K", "clients": "M", "rate": "eta"}


@dataclass
class Grid:
    """Schema of the `theory` node: the grid on which the statements are checked, and the instance."""

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
            is_ascending = len(values) > 0 and min(values) > 0 and sorted(set(values)) == list(values)
            require(is_ascending, f"theory.{key}", list(values), "a list of positive numbers, ascending")
        for key, missing in (("steps", "local step"), ("clients", "client")):
            allowed = f"a list with a number above 1: without a second {missing} there is no client drift"
            require(getattr(self, key)[-1] > 1, f"theory.{key}", list(getattr(self, key)), allowed)
        are_small = max(self.rates) <= 0.25
        require(are_small, "theory.rates", list(self.rates), "at most 1/4, as the theorems require eta_c <= 1/(4L)")
        are_pairs = all(m == 1 or m % 2 == 0 for m in self.clients) and max(self.clients) <= 128
        require(are_pairs, "theory.clients", list(self.clients), "1 or even numbers up to 128 (clients form pairs)")
        require(self.seeds >= 1, "theory.seeds", self.seeds, "a whole number >= 1 (at least 2 seeds are run)")
        require(self.dimension >= 2, "theory.dimension", self.dimension, "a whole number >= 2")
        for key in ("noise", "spread", "strength", "radius"):
            value = getattr(self, key)
            require(0 < value < np.inf, f"theory.{key}", value, "a finite number > 0")
        for key, limit in (("rounds", MAX_ROUNDS), ("steps", MAX_STEPS)):
            require(getattr(self, key)[-1] <= limit, f"theory.{key}", list(getattr(self, key)), f"at most {limit}")
        require(self.dimension <= MAX_DIMENSIONS, "theory.dimension", self.dimension, f"at most {MAX_DIMENSIONS}")
        steps = sum(self.rounds) * sum(self.steps) * sum(self.clients) * len(self.rates) * self.seeds
        if steps * self.dimension > MAX_UPDATES:
            raise UserError(
                f"theory: theory.seeds={self.seeds} with these lists and dimension is {steps * self.dimension:.2g} "
                f"updates of a weight, must be at most {MAX_UPDATES:.0e}; use fewer seeds or shorter lists"
            )

    @property
    def base(self) -> tuple[int, int, int, float]:
        """Base cell of the sweeps in the figure: R, K, M, eta_c L."""
        return tuple(values[len(values) // 2] for values in (self.rounds, self.steps, self.clients, self.rates))  # type: ignore[return-value]

    def instance(self, clients: int, box: bool = False) -> Instance:
        """Return the instance for this number of clients, with a box constraint if `box`, else with the l1 penalty."""
        regularizer = LinfBall(radius=self.radius) if box else L1(strength=self.strength)
        return Instance.with_clients(
            clients, self.dimension, self.spread, bounded=box, noise=self.noise, regularizer=regularizer
        )


@dataclass(frozen=True)
class Cell:
    """One statement at one grid point: mean over the seeds, twice its standard error, and bound."""

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
        """True if the whole confidence band is below the bound, up to rounding (0 <= 0 at K = 1)."""
        return bool(self.measured + self.error <= self.bound * (1 + 1e-9) + 1e-25)

    @property
    def slack(self) -> float:
        """Ratio of bound to measurement; NaN if the measurement is 0."""
        return self.bound / self.measured if self.measured > 1e-20 else np.nan


@dataclass(frozen=True)
class Findings:
    """All cells, and the error of the key identity per round for both algorithms at the base cell."""

    cells: list[Cell]
    identity: dict[str, Array]  # algorithm -> [R]


def check(grid: Grid, progress: Callable[[str], None] = lambda line: None) -> Findings:
    """Measure each statement in each cell."""
    progress(
        f"theory: {max(2, grid.seeds)} seeds of each of {len(grid.clients) * len(grid.steps)} pairs of M and K, "
        f"up to {grid.rounds[-1]} rounds"
    )
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
        identity[name] = measure(instance, rates, steps, grid.rounds, 0, name, identity=True).identity[:, 0]
    return Findings(cells, identity)


def check_configuration(grid: Grid, clients: int, steps: int, algorithm: str = "feddualavg") -> Iterator[Cell]:
    """Yield the cells of one (M, K) for all R and eta_c; algorithms other than feddualavg may violate the bounds."""
    seeds = range(max(2, grid.seeds))  # a standard error needs two
    plain, box = grid.instance(clients), grid.instance(clients, box=True)
    rates = np.array(grid.rates) / plain.smoothness
    yield from _penalty_cells(
        grid, plain, rates, steps, [measure(plain, rates, steps, grid.rounds, seed, algorithm) for seed in seeds]
    )
    yield from _box_cells(
        grid, box, rates, steps, [measure(box, rates, steps, grid.rounds, seed, algorithm) for seed in seeds]
    )
    for statement, name in ((THEOREM_0, algorithm), (THEOREM_0_FEDMID, "fedmid")):
        gaps = np.array(
            [gaps_with_small_client_lr(plain, rates / steps, steps, grid.rounds, seed, name) for seed in seeds]
        )
        for i, rounds in enumerate(grid.rounds):
            eta = rates / steps
            bound = plain.divergence / (eta * steps * rounds) + 3 * eta * plain.noise**2 / clients
            yield from _cells(statement, grid, i, steps, clients, gaps[:, i], bound)


def _penalty_cells(
    grid: Grid, instance: Instance, rates: Array, steps: int, runs: list[Measurements]
) -> Iterator[Cell]:
    """Yield the cells of the perturbed iterate lemma, of theorem 2 and of its stability lemma."""
    gaps = np.array([run.gaps for run in runs])  # [seeds, R's, J]
    drift = np.array([run.drift for run in runs])  # [seeds, R, K + 1, J]
    drift_dual = np.array([run.drift_dual for run in runs])
    smoothness, sigma, zeta = instance.smoothness, instance.sigma_dual, instance.zeta
    stability = 7 * rates**2 * steps * sigma**2 + 14 * rates**2 * steps**2 * zeta**2
    for i, rounds in enumerate(grid.rounds):
        start = instance.divergence / (rates * steps * rounds)
        perturbation = smoothness * drift[:, :rounds, :steps].mean(axis=(0, 1, 2))
        bound = start + rates * instance.noise**2 / instance.clients + perturbation
        yield from _cells(PERTURBED, grid, i, steps, instance.clients, gaps[:, i], bound)
        bound = start + rates * sigma**2 / instance.clients + smoothness * stability
        yield from _cells(THEOREM_2, grid, i, steps, instance.clients, gaps[:, i], bound)
        largest = _largest(drift_dual[:, :rounds])
        yield from _cells(STABILITY_2, grid, i, steps, instance.clients, largest, stability)


def _box_cells(grid: Grid, instance: Instance, rates: Array, steps: int, runs: list[Measurements]) -> Iterator[Cell]:
    """Yield the cells of theorem 1 and of its stability lemma."""
    gaps, drift = np.array([run.gaps for run in runs]), np.array([run.drift for run in runs])
    stability = 4 * rates**2 * (steps - 1) ** 2 * instance.gradient_bound**2
    for i, rounds in enumerate(grid.rounds):
        start = instance.divergence / (rates * steps * rounds)
        bound = start + rates * instance.noise**2 / instance.clients + instance.smoothness * stability
        yield from _cells(THEOREM_1, grid, i, steps, instance.clients, gaps[:, i], bound)
        largest = _largest(drift[:, :rounds, :steps])  # the lemma covers k < K
        yield from _cells(STABILITY_1, grid, i, steps, instance.clients, largest, stability)


def _largest(drift: Array) -> Array:
    """Return the values of the seeds [seeds, J] at the (r, k) with the largest mean."""
    flat = drift.reshape(len(drift), -1, drift.shape[-1])
    index = flat.mean(axis=0).argmax(axis=0)
    return np.take_along_axis(flat, index[None, None], axis=1)[:, 0]


def _cells(
    statement: str, grid: Grid, i: int, steps: int, clients: int, values: Array, bounds: Array
) -> Iterator[Cell]:
    """Yield one cell per rate from the values of the seeds [seeds, J]."""
    errors = 2 * values.std(axis=0, ddof=1) / np.sqrt(len(values))
    for rate, value, error, bound in zip(grid.rates, values.mean(axis=0), errors, bounds, strict=True):
        yield Cell(statement, grid.rounds[i], steps, clients, rate, float(value), float(error), float(bound))


def sweep(cells: list[Cell], grid: Grid, statement: str, axis: str) -> list[Cell]:
    """Return the cells of a statement along one axis through the base cell."""
    base = dict(zip(AXES, grid.base, strict=True))
    others = [key for key in AXES if key != axis]
    return [
        cell for cell in cells if cell.statement == statement and all(getattr(cell, key) == base[key] for key in others)
    ]


@dataclass(frozen=True)
class Row:
    """Row of the summary table: one statement."""

    statement: str
    cells: int
    violated: int
    smallest_slack: float
    median_slack: float
    slopes: dict[str, tuple[float, float]]  # axis -> (slope of the measurement, slope of the bound)


def summarize(cells: list[Cell], grid: Grid) -> list[Row]:
    """Return one row per statement."""
    rows = []
    for statement in STATEMENTS:
        selected = [cell for cell in cells if cell.statement == statement]
        slack = np.array([cell.slack for cell in selected])
        slack = slack[np.isfinite(slack)]
        violated = sum(not cell.holds for cell in selected)
        slopes = {axis: _slopes(sweep(cells, grid, statement, axis), axis) for axis in AXES}
        rows.append(Row(statement, len(selected), violated, float(slack.min()), float(np.median(slack)), slopes))
    return rows


def _slopes(line: list[Cell], axis: str) -> tuple[float, float]:
    """Return the slopes of measurement and bound on logarithmic axes, by least squares."""
    line = [cell for cell in line if cell.measured > 0 and cell.bound > 0]
    if len(line) < 2:
        return np.nan, np.nan
    x = np.log([getattr(cell, axis) for cell in line])
    measured, bound = ([getattr(cell, key) for cell in line] for key in ("measured", "bound"))
    return float(np.polyfit(x, np.log(measured), 1)[0]), float(np.polyfit(x, np.log(bound), 1)[0])


def cells_csv(cells: list[Cell]) -> str:
    """Return a CSV table with one line per cell."""
    header = [*asdict(cells[0]), "slack", "holds"]
    return as_csv(header, ([*asdict(cell).values(), cell.slack, cell.holds] for cell in cells))


def summary_rows(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of the table as text; slopes are written measurement / bound."""
    header = ["statement", "cells", "violated", "smallest slack", "median slack"]
    header += [f"slope in {symbol}" for symbol in AXES.values()]
    body = []
    for row in rows:
        numbers = [f"{row.cells}", f"{row.violated}", f"{row.smallest_slack:.3g}", f"{row.median_slack:.3g}"]
        body.append([row.statement, *numbers, *(f"{a:.2f} / {b:.2f}" for a, b in row.slopes.values())])
    return header, body


def summary_markdown(rows: list[Row]) -> str:
    """Return the summary table in Markdown."""
    header, body = summary_rows(rows)
    lines = [header, ["---"] * len(header), *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
