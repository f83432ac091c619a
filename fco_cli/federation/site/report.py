"""Summary of a site's audit file and ledger: who requested what, when and how often, and the limits that are left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fco_cli.errors import UserError
from fco_cli.federation.policy import POLICY_FILE, Policy
from fco_cli.federation.site.audit import AUDIT_FILE, Entry, all_entries, verify
from fco_cli.federation.site.ledger import LEDGER_FOLDER, Ledger, limits_of


def audit_report(home: Path) -> Iterator[str]:
    """Yield one line per session, per refusal reason and per count of the ledger."""
    sessions: dict[str, list[Entry]] = {}
    refused: Counter[str] = Counter()
    for entry in all_entries(home / AUDIT_FILE):
        sessions.setdefault(entry.session, []).append(entry)
        if entry.outcome != "answered":
            refused[f"{entry.kind}: {entry.outcome}"] += 1
    for session, entries in sessions.items():
        yield _session_line(session, entries)
    for reason, count in refused.most_common():
        yield f"{count} x {reason}"
    yield from _ledger_lines(home)
    try:
        yield f"chain: OK, {verify(home / AUDIT_FILE)} entries"
    except UserError as problem:
        yield f"chain: {problem}"


def _session_line(session: str, entries: list[Entry]) -> str:
    kinds = Counter(entry.kind for entry in entries if entry.outcome == "answered")
    answered = ", ".join(f"{kind} {count}" for kind, count in kinds.items()) or "nothing"
    analyst = next((entry.analyst for entry in entries if entry.analyst), "unknown") if session else "no session"
    numbers = sum(entry.answer_numbers for entry in entries)
    period = f"{entries[0].at} to {entries[-1].at}"
    return f"{period}  {analyst}  session {session[:8] or '-'}: answered {answered}; {numbers:,} numbers sent"


def _ledger_lines(home: Path) -> Iterator[str]:
    """Yield the counts over all runs, with their limits if the site has a policy."""
    if not (home / LEDGER_FOLDER).exists():
        return
    ledger = Ledger(home / LEDGER_FOLDER)
    counts = ledger.read()
    try:
        policy: Policy | None = Policy.read(home / POLICY_FILE)
    except UserError as problem:
        policy = None
        yield f"policy: {problem}"
    limits = {} if policy is None else limits_of(policy, counts.values)
    for name in ("rounds", "evaluations", "counts", "overflows", "steep_models", "numbers"):
        limit, key = limits.get(name, (None, ""))
        yield _count_line(name, getattr(counts, name), limit, key)
    yield _count_line("subsets", ledger.subsets(), None if policy is None else policy.max_subsets, "max_subsets")


def _count_line(name: str, count: float, limit: float | None, key: str) -> str:
    left = "no limit" if limit is None else f"{max(limit - count, 0):,.10g} of {limit:,.10g} left ({key})"
    return f"{name}: {count:,.10g} over all runs; {left}"
