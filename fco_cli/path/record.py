"""What a path leaves behind, in a folder that describes itself.

config.yaml        the resolved configuration
path.csv           a line per strength (or radius): cross-validation, training loss, non-zero weights, rounds, KKT
path.npz           values [J], models [J, P], the folds' losses [F, J]; selection frequencies [J, p] where asked for
clients.csv        out of fold: how the chosen models do on all rows and at every client
calibration.csv    of a logistic loss: predictions in tenths, and what came true
min, 1se           the chosen models, refitted on all training rows, as in the record of a run
result.json        written last, with a list of all files above: all is done if they are there
part_*.npz         while it is not: what is done so far
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

from fco_cli.config import Run
from fco_cli.csv_writer import as_csv
from fco_cli.files import write_atomically
from fco_cli.kernels.compile_time import Stopwatch
from fco_cli.path.select import Part, Selecting, Selection, few_threads
from fco_cli.path.solve import Solved
from fco_cli.problem.layout import Array
from fco_cli.problem.problem import Problem
from fco_cli.results import PathResult, listed_files
from fco_cli.simulation.clients import again_after_losses
from fco_cli.simulation.provenance import software
from fco_cli.simulation.record import LARGEST_CHECKPOINT, Record, check_writer, writer_stamp
from fco_cli.simulation.stop import Stop
from fco_cli.sweeps.runner import code_of
from fco_cli.tasks.metrics import rank
from fco_cli.typed_files import BadRecord, Missing, read_npz

log = logging.getLogger(__name__)

ZERO = 1e-10  # a singular value below is none, relative to the largest weight


def recorded_selection(run: Run, stop: Stop) -> dict[str, Any]:
    """The result of a path, new or as found; what was interrupted goes on, with the same bits."""
    record = Record(run.folder)
    if not run.force and (result := record.result(PathResult)):
        log.info("already done (force=true runs it again)")
        return result
    log.info("%s with %s: the path of %s", run.task.name, run.algo.name, run.regularizer.name)
    with few_threads(run.threads):
        return _selected(run, record, stop)


def _selected(run: Run, record: Record, stop: Stop) -> dict[str, Any]:
    assert run.path is not None
    watch, settings = Stopwatch(), run.path
    selecting = again_after_losses(lambda: Selecting(run, settings, stop.check), stop)  # refuses before it writes

    def keep(name: str, make: Callable[[], Part]) -> Part:
        stop.check()
        return _part(run.folder / f"part_{name}.npz", code_of(run), make)

    with record.lock(wait=True):  # a second command waits, then finds the result
        if run.force:
            (run.folder / "result.json").unlink(missing_ok=True)
            _drop_parts(run.folder)
        elif result := record.result(PathResult):
            return result
        made = again_after_losses(lambda: selecting.selection(keep), stop)
        record.save_config(run.yaml)
        seconds = watch.lap()
        return again_after_losses(lambda: _write(run, made, seconds), stop)


def _part(path: Path, written_by: str, make: Callable[[], Part]) -> Part:
    """Return the arrays of a file; make and store them if there is none, or if it is damaged or of other code."""
    try:
        arrays = read_npz(path, LARGEST_CHECKPOINT)
        check_writer(arrays, written_by)
        return arrays
    except Missing:
        pass
    except BadRecord as problem:
        log.warning("%s is not used (%s): computed again", path, problem)
    made = make()
    write_atomically(path, _as_npz(made | writer_stamp(written_by)))
    return made


def _drop_parts(folder: Path) -> None:
    for path in folder.glob("part_*.npz"):
        path.unlink(missing_ok=True)


def _write(run: Run, made: Selection, seconds: float) -> dict[str, Any]:
    """Everything, `result.json` last; only then the parts are dropped."""
    folder, layout = run.folder, made.problem.layout
    for name in made.chosen:
        model = made.model(name)
        Record(folder / name).create()
        run.task.export(made.problem, model, folder / name)
        blocks = {block.name: layout.view(model[None], block.name)[0] for block in layout.blocks}
        write_atomically(folder / name / "model.npz", _as_npz(blocks))
    table = path_table(made)
    columns = {name: np.asarray(values).tolist() for name, values in table.items()}
    lines = [dict(zip(columns, line, strict=True)) for line in zip(*columns.values(), strict=True)]
    for name, rows in {"path": lines, "clients": made.clients, "calibration": made.bins}.items():
        if rows:
            write_atomically(folder / f"{name}.csv", _as_csv(rows))
    arrays = {"values": made.values, "models": made.path.models, "losses": np.array([f.losses for f in made.folds])}
    if made.stability is not None:
        arrays["frequency"] = made.stability.frequency
    write_atomically(folder / "path.npz", _as_npz(arrays))
    result = _result(run, made, table, seconds) | {"files": listed_files(folder, ("part_",))}
    text = json.dumps(_plain(result), indent=1, allow_nan=False) + "\n"
    write_atomically(folder / "result.json", text.encode())
    _drop_parts(folder)
    return json.loads(text)


def path_table(made: Selection) -> dict[str, Array]:
    """A line for every value."""
    return {
        made.dial: made.values,
        "cv_loss": made.curve.mean,
        "cv_error": made.curve.error,
        **_solution_columns(made.problem, made.path),
    }


def _solution_columns(problem: Problem, solved: Solved) -> dict[str, Array]:
    """Return the columns that depend on the models alone."""
    models, layout = solved.models, problem.layout
    columns = {
        "train_loss": problem.risk(models, gradient=False).value,
        "nonzeros": (models[:, layout.regularized] != 0).sum(axis=1),
        "rounds": solved.rounds,
        "kkt": solved.residuals,
        "converged": solved.converged.astype(int),
    }
    if problem.regularizer.name.startswith("nuclear"):
        matrices = layout.view(models, next(block.name for block in layout.blocks if block.regularized))
        columns["rank"] = rank(matrices, ZERO * max(1e-300, float(np.abs(matrices).max())))
    return columns


def _result(run: Run, made: Selection, table: dict[str, Array], seconds: float) -> dict[str, Any]:
    assert run.path is not None
    solved = [made.path, *(fold.solved for fold in made.folds)]
    chosen, refitted = {}, _solution_columns(made.problem, made.refitted)
    for name, place in made.chosen.items():
        again = made.refitted_place(name)
        chosen[name] = {
            "place": place,
            **{column: values[place].item() for column, values in table.items()},
            **{column: values[again].item() for column, values in refitted.items()},
            "test": made.tests.get(name),
        }
    return {
        "status": "finished",
        "kind": "path",
        "run_id": run.run_id,
        "identity": asdict(run.identity),
        "task": run.task.name,
        "algo": run.algo.name,
        "regularizer": run.regularizer.name,
        "loss": made.data.loss.name,
        "dial": made.dial,
        "seed": run.seed,
        "rows": int(made.data.training.sizes.sum()),
        "clients": made.data.training.clients,
        "folds": len(made.folds),
        "by": run.path.by,
        "features": made.data.features,
        "chosen": chosen,
        "at_the_end": made.chosen["min"] == len(made.values) - 1,
        "rounds": sum(int(one.rounds.max()) for one in solved),  # a stack's rounds are those of its slowest job
        "not_converged": sum(int((~one.converged).sum()) for one in solved),
        "refits_not_converged": int((~made.refitted.converged).sum()),
        "stability": None if made.stability is None else made.stability.as_json(),
        "seconds": round(seconds, 3),
        **software(),
    }


def _as_npz(arrays: dict[str, Array]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _as_csv(lines: list[dict[str, Any]]) -> bytes:
    """Lines may lack some columns."""
    names = list(dict.fromkeys(name for line in lines for name in line))
    return as_csv(names, ([line.get(name, "") for name in names] for line in lines)).encode()


def _plain(value: Any) -> Any:
    """JSON has no infinity and no NaN: null."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
