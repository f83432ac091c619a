"""`experiment=hidden_settings`: under which settings that the paper leaves open do its claims hold together?

A setting is a lambda, a scale of the clients' differences, a start and a rule for learning rates; under each the lasso
claims are put to the runs of lasso I to IV. Seed 0 searches, all others judge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fco_cli.files import write_atomically
from fco_cli.reporting import figures
from fco_cli.reporting.claims import NOT_RUN, Claim, Entry, evaluate, read_claims
from fco_cli.reporting.figures import new_figure, styled
from fco_cli.reporting.studies import Results, Study
from fco_cli.reporting.style import OPTIMUM, SEARCH, metric_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEARCH_SEED = 0
EXPERIMENTS = {"lasso": "lasso_i", "lasso_ii": "lasso_ii", "lasso_iii": "lasso_iii", "lasso_iv": "lasso_iv"}  # by task


@dataclass(frozen=True, order=True)
class Setting:
    """What the paper does not say."""

    start: str
    heterogeneity: float
    rule: str
    strength: float

    @property
    def row(self) -> str:
        return f"{self.start}, heterogeneity {self.heterogeneity:g}, {metric_style(self.rule).label}"


@dataclass(frozen=True)
class Score:
    """How many claims held, over so many tests: a claim on every dataset that it speaks of, and every seed."""

    held: int
    tests: int
    never: tuple[str, ...]  # the claims that held on no seed

    @property
    def share(self) -> float:
        return self.held / self.tests


@dataclass(frozen=True)
class Tried:
    """A setting with its scores; None where those seeds were not run."""

    setting: Setting
    search: Score | None
    judge: Score | None


def tried_settings(studies: Iterable[Study]) -> list[Tried]:
    """All settings whose four datasets were run, the best of the search first."""
    groups: dict[tuple[str, float, float], list[Study]] = {}
    for study in studies:
        task, psi = study.runs[0].config["task"], study.runs[0].config["regularizer"]
        groups.setdefault((task["start"] or "zeros", task["heterogeneity"], psi["strength"]), []).append(study)
    claims = [claim for claim in read_claims() if _speaks_of_settings(claim)]
    tried = []
    for (start, heterogeneity, strength), members in groups.items():
        if len(members) != len(EXPERIMENTS):
            continue
        rules = [members[0].rule, *([other] if (other := members[0].rule.other) else [])]
        for rule in rules:
            ruled = [replace(study, rule=rule) for study in members]
            search = _score(claims, ruled, lambda seed: seed == SEARCH_SEED)
            judge = _score(claims, ruled, lambda seed: seed != SEARCH_SEED)
            tried.append(Tried(Setting(start, heterogeneity, rule.metric, strength), search, judge))
    return sorted(tried, key=lambda one: (-one.search.share if one.search else 0, one.setting))


def _score(claims: list[Claim], studies: list[Study], wanted: Callable[[int], bool]) -> Score | None:
    """None where no such seed was run, or not every algorithm and pair on every dataset and seed."""
    parts, jobs = [], []
    for study in studies:
        runs = [run for run in study.runs if wanted(run.seed)]
        jobs += [
            {(run.algo, run.client_lr, run.server_lr) for run in runs if run.seed == seed}
            for seed in {run.seed for each in studies for run in each.runs if wanted(run.seed)}
        ]
        parts.append(replace(study, name=EXPERIMENTS[study.runs[0].config["task"]["name"]], runs=runs))
    if not jobs or any(some != jobs[0] for some in jobs):
        return None
    entries: list[Entry] = [
        entry for entry in evaluate(claims, Results(parts), lambda study: "") if entry.verdict != NOT_RUN
    ]
    never = tuple(f"{entry.claim.id} ({entry.experiment})" for entry in entries if not entry.held)
    return Score(sum(entry.held for entry in entries), sum(entry.seeds for entry in entries), never)


def _speaks_of_settings(claim: Claim) -> bool:
    """Not of the optimum, which is not run here, nor of the rule, which is one of the settings."""
    ((kind, arguments),) = claim.test.items()
    of_lasso = set(claim.experiments) <= set(EXPERIMENTS.values())
    return of_lasso and kind != "rules_agree" and arguments.get("algo") != OPTIMUM


def as_markdown(tried: list[Tried]) -> str:
    """A line per setting, the best of the search first, and what no setting of the search reproduces."""
    lines = ["# What must the authors have used?", ""]
    lines += ["| start | heterogeneity | rates by | lambda | claims that hold on seed 0 | on the other seeds |"]
    lines += ["| --- " * 6 + "|"]
    for one in tried:
        setting = one.setting
        rule = metric_style(setting.rule).label
        scores = " | ".join(_said(score) for score in (one.search, one.judge))
        lines.append(f"| {setting.start} | {setting.heterogeneity:g} | {rule} | {setting.strength:g} | {scores} |")
    searched = [set(one.search.never) for one in tried if one.search]
    if searched:
        nowhere = sorted(set.intersection(*searched))
        lines += ["", f"Under no setting: {'; '.join(nowhere) or 'every claim holds under some setting'}."]
        lines += ["", f"Under the best of the search not: {'; '.join(sorted(searched[0])) or 'none'}."]
    return "\n".join(lines) + "\n"


def _said(score: Score | None) -> str:
    return "–" if score is None else f"{score.held} of {score.tests} ({score.share:.0%})"


@styled
def draw_map(tried: list[Tried]) -> Figure:
    """The share of claims that hold: a row per start, heterogeneity and rule, a column per lambda."""
    rows = sorted({one.setting.row for one in tried})
    columns = sorted({one.setting.strength for one in tried})
    figure, axes = new_figure(1.0 + 0.36 * len(rows), 2, 1, sharex=True)
    judged = any(one.judge for one in tried)
    titles = ("seed 0, the search", "other seeds, the judges" if judged else "other seeds: not run")
    for axis, title, which in zip(axes[:, 0], titles, ("search", "judge"), strict=True):
        shares = np.full((len(rows), len(columns)), np.nan)
        for one in tried:
            score: Score | None = getattr(one, which)
            if score is not None:
                place = rows.index(one.setting.row), columns.index(one.setting.strength)
                shares[place] = score.share
                colour = "black" if score.share > 0.75 else "white"
                axis.text(
                    place[1], place[0], f"{100 * score.share:.0f}", ha="center", va="center", color=colour, fontsize=7
                )
        axis.imshow(shares, vmin=0.4, vmax=1, cmap="viridis", aspect="auto")
        axis.set_xticks(range(len(columns)), [f"{value:g}" for value in columns])
        axis.set_yticks(range(len(rows)), rows, fontsize=6)
        axis.set_title(f"claims that hold, in %: {title}", loc="right")
        axis.spines[:].set_visible(False)
        axis.tick_params(length=0)
    axes[-1, 0].set_xlabel("lambda")
    return figure


def save_search(studies: list[Study], folder: Path) -> Path | None:
    """Write the table and the map to a report's folder; the map's file, if the search is far enough for one."""
    tried = tried_settings(studies)
    if not tried:
        return None
    write_atomically(folder / "tables" / f"{SEARCH}.md", as_markdown(tried).encode())
    png, _ = figures.save(draw_map(tried), folder / "figures" / SEARCH)
    return png
