"""Terms of a formula between sites: summaries, exact sums and counts of the terms of one fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec
import numpy as np

from fco_cli.data.exact_sums import center_of_sums, summary_of_sums
from fco_cli.data.preparation import Preparation
from fco_cli.data.statistics import Summary, merged
from fco_cli.federation.coordinator.sites import Agreement, report_invalid_response
from fco_cli.federation.message import BadMessage
from fco_cli.problem.layout import Array

Head = dict[str, object]


@dataclass(frozen=True)
class RemoteTerms:
    """`TermClients` of the sites with training rows in one fit."""

    agreement: Agreement
    fit: int
    rows: dict[str, int]  # training rows by site
    is_exact: bool
    column_sums: Callable[[Array, Head], Array]  # exact sums over the sites around a center
    count_up_to: Callable[[Array, Head], Iterable[Array]]  # counts up to edges, of every site or of all

    def summary(self, preparation: Preparation) -> Summary:
        head, names = self._head(preparation), preparation.features
        if self.is_exact:
            sums = self.column_sums(np.zeros(len(names)), head)
            around = self.column_sums(center_of_sums(sums, len(names)), head)
            return summary_of_sums(names, next(iter(self.rows)), sum(self.rows.values()), {}, sums, around)
        summaries = []
        for name, response in self.agreement.request("terms", head, None, list(self.rows)).items():
            own = Summary.from_plain(msgspec.structs.asdict(response.head.summary))
            with report_invalid_response(name, "terms"):
                if (own.client, own.rows, own.columns, own.categories) != (name, self.rows[name], names, {}):
                    raise BadMessage("summary: must be that of the terms of this site's training rows")
            summaries.append(own)
        return merged(summaries)

    def counts(self, preparation: Preparation, edges: Array) -> Iterable[Array]:
        return self.count_up_to(edges, self._head(preparation))

    def _head(self, preparation: Preparation) -> Head:
        return {"terms": {"fit": self.fit, "preparation": preparation.as_json()}}
