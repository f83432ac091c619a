"""One request about models of several fits, and the sites' responses or their masked sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from fco_cli.federation.coordinator.responses import AnyResponses, Responses, Specs, SumOfResponses
from fco_cli.federation.coordinator.sites import Response
from fco_cli.federation.message import ArraySpec
from fco_cli.federation.sharing import arrays_by_fit, with_fit

if TYPE_CHECKING:
    from fco_cli.federation.coordinator.remote_rows import Question

Q = TypeVar("Q", bound="Question")


def exchange(
    kind: str, head: dict[str, Any], questions: Sequence[Q], specs: Callable[[Q, str | None], dict[str, ArraySpec]]
) -> list[AnyResponses]:
    """Send a request about models of several fits and return the validated responses, or their sum, by question.

    `specs` returns those of a site's arrays, or of the sum of all sites' (None).
    """
    agreement, bits = questions[0].rows.agreement, questions[0].rows.agreement.sites.mask_bits
    arrays = {f"w.{one.rows.fit}": one.w for one in questions}
    if bits is not None:
        plain = {one.rows.fit: specs(one, None) for one in questions}
        masked = {name: spec for fit, own in plain.items() for name, spec in with_fit(own, fit).items()}
        totals = agreement.sum(kind, head, arrays, masked)
        return [SumOfResponses(totals[fit], bits, own) for fit, own in plain.items()]

    def expected(name: str) -> Specs:
        own = [with_fit(specs(one, name), one.rows.fit) for one in questions if name in one.rows.names]
        return {array: spec for part in own for array, spec in part.items()}

    names = [name for name in agreement.sites.names if any(name in one.rows.names for one in questions)]
    by_site = agreement.request(kind, head, arrays, names, expected=expected)
    split = {name: (response.head, arrays_by_fit(response.arrays)) for name, response in by_site.items()}
    return [
        Responses({name: Response(split[name][0], split[name][1][str(one.rows.fit)]) for name in one.rows.names})
        for one in questions
    ]
