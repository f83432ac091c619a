"""Survival analysis between sites: risk tables of every site, and sums over the sites of pairs and tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fco_cli.algorithms.rounds import from_fixed_point
from fco_cli.federation.coordinator.remote_rows import SiteRows
from fco_cli.federation.coordinator.sites import report_invalid_response
from fco_cli.federation.message import MAX_MAGNITUDE, Arrays, ArraySpec, BadMessage
from fco_cli.federation.sharing import with_fit
from fco_cli.problem.curvature import packed_size
from fco_cli.problem.layout import Array
from fco_cli.problem.risk_sets import RiskTable
from fco_cli.problem.survival_tables import (
    GROUP_NUMBERS,
    MAX_GROUPS,
    MAX_INTERVALS,
    PAIR_NUMBERS,
    TABLE_NUMBERS,
    pair_exponent,
    scaled_pairs,
    sum_in_order,
    sum_of_pairs,
    sum_of_tests,
    table_of_array,
)


@dataclass
class RemoteSurvival:
    """`ClientSurvival` of sites, at a model w [P] whose weights of `columns` are estimated."""

    rows: SiteRows
    w: Array
    columns: Array
    minimum: int
    known: dict[float | None, dict[int, Arrays]] = field(default_factory=dict)  # answers by horizon

    def tables(self) -> dict[int, RiskTable]:
        tables = {m: table_of_array(arrays["table"][0]) for m, arrays in self._answers(None).items()}
        return {m: table for m, table in tables.items() if table is not None}

    def total_score(self) -> float | None:
        answers = self._answers(None)
        if len(answers) < len(self.rows.names):
            return None
        return sum_in_order([float(arrays["scores"][0]) for arrays in answers.values()])

    def calibration(self, horizon: float) -> dict[int, Array]:
        groups = {m: arrays["groups"][0] for m, arrays in self._answers(horizon).items()}
        return {m: own[own[:, 0] > 0] for m, own in groups.items() if own.any()}

    def pairs(self) -> tuple[Array | None, dict[int, Array]]:
        exponent, fit = pair_exponent(int(self.rows.sizes.sum())), self.rows.fit
        head = {"fit": fit, "min_cell": self.minimum, "exponent": exponent}
        spec = with_fit({"pairs": ArraySpec((1, PAIR_NUMBERS), low=0, optional=True)}, fit)
        if self.rows.is_masked:
            total = self.rows.agreement.sum_of_all("survival", head, self._model, spec)[fit]
            bits = self.rows.agreement.sites.mask_bits
            if "pairs" not in total.totals or bits is None or not total.fits.all():
                return None, {}
            return scaled_pairs(from_fixed_point(total.totals["pairs"], bits)[0], exponent, 1), {}
        answers = self.rows.agreement.request("survival", head, self._model, self.rows.names, expected=lambda _: spec)
        by_client = {
            m: scaled_pairs(answers[name].arrays[f"pairs.{fit}"][0], exponent, 1)
            for m, name in enumerate(self.rows.names)
            if f"pairs.{fit}" in answers[name].arrays
        }
        return sum_of_pairs(by_client), by_client

    def test_sums(self, g: Mapping[int, Array]) -> tuple[Array, Array]:
        fit, size, parts = self.rows.fit, len(self.columns), []
        head = {"fit": fit, "min_cell": self.minimum, "exponent": 0, "columns": self.columns.tolist()}
        specs = {
            "score": ArraySpec((1, size), low=-MAX_MAGNITUDE, high=MAX_MAGNITUDE),
            "information": ArraySpec((1, 3, packed_size(size)), low=-MAX_MAGNITUDE, high=MAX_MAGNITUDE),
        }
        for m, name in enumerate(self.rows.names):  # every site has its own intervals
            values = np.zeros((1, MAX_INTERVALS))
            if m in g:
                values[0, : len(g[m])] = g[m]
            arrays = self._model | {f"g.{fit}": values}
            answer = self.rows.agreement.request(
                "survival", head, arrays, [name], expected=lambda _: with_fit(specs, fit)
            )[name].arrays
            parts.append((answer[f"score.{fit}"][0], answer[f"information.{fit}"][0]))
        return sum_of_tests(parts)

    @property
    def _model(self) -> Arrays:
        return {f"w.{self.rows.fit}": np.ascontiguousarray(self.w[None], dtype=float)}

    def _answers(self, horizon: float | None) -> dict[int, Arrays]:
        """Return the answers of the sites that send tables, by index; none with masks."""
        names = [name for name in self.rows.names if name in self.rows.tabulating and not self.rows.is_masked]
        if horizon not in self.known and names:
            fit = self.rows.fit
            head = {"fit": fit, "min_cell": self.minimum, "horizon": horizon}
            specs = {
                "table": ArraySpec((1, TABLE_NUMBERS, MAX_INTERVALS), low=0, high=MAX_MAGNITUDE),
                "scores": ArraySpec((1,), low=-MAX_MAGNITUDE, high=MAX_MAGNITUDE),
            }
            if horizon is not None:
                specs["groups"] = ArraySpec((1, MAX_GROUPS, GROUP_NUMBERS), low=0, high=MAX_MAGNITUDE)
            answers = self.rows.agreement.request(
                "risk_table", head, self._model, names, expected=lambda _: with_fit(specs, fit)
            )
            by_site = {}
            for name, answer in answers.items():
                own = {array.removesuffix(f".{fit}"): values for array, values in answer.arrays.items()}
                with report_invalid_response(name, "risk_table"):
                    _check_table(own["table"][0], self.rows.rows_of(name))
                by_site[self.rows.names.index(name)] = own
            self.known[horizon] = dict(sorted(by_site.items()))
        return self.known.get(horizon, {})


def _check_table(table: Array, rows: int) -> None:
    """Raise BadMessage unless an array is a risk table of all rows, or zeros."""
    used = int((table[0] > 0).sum())
    counts, times = table[1:3], table[0, :used]
    is_valid = not table[:, used:].any() and (np.diff(times) > 0).all() and (counts == np.floor(counts)).all()
    if not is_valid or (used and counts.sum() != rows):
        raise BadMessage(f"the array table must be a risk table of {rows} rows")
