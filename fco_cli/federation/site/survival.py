"""Requests for survival analysis of a Cox model: risk tables, calibration, numbers of pairs, tests.

Every interval of a risk table holds at least `min_cell` events, and no or at least as many censored rows; `min_cell` is
at least the policy's `min_rows`. Tables with other cells, or of other rows, would differ by few rows: if differences
are refused, a site answers about one cell size, one horizon and one set of rows only. A test weights the events of an
interval equally, so that its sums are over as many events.
"""

from __future__ import annotations

import hashlib

import numpy as np

from fco_cli.federation.message import MAX_MAGNITUDE, Arrays, ArraySpec, BadMessage, Message, read_arrays
from fco_cli.federation.policy import POLICY_FILE, Refusal
from fco_cli.federation.schema import RiskTable, Survival
from fco_cli.federation.site.cells import effective_number
from fco_cli.federation.site.data import SiteData
from fco_cli.problem.curvature import packed_size
from fco_cli.problem.data import ClientData
from fco_cli.problem.layout import Array
from fco_cli.problem.losses.survival import Cox
from fco_cli.problem.risk import scores_of
from fco_cli.problem.risk_sets import coarse_times, risk_table
from fco_cli.problem.survival_tables import (
    GROUP_NUMBERS,
    MAX_GROUPS,
    MAX_INTERVALS,
    PAIR_NUMBERS,
    TABLE_NUMBERS,
    at_labels,
    calibration_groups,
    dense_columns,
    has_enough_events,
    hazard_test_sums,
    pair_sums,
    scaled_pairs,
    table_array,
)


class SiteSurvival:
    """Survival analysis of the training rows of `site_data`."""

    def __init__(self, site_data: SiteData) -> None:
        self.site_data, self.disclosure, self.policy = site_data, site_data.disclosure, site_data.policy

    def risk_table(self, request: RiskTable, arrays: Arrays) -> Message:
        """Return the risk table, the sum of the scores and, with a horizon, groups of predicted risk.

        Numbers of a site with too few rows are 0.
        """
        self._check_tables(request)
        with_groups = request.horizon is not None
        numbers = TABLE_NUMBERS * MAX_INTERVALS + 1 + MAX_GROUPS * GROUP_NUMBERS * with_groups
        data, scores = self._scored(request, arrays, numbers, {}, counts=1 + with_groups)
        y = data.y.astype(float)
        table, groups = np.zeros((1, TABLE_NUMBERS, MAX_INTERVALS)), np.zeros((1, MAX_GROUPS, GROUP_NUMBERS))
        answer = {"table": table, "scores": np.array([scores.sum()])}
        with np.errstate(all="ignore"):
            if (labels := coarse_times(y, request.min_cell)) is not None:
                self._check_cells(labels, scores)
                table[0] = table_array(risk_table(labels, np.exp(scores)))
            if request.horizon is not None:
                self._check_first("horizon", f"{request.horizon!r}", "glm.horizon")
                own = calibration_groups(y, scores, self._loss.ties, request.horizon, request.min_cell)
                if own is not None:
                    groups[0, : len(own)] = own
                answer["groups"] = groups
        for name, values in answer.items():
            if not (np.abs(values) <= MAX_MAGNITUDE).all():
                raise Refusal(f"survival: the array {name} overflows at this model; rescale the columns")
        return Message("", arrays={f"{name}.{request.fit}": values for name, values in answer.items()})

    def sums(self, request: Survival, arrays: Arrays) -> Message:
        """Return numbers of pairs, or sums for tests of proportional hazards."""
        return self._pairs(request, arrays) if request.columns is None else self._tests(request, arrays)

    def _pairs(self, request: Survival, arrays: Arrays) -> Message:
        """Return numbers of pairs, divided by powers of two; a site with too few events sends none."""
        data, scores = self._scored(request, arrays, PAIR_NUMBERS, {})
        self._check_few_scores(scores)
        y = data.y.astype(float)
        if not has_enough_events(y, max(request.min_cell, self.policy.min_rows)):
            return Message("")
        return Message("", arrays={f"pairs.{request.fit}": scaled_pairs(pair_sums(y, scores), request.exponent)[None]})

    def _tests(self, request: Survival, arrays: Arrays) -> Message:
        """Return score and information of tests; g is 0 at a site without its own table."""
        self._check_tables(request)
        model = self.site_data.fit(request.fit).linear()
        columns = np.array(request.columns)
        if columns[-1] >= model.features:
            raise BadMessage(f"columns: must be below {model.features}, the number of features")
        more = {f"g.{request.fit}": ArraySpec((1, MAX_INTERVALS), low=-MAX_MAGNITUDE, high=MAX_MAGNITUDE)}
        numbers = len(columns) + 3 * packed_size(len(columns))
        data, scores = self._scored(request, arrays, numbers, more)
        y = data.y.astype(float)
        self.disclosure.check_parameters(model.layout.size, len(y), "use fewer columns")
        self.disclosure.check_cross_cells(data.x, "set glm.tests=false")
        g = np.zeros(len(y))
        if (labels := coarse_times(y, request.min_cell)) is not None:
            table = risk_table(labels)
            g = at_labels(table, arrays[f"g.{request.fit}"][0, : len(table.times)], labels)
        with np.errstate(all="ignore"):
            score, information = hazard_test_sums(dense_columns(data, columns), y, scores, g, self._loss.ties)
        if not (np.abs(score).max() <= MAX_MAGNITUDE and np.abs(information).max() <= MAX_MAGNITUDE):
            raise Refusal("survival: the sums of a test overflow at this model; rescale the columns")
        own = {"score": score[None], "information": information[None]}
        return Message("", arrays={f"{name}.{request.fit}": values for name, values in own.items()})

    @property
    def _loss(self) -> Cox:
        loss = self.site_data.loss()
        if not isinstance(loss, Cox):
            raise Refusal(f"survival: got the {loss.name} loss, must be cox")
        return loss

    def _check_tables(self, request: RiskTable | Survival) -> None:
        """Raise Refusal unless the policy allows tables with these cells of these rows."""
        policy = self.policy
        if not self.policy.shares_tables:
            raise Refusal(
                f"risk tables requested; the site's policy does not allow them ({POLICY_FILE}: share_histograms)"
            )
        policy.check_rows(request.min_cell, "a cell of survival times", f"set glm.min_cell={policy.min_rows}")
        training = self.site_data.fit(request.fit).split.parts.training
        rows = hashlib.sha256(training.tobytes()).hexdigest()
        value = f"{self.site_data.file.digest} {request.min_cell} {rows}"
        self._check_first("cells", value, "glm.min_cell, task.holdout and task.test")

    def _check_first(self, name: str, value: str, keys: str) -> None:
        """Raise Refusal for another value than in the first answer, if differences are refused."""
        if self.policy.refuse_differences and not self.disclosure.ledger.is_first(f"survival_{name}", value):
            raise Refusal(
                f"risk tables of other {name} or rows than before requested; differences would disclose few rows "
                f"({POLICY_FILE}: refuse_differences); use the earlier {keys}"
            )

    def _scored(
        self,
        request: RiskTable | Survival,
        arrays: Arrays,
        numbers: int,
        more: dict[str, ArraySpec],
        **amounts: int,
    ) -> tuple[ClientData, Array]:
        """Return the training rows and their scores at the requested model, after the checks of the model."""
        loss, fit = self._loss, self.site_data.fit(request.fit)
        self.disclosure.check_noise_free("survival analysis")
        data, model, name = fit.training(), fit.linear(), f"w.{request.fit}"
        w = read_arrays(arrays, {name: ArraySpec((1, model.layout.size)), **more})[name]
        self.policy.check_rows(len(data.y), "a part (training rows)")
        self.disclosure.charge(numbers, evaluations=1, **amounts)
        self.disclosure.check_curvature(loss, model, data, w)
        self.site_data.models.check(loss, fit, ["training"], data, [w], gradient=False)
        return data, scores_of(model, data, w)[0, 0].astype(float)

    def _check_cells(self, labels: Array, scores: Array) -> None:
        """Raise Refusal if few events have most of the weight e^score in an interval."""
        if not self.policy.refuse_differences:
            return
        weights = np.exp(scores - scores.max())
        cells = [weights[labels == time] for time in np.unique(labels)]
        if any(not effective_number(one[None])[0] >= self.policy.min_rows / 2 for one in cells):
            self._count_steep("a model with the weights of few rows requested")

    def _check_few_scores(self, scores: Array) -> None:
        """Raise Refusal if all but a few rows have equal scores: pairs would rank the times of those few."""
        if not self.policy.refuse_differences:
            return
        others = len(scores) - int(np.unique(scores, return_counts=True)[1].max())
        if 0 < others < self.policy.min_rows:
            self._count_steep("a model with equal scores of all but a few rows requested")

    def _count_steep(self, problem: str) -> None:
        self.disclosure.ledger.charge({"steep_models": (None, "")}, {"steep_models": 1})
        limit = f"the site's policy allows {self.policy.min_rows} or more ({POLICY_FILE}: min_rows)"
        raise Refusal(f"{problem}; {limit}")
