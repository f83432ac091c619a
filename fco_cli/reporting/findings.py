"""Summary of findings over the seeds: median and range of numbers, counts of texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from fco_cli.reporting.evidence import Finding
from fco_cli.reporting.select import Spread


def format_findings(findings: Sequence[Finding]) -> str:
    """Format the measured values of one test over the seeds as a line."""
    parts = []
    for name in findings[0].measured:
        values = [finding.measured[name] for finding in findings if name in finding.measured]
        numbers = [value for value in values if isinstance(value, int | float)]
        if len(numbers) < len(values):
            text = _format_texts([str(value) for value in values])
        else:
            text = _format_numbers(numbers, findings[0].rounds)
        parts.append(f"{name} {text}")
    return "; ".join(parts)


def _format_texts(values: Sequence[str]) -> str:
    counts = Counter(values)
    if len(counts) == 1:
        return values[0]
    return ", ".join(f"{text} ({count} times)" for text, count in counts.most_common())


def _format_numbers(values: Sequence[float], rounds: bool) -> str:
    finite = [value for value in values if np.isfinite(value)]
    if not rounds:
        return str(Spread.of(values))
    if not finite:
        return "never"
    never = f", never on {len(values) - len(finite)} of {len(values)} seeds" if len(finite) < len(values) else ""
    return f"round {Spread.of(finite)}{never}"
