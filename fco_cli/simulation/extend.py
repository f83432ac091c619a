"""Extension of finished runs: a run with more rounds continues from the final state of a shorter one.

This gives the same bits, because nothing in a round depends on the number of rounds to come. The record of a finished
run has its final state, `state-<trajectory>.npz`, where the trajectory is the identity without the number of rounds.
"""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from fco_cli.errors import UserError
from fco_cli.files import write_atomically
from fco_cli.results import RunResult, read_result
from fco_cli.simulation.evaluate import History
from fco_cli.simulation.jobs import Job
from fco_cli.simulation.problems import Run
from fco_cli.simulation.record import Record, arrays_as_bytes, check_writer, job_from, state_arrays, writer_stamp
from fco_cli.typed_files import BadRecord, Missing, Unreadable, read_bounded, read_npz

log = logging.getLogger(__name__)

LARGEST_STATE = 2**20  # bytes of a final state that is kept
LARGEST_TABLE = 2**30  # bytes of metrics.csv


def is_extendable(run: Run) -> bool:
    """Return True if the final state of a run is kept.

    States of remote clients stay at their sites, and a state would disclose rows that a transform hides.
    """
    is_open = not run.is_remote and not run.has_noise and not run.method.transform.protects_rows
    return is_open and not run.hparams.until_converged and not run.algo.one_shot


def save_final_state(record: Record, job: Job, run: Run, written_by: str) -> None:
    """Write the final state of a job unless it is large; a large client memory is not part of it."""
    arrays = state_arrays(job)
    if "memory/place" not in arrays and sum(values.nbytes for values in arrays.values()) <= LARGEST_STATE:
        content = arrays_as_bytes(arrays | writer_stamp(written_by))
        write_atomically(record.folder / _file_name(run), content)


def shorter_run(run: Run) -> Path | None:
    """Return the folder of the longest finished run that a run can continue."""
    if not is_extendable(run):
        return None
    rounds = {folder: done for folder, done in _finished(run) if done < run.hparams.last_round}
    return max(rounds, key=lambda folder: rounds[folder], default=None)


def final_job(folder: Path, run: Run, written_by: str) -> Job | None:
    """Return the job of a finished run in its final state; None if it is damaged or was written by other code."""
    try:
        arrays = read_npz(folder / _file_name(run), 2 * LARGEST_STATE)
        check_writer(arrays, written_by)
        result = read_result(folder, RunResult)
        history = _history(read_bounded(folder / "metrics.csv", LARGEST_TABLE), run.hparams.eval_every)
        columns = {f"history/{name}": np.array(values) for name, values in history.items()}
        job = job_from({**arrays, **columns, "seconds": np.array(result["seconds"])})
    except (OSError, ValueError, KeyError, TypeError, OverflowError, Missing, Unreadable) as problem:
        log.debug("%s is not continued: %s", folder, problem)
        return None
    return job


def _file_name(run: Run) -> str:
    return f"state-{run.digests['trajectory']}.npz"


def _finished(run: Run) -> Iterator[tuple[Path, int]]:
    """Yield the folders of finished runs with the same trajectory, and their numbers of rounds."""
    for path in run.folder.parent.glob(f"*/{_file_name(run)}"):
        with suppress(UserError, BadRecord, Missing, Unreadable):
            result = Record(path.parent).result()
            if result is not None and result["status"] == "finished":
                yield path.parent, result["rounds"]


def _history(content: bytes, every: int) -> History:
    """Return the metrics of a finished run without the last round, unless longer runs also evaluate it."""
    names, *rows = csv.reader(io.StringIO(content.decode()))
    values = [tuple(int(cell) if cell.isdecimal() else float(cell) for cell in row) for row in rows]
    done = names.index("round")
    return History(tuple(names), [row for row in values if row[done] % every == 0])
