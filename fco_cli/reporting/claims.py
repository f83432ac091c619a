"""The claims ledger: each checkable statement of the paper, with the test on the records that decides it.

`claims.yaml` lists the claims; to add one is to add an entry there. A test is one of the kinds of `claim_tests` and
its arguments. It is put to every seed of a complete, unaltered study; the verdict is how many of them say yes.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from typing import Any

import yaml

from fco_cli.errors import UserError
from fco_cli.reporting.claim_tests import KINDS, NEED_WHOLE_GRID, bound_holds
from fco_cli.reporting.design import JUDGING_PROFILES, PAPER, is_shipped, why_undecided
from fco_cli.reporting.evidence import Diverged, Evidence, Finding, Level, Needs, NotRun
from fco_cli.reporting.gate import LOADER
from fco_cli.reporting.margins import at_margin
from fco_cli.reporting.measured import put_together
from fco_cli.reporting.select import Choice, choose
from fco_cli.reporting.studies import Results, Rule, Study

REPRODUCED, MIXED, NOT_REPRODUCED, NOT_RUN = "reproduced", "mixed", "not reproduced", "not run"
VERDICTS = (REPRODUCED, MIXED, NOT_REPRODUCED, NOT_RUN)
THEORY, THEOREMS = "theory", {"bound_holds": bound_holds}  # an experiment that is no study, and what tests its claims


@dataclass(frozen=True)
class Claim:
    """One statement, where the paper makes it, and how we read it."""

    id: str
    source: str
    text: str
    experiments: list[str]
    test: dict[str, Any]  # kind -> arguments
    reading: str = ""  # how words such as "most" or "competitive" became numbers
    why_not: str = ""  # said where the claim is not reproduced

    @property
    def group(self) -> str:
        """Of what it speaks: the first words of its name."""
        return next(name for prefix, name in GROUPS.items() if self.id.startswith(prefix))


GROUPS = {"lasso": "lasso", "low rank": "low rank", "figure 2": "figure 2", "fMRI": "fMRI", "FEMNIST": "FEMNIST",
          "theorem": "theory", "lemma": "theory", "": "other"}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A claim's verdict on one experiment."""

    claim: Claim
    experiment: str
    verdict: str
    claimed: str
    measured: str  # over the seeds, with the range
    held: int = 0  # on so many seeds
    seeds: int = 0  # 0: not run
    sensitivity: str = ""  # what the verdict would be at other thresholds, where the threshold is ours
    needs: Needs | None = None  # what has to be run before it can be judged
    profile: str = PAPER  # of the records
    has_records: bool = True  # of its experiment

    @property
    def said(self) -> str:
        at = "" if self.profile == PAPER else f", profile {self.profile}"
        return f"{self.verdict} ({self.held} of {self.seeds}{at})" if self.seeds else self.verdict


def verdict_of(held: int, seeds: int) -> str:
    return REPRODUCED if held == seeds else MIXED if held else NOT_REPRODUCED


def read_claims(text: str | None = None) -> list[Claim]:
    """The claims of a YAML text; of the shipped ledger if none is given."""
    entries = yaml.load(text or files(__package__).joinpath("claims.yaml").read_text(encoding="utf-8"), Loader=LOADER)
    claims = []
    for entry in entries:
        try:
            claim = Claim(**entry)
            ((kind, arguments),) = claim.test.items()
            test = (THEOREMS if claim.experiments == [THEORY] else KINDS)[kind]
            bound = inspect.signature(test).bind(None, **arguments)
            if "level" in inspect.signature(test).parameters:
                Level(**bound.arguments.get("level", {}))
        except KeyError as problem:
            raise UserError(
                f"claims: {entry.get('id')}: no test {problem}, must be one of {', '.join(KINDS)}"
            ) from None
        except (TypeError, ValueError) as problem:
            raise UserError(f"claims: {entry.get('id')}: {problem}") from problem
        claims.append(claim)
    return claims


@dataclass
class Judge:
    """Puts claims to the studies of a report; what was chosen from a study is worked out once."""

    results: Results
    undecided: Callable[[Study], str]  # why a study may not decide; empty if it may
    found: dict[str, tuple[Study, str]] = field(default_factory=dict)
    chosen: dict[tuple[str, Rule], dict[str, Choice]] = field(default_factory=dict)

    def study(self, name: str) -> tuple[Study, str]:
        """The experiment's study, one that decides if there is one, and else why this one does not."""
        if name not in self.found:
            of_name = [study for study in self.results.studies if study.name == name and is_shipped(study)]
            if not of_name:
                raise NotRun(f"no records of {name}", Needs.EXPERIMENT)
            reasons = [(study, self.undecided(study)) for study in of_name]
            self.found[name] = min(reasons, key=lambda one: (bool(one[1]), one[0].profile != PAPER))
        return self.found[name]

    def evidence(self, name: str, seed: int, second_rule: bool = False) -> Evidence:
        study, _ = self.study(name)
        rule = (study.rule.other or study.rule) if second_rule else study.rule
        if (name, rule) not in self.chosen:
            self.chosen[name, rule] = choose(study, rule)
        suffix = study.name.removeprefix(study.twin_of) if study.twin_of else ""

        def elsewhere(other: str) -> Evidence:
            if other == study.twin_of or not suffix:
                return self.decisive(other, study.profile, seed, second_rule)
            return self.decisive(other + suffix, study.profile, seed, second_rule)

        return Evidence(study, seed, rule, self.chosen[name, rule], elsewhere)

    def decisive(self, name: str, profile: str, seed: int, second_rule: bool) -> Evidence:
        study, why = self.study(name)
        if why:
            raise NotRun(f"{name}: {why}", _needs(study))
        if study.profile != profile:
            raise NotRun(f"{name}: only at profile {study.profile}", Needs.PROFILE)
        return self.evidence(name, seed, second_rule)

    def findings(self, claim: Claim, name: str, margin: float = 1.0, second_rule: bool = False) -> list[Finding] | None:
        """Of every seed; None where there is no such threshold, or no second rule."""
        ((kind, arguments),) = claim.test.items()
        study, _ = self.study(name)
        if second_rule and study.rule.other is None:
            return None
        changed = arguments if margin == 1 else at_margin(arguments, margin)
        if changed is None:
            return None
        return [KINDS[kind](self.evidence(name, seed, second_rule), **changed) for seed in study.seeds]

    def entry(self, claim: Claim, name: str) -> Entry:
        try:
            study, why = self.study(name)
        except NotRun as reason:
            return Entry(claim, name, NOT_RUN, "", str(reason), needs=reason.needs, has_records=False)
        needs = _needs(study) if why else None
        if not why and study.profile != PAPER and set(claim.test) & set(NEED_WHOLE_GRID):
            why, needs = "needs all learning rates of profile=paper", Needs.PROFILE
        entry = partial(Entry, claim, name, profile=study.profile)
        try:
            findings = self.findings(claim, name)
        except NotRun as reason:
            return entry(NOT_RUN, "", str(reason), needs=needs or reason.needs)
        except Diverged as reason:
            if why:
                return entry(NOT_RUN, "", why, needs=needs)
            return entry(NOT_REPRODUCED, "", str(reason), 0, len(study.seeds))
        assert findings
        measured, held = put_together(findings), sum(finding.holds for finding in findings)
        if why:
            return entry(NOT_RUN, findings[0].claimed, f"{why}: {measured}", needs=needs)
        sensitivity = self.sensitivity(claim, name, held)
        return entry(verdict_of(held, len(findings)), findings[0].claimed, measured, held, len(findings), sensitivity)

    def sensitivity(self, claim: Claim, name: str, held: int) -> str:
        """On how many seeds it would hold at half and twice the margin, and by the second rule if that changes it."""
        variants: dict[str, dict[str, Any]] = {
            "half the margin": {"margin": 0.5},
            "twice the margin": {"margin": 2.0},
            "rates by the second rule": {"second_rule": True},
        }
        said = []
        for words, options in variants.items():
            try:
                findings = self.findings(claim, name, **options)
            except (NotRun, Diverged):
                continue
            now = held if findings is None else sum(finding.holds for finding in findings)
            if findings is not None and (now != held or "margin" in options):
                said.append(f"{words} {now} of {len(findings)}")
        return ", ".join(said)


def _needs(study: Study) -> Needs:
    """Return what has to be run where a study cannot decide."""
    return Needs.RUNS if study.profile in JUDGING_PROFILES else Needs.PROFILE


def evaluate(claims: list[Claim], results: Results, undecided: Callable[[Study], str] = why_undecided) -> list[Entry]:
    """The verdict on every claim and experiment, and on those twins of experiments that were run."""
    judge = Judge(results, undecided)
    twins: dict[str, list[str]] = {}
    for study in results.studies:
        if study.twin_of and study.name not in twins.setdefault(study.twin_of, []):
            twins[study.twin_of].append(study.name)
    entries = []
    for claim in claims:
        for name in claim.experiments:
            if name == THEORY:
                entries.append(_theorem(claim, results))
            else:
                entries += [judge.entry(claim, one) for one in (name, *twins.get(name, []))]
    return entries


def _theorem(claim: Claim, results: Results) -> Entry:
    ((_, arguments),) = claim.test.items()
    try:
        finding = bound_holds(results.theory, **arguments)
    except NotRun as reason:
        return Entry(claim, THEORY, NOT_RUN, "", str(reason), needs=reason.needs, has_records=bool(results.theory))
    held = int(finding.holds)
    return Entry(claim, THEORY, verdict_of(held, 1), finding.claimed, put_together([finding]), held, 1)


# The ledger as text.


OTHERS = {
    Needs.RUNS: "need the complete, unaltered experiment",
    Needs.PROFILE: "need profile=paper",
    Needs.EXPERIMENT: "need experiments not run here",
}


def headline(entries: list[Entry]) -> str:
    """Return one line: how many of the claims that the records can judge are reproduced, and what the others need."""
    counts = Counter(entry.verdict for entry in entries)
    judged = [entry for entry in entries if entry.verdict != NOT_RUN]
    profiles = {entry.profile for entry in judged or entries if entry.has_records}
    where = "from these records" if PAPER in profiles or not profiles else f"at profile={','.join(sorted(profiles))}"
    if judged:
        failed = ", ".join(f"{counts[one]} {one}" for one in (MIXED, NOT_REPRODUCED) if counts[one])
        first = f"{counts[REPRODUCED]} of {len(judged)} claims judged {where} are reproduced{failed and f' ({failed})'}"
    else:
        first = f"0 claims can be judged {where}"
    needs = Counter(entry.needs for entry in entries if entry.verdict == NOT_RUN)
    return "; ".join([first, *(f"{needs[one]} {words}" for one, words in OTHERS.items() if needs[one])])


def as_markdown(entries: list[Entry]) -> str:
    """The ledger as a page."""
    lines = ["# Claims ledger", "", f"{headline(entries)}.", "", *table_markdown(entries), ""]
    for claim in {entry.claim.id: entry.claim for entry in entries}.values():
        lines += [f"## {claim.id}", "", f"> {claim.text}", "", f"Source: {claim.source}."]
        lines += [f"Read as: {claim.reading}." if claim.reading else ""]
        lines += ["", "| experiment | verdict | claimed | measured | at other thresholds |", "| --- " * 5 + "|"]
        mine = [entry for entry in entries if entry.claim.id == claim.id]
        for e in mine:
            lines.append(
                f"| {e.experiment} | **{e.said}** | {e.claimed or '–'} | {e.measured} | {e.sensitivity or '–'} |"
            )
        if claim.why_not and any(entry.verdict in (MIXED, NOT_REPRODUCED) for entry in mine):
            lines += ["", f"Why not: {claim.why_not}"]
        lines.append("")
    return "\n".join(lines)


def table_markdown(entries: list[Entry]) -> list[str]:
    """How many claims of every group have which verdict: the README's table, line by line."""
    rows: dict[str, Counter[str]] = {}
    for entry in entries:
        twin = ", two smaller client rates" if entry.experiment.endswith("_extended") else ""
        simulated = ", simulated" if entry.experiment.endswith("_sim") else ""
        profile = "" if entry.profile == PAPER else f", profile={entry.profile}"
        rows.setdefault(f"{entry.claim.group}{twin}{simulated}{profile}", Counter())[entry.verdict] += 1
    lines = [f"| claims about | {' | '.join(VERDICTS)} |", "| --- " * (1 + len(VERDICTS)) + "|"]
    return lines + [
        f"| {name} | {' | '.join(str(counts[v] or '') for v in VERDICTS)} |" for name, counts in rows.items()
    ]
