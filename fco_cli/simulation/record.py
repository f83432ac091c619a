"""The record of a run, a self-contained folder:

    config.yaml    the resolved configuration
    metrics.csv    a row per evaluated round
    model.npz      the final model, an array per block of parameters
    clients.npz    with record_clients=true: the client models of the last round, followed by their average
    path.npz       with record_path=true: the model at a few rounds, as float16
    personal.csv   for methods with personal models: the metrics of each model on its client's rows
    personal.npz   the personal models, if the clients store them, up to 256 MiB
    state-ID.npz   the final state of the simulation, up to 1 MiB, with which a longer run continues (extend.py)
    run.log        log messages
    result.json    written last; lists all files above except run.log: the run is complete if they exist
    checkpoint.npz while the run is unfinished; with checkpoint_memory.bin for a large client memory (memory.py)

Every file is written under a temporary name, flushed to disk and then renamed.
"""

from __future__ import annotations

import io
import json
import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fco_cli.errors import UserError
from fco_cli.files import as_csv, lock, remove_parts, write_atomically
from fco_cli.problem.layout import Array, Layout
from fco_cli.results import Result, RunResult, check_complete, listed_files, read_result
from fco_cli.simulation.evaluate import History
from fco_cli.simulation.jobs import Job
from fco_cli.simulation.memory import FILE
from fco_cli.typed_files import BadRecord, Missing, Unreadable, read_npz

log = logging.getLogger(__name__)

CHECKPOINT = ("checkpoint.npz", FILE)
LARGEST_CHECKPOINT = 64 << 30  # bytes; a damaged file may declare any size
LOCK = ".lock"
SUMMARY_ROUNDS = 100  # the paper's selection rules average over the last 100 rounds


def arrays_as_bytes(arrays: dict[str, Array], compressed: bool = False) -> bytes:
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _blocks(models: Array, layout: Layout) -> dict[str, Array]:
    """Return models [N, P] as one array per block of parameters."""
    return {block.name: layout.view(models, block.name) for block in layout.blocks}


def writer_stamp(written_by: str) -> dict[str, Array]:
    """Return the array that identifies the code that writes a checkpoint."""
    return {"written_by": np.array(written_by)}


def check_writer(arrays: dict[str, Array], written_by: str) -> None:
    """Remove the stamp from the arrays of a checkpoint; raise BadRecord unless they were written by the given code."""
    if str(arrays.pop("written_by", "")) != written_by:
        raise BadRecord("written by other code")


class Record:
    """The folder of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def result(self, schema: type[Result] = RunResult) -> dict[str, Any] | None:
        """Return the result if the run is complete; rename a damaged one, so that the run starts over."""
        try:
            result = read_result(self.folder, schema)
            check_complete(self.folder, schema, result)
            return result
        except Missing:
            return None
        except Unreadable as problem:
            raise UserError(f"output_dir: {self.folder} cannot be read: {problem}") from problem
        except BadRecord as problem:
            self._move_aside(self.folder / "result.json", problem)
            return None

    def checkpoint(self, written_by: str) -> Job | None:
        """Return the state of an unfinished run; rename a checkpoint that is damaged or written by other code."""
        path = self.folder / "checkpoint.npz"
        try:
            arrays = read_npz(path, LARGEST_CHECKPOINT)
            check_writer(arrays, written_by)
            return job_from(arrays)
        except Missing:
            return None
        except Unreadable as problem:
            raise UserError(f"output_dir: {self.folder} cannot be read: {problem}") from problem
        except (ValueError, KeyError, TypeError, OverflowError) as problem:
            self._move_aside(path, problem)
            return None

    def refuse_checkpoint(self, reason: str) -> None:
        """Rename a checkpoint that can be read but does not match the run."""
        self._move_aside(self.folder / "checkpoint.npz", ValueError(reason))

    def _move_aside(self, path: Path, problem: Exception) -> None:
        aside = path.with_name(f"{path.name}.corrupt-{time.time_ns()}")
        try:
            path.rename(aside)
        except OSError as failure:
            raise UserError(f"{path}: not used ({problem}) and cannot be renamed: {failure.strerror}") from failure
        log.warning("%s is not used (%s): moved to %s, the run starts over", path, problem, aside.name)

    def create(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise UserError(f"output_dir: {self.folder} cannot be created: {problem.strerror}") from problem

    @contextmanager
    def lock(self, wait: bool) -> Iterator[bool]:
        """Lock the run for this process; yield False if another process holds the lock. Remove the folder if empty."""
        self.create()
        with lock(self.folder / LOCK, wait) as acquired:
            if acquired:
                remove_parts(self.folder)
            try:
                yield acquired
            finally:
                if acquired:
                    self._remove_if_empty()

    def _remove_if_empty(self) -> None:
        """Remove an empty folder while it is still locked; a process that waits for the lock creates a new file."""
        with suppress(OSError):  # the folder was moved, or Windows does not remove an open file
            if [path.name for path in self.folder.iterdir()] == [LOCK]:
                (self.folder / LOCK).unlink()
                self.folder.rmdir()

    def note(self, line: str) -> None:
        """Append a line to run.log."""
        path = self.folder / "run.log"
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{datetime.now().isoformat(timespec='seconds')} {line}\n")
        except OSError as problem:
            raise UserError(f"{path}: cannot be written: {problem.strerror}") from problem

    def save_config(self, config: str) -> None:
        write_atomically(self.folder / "config.yaml", config.encode())

    def save_checkpoint(self, job: Job, written_by: str) -> None:
        arrays = state_arrays(job)
        arrays |= {f"history/{name}": np.array(values) for name, values in job.history.items()}
        arrays |= {"seconds": np.array(job.seconds)}
        arrays |= {"missing": np.array(json.dumps(job.missing))} if job.missing else {}
        arrays |= writer_stamp(written_by)
        write_atomically(self.folder / "checkpoint.npz", arrays_as_bytes(arrays), flush=(self.folder / FILE).exists())

    def finish(self, job: Job, layout: Layout, result: dict[str, Any], personal: Array | None = None) -> dict[str, Any]:
        """Write all files, `result.json` last, then remove the checkpoint; return the result."""
        assert job.model is not None
        write_atomically(self.folder / "metrics.csv", _table(job))
        models = job.model.reshape(-1, layout.size)  # [1, P], or [M, P] for the local baseline
        blocks = _blocks(models, layout)
        if job.model.ndim == 1:
            blocks = {name: values[0] for name, values in blocks.items()}
        write_atomically(self.folder / "model.npz", arrays_as_bytes(blocks))
        if job.clients is not None:
            write_atomically(self.folder / "clients.npz", arrays_as_bytes(_blocks(job.clients, layout)))
        if job.path and job.diverged is None:
            frames = {"round": np.array(list(job.path)), **_blocks(np.stack(list(job.path.values())), layout)}
            write_atomically(self.folder / "path.npz", arrays_as_bytes(frames, compressed=True))
        if job.own:
            write_atomically(self.folder / "personal.csv", _own_table(job))
        if personal is not None:
            write_atomically(self.folder / "personal.npz", arrays_as_bytes(_blocks(personal, layout)))
        result = {
            "status": "finished" if job.diverged is None else "diverged",
            "diverged_round": job.diverged,
            "rounds": job.round,
            "seconds": round(job.seconds, 3),
            "final": finite({name: values[-1] for name, values in job.history.items() if name != "round"}),
            "summary": finite(_means_of_last_rounds(job)),
            **({"missing": job.missing} if job.missing else {}),
            **result,
            "files": listed_files(self.folder, CHECKPOINT),
        }
        write_atomically(self.folder / "result.json", (json.dumps(result, indent=1, allow_nan=False) + "\n").encode())
        self.drop_checkpoint()
        return result

    def drop_checkpoint(self) -> None:
        for name in CHECKPOINT:
            (self.folder / name).unlink(missing_ok=True)


def state_arrays(job: Job) -> dict[str, Array]:
    """Return the arrays of a checkpoint without the metrics."""
    arrays = {f"state/{name}": values for name, values in job.state.items()}
    arrays |= {f"memory/{name}": values for name, values in job.memory.items()}
    arrays |= {f"path/{done}": model for done, model in job.path.items()}
    return arrays | {"counters": job.counters, "round": np.array(job.round)}


def job_from(arrays: dict[str, Array]) -> Job:
    """Return the job of a checkpoint; raise ValueError, KeyError or TypeError if it is damaged."""

    def under(prefix: str) -> dict[str, Array]:
        return {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}

    columns = under("history/")
    if any(values.ndim != 1 or values.dtype.kind not in "fi" for values in (*columns.values(), arrays["counters"])):
        raise ValueError("the metrics are not columns of numbers")
    seconds = float(arrays["seconds"])
    if not 0 <= seconds < np.inf:
        raise ValueError("seconds is not a finite number >= 0")
    history = History.of({name: values.tolist() for name, values in columns.items()})
    return Job(
        int(arrays["round"]),
        under("state/"),
        under("memory/"),
        arrays["counters"],
        history,
        seconds,
        path={int(done): model for done, model in under("path/").items()},
        missing=_missing(str(arrays.get("missing", "{}"))),
    )


def _missing(text: str) -> dict[int, tuple[str, ...]]:
    """Return the sites without a response by round, from the JSON text of a checkpoint."""
    return msgspec.json.decode(text, type=dict[int, tuple[str, ...]])


def _table(job: Job) -> bytes:
    """Return metrics.csv; numbers are written with enough digits to be read back exactly."""
    return as_csv(job.history, job.history.rows).encode()


def _own_table(job: Job) -> bytes:
    """Return personal.csv: one row per client, with empty cells where the client has no rows."""
    columns = {
        name: dict(zip(clients.tolist(), values.tolist(), strict=True)) for name, (clients, values) in job.own.items()
    }
    clients = sorted(set().union(*columns.values()))
    rows = ([client, *(column.get(client, "") for column in columns.values())] for client in clients)
    return as_csv(["client", *columns], rows).encode()


def _means_of_last_rounds(job: Job) -> dict[str, float]:
    rounds = np.array(job.history["round"])
    # At least one evaluation; round 0, the start, is included only if there is no other.
    last = rounds > min(max(0, job.round - SUMMARY_ROUNDS), rounds[-1] - 1)
    return {name: float(np.mean(np.array(values)[last])) for name, values in job.history.items() if name != "round"}


def finite(numbers: dict[str, float]) -> dict[str, float | None]:
    """Replace infinities and NaN, which JSON does not have, by None."""
    return {name: value if np.isfinite(value) else None for name, value in numbers.items()}


def replace_folder(old: Path, new: Path) -> None:
    """Replace the folder `old` by the complete folder `new`."""
    if old.exists():
        retired = old.with_name(f".{old.name}.replaced-{time.time_ns()}")
        old.rename(retired)
        new.rename(old)
        shutil.rmtree(retired)
    else:
        new.rename(old)
