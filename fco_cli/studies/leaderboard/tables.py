"""Tables and findings of the leaderboard (`experiment=successors…`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fco_cli.reporting import (
    OPTIMUM,
    RecordedStudy,
    Results,
    Spread,
    algorithm_style,
    describe_spread,
)
from fco_cli.studies.leaderboard.method_results import (
    BIASED,
    EXACT,
    LEVELS,
    OPEN,
    MethodResult,
    final_gap,
    has_exact_gradients,
    has_stalled,
    rank_methods,
    rounds_to,
)

if TYPE_CHECKING:
    from pandas import DataFrame

FAMILIES = (
    "mirror descent and dual averaging",
    "control variates",
    "splitting",
    "strong convexity",
    "server steps and FedProx",
    "few rounds",
    "gossip",
)  # in the order of tables and figures
OTHERS = "others"
LEADERBOARD = "successors"  # prefix of its experiments
FEW_ROUNDS = "few_rounds"  # prefix of the experiments that compare few-round methods
COSTS = {
    "megabytes": "MB",
    "gradients": "gradients",
    "simulated_seconds": "simulated seconds",
    "queries": "queries",
    "prox_calls": "prox calls",
}
COLUMNS = {  # of the table of all numbers, with their meaning
    "problem": "title of the problem, with its settings",
    "method": "label of the method",
    "algo": "name of the method, as in algo=NAME",
    "place": "rank on the problem: by the rounds to the smallest level, then by the final gap",
    "exactness": (
        "exact: the gap stays below the smallest level on every seed; biased: it no longer decreases above that level; "
        "noisy: likewise, with gradients of batches; open: it still decreases; diverged: every setting diverged"
    ),
    **{
        f"rounds to {level:g}": "first evaluated round from which the gap stays below the level; inf: never"
        for level in LEVELS
    },
    **{
        f"{unit} to {LEVELS[1]:g}": f"{meaning} until that round; inf: never; empty: not recorded"
        for unit, meaning in {
            "MB": "megabytes sent by all clients and the server",
            "gradients": "gradients of single rows, of all clients,",
            "simulated seconds": "seconds of the time model, not recorded for serverless methods,",
            "queries": "requests about a client's rows that the client answers,",
            "prox calls": "evaluations of the proximal operator, of all clients and the server,",
        }.items()
    },
    "gap at the end": "gap after the last round, median over the seeds; inf: diverged",
    "rests": "True: the gap decreased by less than a tenth in the last quarter of the rounds",
    "gap with auto": "gap after the last round with client_lr=auto and the defaults of the method",
    f"rounds to {LEVELS[0]:g} with auto": "rounds to the largest level with client_lr=auto and the defaults",
    "slope against client_lr": "slope of the gaps that rest against the client rate, both logarithmic",
    "optimum's density or rank from": "round from which the density or rank stays the optimum's, with a gap below 1e-2",
    "chosen": "the best setting: (client rate, server rate) and options",
    "on the edge of its grid": "numbers of the best setting beyond which none was tried",
    "settings tried": "tuning effort: settings in the grid of the method",
    "rounds spent on tuning": "tuning effort: rounds of all settings, per seed",
    "gradients spent on tuning": "tuning effort: gradients of all settings, per seed",
    "diverged": "settings that diverged, of all settings",
    "seeds": "number of seeds",
}
PAPER_COLUMNS = (  # of the LaTeX table of a problem
    "method", "exactness", *(f"rounds to {level:g}" for level in LEVELS),
    *(f"{unit} to {LEVELS[1]:g}" for name, unit in COSTS.items() if name != "prox_calls"),
    "gap at the end", "settings tried",
)  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """A problem of the leaderboard (one study) with the results of all methods on it."""

    study: RecordedStudy
    name: str
    methods: list[MethodResult]  # best first

    @property
    def seeds(self) -> str:
        return describe_spread(self.study)

    def of(self, algo: str) -> MethodResult | None:
        return next((one for one in self.methods if one.algo == algo), None)


def recorded_problems(results: Results) -> list[Problem]:
    """Return the problems of the leaderboard among recorded results."""
    return problems_of(results.named(LEADERBOARD) + results.named(FEW_ROUNDS))


def problems_of(studies: Iterable[RecordedStudy]) -> list[Problem]:
    """Return the problems with a certified optimum, sorted by name; ambiguous titles are extended by the variant."""
    studies = [study for study in studies if study.of(OPTIMUM)]
    titles = [(study.title, study.profile) for study in studies]
    problems = []
    for study, title in zip(studies, titles, strict=True):
        extras = [study.profile] if study.profile != "paper" else []
        extras += [study.variant] if titles.count(title) > 1 else []
        name = f"{study.title} ({'; '.join(extras)})" if extras else study.title
        problems.append(Problem(study, name, rank_methods(study)))
    return sorted((problem for problem in problems if problem.methods), key=lambda problem: problem.name)


def methods_of(problems: list[Problem]) -> list[str]:
    """Return all methods, ordered by family."""
    return sorted({one.algo for problem in problems for one in problem.methods}, key=method_order)


def method_order(algo: str) -> tuple[int, str, str]:
    """Return a sort key: by family, in the order of FAMILIES, and label; other families come last."""
    style = algorithm_style(algo)
    return (*family_order(style.family), style.label)


def family_order(family: str) -> tuple[int, str]:
    """Return a sort key of families."""
    return (FAMILIES.index(family) if family in FAMILIES else len(FAMILIES) + (family == OTHERS), family)


def table(problems: list[Problem]) -> DataFrame:
    """Return a row per problem and method with all numbers of the page and the figures."""
    import pandas as pd

    rows = []
    for problem in problems:
        for place, one in enumerate(problem.methods, start=1):
            untuned = one.untuned
            row: dict[str, object] = {"problem": problem.name, "method": one.label, "algo": one.algo, "place": place}
            row["exactness"] = one.exactness
            for level in LEVELS:
                row[f"rounds to {level:g}"] = Spread.of(rounds_to(one.best, level))
            for name, unit in COSTS.items():
                row[f"{unit} to {LEVELS[1]:g}"] = one.cost_to(LEVELS[1], name)
            row["gap at the end"] = one.final
            row["rests"] = has_stalled(one.best)
            row["gap with auto"] = np.nan if untuned is None else final_gap(untuned)
            row[f"rounds to {LEVELS[0]:g} with auto"] = (
                np.nan if untuned is None else float(np.median(rounds_to(untuned, LEVELS[0])))
            )
            row["slope against client_lr"] = one.slope
            row["optimum's density or rank from"] = Spread.of(one.structure_rounds)
            row["chosen"] = one.best.rates
            row["on the edge of its grid"] = ", ".join(one.edges)
            row["settings tried"] = len(one.choice.cells)
            row["rounds spent on tuning"] = one.spent("round")
            row["gradients spent on tuning"] = one.spent("gradients")
            row["diverged"] = f"{one.choice.diverged} of {len(one.choice.cells)}"
            row["seeds"] = len(one.best.runs)
            rows.append(row)
    return pd.DataFrame(rows)


def summary(problems: list[Problem]) -> DataFrame:
    """Return a row per method over all problems; the methods that reach the levels most often come first."""
    import pandas as pd

    rows = []
    for algo in methods_of(problems):
        mine = [(problem, one) for problem in problems if (one := problem.of(algo))]
        row: dict[str, object] = {"method": algorithm_style(algo).label, "problems": len(mine)}
        for level in LEVELS:
            row[f"reaches {level:g}"] = sum(bool(np.isfinite(np.median(rounds_to(one.best, level)))) for _, one in mine)
        row["rests"] = sum(has_stalled(one.best) for _, one in mine)
        row["exactness"] = _exactness(mine)
        row["place"] = Spread.of([problem.methods.index(one) + 1 for problem, one in mine])
        ratios = [final_gap(one.untuned) / one.final for _, one in mine if one.untuned and np.isfinite(one.final)]
        row["gap with auto / best"] = Spread.of(ratios) if ratios else np.nan
        slopes = [one.slope for _, one in mine if np.isfinite(one.slope)]
        row["slope against client_lr"] = float(np.median(slopes)) if slopes else np.nan
        row["settings tried"] = Spread.of([len(one.choice.cells) for _, one in mine])
        row["family"] = algorithm_style(algo).family
        rows.append(row)
    methods = pd.DataFrame(rows)
    return methods.sort_values([f"reaches {level:g}" for level in reversed(LEVELS)], ascending=False, kind="stable")


def _exactness(results: list[tuple[Problem, MethodResult]]) -> str:
    """Return the class of a method over all problems with exact gradients that decide about it."""
    classes = [one.exactness for problem, one in results if has_exact_gradients(problem.study)]
    exact, biased = classes.count(EXACT), classes.count(BIASED)
    if exact and biased:
        return f"exact on {exact} of {exact + biased}"
    return EXACT if exact else BIASED if biased else OPEN


def format_cells(numbers: DataFrame) -> DataFrame:
    """Return the table as text: infinite numbers become "never", infinite gaps "diverged"."""
    return numbers.apply(
        lambda column: column.map(lambda value: _format_value(value, str(column.name).startswith("gap")))
    )


def _format_value(value: object, is_gap: bool) -> object:
    if isinstance(value, Spread):
        if np.isnan(value.median):
            return "–"
        middle, low, high = (_format_value(number, is_gap) for number in value)
        return middle if low == high else f"{middle} ({low}–{high})"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return ("diverged" if is_gap else "never") if np.isinf(value) else "–" if np.isnan(value) else f"{value:.3g}"
    return value


def finding(problem: Problem) -> str:
    """Describe which methods reach the smallest level, the best of the others, and what the seeds leave undecided."""
    level = f"{LEVELS[-1]:.0e}".replace("e-0", "e-")
    reached = [one for one in problem.methods if np.isfinite(one.place[0])]
    others = [one for one in problem.methods if one not in reached and np.isfinite(one.final)]
    rounds = ", ".join(f"{one.label} ({one.place[0]:.0f} rounds)" for one in reached)
    sentence = f"{problem.name}: " + (f"reached {level}: {rounds}" if reached else f"no method reached {level}")
    if others:
        nearest = min(others, key=lambda one: one.final)
        falling = "" if has_stalled(nearest.best) else ", still decreasing"
        which = "of the others" if reached else "overall"
        sentence += f"; smallest final gap {which}: {nearest.label} ({nearest.final:.1e}{falling})"
    if not reached:
        sentence += "; too few rounds to decide which methods are exact"
    elif close := [one.label for one in reached[1:] if _overlap(reached[0], one)]:
        sentence += f"; the seeds do not decide whether {reached[0].label} is faster than {', '.join(close)}"
    return sentence + "."


def _overlap(first: MethodResult, other: MethodResult) -> bool:
    """Return True if the ranges over the seeds of the rounds to the smallest level overlap."""
    return float(rounds_to(other.best, LEVELS[-1]).min()) <= float(rounds_to(first.best, LEVELS[-1]).max())
