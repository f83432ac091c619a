"""`experiment=hidden_settings`: search for the settings, left open by the paper, under which its claims hold together.

A setting consists of lambda, the heterogeneity of the clients, the start, the treatment of an epoch's last batch, a
factor in the loss (1 or 1/2) and a selection rule for learning rates. The lasso claims are tested under each setting
on the runs of lasso I to IV: seed 0 is for the search, all others are for the evaluation.

The factor and the rule need no runs of their own: a run at (lambda, client_lr) is, bit for bit, also a run with half
the loss at (lambda / 2, 2 client_lr). Only client rates on the paper's grid are used for either factor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

from fco_cli.reporting import (
    ACCENT,
    NOT_RUN,
    OPTIMUM,
    Claim,
    Entry,
    Figure,
    RecordedRun,
    RecordedStudy,
    Results,
    Rule,
    Section,
    design_of,
    evaluate,
    metric_style,
    new_figure,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

SEARCH = "hidden_settings"  # name of the experiment
CAPTION = (
    "Share of the lasso claims that hold, by the settings that the paper leaves open: the start, the heterogeneity, "
    "the last batch of an epoch (keep, drop), a factor 1/2 in the loss, the selection rule of learning rates, and "
    "lambda. Settings are searched on seed 0 and judged on the other seeds; the best of the search is framed."
)
SEARCH_SEED = 0
LOSS_FACTORS = (1.0, 0.5)
EXPERIMENTS = {"lasso": "lasso_i", "lasso_ii": "lasso_ii", "lasso_iii": "lasso_iii", "lasso_iv": "lasso_iv"}  # by task


@dataclass(frozen=True, order=True)
class Setting:
    """Values of the settings that the paper leaves open."""

    start: str
    heterogeneity: float
    last_batch: str
    loss_factor: float
    rule: str
    strength: float

    @property
    def row(self) -> str:
        half = "" if self.loss_factor == 1 else f", loss x {self.loss_factor:g}"
        return f"{self.start}, heterogeneity {self.heterogeneity:g}, {self.last_batch}{half}"


@dataclass(frozen=True)
class Score:
    """Number of tests that held; a test is a claim on one dataset and one seed."""

    held: int
    tests: int
    never: tuple[str, ...]  # claims that held on no seed

    @property
    def share(self) -> float:
        return self.held / self.tests


@dataclass(frozen=True)
class SettingResult:
    """A setting with its scores on seed 0 (`search`) and on the other seeds (`judge`); None if they were not run."""

    setting: Setting
    search: Score | None
    judge: Score | None


def score_settings(studies: Iterable[RecordedStudy], claims: list[Claim]) -> list[SettingResult]:
    """Return the scores of all settings whose four datasets were run, best of the search first."""
    groups: dict[Setting, list[RecordedStudy]] = {}
    for study in studies:
        for factor in LOSS_FACTORS:
            for rule in filter(None, (study.rule, study.rule.other)):
                absolute = [run for run in study.runs if run.relative_client_lr is None]
                if runs := [run for run in map(partial(_with_loss, factor), absolute) if run.client_lr in _grid()]:
                    groups.setdefault(_setting(study, factor, rule), []).append(replace(study, rule=rule, runs=runs))
    claims = [claim for claim in claims if _is_testable(claim)]
    tried = [
        SettingResult(
            setting, *(_score(claims, members, is_wanted) for is_wanted in (SEARCH_SEED.__eq__, SEARCH_SEED.__ne__))
        )
        for setting, members in groups.items()
        if len(members) == len(EXPERIMENTS)
    ]
    return sorted(tried, key=lambda one: (-one.search.share if one.search else 0, one.setting))


def _setting(study: RecordedStudy, factor: float, rule: Rule) -> Setting:
    task, psi, hparams = (study.runs[0].config[part] for part in ("task", "regularizer", "hparams"))
    return Setting(
        task["start"] or "zeros", task["heterogeneity"], hparams["last_batch"], factor, rule.metric,
        factor * psi["strength"],
    )  # fmt: skip


def _with_loss(factor: float, run: RecordedRun) -> RecordedRun:
    """Return the run reinterpreted as one whose loss has the factor."""
    hparams = run.config["hparams"]
    return replace(run, config=run.config | {"hparams": hparams | {"client_lr": hparams["client_lr"] / factor}})


@cache
def _grid() -> frozenset[float]:
    """Return the paper's client rates."""
    return frozenset(client for _, client, _ in design_of("lasso_i").pairs if isinstance(client, float))


def _score(claims: list[Claim], studies: list[RecordedStudy], is_wanted: Callable[[int], bool]) -> Score | None:
    """Evaluate the claims on the wanted seeds; return None unless all datasets and seeds have the same runs."""
    parts, jobs = [], []
    for study in studies:
        runs = [run for run in study.runs if is_wanted(run.seed)]
        jobs += [
            {(run.algo, run.client_lr, run.server_lr) for run in runs if run.seed == seed}
            for seed in {run.seed for other in studies for run in other.runs if is_wanted(run.seed)}
        ]
        parts.append(replace(study, name=EXPERIMENTS[study.runs[0].config["task"]["name"]], runs=runs))
    if not jobs or any(some != jobs[0] for some in jobs):
        return None
    entries: list[Entry] = [entry for entry in evaluate(claims, Results(parts)) if entry.verdict != NOT_RUN]
    never = tuple(f"{entry.claim.id} ({entry.experiment})" for entry in entries if not entry.held)
    return Score(sum(entry.held for entry in entries), sum(entry.seeds for entry in entries), never)


def _is_testable(claim: Claim) -> bool:
    """Return True for lasso claims except those about the optimum, which is not run, and about the selection rule."""
    ((kind, arguments),) = claim.test.items()
    of_lasso = set(claim.experiments) <= set(EXPERIMENTS.values())
    return of_lasso and kind != "rules_agree" and arguments.get("algo") != OPTIMUM


def as_markdown(tried: list[SettingResult]) -> str:
    """Return a table with a row per setting, and the claims that no setting reproduces, as Markdown."""
    lines = ["# Settings under which the claims hold", ""]
    heads = ("start", "heterogeneity", "last batch", "loss times", "rates by", "lambda")
    lines += [f"| {' | '.join(heads)} | claims that hold on seed 0 | on the other seeds |"]
    lines += ["| --- " * (len(heads) + 2) + "|"]
    for one in tried:
        start, heterogeneity, last_batch, factor, rule, strength = astuple(one.setting)
        cells = [start, f"{heterogeneity:g}", last_batch, f"{factor:g}", metric_style(rule).label, f"{strength:g}"]
        cells += [_format_score(score) for score in (one.search, one.judge)]
        lines.append(f"| {' | '.join(cells)} |")
    searched = [set(one.search.never) for one in tried if one.search]
    if searched:
        nowhere = sorted(set.intersection(*searched))
        lines += ["", f"Claims that hold under no setting: {'; '.join(nowhere) or 'none'}."]
        lines += ["", f"Claims that do not hold under the best setting: {'; '.join(sorted(searched[0])) or 'none'}."]
    return "\n".join(lines) + "\n"


def _format_score(score: Score | None) -> str:
    return "–" if score is None else f"{score.held} of {score.tests} ({score.share:.0%})"


@styled
def draw_map(tried: list[SettingResult]) -> Drawing:
    """Draw the share of claims that hold: a panel per rule, a column per lambda, a row per other setting.

    The best setting of the search is framed.
    """
    from matplotlib.patches import Rectangle

    best = max((one for one in tried if one.search), key=lambda one: one.search.share, default=None)  # type: ignore[union-attr]
    rules = list(dict.fromkeys(one.setting.rule for one in sorted(tried, key=lambda one: one.setting)))
    rows = sorted({one.setting.row for one in tried})
    columns = sorted({one.setting.strength for one in tried})
    figure, axes = new_figure(0.4 + len(rules) * (0.35 + 0.15 * len(rows)), len(rules), 1, sharex=True)
    for axis, rule in zip(axes[:, 0], rules, strict=True):
        shares = np.full((len(rows), len(columns)), np.nan)
        for one in tried:
            if one.setting.rule == rule and (score := one.search or one.judge):
                place = rows.index(one.setting.row), columns.index(one.setting.strength)
                shares[place] = score.share
                color = "black" if score.share > 0.75 else "white"
                shown = "/".join(f"{100 * part.share:.0f}" if part else "–" for part in (one.search, one.judge))
                shown = shown.removesuffix("/–")
                size = 5 if "/" in shown else 6
                axis.text(*place[::-1], shown, ha="center", va="center", color=color, fontsize=size)
                if one is best:
                    corner = place[1] - 0.5, place[0] - 0.5
                    frame = Rectangle(
                        corner, 1, 1, fill=False, edgecolor=ACCENT, linewidth=1.4, zorder=3, clip_on=False
                    )
                    axis.add_patch(frame)
        axis.imshow(shares, vmin=0.4, vmax=1, cmap="viridis", aspect="auto")
        axis.set_xticks(range(len(columns)), [f"{value:g}" for value in columns])
        axis.set_yticks(range(len(rows)), rows, fontsize=6)
        axis.set_title(f"rates by {metric_style(rule).label}: % on seed 0/on the others", loc="right")
        axis.spines[:].set_visible(False)
        axis.tick_params(length=0)
    axes[-1, 0].set_xlabel("lambda")
    return figure


def search_section(studies: list[RecordedStudy], claims: list[Claim]) -> Section | None:
    """Return the section of the search; None if no setting is complete."""
    tried = score_settings(studies, claims)
    if not tried:
        return None
    figure = Figure(SEARCH, partial(draw_map, tried), CAPTION, alt="Share of claims that hold, by setting")
    table = f"tables/{SEARCH}.md"
    return Section(
        "hidden-settings",
        "Settings that the paper leaves open",
        figures=[figure],
        menu="Hidden settings",
        command="fco-run -m experiment=hidden_settings",
        links=[("table", table)],
        files={table: as_markdown(tried).encode()},
    )
