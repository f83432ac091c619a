"""Tests of the choice of a path's method: what is chosen, what is forced, what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fco_cli.commands.tables import path_lines
from fco_cli.config.schemas import PathSettings
from fco_cli.errors import UserError
from fco_cli.path import method
from fco_cli.path.method import refit, solve_fits
from fco_cli.path.record import run_path
from fco_cli.path.select import Selector
from fco_cli.simulation.process import Stop


def ignore_round() -> None:
    """Do nothing after a round."""


@pytest.fixture
def selector(run_of, table):
    """Return a function that makes the selector of a run with given overrides."""

    def make(*overrides: str) -> Selector:
        run = run_of(f"task.path={table()}", *overrides)
        return Selector(run, run.path, ignore_round)

    return make


@pytest.mark.parametrize(
    ("overrides", "name", "reason"),
    [
        ([], "prox_newton", "5 parameters, logistic loss: Hessians make the path exact in few rounds"),
        (["task.loss=squared"], "moments", "5 parameters, squared loss: one round of second moments determines"),
        (["regularizer=l1_ball"], "prox_newton", "5 parameters, logistic loss: Hessians make"),
        (["algo=zhj"], "zhj", "5 parameters, logistic loss: algo=zhj"),
        (["path.algo=fista"], "fista", "5 parameters, logistic loss: path.algo=fista"),
        (["path.algo=prox_newton", "task.loss=squared"], "prox_newton", "path.algo=prox_newton"),
    ],
)
def test_the_method_and_its_reason(selector, overrides, name, reason):
    chosen = selector(*overrides).method
    assert chosen.name == name
    assert reason in chosen.reason
    assert chosen.line == f"path: {name} ({chosen.reason})"


def test_a_large_hessian_is_not_used_unless_psi_is_sparse(selector, monkeypatch):
    monkeypatch.setattr(method, "LARGEST_HESSIAN", 4)
    monkeypatch.setattr(method, "LARGEST_COUPLED", 4)
    assert selector().method.name == "prox_newton"
    coupled = selector("regularizer=l1_ball").method
    assert (coupled.name, "is too large for l1_ball" in coupled.reason) == ("fista", True)
    with pytest.raises(UserError, match=r"^path.algo: got 'prox_newton', must be another for this problem: a Hessian"):
        selector("regularizer=l1_ball", "path.algo=prox_newton")


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("path.algo=newton", "path.algo: got 'newton', must be one of auto, moments, prox_newton, "),
        ("path.algo=moments", "path.algo: got 'moments', must be another for 5 parameters, logistic loss: moments are"),
    ],
)
def test_impossible_methods_give_one_line(selector, override, line):
    with pytest.raises(UserError) as caught:
        selector(override)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_all_methods_give_the_same_solutions(selector):
    models = {}
    for name in ("moments", "prox_newton", "fista"):
        made = selector("task.loss=squared", f"path.algo={name}", "path.tolerance=1e-9")
        (models[name],) = solve_fits(made.run, made.method, [made.data], made.values, 1e-9, ignore_round)
        assert models[name].converged.all()
    for name in ("prox_newton", "fista"):
        np.testing.assert_allclose(models[name].models, models["moments"].models, atol=1e-7)


def test_the_tolerance_depends_on_the_method(selector):
    run = selector().run
    assert PathSettings().tolerance is None
    newton, first_order = (selector(f"path.algo={name}").method for name in ("prox_newton", "fista"))
    assert newton.tolerance(run, None) == run.hparams.tolerance == 1e-5
    assert first_order.tolerance(run, None) == 1e-4
    assert first_order.tolerance(run, 0.01) == 0.01


def test_a_refit_of_accurate_solutions_needs_no_round(selector):
    made, rounds = selector(), []
    (path,) = solve_fits(made.run, made.method, [made.data], made.values, 1e-9, ignore_round)
    again = refit(made.run, made.method, made.data, made.values, path, 1e-8, lambda: rounds.append(1))
    np.testing.assert_array_equal(again.models, path.models)
    assert not rounds
    finer = refit(made.run, made.method, made.data, made.values, path, 1e-12, lambda: rounds.append(1))
    assert len(rounds) <= 4
    assert (finer.residuals <= 1e-10).all()


def test_the_record_states_the_method(run_of, table, tmp_path):
    run = run_of(f"task.path={table()}", f"output_dir={tmp_path}/out")
    result = run_path(run, Stop())
    stored = json.loads((run.folder / "result.json").read_text())
    assert (stored["method"], stored["algo"]) == ("prox_newton", "prox_newton")
    assert run.folder.parent.name == "auto"
    assert run_of(f"task.path={table()}", "path.algo=fista").folder.parent.name == "fista"
    assert run_of(f"task.path={table()}", "algo=zhj").folder.parent.name == "zhj"
    assert any(line.startswith("path: prox_newton (5 parameters, logistic loss") for line in path_lines(result))
    assert stored["rounds"] < 20
