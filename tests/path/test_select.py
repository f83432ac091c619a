"""Tests of model selection from a table to the record: solutions, folds, curves, held-out rows, resuming, errors."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from fco_cli.commands.run import _require_converged
from fco_cli.commands.shell import one_line_errors
from fco_cli.commands.tables import path_lines
from fco_cli.errors import Interrupted, NotConverged, UserError
from fco_cli.experiments import PATH, Finished
from fco_cli.path import record
from fco_cli.path.record import run_path
from fco_cli.path.select import Curve, select
from fco_cli.path.solve import problem_for
from fco_cli.problem.data import FoldAssignment
from fco_cli.simulation.process import Stop


def ignore_round() -> None:
    """Do nothing after a round."""


@pytest.fixture
def selection(run_of, table):
    """Return a function that selects models for a table with given overrides."""

    def make(*overrides: str, path: str | None = None):
        run = run_of(f"task.path={path or table()}", *overrides)
        return run, select(run, run.path, ignore_round)

    return make


@pytest.mark.parametrize("psi", ["l1", "l1_ball"])
def test_every_model_solves_the_problem_of_its_strength(selection, make_algorithm, psi):
    """Models agree with the certified optimum; the first is null, and the selected ones are more accurate."""
    run, made = selection(f"regularizer={psi}", "path.tolerance=1e-6", "hparams.tolerance=1e-9")
    assert len(made.values) == 4
    for value, model in zip(made.values, made.path.models, strict=True):
        one = problem_for(replace(run, regularizer=replace(run.regularizer, **{made.parameter: value})), made.data)
        solver = make_algorithm("optimum", one, tolerance=1e-12)
        best = solver.output(solver.round(solver.initial_state(np.zeros((1, one.layout.size)))).state)[0]
        np.testing.assert_allclose(model, best, atol=1e-4)
        if value in (made.values[at] for at in made.chosen.values()):
            chosen = next(made.model(name) for name, at in made.chosen.items() if made.values[at] == value)
            np.testing.assert_allclose(chosen, best, atol=1e-7)
    if psi == "l1":
        assert not made.path.models[0, :-1].any()
        assert made.path.models[1, :-1].any()


def test_a_fold_is_prepared_from_its_training_rows(run_of, table):
    """A value that occurs only in a held-out row does not change the preparation of the others."""
    run = run_of(f"task.path={table()}")
    task = run.task.cross_validated()
    data = task.data(0, "float64")
    first, *_ = FoldAssignment.of(data.training, 5, "rows", True, 0)
    held_out = first.rows(data.training)
    (fold,) = task.split_folds(data, 0, "float64", [first])
    np.testing.assert_allclose(fold.training.x.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(fold.training.x.std(axis=0), 1)
    assert len(fold.training.y) + len(fold.held_out.y) == len(data.training.y)
    np.testing.assert_array_equal(fold.held_out.y, data.training.y[held_out])
    kept = data.training.x[~held_out]
    np.testing.assert_allclose(fold.held_out.x, (data.training.x[held_out] - kept.mean(axis=0)) / kept.std(axis=0))


def test_all_rows_except_test_rows_are_used(run_of, table):
    """50 of 60 rows are used: none are held out for validation, and the file's test rows are excluded."""
    run = run_of(f"task.path={table()}")
    data = run.task.cross_validated().data(0, "float64")
    assert (len(data.training.y), data.held_out, len(data.test.y)) == (50, None, 10)
    assert len(run.task.data(0, "float64").training.y) < 50


def test_test_rows_have_no_influence(selection, table):
    def changed(columns):
        columns["x0"][columns["split"] == "test"] += 100
        columns["y"][columns["split"] == "test"] ^= 1

    _, one = selection()
    _, other = selection(path=table("other.csv", changed=changed))
    np.testing.assert_array_equal(one.path.models, other.path.models)
    assert one.chosen == other.chosen
    np.testing.assert_array_equal(one.curve.mean, other.curve.mean)
    assert one.tests["min"]["rows"] == 10
    assert one.tests["min"] != other.tests["min"]


def test_the_curve_is_the_folds_loss(selection):
    """Every row is scored once, out of fold, so that the clients' metrics agree with the curve."""
    run, made = selection("hparams.weighting=examples")
    everybody = next(line for line in made.clients if line["client"] == "all clients")
    np.testing.assert_allclose(everybody["loss"], made.curve.mean[made.chosen["min"]], rtol=1e-9)
    assert [line["client"] for line in made.clients[:4]] == ["all clients", "a", "b", "c"]
    assert sum(line["rows"] for line in made.clients[1:4]) == everybody["rows"] == 50
    assert run.path.folds == len(made.folds) == 3


@pytest.mark.parametrize(("by", "folds"), [("clients", 2), ("each_client", 3)])
def test_whole_clients_are_held_out(selection, by, folds):
    _, made = selection(f"path.by={by}", "path.folds=2", "hparams.weighting=uniform")
    assert len(made.folds) == folds
    assert sorted(fold.weight for fold in made.folds) == ([1, 2] if folds == 2 else [1, 1, 1])


def test_stability_selects_the_relevant_features(selection):
    _, made = selection("path.subsamples=4", "path.errors=4")
    frequency = made.stability.frequency[-1]
    assert frequency.shape == (4,)
    assert frequency[0] == 1
    assert (np.diff(made.stability.frequency, axis=0) >= 0).all()


# The record.


def test_a_record_is_complete_and_reused(run_of, table, tmp_path):
    run = run_of(f"task.path={table()}", f"output_dir={tmp_path}/out", "path.subsamples=1")
    result = run_path(run, Stop())
    names = {str(path.relative_to(run.folder)) for path in run.folder.rglob("*") if path.is_file()}
    own = {"config.yaml", "path.csv", "path.npz", "clients.csv", "calibration.csv", "result.json"}
    assert own <= names
    assert not [name for name in names if name.startswith("part_")]
    for choice in ("min", "1se"):
        assert {f"{choice}/model.npz", f"{choice}/model.csv", f"{choice}/preparation.json"} <= names
    assert json.loads((run.folder / "result.json").read_text()) == result
    assert result["chosen"]["min"]["kkt"] <= run.hparams.tolerance
    assert run_path(run, Stop()) == result
    assert len((run.folder / "path.csv").read_text().splitlines()) == 5


def test_a_refit_has_its_own_convergence_and_weights(run_of, table, tmp_path):
    """A refit that misses its tolerance is counted and reported; the numbers are those of the refitted model."""
    words = [f"task.path={table()}", "path.tolerance=0.3", "path.ratio=0.01", "path.strengths=12", "path.algo=fista"]
    words.append("hparams.weighting=uniform")  # with which 25 rounds suffice for the path, not for the refit
    short = run_of(*words, f"output_dir={tmp_path}/short", "hparams.most_rounds=25", "hparams.tolerance=1e-13")
    long = run_of(*words, f"output_dir={tmp_path}/long", "hparams.tolerance=1e-9")
    results = [run_path(run, Stop()) for run in (short, long)]
    assert [result["not_converged"] for result in results] == [0, 0]
    assert results[0]["refits_not_converged"] == len({one["place"] for one in results[0]["chosen"].values()})
    assert results[1]["refits_not_converged"] == 0
    for result, run, converged in zip(results, (short, long), (False, True), strict=True):
        said = [line for line in path_lines(result) if "the refit has not converged to hparams.tolerance" in line]
        assert len(said) == (0 if converged else 2)
        for name, one in result["chosen"].items():
            assert one["converged"] == converged
            with np.load(run.folder / name / "model.npz") as model:
                assert one["nonzeros"] == np.count_nonzero(model["weights"])


def test_an_unconverged_refit_is_an_error_of_the_command(tmp_path):
    """Exit code 1, after everything is printed and stored."""
    good, bad = (Finished(PATH, {"refits_not_converged": count}, tmp_path, tmp_path) for count in (0, 1))
    _require_converged([good])
    with pytest.raises(NotConverged, match=r"^a selected model has not converged to hparams.tolerance"):
        _require_converged([good, bad])
    with pytest.raises(SystemExit) as caught, one_line_errors("fco-run"):
        _require_converged([bad])
    assert caught.value.code == 1


def test_the_numbers_of_a_choice_are_those_of_its_refit(selection):
    run, made = selection()
    emptied = replace(made, refitted=replace(made.refitted, models=0 * made.refitted.models))
    assert record.path_table(emptied)["nonzeros"][made.chosen["min"]] > 0
    assert record._result(run, emptied, record.path_table(emptied), 0.0)["chosen"]["min"]["nonzeros"] == 0


class CountingStop(Stop):
    """Stop that is requested at a given check."""

    def __init__(self, last: int | None = None) -> None:
        super().__init__()
        self.checks, self.last = 0, last

    def check(self) -> None:
        self.checks += 1
        if self.checks == self.last:
            raise Interrupted(2)


@pytest.mark.parametrize("algo", ["auto", pytest.param("fista", marks=pytest.mark.ci)])
def test_an_interrupted_path_resumes_with_the_same_bits(run_of, table, tmp_path, algo):
    path, stop = table(), CountingStop()
    whole = run_of(f"task.path={path}", f"output_dir={tmp_path}/whole", f"path.algo={algo}")
    run_path(whole, stop)
    for last in np.unique(np.linspace(1, stop.checks, 5).astype(int)):
        run = run_of(f"task.path={path}", f"output_dir={tmp_path}/{last}", f"path.algo={algo}")
        with pytest.raises(Interrupted):
            run_path(run, CountingStop(last))
        assert not (run.folder / "result.json").exists()
        assert last < stop.checks or list(run.folder.glob("part_*.npz"))
        run_path(run, Stop())
        for name in ("path.csv", "clients.csv", "min/model.npz"):
            assert (run.folder / name).read_bytes() == (whole.folder / name).read_bytes(), name


KILLED = """
import os, signal, sys
from fco_cli.config import PathRun
from fco_cli.config.compose import compose
from fco_cli.path import solve
from fco_cli.path.record import run_path
from fco_cli.simulation.process import Stop

class Kill(Stop):
    checks = 0
    def check(self):
        self.checks += 1
        if self.checks == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)

solve.STORE_SECONDS = 0.0
run_path(PathRun.of(compose(sys.argv[2:])), Kill())
"""


@pytest.mark.ci
def test_a_path_killed_between_two_rounds_resumes_with_the_same_bits(run_of, few, table, tmp_path):
    path = f"task.path={table()}"
    whole, killed = (run_of(path, f"output_dir={tmp_path}/{name}") for name in ("whole", "killed"))
    run_path(whole, Stop())
    overrides = ["experiment=path", *few, path, f"output_dir={tmp_path}/killed"]
    words = [sys.executable, "-c", KILLED, "8", *overrides]
    assert subprocess.run(words, check=False, capture_output=True).returncode == -signal.SIGKILL
    assert (killed.folder / "part_rounds_all.npz").exists()
    run_path(killed, Stop())
    for name in ("path.csv", "clients.csv", "min/model.npz"):
        assert (killed.folder / name).read_bytes() == (whole.folder / name).read_bytes(), name


def test_a_damaged_part_is_computed_again(run_of, table, tmp_path):
    run = run_of(f"task.path={table()}", f"output_dir={tmp_path}/out")
    run.folder.mkdir(parents=True)
    (run.folder / "part_all.npz").write_bytes(b"no zip file")
    assert run_path(run, Stop())["status"] == "finished"


def test_the_identity_ignores_the_configured_strength(run_of, table):
    """The path selects the strength."""
    path = table()
    ids = {run_of(f"task.path={path}", f"regularizer.strength={strength}").run_id for strength in (0.1, 0.2)}
    ids |= {run_of(f"task.path={path}", "path.folds=4").run_id}
    assert len(ids) == 2


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("path.folds=1", "path.folds: got 1, must be a whole number from 2 to 10000"),
        ("path.ratio=1", "path.ratio: got 1.0, must be above 0, below 1"),
        ("path.by=hospital", "path.by: got 'hospital', must be one of rows, clients, each_client"),
        ("path.largest=-1", "path.largest: got -1.0, must be null or a number > 0"),
        ("path.threshold=0.5", "path.threshold: got 0.5, must be above 0.5, at most 1"),
    ],
)
def test_settings_out_of_range_give_one_line(run_of, table, override, line):
    with pytest.raises(UserError) as caught:
        run_of(f"task.path={table()}", override)
    assert str(caught.value) == line


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("path.folds=51", "path.folds: got 51, must be at most 50, the number of training rows"),
        ("regularizer=l0", "regularizer: got 'l0', must be convex: a path needs unique solutions"),
        ("regularizer=none", "regularizer: got 'none', must be one with a strength or a radius, which a path varies"),
    ],
)
def test_impossible_paths_are_refused_before_any_work(run_of, table, tmp_path, override, line):
    run = run_of(f"task.path={table()}", override, f"output_dir={tmp_path}/out")
    with pytest.raises(UserError) as caught:
        run_path(run, Stop())
    assert str(caught.value) == line
    assert not run.folder.exists()  # no partial record


def test_mean_and_error_are_weighted_by_the_folds():
    losses, weights = np.array([[1.0, 4.0], [2.0, 0.0], [6.0, 1.0]]), np.array([1.0, 2.0, 1.0])
    curve = Curve.of(losses, weights)
    for j in range(2):
        mean = np.average(losses[:, j], weights=weights)
        np.testing.assert_allclose(curve.mean[j], mean)
        spread = np.average((losses[:, j] - mean) ** 2, weights=weights)
        np.testing.assert_allclose(curve.error[j], np.sqrt(spread / 2))
    equal = Curve.of(losses, np.ones(3))
    np.testing.assert_allclose(equal.error, losses.std(axis=0, ddof=1) / np.sqrt(3))


def test_min_is_the_smallest_and_1se_the_simplest_within_an_error_of_it():
    curve = Curve(np.array([9.0, 5.2, 4.6, 4.0, 4.0, 4.5]), np.array([9.0, 9.0, 9.0, 0.7, 3.0, 0.1]))
    assert curve.chosen == {"min": 3, "1se": 2}
    flat = Curve(np.ones(4), np.zeros(4))
    assert flat.chosen == {"min": 0, "1se": 0}


def test_models_without_a_finite_loss_are_never_chosen():
    assert Curve(np.array([2.0, np.inf, np.nan]), np.zeros(3)).best == 0
    with pytest.raises(UserError, match=r"^path: no model has a finite loss"):
        _ = Curve(np.full(3, np.nan), np.zeros(3)).best


def test_a_loss_that_has_overflowed_in_one_fold_only():
    curve = Curve.of(np.array([[1.0, np.inf, 3.0], [1.0, 1.0, 1.0]]), np.ones(2))
    assert curve.chosen == {"min": 0, "1se": 0}
