"""What the seeds measured, in a line: the median and the range of numbers, and how often which word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from fco_cli.reporting.evidence import Finding
from fco_cli.reporting.select import Spread


def put_together(findings: Sequence[Finding]) -> str:
    """All findings are of the same test."""
    parts = []
    for name in findings[0].measured:
        values = [finding.measured[name] for finding in findings if name in finding.measured]
        numbers = [value for value in values if isinstance(value, int | float)]
        said = _words([str(v) for v in values]) if len(numbers) < len(values) else _numbers(numbers, findings[0].rounds)
        parts.append(f"{name} {said}")
    return "; ".join(parts)


def _words(values: Sequence[str]) -> str:
    counts = Counter(values)
    if len(counts) == 1:
        return values[0]
    return ", ".join(f"{word} ({count} times)" for word, count in counts.most_common())


def _numbers(values: Sequence[float], rounds: bool) -> str:
    finite = [value for value in values if np.isfinite(value)]
    if not rounds:
        return str(Spread.of(values))
    if not finite:
        return "never"
    never = f", never on {len(values) - len(finite)} of {len(values)} seeds" if len(finite) < len(values) else ""
    return f"round {Spread.of(finite)}{never}"
