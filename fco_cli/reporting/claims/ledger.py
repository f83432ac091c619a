"""The claims ledger: checkable statements, each with the test on the records that decides it.

A claim is data: a statement, the experiments that it is about, and a named test with arguments, usually read from the
`claims.yaml` of a study. The test is applied to every seed; the verdict counts the seeds on which it holds.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import yaml

from fco_cli.errors import UserError
from fco_cli.reporting.claims.claim_tests import KINDS
from fco_cli.reporting.claims.evidence import (
    Diverged,
    Evidence,
    Finding,
    Level,
    Needs,
    NotRun,
    Test,
    format_findings,
    scale_margins,
)
from fco_cli.reporting.records.design import JUDGING_PROFILES, PAPER
from fco_cli.reporting.records.select import Choice, choose
from fco_cli.reporting.records.studies import RecordedStudy, Results, Rule
from fco_cli.reporting.records.validation import LOADER
from fco_cli.reporting.text import printable

REPRODUCED, MIXED, NOT_REPRODUCED, NOT_RUN = "reproduced", "mixed", "not reproduced", "not run"
VERDICTS = (REPRODUCED, MIXED, NOT_REPRODUCED, NOT_RUN)
PREVIEWS = dict(zip(VERDICTS, ("hold (preview)", "mixed (preview)", "do not hold (preview)", NOT_RUN), strict=True))


@dataclass(frozen=True)
class Claim:
    """A checkable statement, its source and its reading."""

    id: str
    text: str
    experiments: list[str]  # names of experiments; of tasks for runs without an experiment
    test: dict[str, Any]  # kind -> arguments
    source: str = ""  # where it is stated
    reading: str = ""  # numbers for words such as "most" or "competitive"
    why_not: str = ""  # explanation, shown if the claim is not reproduced
    group: str = "other"  # part of the ledger


def everything_decides(study: RecordedStudy) -> str:
    """Return an empty reason: every study decides claims."""
    return ""


@dataclass(frozen=True)
class Entry:
    """Verdict on a claim for one experiment."""

    claim: Claim
    experiment: str
    verdict: str
    claimed: str
    measured: str  # median and range over the seeds
    held: int = 0  # number of seeds on which the claim holds
    seeds: int = 0  # 0: not run
    sensitivity: str = ""  # verdict at other thresholds, if we chose the threshold
    needs: Needs | None = None  # runs required before the claim can be judged
    profile: str = PAPER  # of the records
    has_records: bool = True  # of its experiment

    @property
    def label(self) -> str:
        """Verdict with the number of seeds, as in "mixed (3 of 5)"; a preview if the records are of another profile."""
        if not self.seeds:
            return self.verdict
        if self.profile == PAPER:
            return f"{self.verdict} ({self.held} of {self.seeds})"
        holds = "holds" if self.held == self.seeds else "does not hold"
        return f"preview: {holds} ({self.held} of {self.seeds}, profile {self.profile})"


def verdict_of(held: int, seeds: int) -> str:
    return REPRODUCED if held == seeds else MIXED if held else NOT_REPRODUCED


def read_claims(text: str, name: str = "claims", tests: Mapping[str, Test] = KINDS) -> list[Claim]:
    """Parse claims from a YAML text; raise UserError, with the name of the file and the claim, if one is invalid."""
    try:
        entries = yaml.load(text, Loader=LOADER)
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        raise UserError(f"{name}: not YAML: {printable(' '.join(str(problem).split()))}") from problem
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UserError(f"{name}: must be a list of claims, each with {', '.join(_required())} (docs/reporting.md)")
    return [_read_claim(entry, f"{name}: {printable(str(entry.get('id', '(no id)')))}", tests) for entry in entries]


def _required() -> list[str]:
    return [one.name for one in fields(Claim)][:4]


def _read_claim(entry: dict[Any, Any], place: str, tests: Mapping[str, Test]) -> Claim:
    known = [one.name for one in fields(Claim)]
    if missing := [key for key in _required() if key not in entry]:
        raise UserError(f"{place}: no {missing[0]}; a claim has {', '.join(known)}")
    if unknown := [key for key in entry if key not in known]:
        raise UserError(f"{place}: unknown key {printable(str(unknown[0]))}; a claim has {', '.join(known)}")
    for key, value in entry.items():
        if key == "experiments":
            is_valid, allowed = (
                isinstance(value, list) and all(isinstance(one, str) for one in value),
                "a list of names",
            )
        elif key == "test":
            is_valid, allowed = isinstance(value, dict), "a test with its arguments"
        else:
            is_valid, allowed = isinstance(value, str), "text"
        if not is_valid:
            raise UserError(f"{place}: {key}: got {printable(value)}, must be {allowed}")
    claim = Claim(**entry)
    check_test(claim, place, tests)
    return claim


def check_test(claim: Claim, place: str, tests: Mapping[str, Test]) -> None:
    """Raise UserError unless the claim names one of the tests, with arguments that it takes."""
    kinds = [str(kind) for kind in claim.test]
    if len(kinds) != 1 or kinds[0] not in tests:
        raise UserError(
            f"{place}: unknown test {printable(', '.join(map(repr, kinds)))}, must be one of {', '.join(tests)}"
        )
    ((kind, arguments),) = claim.test.items()
    if not isinstance(arguments, dict):
        raise UserError(f"{place}: {kind}: got {printable(arguments)}, must be a mapping of arguments")
    try:
        bound = inspect.signature(tests[kind]).bind(None, **arguments)
        if "level" in inspect.signature(tests[kind]).parameters:
            Level(**bound.arguments.get("level", {}))
    except (TypeError, ValueError) as problem:
        raise UserError(f"{place}: {kind}: {problem}") from problem


@dataclass
class Judge:
    """Evaluator of claims on the studies of a report, with cached studies and choices."""

    results: Results
    undecided: Callable[[RecordedStudy], str]  # returns why a study cannot decide claims; empty if it can
    tests: Mapping[str, Test]
    studies: dict[str, tuple[RecordedStudy, str]] = field(default_factory=dict)
    choices: dict[tuple[str, Rule], dict[str, Choice]] = field(default_factory=dict)

    def study(self, name: str) -> tuple[RecordedStudy, str]:
        """Return the experiment's study, preferably one that decides claims, and otherwise why it does not."""
        if name not in self.studies:
            candidates = [study for study in self.results.studies if study.name == name]
            if not candidates:
                raise NotRun(f"no records of {name}", Needs.EXPERIMENT)
            reasons = [(study, self.undecided(study)) for study in candidates]
            self.studies[name] = min(reasons, key=lambda one: (bool(one[1]), one[0].profile != PAPER))
        return self.studies[name]

    def evidence(self, name: str, seed: int, second_rule: bool = False) -> Evidence:
        """Return one seed of the experiment's study, with learning rates chosen by its first or second rule."""
        study, _ = self.study(name)
        rule = (study.rule.other or study.rule) if second_rule else study.rule
        if (name, rule) not in self.choices:
            self.choices[name, rule] = choose(study, rule)
        suffix = study.name.removeprefix(study.twin_of) if study.twin_of else ""

        def other_experiment(other: str) -> Evidence:
            if other == study.twin_of or not suffix:
                return self.decisive(other, study.profile, seed, second_rule)
            return self.decisive(other + suffix, study.profile, seed, second_rule)

        return Evidence(study, seed, rule, self.choices[name, rule], other_experiment)

    def decisive(self, name: str, profile: str, seed: int, second_rule: bool) -> Evidence:
        """Return the evidence of an experiment; raise NotRun unless its study at this profile decides claims."""
        study, why = self.study(name)
        if why:
            raise NotRun(f"{name}: {why}", _needs(study))
        if study.profile != profile:
            raise NotRun(f"{name}: only at profile {study.profile}", Needs.PROFILE)
        return self.evidence(name, seed, second_rule)

    def findings(self, claim: Claim, name: str, margin: float = 1.0, second_rule: bool = False) -> list[Finding] | None:
        """Apply the claim's test to every seed; return None if it has no margin to change, or no second rule."""
        ((kind, arguments),) = claim.test.items()
        study, _ = self.study(name)
        if second_rule and study.rule.other is None:
            return None
        changed = arguments if margin == 1 else scale_margins(arguments, margin)
        if changed is None:
            return None
        test = self.tests[kind]
        return [test(self.evidence(name, seed, second_rule), **changed) for seed in study.seeds]

    def entry(self, claim: Claim, name: str) -> Entry:
        """Return the verdict on a claim for one experiment."""
        ((kind, arguments),) = claim.test.items()
        if getattr(self.tests[kind], "of_all_results", False):
            return self.single_entry(claim, name, partial(self.tests[kind], self.results, **arguments))
        try:
            study, why = self.study(name)
        except NotRun as reason:
            return Entry(claim, name, NOT_RUN, "", str(reason), needs=reason.needs, has_records=False)
        needs = _needs(study) if why else None
        if not why and study.profile != PAPER and getattr(self.tests[kind], "needs_whole_grid", False):
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
        measured, held = format_findings(findings), sum(finding.holds for finding in findings)
        if why:
            return entry(NOT_RUN, findings[0].claimed, f"{why}: {measured}", needs=needs)
        sensitivity = self.sensitivity(claim, name, held)
        return entry(verdict_of(held, len(findings)), findings[0].claimed, measured, held, len(findings), sensitivity)

    def single_entry(self, claim: Claim, name: str, test: Callable[[], Finding]) -> Entry:
        """Return the verdict on a claim whose test is applied once, to all results."""
        try:
            finding = test()
        except NotRun as reason:
            has_records = reason.needs is not Needs.EXPERIMENT
            return Entry(claim, name, NOT_RUN, "", str(reason), needs=reason.needs, has_records=has_records)
        held = int(finding.holds)
        return Entry(claim, name, verdict_of(held, 1), finding.claimed, format_findings([finding]), held, 1)

    def sensitivity(self, claim: Claim, name: str, held: int) -> str:
        """Describe on how many seeds the claim holds at half and twice the margin.

        The count by the second selection rule is added if it differs.
        """
        variants: dict[str, dict[str, Any]] = {
            "half the margin": {"margin": 0.5},
            "twice the margin": {"margin": 2.0},
            "rates by the second rule": {"second_rule": True},
        }
        parts = []
        for variant, options in variants.items():
            try:
                findings = self.findings(claim, name, **options)
            except (NotRun, Diverged):
                continue
            now = held if findings is None else sum(finding.holds for finding in findings)
            if findings is not None and (now != held or "margin" in options):
                parts.append(f"{variant} {now} of {len(findings)}")
        return ", ".join(parts)


def _needs(study: RecordedStudy) -> Needs:
    """Return the runs that are required where a study cannot decide."""
    return Needs.RUNS if study.profile in JUDGING_PROFILES else Needs.PROFILE


def evaluate(
    claims: list[Claim],
    results: Results,
    undecided: Callable[[RecordedStudy], str] = everything_decides,
    tests: Mapping[str, Test] = KINDS,
) -> list[Entry]:
    """Return the verdicts on every claim for each of its experiments and for their twins that were run."""
    judge = Judge(results, undecided, tests)
    twins: dict[str, list[str]] = {}
    for study in results.studies:
        if study.twin_of and study.name not in twins.setdefault(study.twin_of, []):
            twins[study.twin_of].append(study.name)
    return [
        judge.entry(claim, one)
        for claim in claims
        for name in claim.experiments
        for one in (name, *twins.get(name, []))
    ]


# The ledger as text.


REQUIREMENTS = {
    Needs.RUNS: "need the complete, unaltered experiment",
    Needs.PROFILE: "need profile=paper",
    Needs.EXPERIMENT: "need experiments not run here",
}


def preview_profiles(entries: list[Entry]) -> list[str]:
    """Return the profiles of the judged claims, or of all records if none is judged; empty if one is `paper`."""
    judged = [entry for entry in entries if entry.verdict != NOT_RUN]
    profiles = {entry.profile for entry in judged or entries if entry.has_records}
    return [] if PAPER in profiles else sorted(profiles)


def headline(entries: list[Entry]) -> str:
    """Return one line: how many of the judged claims are reproduced, and what the others require."""
    counts = Counter(entry.verdict for entry in entries)
    judged = [entry for entry in entries if entry.verdict != NOT_RUN]
    profiles = preview_profiles(entries)
    where = f"at profile={','.join(profiles)}" if profiles else "from these records"
    if judged and profiles:
        failed = f", {len(judged) - counts[REPRODUCED]} do not" if counts[REPRODUCED] < len(judged) else ""
        first = f"preview {where}: {counts[REPRODUCED]} of {len(judged)} claims hold{failed}"
    elif judged:
        failed = ", ".join(f"{counts[one]} {one}" for one in (MIXED, NOT_REPRODUCED) if counts[one])
        first = f"{counts[REPRODUCED]} of {len(judged)} claims judged {where} are reproduced{failed and f' ({failed})'}"
    else:
        first = f"0 claims can be judged {where}"
    needs = Counter(entry.needs for entry in entries if entry.verdict == NOT_RUN)
    return "; ".join([first, *(f"{needs[one]} {text}" for one, text in REQUIREMENTS.items() if needs[one])])


def as_markdown(entries: list[Entry]) -> str:
    """Return the ledger as a Markdown page."""
    lines = ["# Claims ledger", "", f"{headline(entries)}.", "", *table_markdown(entries), ""]
    for claim in {entry.claim.id: entry.claim for entry in entries}.values():
        lines += [f"## {claim.id}", "", f"> {claim.text}", ""]
        lines += [f"Source: {claim.source}."] if claim.source else []
        lines += [f"Read as: {claim.reading}." if claim.reading else ""]
        lines += ["", "| experiment | verdict | claimed | measured | at other thresholds |", "| --- " * 5 + "|"]
        own = [entry for entry in entries if entry.claim.id == claim.id]
        for e in own:
            lines.append(
                f"| {e.experiment} | **{e.label}** | {e.claimed or '–'} | {e.measured} | {e.sensitivity or '–'} |"
            )
        if claim.why_not and any(entry.verdict in (MIXED, NOT_REPRODUCED) for entry in own):
            lines += ["", f"Why not: {claim.why_not}"]
        lines.append("")
    return "\n".join(lines)


def table_markdown(entries: list[Entry]) -> list[str]:
    """Return the lines of the README's table: the number of claims per group and verdict."""
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
