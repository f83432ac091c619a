"""Records of experiment=table1.

config.yaml   the resolved configuration
table1.csv    the table as text, a row per statistic; .tex and .html: the same table
result.json   written last; lists all files above

No number is written that is suppressed in the table.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from fco_cli.config import Table1Run
from fco_cli.data.statistics import check_summary
from fco_cli.errors import UserError, require
from fco_cli.files import as_csv, write_atomically
from fco_cli.path.record import without_nonfinite
from fco_cli.path.select import limited_threads
from fco_cli.reporting.records.table1 import rows_of, table_files
from fco_cli.results import Table1Result, listed_files
from fco_cli.simulation.clients import retry_after_losses
from fco_cli.simulation.process import Stop, Stopwatch, software
from fco_cli.simulation.record import Record
from fco_cli.table1.cohort import Cohort, cohort_of, merge
from fco_cli.table1.sites import cohort_of_sites
from fco_cli.table1.table import Table1, table_of
from fco_cli.tasks.tabular import Tabular

log = logging.getLogger(__name__)


def run_table1(run: Table1Run, stop: Stop) -> dict[str, Any]:
    """Return the result of experiment=table1, from its record if it is complete."""
    record = Record(run.folder)
    if not run.force and (result := record.result(Table1Result)):
        log.info("already done (force=true runs it again)")
        return result
    watch = Stopwatch()

    def retry(work: Callable[[], Cohort]) -> Cohort:
        return retry_after_losses(work, stop)

    with limited_threads(run.threads):
        cohort = retry(lambda: _cohort(run))
        total = check_summary(merge(cohort.summaries))
        table = table_of(cohort, run.table1)
    with record.lock(wait=True):
        if run.force:
            (run.folder / "result.json").unlink(missing_ok=True)
        elif result := record.result(Table1Result):
            return result
        record.save_config(run.yaml)
        return _write(run, table, total.rows, len(cohort.summaries), watch.lap())


def _cohort(run: Table1Run) -> Cohort:
    """Return the statistics of the clients, from rows in this process or from sites."""
    if run.is_remote:
        return cohort_of_sites(run.task, run.seed, run.table1)
    if not isinstance(run.task, Tabular):
        raise UserError(f"task: got {run.task.name}, must be a task on a table (custom, heart, ...) for table 1")
    columns = run.task.columns
    allowed = "null for table 1, which counts rows"
    require(columns.weights is None, "task.weights", columns.weights, allowed)
    data = run.task.read(run.seed)
    cohort = cohort_of(data, columns.label, columns.event, run.table1.min_cell)
    for finding in run.task.doubts(data):
        log.warning("%s: warning: %s", data.source, finding.text)
    return cohort


def _write(run: Table1Run, table: Table1, rows: int, clients: int, seconds: float) -> dict[str, Any]:
    """Write all files, `result.json` last, and return the result."""
    settings = run.table1
    result = without_nonfinite({
        "status": "finished",
        "kind": "table1",
        "run_id": run.run_id,
        "identity": asdict(run.identity),
        "task": run.task.name,
        "rows": rows,
        "clients": clients,
        "min_cell": settings.min_cell,
        "smd": settings.smd and len(table.heads) > 1,
        "p": settings.p and len(table.heads) > 1,
        **table.plain(),
        "seed": run.seed,
        "seconds": round(seconds, 3),
        **software(run.plugins),
    })  # fmt: skip
    head, *lines = rows_of(result, repeat=True)
    write_atomically(run.folder / "table1.csv", as_csv(head, lines).encode())
    for name, text in table_files(result).items():
        write_atomically(run.folder / name, text.encode())
    text = json.dumps(result | {"files": listed_files(run.folder)}, indent=1, allow_nan=False) + "\n"
    write_atomically(run.folder / "result.json", text.encode())
    return json.loads(text)
