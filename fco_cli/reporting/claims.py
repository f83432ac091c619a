"""The claims ledger: each checkable statement of the paper, with the test on the records that decides it.

`claims.yaml` lists the claims; to add one is to add an entry there. A test is one of the kinds of `claim_tests` and
its arguments.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import yaml

from fco_cli.errors import UserError
from fco_cli.reporting.claim_tests import KINDS, Diverged, Evidence, Level, NotRun
from fco_cli.reporting.gate import LOADER
from fco_cli.reporting.select import choose
from fco_cli.reporting.studies import Results

REPRODUCED, NOT_REPRODUCED, NOT_RUN = "reproduced", "not reproduced", "not run"


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


@dataclass(frozen=True)
class Entry:
    """A claim's verdict on one experiment."""

    claim: Claim
    experiment: str
    verdict: str
    claimed: str
    measured: str


def read_claims(text: str | None = None) -> list[Claim]:
    """The claims of a YAML text; of the shipped ledger if none is given."""
    entries = yaml.load(text or files(__package__).joinpath("claims.yaml").read_text(), Loader=LOADER)
    claims = []
    for entry in entries:
        try:
            claim = Claim(**entry)
            ((kind, arguments),) = claim.test.items()
            bound = inspect.signature(KINDS[kind]).bind(None, **arguments)
            if "level" in inspect.signature(KINDS[kind]).parameters:
                Level(**bound.arguments.get("level", {}))
        except KeyError as problem:
            raise UserError(
                f"claims: {entry.get('id')}: no test {problem}, must be one of {', '.join(KINDS)}"
            ) from None
        except (TypeError, ValueError) as problem:
            raise UserError(f"claims: {entry.get('id')}: {problem}") from problem
        claims.append(claim)
    return claims


def evaluate(claims: list[Claim], results: Results) -> list[Entry]:
    """The verdict on every claim and experiment."""
    known: dict[str, Evidence] = {}

    def evidence(name: str) -> Evidence:
        if name not in known:
            study = results.study(name)
            if study is None:
                raise NotRun(f"no records of {name}")
            known[name] = Evidence(study, choose(study), evidence)
        return known[name]

    return [_evaluate(claim, name, evidence) for claim in claims for name in claim.experiments]


def _evaluate(claim: Claim, name: str, evidence: Callable[[str], Evidence]) -> Entry:
    ((kind, arguments),) = claim.test.items()
    try:
        here = evidence(name)
        finding = KINDS[kind](here, **arguments)
    except NotRun as reason:
        return Entry(claim, name, NOT_RUN, "", str(reason))
    except Diverged as reason:
        return Entry(claim, name, NOT_REPRODUCED, "", str(reason))
    verdict = REPRODUCED if finding.holds else NOT_REPRODUCED
    measured = finding.measured
    if here.study.scale != 1:  # less than the paper's rounds can neither confirm nor refute what it says
        verdict, measured = NOT_RUN, f"only at profile {here.study.profile}: {measured}"
    return Entry(claim, name, verdict, finding.claimed, measured)


def summary(entries: list[Entry]) -> str:
    """How many of each verdict, in one line."""
    counts = Counter(entry.verdict for entry in entries)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in (REPRODUCED, NOT_REPRODUCED, NOT_RUN))


def as_markdown(entries: list[Entry]) -> str:
    """The ledger as a page."""
    lines = ["# Claims ledger", "", f"{summary(entries)}, of {len(entries)} tests.", ""]
    for claim in {entry.claim.id: entry.claim for entry in entries}.values():
        lines += [f"## {claim.id}", "", f"> {claim.text}", "", f"Source: {claim.source}."]
        lines += [f"Read as: {claim.reading}." if claim.reading else ""]
        lines += ["", "| experiment | verdict | claimed | measured |", "| --- | --- | --- | --- |"]
        mine = [entry for entry in entries if entry.claim.id == claim.id]
        lines += [f"| {e.experiment} | **{e.verdict}** | {e.claimed or '–'} | {e.measured} |" for e in mine]
        if claim.why_not and any(entry.verdict == NOT_REPRODUCED for entry in mine):
            lines += ["", f"Why not: {claim.why_not}"]
        lines.append("")
    return "\n".join(lines)
