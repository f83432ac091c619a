"""The paper of Yuan, Zaheer and Reddi (2021): figures 1, 2 and 12, theorems, hidden settings and claims.

The records of its experiments have sections in every report; this study adds to them what is specific to the paper.
"""

from __future__ import annotations

from dataclasses import replace

from fco_cli.reporting import (
    Entry,
    RecordedStudy,
    Results,
    Section,
    Study,
    choose,
    evaluate,
    in_order,
    is_shipped,
    reason_undecided,
)
from fco_cli.studies.yuan2021.figures import (
    averaging_densifies,
    averaging_keeps_sparsity,
    clients_figure,
    side_by_side_figure,
    supports_of,
)
from fco_cli.studies.yuan2021.hidden_settings import SEARCH, search_section
from fco_cli.studies.yuan2021.robustness import (
    most_pairs,
    most_robust,
    reason_not_drawn,
    robustness_figure,
    robustness_points,
)
from fco_cli.studies.yuan2021.theorems import bound_holds, theory_section

__all__ = ["SEARCH", "Yuan2021"]


class Yuan2021(Study):
    """Federated composite optimization (ICML 2021)."""

    name = "yuan2021"
    claims_heading = "Claims of the paper"
    claims_note = (
        "Only complete, unaltered experiments decide claims of the paper: profile=paper decides all of them; "
        "profile=quick, with one seed, gives a preview of those that are not about learning rates."
    )
    experiments = (SEARCH,)
    algorithms = ("feddualavg", "feddualavg_osp", "fedmid", "fedmid_osp", "fedavg", "fedavg_subgrad")
    highlights = ("lasso_i", "nuclear_i", "fmri", "fmri_sim", "curse")
    tests = (most_pairs, most_robust, averaging_densifies, averaging_keeps_sparsity, bound_holds)

    def sections(self, results: Results) -> list[Section]:
        """Return the paper's figures for every recorded study, the hidden settings and the theorems."""
        added = [self._addition(study, results) for study in results.studies if not study.name.startswith(SEARCH)]
        own = (search_section(results.named(SEARCH), self.claims), theory_section(results))
        return [*added, *filter(None, own)]

    def _addition(self, study: RecordedStudy, results: Results) -> Section:
        choices = in_order(choose(study), self.algorithms)
        section = Section(study.slug)
        if supports := supports_of(choices, results.damaged):
            section.figures.append(clients_figure(study, supports))
            return section
        if figure := side_by_side_figure(study, choices):
            section.figures.append(figure)
        if points := robustness_points(study, choices):
            if reason := reason_not_drawn(points):
                section.notes.append(reason)
            else:
                section.figures.append(robustness_figure(study, points))
        return section

    def undecided(self, study: RecordedStudy) -> str:
        """Return why a study is not the complete, unaltered experiment; empty if it is."""
        return reason_undecided(study)

    def ledger(self, results: Results) -> list[Entry]:
        """Return the verdicts on the claims, from the shipped experiments."""
        shipped = [study for study in results.studies if is_shipped(study)]
        return evaluate(self.claims, replace(results, studies=shipped), self.undecided, self.all_tests)
