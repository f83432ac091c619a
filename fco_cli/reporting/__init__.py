"""Reports from records, as a library.

`collect` reads records into `Results`. A `Study` makes `Section`, `Figure`, `Table` and `Claim` objects from them, and
`make_report` renders these, and what every report has, to PNG, PDF, CSV and one HTML page.
"""

from fco_cli.files import as_yaml
from fco_cli.reporting.archive import software_of, write_archive
from fco_cli.reporting.claims.evidence import (
    Diverged,
    Evidence,
    Finding,
    Level,
    Needs,
    NotRun,
    label,
    metric_label,
    needs_whole_grid,
    of_all_results,
)
from fco_cli.reporting.claims.ledger import NOT_RUN, Claim, Entry, evaluate, headline
from fco_cli.reporting.figures.drawing import add_title, drawable, line_options, log_scale, new_figure, styled
from fco_cli.reporting.objects import Figure, Section, Study, Table, load_claims, load_study
from fco_cli.reporting.page.sections import capitalized, figure_numbers, sentence
from fco_cli.reporting.page.tables import as_latex, as_markdown, as_numbers
from fco_cli.reporting.records.design import (
    defaults_of,
    design_of,
    is_shipped,
    reason_undecided,
    shipped_theory,
)
from fco_cli.reporting.records.paths import RecordedPath, Theorems
from fco_cli.reporting.records.runs import RecordedRun, read_record
from fco_cli.reporting.records.select import (
    Cell,
    Choice,
    Spread,
    choose,
    chosen_runs,
    describe_spread,
    first_round,
    in_order,
)
from fco_cli.reporting.records.studies import RecordedStudy, Results, Rule, collect, settings_of, studies_of
from fco_cli.reporting.records.validation import is_number
from fco_cli.reporting.report import Report, make_report
from fco_cli.reporting.style import (
    ACCENT,
    DARK_GRAY,
    FAINT_GRAY,
    GRAY,
    OPTIMUM,
    PALETTE,
    algorithm_order,
    algorithm_shade,
    algorithm_style,
    metric_style,
)
from fco_cli.reporting.text import as_csv, for_figure, for_markdown
from fco_cli.typed_files import BadRecord

__all__ = [
    "ACCENT", "DARK_GRAY", "FAINT_GRAY", "GRAY", "NOT_RUN", "OPTIMUM", "PALETTE", "BadRecord", "Cell", "Choice",
    "Claim",
    "Diverged", "Entry", "Evidence", "Figure", "Finding", "Level", "Needs", "NotRun", "RecordedPath", "RecordedRun",
    "RecordedStudy", "Report", "Results", "Rule", "Section", "Spread", "Study", "Table", "Theorems", "add_title",
    "algorithm_order", "algorithm_shade", "algorithm_style", "as_csv", "as_latex", "as_markdown", "as_numbers",
    "as_yaml", "capitalized", "choose", "chosen_runs", "collect", "defaults_of", "describe_spread", "design_of",
    "drawable", "evaluate", "figure_numbers", "first_round", "for_figure", "for_markdown", "headline", "in_order",
    "is_number", "is_shipped", "label", "line_options", "load_claims", "load_study", "log_scale", "make_report",
    "metric_label", "metric_style", "needs_whole_grid", "new_figure", "of_all_results", "read_record",
    "reason_undecided", "sentence", "settings_of", "shipped_theory", "software_of", "studies_of", "styled",
    "write_archive",
]  # fmt: skip
