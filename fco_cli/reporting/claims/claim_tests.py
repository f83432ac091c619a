"""Tests of claims, named under `test` in `claims.yaml`; a study may add its own (`Study.tests`).

Every test takes the evidence of one seed and its arguments from the YAML.
A level is reached at the first round from which it holds in the share `stays` of the rounds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fco_cli.reporting.claims.evidence import (
    Diverged,
    Evidence,
    Finding,
    Level,
    NotRun,
    label,
    metric_label,
    needs_whole_grid,
    round_of_level,
)
from fco_cli.reporting.records.select import Cell

STAYS = 0.95


def _describe_share(stays: float) -> str:
    return f" in {stays:.3g} of the rounds from then on"


# Levels and rounds.


def reaches(
    evidence: Evidence, algo: str, metric: str, before_round: int, stays: float = STAYS, **level: float
) -> Finding:
    """Test that the algorithm's metric reaches a level before a round."""
    target = Level(**level)
    at = round_of_level(evidence, algo, metric, target, stays)
    claimed = f"{metric_label(metric)} {target} before round {before_round},{_describe_share(stays)}"
    return Finding(at < before_round, claimed, {label(algo): at}, rounds=True)


def never_reaches(
    evidence: Evidence, algos: list[str], metric: str, before_round: int, stays: float = STAYS, **level: float
) -> Finding:
    """Test that none of the algorithms reaches the level before a round."""
    target = Level(**level)
    at: dict[str, float | str] = {}
    for algo in algos:
        at[label(algo)] = round_of_level(evidence, algo, metric, target, stays)
    claimed = f"{metric_label(metric)} {target} not before round {before_round}"
    return Finding(all(float(value) >= before_round for value in at.values()), claimed, at, rounds=True)


def final(evidence: Evidence, algo: str, metric: str, at_round: int | None = None, **level: float) -> Finding:
    """Test that the algorithm's metric is at a level at the end, or at a given round."""
    target = Level(**level).resolve(evidence, metric)
    value = evidence.final(algo, metric, at_round)
    claimed = f"{label(algo)}'s {metric_label(metric)} {target}" + _when(at_round)
    return Finding(bool(target.holds(value)), claimed, {label(algo): value})


def always(evidence: Evidence, algos: list[str], metric: str, **level: float) -> Finding:
    """Test that the metric of every algorithm is at the level at every evaluated round after the start."""
    target, holds = Level(**level), True
    worst: dict[str, float | str] = {}
    for algo in algos:
        rounds, values = evidence.curve(algo, metric)
        holds &= bool(target.holds(values[rounds > 0]).all())
        worst[label(algo)] = float(values[rounds > 0].max())
    return Finding(holds, f"{metric_label(metric)} {target} at every round", worst)


def fastest(
    evidence: Evidence, algo: str, than: list[str], metric: str, stays: float = STAYS, **level: float
) -> Finding:
    """Test that the algorithm reaches a level in fewer rounds than the others."""
    target = Level(**level)
    at = {name: round_of_level(evidence, name, metric, target, stays) for name in (algo, *than)}
    holds = all(at[algo] < at[other] for other in than)
    claimed = f"{label(algo)} first at {metric_label(metric)} {target}"
    return Finding(holds, claimed, {label(name): value for name, value in at.items()}, rounds=True)


# Comparisons between algorithms.


def highest(
    evidence: Evidence, algo: str, metric: str, than: list[str],
    margin: float = 0.0, factor: float = 1.0, at_round: int | None = None,
) -> Finding:  # fmt: skip
    """Test that the algorithm's metric is above that of the others, by a margin or a factor."""
    values = {name: evidence.final(name, metric, at_round) for name in (algo, *than)}
    mine = values[algo]
    holds = all(mine > values[other] and mine >= factor * values[other] + margin for other in than)
    return _compared(holds, "highest", algo, metric, margin, factor, at_round, values)


def lowest(
    evidence: Evidence, algo: str, metric: str, than: list[str],
    margin: float = 0.0, factor: float = 1.0, at_round: int | None = None,
) -> Finding:  # fmt: skip
    """Test that the algorithm's metric is below that of the others, by a margin or a factor."""
    values = {name: evidence.final(name, metric, at_round) for name in (algo, *than)}
    mine = values[algo]
    holds = all(mine < values[other] and factor * mine + margin <= values[other] for other in than)
    return _compared(holds, "lowest", algo, metric, margin, factor, at_round, values)


def _compared(
    holds: bool, word: str, algo: str, metric: str, margin: float, factor: float, at: int | None,
    values: dict[str, float],
) -> Finding:  # fmt: skip
    extra = f" by {margin:g}" if margin else f" by a factor of {factor:g}" if factor != 1 else ""
    claimed = f"{label(algo)} has the {word} {metric_label(metric)}{extra}{_when(at)}"
    return Finding(holds, claimed, {label(name): value for name, value in values.items()})


def _when(at: int | None) -> str:
    return f" at round {at}" if at else ""


def closest_to(evidence: Evidence, algo: str, reference: str, metric: str, within: float) -> Finding:
    """Test that the algorithm's final metric is within a distance of the reference's."""
    mine, other = evidence.final(algo, metric), evidence.final(reference, metric)
    claimed = f"{metric_label(metric)} within {within:g} of {label(reference)}'s"
    return Finding(abs(mine - other) <= within, claimed, {label(algo): mine, label(reference): other})


def same_trajectory(
    evidence: Evidence, algo: str, reference: str, metric: str, within: float, stays: float = STAYS
) -> Finding:
    """Test that the algorithm's metric is within a distance of the reference's in the share `stays` of the rounds."""
    (rounds, mine), (other_rounds, other) = (evidence.curve(name, metric) for name in (algo, reference))
    both = np.intersect1d(rounds, other_rounds)
    distance = np.abs(mine[np.isin(rounds, both)] - other[np.isin(other_rounds, both)])
    share = float((distance <= within).mean())
    claimed = f"{metric_label(metric)} within {within:g} of {label(reference)}'s in {stays:.3g} of the rounds"
    return Finding(share >= stays, claimed, {"share of the rounds": share, "largest distance": float(distance.max())})


# Comparisons with a reference experiment; a twin is compared with the twin of the reference.


def sooner_than_in(
    evidence: Evidence, algos: list[str], metric: str, reference: str, stays: float = STAYS, **level: float
) -> Finding:
    """Test that each algorithm reaches a level in fewer rounds than in a reference experiment."""
    baseline, target, holds = evidence.other_experiment(reference), Level(**level), True
    at: dict[str, float | str] = {}
    for algo in algos:
        mine, other = (round_of_level(one, algo, metric, target, stays) for one in (evidence, baseline))
        holds &= mine < other
        at |= {label(algo): mine, f"{label(algo)} in {baseline.study.name}": other}
    return Finding(holds, f"{metric_label(metric)} {target} sooner than in {baseline.study.name}", at, rounds=True)


def later_than_in(
    evidence: Evidence, algos: list[str], metric: str, reference: str,
    of_its_way: float, factor: float = 1.0, stays: float = STAYS,
) -> Finding:  # fmt: skip
    """Test that each algorithm takes more rounds, by `factor`, to a level than in a reference experiment.

    The level is at the share `of_its_way` between the metric's start and end in the reference. It may never be reached.
    """
    baseline, holds = evidence.other_experiment(reference), True
    at: dict[str, float | str] = {}
    for algo in algos:
        start, end = baseline.curve(algo, metric)[1][0], baseline.final(algo, metric)
        value = float(start + of_its_way * (end - start))
        level = Level(at_least=value) if end > start else Level(at_most=value)
        mine, other = (round_of_level(one, algo, metric, level, stays) for one in (evidence, baseline))
        holds &= mine > other and mine >= factor * other
        at |= {label(algo): mine, f"{label(algo)} in {baseline.study.name}": other}
    times = f", {factor:g} times as many," if factor > 1 else ""
    progress = f"{of_its_way:.3g} of {metric_label(metric)}'s progress there"
    claimed = f"more rounds{times} than in {baseline.study.name} to {progress}"
    return Finding(holds, claimed, at, rounds=True)


def closer_behind_than_in(
    evidence: Evidence, algo: str, leader: str, metric: str, reference: str, stays: float = STAYS, **level: float
) -> Finding:
    """Test that the algorithm reaches a level fewer rounds after the leader than in a reference experiment."""
    baseline, target = evidence.other_experiment(reference), Level(**level)

    def lag(one: Evidence) -> float:
        mine, first = (round_of_level(one, name, metric, target, stays) for name in (algo, leader))
        return mine - first if np.isfinite(mine) and np.isfinite(first) else np.inf

    mine, other = lag(evidence), lag(baseline)
    claimed = f"{metric_label(metric)} {target} fewer rounds after {label(leader)} than in {baseline.study.name}"
    return Finding(mine < other, claimed, {"behind": mine, f"behind in {baseline.study.name}": other}, rounds=True)


def higher_than_in(evidence: Evidence, algos: list[str], metric: str, reference: str, margin: float) -> Finding:
    """Test that each algorithm's final metric is above its own in a reference experiment, by a margin."""
    baseline, holds = evidence.other_experiment(reference), True
    values: dict[str, float | str] = {}
    for algo in algos:
        mine, other = evidence.final(algo, metric), baseline.final(algo, metric)
        holds &= mine >= other + margin
        values |= {label(algo): mine, f"{label(algo)} in {baseline.study.name}": other}
    return Finding(holds, f"{metric_label(metric)} ends {margin:g} above that in {baseline.study.name}", values)


# Learning rates chosen by each seed alone. A pair that ties with others is not "the best".


@needs_whole_grid
def best_learning_rate(evidence: Evidence, algo: str, client_lr: float, server_lr: float) -> Finding:
    """Test that this pair is best and that no other pair ties with it."""
    choice, pair = evidence.own_choice(algo), (client_lr, server_lr)
    claimed_cell = next((cell for cell in choice.cells if _is_pair(cell, pair)), None)
    if claimed_cell is None:
        raise NotRun(f"no run of {algo} at ({client_lr:g}, {server_lr:g})")
    assert choice.best is not None
    measured = choice.best.rates
    if len(choice.tied) > 1:
        measured += f" tied with {len(choice.tied) - 1} more"
    if claimed_cell.diverged:
        measured += f"; ({client_lr:g}, {server_lr:g}) diverged"
    return Finding(choice.tied == (claimed_cell,), f"({client_lr:g}, {server_lr:g}), alone", {label(algo): measured})


def _is_pair(cell: Cell, pair: tuple[float, float]) -> bool:
    return bool(np.allclose((cell.client_lr or 0, cell.server_lr or 0), pair))


@needs_whole_grid
def larger_best_rate(evidence: Evidence, algo: str, than: list[str]) -> Finding:
    """Test that the best client_lr * server_lr is larger than that of the others, for any of the tied pairs."""
    products = {name: [_product(cell) for cell in evidence.own_choice(name).tied] for name in (algo, *than)}
    holds = all(min(products[algo]) > max(products[other]) for other in than)
    measured: dict[str, float | str] = {
        label(name): " to ".join(f"{value:.2g}" for value in sorted({min(values), max(values)}))
        for name, values in products.items()
    }
    return Finding(holds, f"{label(algo)} has the largest client_lr × server_lr", measured)


def _product(cell: Cell) -> float:
    return (cell.client_lr or 0.0) * (cell.server_lr or 0.0)


@needs_whole_grid
def inside_the_grid(evidence: Evidence, algos: list[str]) -> Finding:
    """Test that the best pair of a twin with an extended grid, or a pair tied with it, is on the original grid."""
    grid, holds = evidence.other_experiment(evidence.study.twin_of), True
    measured: dict[str, float | str] = {}
    for algo in algos:
        choice = evidence.own_choice(algo)
        known = grid.own_choice(algo).cells
        inside = [one for one in choice.tied if any(_is_pair(one, (c.client_lr or 0, c.server_lr or 0)) for c in known)]
        holds &= bool(inside)
        assert choice.best is not None
        measured[label(algo)] = (inside[0] if inside else choice.best).rates
    return Finding(holds, f"the best pair is on the grid of {grid.study.name}", measured)


@needs_whole_grid
def rules_agree(evidence: Evidence, algos: list[str]) -> Finding:
    """Test that both selection rules of the experiment choose the same pair for every algorithm."""
    other = evidence.study.rule.other
    if other is None:
        raise NotRun("the experiment has only one selection rule")
    holds, measured = True, dict[str, float | str]()
    by_first, by_other = evidence.own_choices_by(evidence.study.rule), evidence.own_choices_by(other)
    for algo in algos:
        evidence.best(algo)
        evidence.own_grid(algo)
        mine, second = by_first[algo].best, by_other[algo].best
        if mine is None or second is None:
            raise Diverged(f"all runs of {label(algo)} diverged")
        holds &= mine.rates == second.rates
        measured[label(algo)] = mine.rates if mine.rates == second.rates else f"{mine.rates} and {second.rates}"
    return Finding(holds, f"the same pairs by {evidence.study.rule} and by {other}", measured)


KINDS: dict[str, Callable[..., Finding]] = {
    test.__name__: test
    for test in (
        reaches, never_reaches, final, always, fastest, highest, lowest, closest_to, same_trajectory,
        sooner_than_in, later_than_in, closer_behind_than_in, higher_than_in,
        best_learning_rate, larger_best_rate, inside_the_grid, rules_agree,
    )
}  # fmt: skip
