"""The kinds of tests that decide claims: what `claims.yaml` may say under `test`.

Every kind takes the evidence first and its arguments from the YAML; a new kind is one more function in KINDS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fco_cli.reporting.curse import read_supports
from fco_cli.reporting.gate import BadRecord
from fco_cli.reporting.select import Cell, Choice, finite_mean, in_window, robust_pairs
from fco_cli.reporting.studies import Study
from fco_cli.reporting.style import OPTIMUM, algorithm_style, metric_style


class NotRun(Exception):
    """The records that would decide a claim are not there."""


@dataclass(frozen=True)
class Finding:
    """What a test found."""

    holds: bool
    claimed: str
    measured: str


@dataclass
class Evidence:
    """What tests look at: a study and what was chosen from it."""

    study: Study
    choices: dict[str, Choice]
    elsewhere: Callable[[str], Evidence] = field(repr=False)  # the evidence of another experiment

    def best(self, algo: str) -> Cell:
        choice = self.choices.get(algo)
        if choice is None:
            raise NotRun(f"no runs of {algo}")
        if choice.best is None:
            raise Diverged(f"all {len(choice.cells)} runs of {label(algo)} diverged")
        return choice.best

    def curve(self, algo: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
        """Rounds and the mean over seeds at the best learning rates."""
        cell = self.best(algo)
        if not cell.has(metric):
            raise NotRun(f"no metric {metric} in the records of {algo}")
        curve = cell.curve(metric)
        return curve.rounds, curve.median

    def final(self, algo: str, metric: str) -> float:
        """The mean over the experiment's selection window, after which "converged" values are compared."""
        rounds, mean = self.curve(algo, metric)
        return finite_mean(mean[in_window(rounds, self.study.rule.last)])

    def at_round(self, algo: str, metric: str, at: int | None) -> float:
        if at is None:
            return self.final(algo, metric)
        rounds, mean = self.curve(algo, metric)
        return float(mean[np.searchsorted(rounds, at, side="right") - 1])


class Diverged(Exception):
    """An algorithm for which no learning rates worked: what is claimed of its result is not so."""


def label(algo: str) -> str:
    return algorithm_style(algo).label


@dataclass(frozen=True)
class Level:
    """A value that a metric is to reach: exactly one of the four ways to give it."""

    at_least: float | None = None
    at_most: float | None = None
    equals: float | None = None
    near_optimum: float | None = None  # at most the optimum's value times 1 + this

    def __post_init__(self) -> None:
        given = [value for value in (self.at_least, self.at_most, self.equals, self.near_optimum) if value is not None]
        if len(given) != 1:
            raise ValueError("give one of at_least, at_most, equals, near_optimum")

    def resolve(self, evidence: Evidence, metric: str) -> Level:
        if self.near_optimum is None:
            return self
        return Level(at_most=evidence.final(OPTIMUM, metric) * (1 + self.near_optimum))

    def holds(self, values: Any) -> Any:
        slack = 1e-9  # of sums over seeds
        if self.at_least is not None:
            return np.asarray(values) >= self.at_least - slack
        if self.at_most is not None:
            return np.asarray(values) <= self.at_most + slack
        assert self.equals is not None
        return np.abs(np.asarray(values) - self.equals) <= slack

    def __str__(self) -> str:
        if self.at_least is not None:
            return f">= {self.at_least:.4g}"
        return f"<= {self.at_most:.4g}" if self.at_most is not None else f"= {self.equals:.4g}"


def first_round(evidence: Evidence, algo: str, metric: str, level: Level, stays: float = 0.0) -> float:
    """The first evaluated round after the start at which the level holds; infinite if there is none.

    With `stays`, it must also hold in that share of all rounds from there to the end.
    """
    rounds, mean = evidence.curve(algo, metric)
    holds = level.holds(mean) & (rounds > 0)
    from_here_on = np.cumsum(holds[::-1])[::-1] / np.arange(len(holds), 0, -1)
    there = holds & (from_here_on >= stays)
    return float(rounds[np.argmax(there)]) if there.any() else np.inf


def say_round(at: float) -> str:
    return "never" if np.isinf(at) else f"round {at:g}"


def reaches(
    evidence: Evidence, algo: str, metric: str, before_round: int, stays: float = 0.0, **level: float
) -> Finding:
    """The algorithm's metric reaches a level before a round."""
    wanted = Level(**level).resolve(evidence, metric)
    at = first_round(evidence, algo, metric, wanted, stays)
    name = metric_style(metric).label
    measured = f"{say_round(at)}; {name} {evidence.final(algo, metric):.4g} at the end"
    kept = f" and stays there {stays:.0%} of the time" if stays else ""
    return Finding(at < before_round, f"{name} {wanted}{kept} before round {before_round}", measured)


def never_reaches(evidence: Evidence, algos: list[str], metric: str, before_round: int, **level: float) -> Finding:
    """None of the algorithms reaches the level before a round."""
    wanted = Level(**level).resolve(evidence, metric)
    at = {algo: first_round(evidence, algo, metric, wanted) for algo in algos}
    measured = ", ".join(f"{label(algo)} {say_round(value)}" for algo, value in at.items())
    name = metric_style(metric).label
    return Finding(min(at.values()) >= before_round, f"{name} {wanted} not before round {before_round}", measured)


def final(evidence: Evidence, algo: str, metric: str, **level: float) -> Finding:
    """The algorithm's metric ends at a level."""
    wanted = Level(**level).resolve(evidence, metric)
    value = evidence.final(algo, metric)
    return Finding(bool(wanted.holds(value)), f"{metric_style(metric).label} {wanted}", f"{value:.4g}")


def highest(
    evidence: Evidence, algo: str, metric: str, than: list[str],
    margin: float = 0.0, factor: float = 1.0, at_round: int | None = None,
) -> Finding:  # fmt: skip
    """The algorithm's metric is above that of the others, by a margin or a factor."""
    mine, others = _compare(evidence, algo, metric, than, at_round)
    holds = all(mine > other and mine >= factor * other + margin for other in others.values())
    return Finding(holds, _comparison("highest", algo, metric, margin, factor, at_round), _values(algo, mine, others))


def lowest(
    evidence: Evidence, algo: str, metric: str, than: list[str],
    margin: float = 0.0, factor: float = 1.0, at_round: int | None = None,
) -> Finding:  # fmt: skip
    """The algorithm's metric is below that of the others, by a margin or a factor."""
    mine, others = _compare(evidence, algo, metric, than, at_round)
    holds = all(mine < other and factor * mine + margin <= other for other in others.values())
    return Finding(holds, _comparison("lowest", algo, metric, margin, factor, at_round), _values(algo, mine, others))


def _compare(
    evidence: Evidence, algo: str, metric: str, than: list[str], at: int | None
) -> tuple[float, dict[str, float]]:
    return evidence.at_round(algo, metric, at), {other: evidence.at_round(other, metric, at) for other in than}


def _comparison(word: str, algo: str, metric: str, margin: float, factor: float, at: int | None) -> str:
    extra = f" by {margin:g}" if margin else f" by a factor of {factor:g}" if factor != 1 else ""
    return f"{label(algo)} {word} {metric_style(metric).label}{extra}" + (f" at round {at}" if at else "")


def _values(algo: str, mine: float, others: dict[str, float]) -> str:
    return ", ".join(f"{label(name)} {value:.4g}" for name, value in {algo: mine, **others}.items())


def closest_to(evidence: Evidence, algo: str, reference: str, metric: str, within: float) -> Finding:
    """The algorithm's metric ends within a distance of another's."""
    mine, other = evidence.final(algo, metric), evidence.final(reference, metric)
    claimed = f"{metric_style(metric).label} within {within:g} of {label(reference)}"
    return Finding(abs(mine - other) <= within, claimed, _values(algo, mine, {reference: other}))


def fastest(evidence: Evidence, algo: str, than: list[str], metric: str, stays: float = 0.0, **level: float) -> Finding:
    """The algorithm reaches a level, and in fewer rounds than the others."""
    wanted = Level(**level).resolve(evidence, metric)
    at = {name: first_round(evidence, name, metric, wanted, stays) for name in (algo, *than)}
    holds = all(at[algo] < at[other] for other in than)
    claimed = f"{label(algo)} first at {metric_style(metric).label} {wanted}"
    return Finding(holds, claimed, ", ".join(f"{label(name)} {say_round(value)}" for name, value in at.items()))


def sooner_than_in(
    evidence: Evidence, algos: list[str], metric: str, reference: dict[str, str], **level: float
) -> Finding:
    """Each algorithm reaches a level in fewer rounds than in a reference experiment."""
    return _between_experiments(evidence, algos, metric, reference, level, later=False)


def later_than_in(
    evidence: Evidence, algos: list[str], metric: str, reference: dict[str, str], **level: float
) -> Finding:
    """Each algorithm needs more rounds to reach a level than in a reference experiment."""
    return _between_experiments(evidence, algos, metric, reference, level, later=True)


def _between_experiments(
    here: Evidence, algos: list[str], metric: str, reference: dict[str, str], level: dict[str, float], later: bool
) -> Finding:
    other_name = reference[here.study.name]
    there, wanted, holds, said = here.elsewhere(other_name), Level(**level), True, []
    if there.study.scale != here.study.scale:
        raise NotRun(f"{other_name} only at profile {there.study.profile}")
    for algo in algos:
        mine = first_round(here, algo, metric, wanted.resolve(here, metric))
        other = first_round(there, algo, metric, wanted.resolve(there, metric))
        holds &= mine > other if later else mine < other
        said.append(f"{label(algo)} {say_round(mine)}, there {say_round(other)}")
    level_said = f"within {wanted.near_optimum:.0%} of the optimum" if wanted.near_optimum is not None else str(wanted)
    word = "later" if later else "sooner"
    claimed = f"{metric_style(metric).label} {level_said} {word} than in {other_name}"
    return Finding(bool(holds), claimed, "; ".join(said))


def best_learning_rate(evidence: Evidence, algo: str, client_lr: float, server_lr: float) -> Finding:
    """The best learning rates are these; several pairs may tie."""
    best, choice = evidence.best(algo), evidence.choices[algo]
    wanted = (client_lr, server_lr)
    if not any(_is_pair(cell, wanted) for cell in choice.cells):
        raise NotRun(f"no run of {algo} at ({client_lr:g}, {server_lr:g})")
    measured = best.rates
    if len(choice.tied) > 1:
        measured += f", tied with {len(choice.tied) - 1} others"
    there = next(cell for cell in choice.cells if _is_pair(cell, wanted))
    if there.diverged:
        measured += f"; ({client_lr:g}, {server_lr:g}) diverged"
        if smoothness := there.runs[0].result["smoothness"]:
            measured += f" (2/L = {2 / smoothness:.2g})"
    return Finding(any(_is_pair(cell, wanted) for cell in choice.tied), f"({client_lr:g}, {server_lr:g})", measured)


def _is_pair(cell: Cell, pair: tuple[float, float]) -> bool:
    return bool(np.allclose((cell.client_lr or 0, cell.server_lr or 0), pair))


def larger_best_rate(evidence: Evidence, algo: str, than: list[str]) -> Finding:
    """The algorithm's best client_lr * server_lr is larger than that of the others."""
    product = {name: _product(evidence.best(name)) for name in (algo, *than)}
    holds = all(product[algo] > product[other] for other in than)
    measured = ", ".join(f"{label(name)} {value:.2g}" for name, value in product.items())
    return Finding(holds, f"{label(algo)} has the largest client_lr × server_lr", measured)


def _product(cell: Cell) -> float:
    return (cell.client_lr or 0.0) * (cell.server_lr or 0.0)


def most_pairs(evidence: Evidence, algos: list[str], levels: dict[str, dict[str, float]]) -> Finding:
    """Of the pairs in the robustness figure, more than half of each algorithm's end with every metric at its level."""
    wanted = {metric: Level(**level) for metric, level in levels.items()}
    holds, said = True, []
    for algo in algos:
        if algo not in evidence.choices:
            raise NotRun(f"no runs of {algo}")
        pairs = robust_pairs(evidence.choices[algo])
        there = sum(
            all(level.holds(cell.mean(metric, evidence.study.rule.last)) for metric, level in wanted.items())
            for cell in pairs
        )  # NaN, of a pair that diverged, is at no level
        holds &= there > len(pairs) / 2
        said.append(f"{label(algo)} {there} of {len(pairs)}")
    levels_said = " and ".join(f"{metric_style(metric).label} {level}" for metric, level in wanted.items())
    return Finding(bool(holds), f"most pairs end with {levels_said}", ", ".join(said))


def averaging_densifies(evidence: Evidence, algo: str, **level: float) -> Finding:
    """By which factor the average of the clients' last models is denser than they are."""
    try:
        supports = read_supports(evidence.best(algo).runs[0])
    except BadRecord as problem:
        raise NotRun(str(problem)) from problem
    if supports is None:
        raise NotRun("the record has no clients.npz (record_clients=true)")
    ratio = supports.average_density / max(supports.client_density, 1e-12)
    wanted = Level(**level)
    measured = f"clients {supports.client_density:.3f}, their average {supports.average_density:.3f}: {ratio:.2f} times"
    return Finding(bool(wanted.holds(ratio)), f"density of the average / of a client {wanted}", measured)


KINDS: dict[str, Callable[..., Finding]] = {
    test.__name__: test
    for test in (
        reaches, never_reaches, final, highest, lowest, closest_to, fastest, sooner_than_in, later_than_in,
        best_learning_rate, larger_best_rate, most_pairs, averaging_densifies,
    )
}  # fmt: skip
