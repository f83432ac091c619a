"""Template context of the claims ledger in the HTML page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fco_cli.reporting.claims.ledger import NOT_RUN, REPRODUCED, VERDICTS, Entry, headline
from fco_cli.reporting.records.studies import RecordedStudy, Results

if TYPE_CHECKING:
    from fco_cli.reporting.report import Report


def claims_context(report: Report, results: Results) -> dict[str, Any] | None:
    """Return the template context of the ledger; None if the report has none."""
    ledger = report.ledger
    if not ledger:
        return None
    entries = [_entry_context(i, entry, results) for i, entry in enumerate(ledger)]
    return {
        "heading": report.claims_heading,
        "notes": report.claims_notes,
        "headline": headline(ledger),
        "verdicts": {verdict: sum(entry.verdict == verdict for entry in ledger) for verdict in VERDICTS},
        "groups": _groups(ledger),
        "failed": _by_text(entry for entry in entries if entry["verdict"] not in (REPRODUCED, NOT_RUN)),
        "ledger": entries,
    }


def claims_of(study: RecordedStudy, ledger: list[Entry]) -> str:
    """Describe how many claims about a study are reproduced; empty if none is judged."""
    entries = [entry for entry in ledger if (entry.experiment, entry.profile) == (study.name, study.profile)]
    judged = [entry.verdict for entry in entries if entry.verdict != NOT_RUN]
    return f"{judged.count(REPRODUCED)} of {len(judged)} claims reproduced" if judged else ""


def _by_text(entries: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Group entries by the statement that they test."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        groups.setdefault(entry["text"], []).append(entry)
    return groups


def _entry_context(number: int, entry: Entry, results: Results) -> dict[str, Any]:
    study = results.study(entry.experiment) if entry.has_records else None
    return {
        "number": number,
        "slug": study.slug if study else entry.experiment if entry.has_records else "",
        "id": entry.claim.id,
        "text": entry.claim.text,
        "source": entry.claim.source,
        "reading": entry.claim.reading,
        "why_not": entry.claim.why_not if entry.verdict not in (REPRODUCED, NOT_RUN) else "",
        "group": entry.claim.group,
        "experiment": entry.experiment,
        "verdict": entry.verdict,
        "label": entry.label,
        "claimed": entry.claimed,
        "measured": entry.measured,
        "sensitivity": entry.sensitivity,
    }


def _groups(ledger: list[Entry]) -> dict[str, Counter[str]]:
    """Count the verdicts by part of the ledger; parts without a judged claim are left out."""
    counts: dict[str, Counter[str]] = {}
    for entry in ledger:
        counts.setdefault(entry.claim.group, Counter())[entry.verdict] += 1
    return {group: count for group, count in counts.items() if set(count) != {NOT_RUN}}
