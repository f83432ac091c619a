"""Records of paths.

config.yaml        the resolved configuration
path.csv           a row per strength (or radius): cross-validation, training loss, non-zero weights, rounds, KKT
path.npz           values [J], models [J, P], the folds' losses [F, J]; selection frequencies [J, p], if requested
clients.csv        out-of-fold metrics of the selected models, over all rows and by client
calibration.csv    logistic loss only: mean prediction and observed frequency by decile of the predictions
predictions.csv    logistic loss only: histograms of the out-of-fold predictions of every client
min, 1se           folders of the selected models, refitted on all training rows, as in the record of a run
model_card.md      what the record states of TRIPOD+AI's items (model_card.py)
result.json        written last; lists all files above, and the record is complete if they exist
part_*.npz         intermediate results of an unfinished path
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fco_cli.config import PathRun
from fco_cli.files import as_csv, write_atomically
from fco_cli.model_card import as_markdown
from fco_cli.path.card import path_card
from fco_cli.path.select import Selection, Selector, limited_threads
from fco_cli.path.solve import Cache, Part, Solutions
from fco_cli.problem.layout import Array
from fco_cli.problem.problem import Problem
from fco_cli.results import PathResult, listed_files
from fco_cli.simulation.clients import retry_after_losses
from fco_cli.simulation.execute import code_of
from fco_cli.simulation.process import Stop, Stopwatch, software
from fco_cli.simulation.record import LARGEST_CHECKPOINT, Record, check_writer, writer_stamp
from fco_cli.tasks.metrics import rank
from fco_cli.typed_files import BadRecord, Missing, read_npz

log = logging.getLogger(__name__)

ZERO = 1e-10  # singular values below count as 0, relative to the largest weight


def run_path(run: PathRun, stop: Stop) -> dict[str, Any]:
    """Return the result of a path, from its record if it is complete; an interrupted path resumes."""
    record = Record(run.folder)
    if not run.force and (result := record.result(PathResult)):
        log.info("already done (force=true runs it again)")
        return result
    log.info("%s: the path of %s", run.task.name, run.regularizer.name)
    with limited_threads(run.threads):
        return _select_and_write(run, record, stop)


def _select_and_write(run: PathRun, record: Record, stop: Stop) -> dict[str, Any]:
    """Compute the selection under the record's lock and write it."""
    watch, settings = Stopwatch(), run.path
    # invalid settings raise UserError here, before anything is written
    selector = retry_after_losses(lambda: Selector(run, settings, stop.check), stop)

    cache = PartFiles(run.folder, code_of(run), stop.check)
    with record.lock(wait=True):  # a second command waits and then reads the result
        if run.force:
            (run.folder / "result.json").unlink(missing_ok=True)
            _remove_parts(run.folder)
        elif result := record.result(PathResult):
            return result
        selection = retry_after_losses(lambda: selector.select(cache), stop)
        record.save_config(run.yaml)
        seconds = watch.lap()
        return retry_after_losses(lambda: _write(run, selection, seconds), stop)


class PartFiles(Cache):
    """Intermediate results in files of a record."""

    is_persistent = True

    def __init__(self, folder: Path, written_by: str, check: Callable[[], None]) -> None:
        self.folder, self.written_by, self.check = folder, written_by, check

    def load(self, name: str) -> Part | None:
        """Return the arrays of a file; None if it is missing, damaged or written by other code."""
        self.check()
        path = self.folder / f"part_{name}.npz"
        try:
            arrays = read_npz(path, LARGEST_CHECKPOINT)
            check_writer(arrays, self.written_by)
            return arrays
        except Missing:
            return None
        except BadRecord as problem:
            log.warning("%s is not used (%s) and is computed again", path, problem)
            return None

    def store(self, name: str, part: Part) -> None:
        write_atomically(self.folder / f"part_{name}.npz", as_npz(part | writer_stamp(self.written_by)))


def _remove_parts(folder: Path) -> None:
    for path in folder.glob("part_*.npz"):
        path.unlink(missing_ok=True)


def _write(run: PathRun, selection: Selection, seconds: float) -> dict[str, Any]:
    """Write all files, `result.json` last, remove the parts and return the result."""
    folder, layout = run.folder, selection.problem.layout
    for name in selection.chosen:
        model = selection.model(name)
        Record(folder / name).create()
        run.task.export(selection.problem, model, folder / name)
        blocks = {block.name: layout.view(model[None], block.name)[0] for block in layout.blocks}
        write_atomically(folder / name / "model.npz", as_npz(blocks))
    table = path_table(selection)
    columns = {name: np.asarray(values).tolist() for name, values in table.items()}
    lines = [dict(zip(columns, line, strict=True)) for line in zip(*columns.values(), strict=True)]
    tables = {"path": lines, "clients": selection.clients}
    tables |= {"calibration": selection.bins, "predictions": selection.predictions}
    for name, rows in tables.items():
        if rows:
            write_atomically(folder / f"{name}.csv", csv_of_lines(rows))
    arrays = {
        "values": selection.values,
        "models": selection.path.models,
        "losses": np.array([f.losses for f in selection.folds]),
    }
    if selection.stability is not None:
        arrays["frequency"] = selection.stability.frequency
    write_atomically(folder / "path.npz", as_npz(arrays))
    result = _result(run, selection, table, seconds)
    result["card"] = path_card(run, selection, result)
    title = f"{result['task']}, path of {result['regularizer']}"
    write_atomically(folder / "model_card.md", as_markdown(result["card"], title).encode())
    result["files"] = listed_files(folder, ("part_",))
    text = json.dumps(without_nonfinite(result), indent=1, allow_nan=False) + "\n"
    write_atomically(folder / "result.json", text.encode())
    _remove_parts(folder)
    return json.loads(text)


def path_table(selection: Selection) -> dict[str, Array]:
    """Return the columns of path.csv."""
    return {
        selection.parameter: selection.values,
        "cv_loss": selection.curve.mean,
        "cv_error": selection.curve.error,
        **_solution_columns(selection.problem, selection.path),
    }


def _solution_columns(problem: Problem, solutions: Solutions) -> dict[str, Array]:
    """Return the columns that depend on the models alone."""
    models, layout = solutions.models, problem.layout
    columns = {
        "train_loss": solutions.train_losses,
        "nonzeros": (models[:, layout.regularized] != 0).sum(axis=1),
        "rounds": solutions.rounds,
        "kkt": solutions.residuals,
        "converged": solutions.converged.astype(int),
    }
    if problem.regularizer.name.startswith("nuclear"):
        matrices = layout.view(models, next(block.name for block in layout.blocks if block.regularized))
        columns["rank"] = rank(matrices, ZERO * max(1e-300, float(np.abs(matrices).max())))
    return columns


def _result(run: PathRun, selection: Selection, table: dict[str, Array], seconds: float) -> dict[str, Any]:
    solved = [selection.path, *(fold.solutions for fold in selection.folds)]
    chosen, refitted = {}, _solution_columns(selection.problem, selection.refitted)
    for name, index in selection.chosen.items():
        refit = selection.refit_index(name)
        chosen[name] = {
            "place": index,
            **{column: values[index].item() for column, values in table.items()},
            **{column: values[refit].item() for column, values in refitted.items()},
            "test": selection.tests.get(name),
            "out_of_fold": _areas(selection, name),
        }
    return {
        "status": "finished",
        "kind": "path",
        "run_id": run.run_id,
        "identity": asdict(run.identity),
        "task": run.task.name,
        "algo": selection.method.name,
        "method": selection.method.name,
        "reason": selection.method.reason,
        "regularizer": run.regularizer.name,
        "loss": selection.data.loss.name,
        "dial": selection.parameter,
        "seed": run.seed,
        "rows": int(selection.data.training.sizes.sum()),
        "clients": selection.data.training.clients,
        "folds": len(selection.folds),
        "by": run.path.by,
        "weighting": run.hparams.weighting,
        "features": selection.data.features,
        "chosen": chosen,
        "at_the_end": selection.chosen["min"] == len(selection.values) - 1,
        "rounds": _total_rounds(selection),
        "not_converged": sum(int((~one.converged).sum()) for one in solved),
        "refits_not_converged": int((~selection.refitted.converged).sum()),
        "stability": None if selection.stability is None else selection.stability.as_json(),
        "between_clients": None if selection.between is None else selection.between.as_json(),
        "seconds": round(seconds, 3),
        **software(run.plugins),
    }


def _areas(selection: Selection, name: str) -> dict[str, float] | None:
    """Return the areas under the ROC curve of a selected model, over all rows and within clients, or its concordance.

    None for a model without them.
    """
    line = next(line for line in selection.clients if line["choice"] == name)
    keys = ("concordance",) if line.get("concordance") is not None else ("auc", "auc_within")
    return {key: line[key] for key in keys} if line.get(keys[-1]) is not None else None


def _total_rounds(selection: Selection) -> int:
    """Return the number of rounds of the path and its folds; a stack has those of its slowest job."""
    rounds = [int(one.rounds.max()) for one in (selection.path, *(fold.solutions for fold in selection.folds))]
    return max(rounds) if selection.method.is_second_order else sum(rounds)


def as_npz(arrays: dict[str, Array]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def csv_of_lines(lines: list[dict[str, Any]]) -> bytes:
    """Return CSV; columns that a line lacks are empty."""
    names = list(dict.fromkeys(name for line in lines for name in line))
    return as_csv(names, ([line.get(name, "") for name in names] for line in lines)).encode()


def without_nonfinite(value: Any) -> Any:
    """Return the value with null in place of infinity and NaN, which JSON lacks."""
    if isinstance(value, dict):
        return {key: without_nonfinite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_nonfinite(one) for one in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
