"""Check of the theorems (`experiment=theory`) with its output folder: figure, table, cells and result."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import numpy as np

from fco_cli.algorithms import all_algorithms
from fco_cli.code_digest import digest_of
from fco_cli.files import write_atomically
from fco_cli.kernels.compiled import set_threads
from fco_cli.results import TheoryResult, listed_files
from fco_cli.simulation.record import Record
from fco_cli.theory.figure import draw
from fco_cli.theory.statements import Grid, cells_csv, check, summarize, summary_markdown, summary_rows

log = logging.getLogger(__name__)


def check_theorems(grid: Grid, config: str, folder: Path, force: bool) -> dict[str, Any]:
    """Return the result, computed or reused from the folder; `result.json` is written last, as in every record."""
    record = Record(folder)
    code = digest_of((check, draw, summarize, *all_algorithms().values()))
    with record.lock(wait=True):  # a concurrent command waits, then reuses the result
        result = None if force else record.result(TheoryResult)
        if result and (result["config"], result.get("code")) == (config, code):
            log.info("already done (force=true runs it again)")
            return result
        set_threads(1)  # a step takes microseconds, too short for threads
        started = time.monotonic()
        findings = check(grid, log.info)
        rows = summarize(findings.cells, grid)
        header, body = summary_rows(rows)
        record.save_config(config)
        files = {"cells.csv": cells_csv(findings.cells).encode(), "theory.md": summary_markdown(rows).encode()}
        for name, content in (files | draw(findings, grid)).items():
            write_atomically(folder / name, content)
        result = {
            "status": "finished",
            "cells": len(findings.cells),
            "violated": {row.statement: row.violated for row in rows if row.violated},
            "identity_error": {name: float(np.max(errors)) for name, errors in findings.identity.items()},
            "table": [header, *body],
            "seconds": round(time.monotonic() - started, 1),
            "config": config,
            "code": code,
            "files": listed_files(folder),
        }
        write_atomically(folder / "result.json", (json.dumps(result, indent=1) + "\n").encode())
    return result
