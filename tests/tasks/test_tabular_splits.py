"""Training, validation and test rows of a user's data."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fco_cli.data.format import from_arrays
from fco_cli.data.readers import read
from fco_cli.data.splits import Holdout, split
from fco_cli.errors import UserError
from fco_cli.problem.data import FoldAssignment


def test_rows_of_every_client_are_held_out(build, data):
    _, problem = build(data, "task.loss=logistic", "task.holdout=rows")
    assert problem.data.sizes.tolist() == [3, 16, 9, 12, 8]
    assert problem.held_out.sizes.tolist() == [1, 4, 2, 3, 2]
    assert problem.held_out.trained_as.tolist() == [0, 1, 2, 3, 4]


def test_every_row_of_a_client_is_as_likely_to_be_held_out(data):
    """Over 2,000 seeds; 2 of the 11 rows of client c are held out."""
    rows = read(data)
    holdouts = Holdout("holdout", "val", "rows", 0.2, "rows"), Holdout("test", "test", "none", 0.2, "none")
    drawn = np.array([split(rows, *holdouts, seed).validation for seed in range(2000)])
    own = drawn[:, rows.client == "c"]
    assert (own.sum(axis=1) == 2).all()
    # The frequency of a row has standard deviation 0.0086; a pair of rows has probability 1/55.
    np.testing.assert_allclose(own.mean(axis=0), 2 / 11, atol=0.06)
    assert abs((own[:, 0] & own[:, 1]).mean() - 1 / 55) < 0.02


def test_whole_clients_are_held_out(build, data):
    _, problem = build(data, "task.loss=logistic", "task.holdout=clients", "task.holdout_fraction=0.4")
    assert (problem.data.clients, problem.held_out.clients) == (3, 2)
    assert problem.held_out.trained_as.tolist() == [-1, -1]
    assert sorted([*problem.data.sizes, *problem.held_out.sizes]) == [4, 10, 11, 15, 20]


def test_the_file_s_split_is_held_out_where_there_is_one(build, data, with_changes):
    with_changes(data, split=np.where(np.arange(60) % 4 == 0, "val", "train"))
    _, problem = build(data, "task.loss=logistic")
    assert len(problem.held_out.y) == 15
    with_changes(data, split=np.full(60, "test"))
    with pytest.raises(UserError, match="the split column has no rows with split train"):
        build(data, "task.loss=logistic")


def test_rows_of_the_test_split_neither_train_nor_validate(build, data, with_changes):
    parts = np.array(["train", "val", "test", "train"])[np.arange(60) % 4]
    x = dict(np.load(data))["x"]
    x[parts == "test"] += 1e6  # would change the moments if it were used
    with_changes(data, split=parts, x=x)
    _, problem = build(data, "task.loss=logistic")
    assert (len(problem.data.y), len(problem.held_out.y), len(problem.test.y)) == (30, 15, 15)
    assert np.abs(problem.data.x).max() < 10
    assert (problem.test.x > 1000).all()
    with_changes(data, split=np.where(parts == "val", "train", parts))
    _, without = build(
        data, "task.loss=logistic"
    )  # the file has no validation rows: they are drawn from the training rows
    assert len(without.test.y) == 15
    assert 0 < len(without.held_out.y) < 15
    assert len(without.data.y) + len(without.held_out.y) == 45


def test_test_rows_do_not_depend_on_how_the_others_validate(build, data):
    _, rows = build(data, "task.loss=logistic", "task.test=rows")
    _, clients = build(data, "task.loss=logistic", "task.test=rows", "task.holdout=clients", "task.standardize=false")
    assert rows.test.sizes.tolist() == clients.test.sizes.tolist() == [1, 4, 2, 3, 2]
    assert rows.test.y.tolist() == clients.test.y.tolist()
    assert rows.held_out.sizes.tolist() == [1, 3, 2, 2, 2]
    assert rows.data.sizes.tolist() == [2, 13, 7, 10, 6]


def test_test_metrics_are_in_the_result_and_not_in_the_rounds(run_stack, data, tmp_path):
    settings = ["hparams.rounds=2", "algo=fedavg", "regularizer=none"]
    run_stack([["task=custom", f"task.path={data}", "task.test=clients", *settings]])
    (record,) = (tmp_path / "outputs" / "custom" / "fedavg").iterdir()
    result = json.loads((record / "result.json").read_text())
    assert set(result["test"]) == {"test_loss", "test_accuracy", "test_auc"}
    assert not any("test" in name for name in (*result["final"], *result["summary"]))
    assert "test" not in (record / "metrics.csv").read_text().splitlines()[0]


def test_a_split_that_is_not_there_is_refused(build, data):
    with pytest.raises(UserError, match=r"task\.holdout: got 'split'"):
        build(data, "task.loss=logistic", "task.holdout=split")


def test_nothing_need_be_held_out(build, data):
    _, problem = build(data, "task.loss=logistic", "task.holdout=none")
    assert problem.validation is None
    assert len(problem.data.y) == 60


def test_folds_and_validation_keep_patients_together(build, tmp_path):
    """The rows of a patient, given by a column with a name that Hydra's grammar does not have."""
    random = np.random.default_rng(5)
    patients = random.integers(0, 40, 240)
    rows = [f"{'ab'[p % 2]},{p},{random.normal():.4f},{p},{random.integers(2)}" for p in patients]
    (tmp_path / "t.csv").write_text("\n".join(["client,subject#,x,copy,y", *rows]))
    task, problem = build(tmp_path / "t.csv", "task.patient='subject#'", "task.standardize=false")
    training, validation = (set(part.x[:, 1]) for part in (problem.data, problem.held_out))
    assert training | validation == set(patients)
    assert not training & validation
    data = task.build(0, "float64")
    folds = FoldAssignment.of(data.training, 3, "rows", False, 0)
    for part in task.split_folds(data, 0, "float64", folds):
        assert not set(part.training.x[:, 1]) & set(part.held_out.x[:, 1])


def test_doubts_and_the_loss_are_logged_once(build, tmp_path, caplog):
    random = np.random.default_rng(6)
    rows = [f"{'ab'[k % 2]},{-999 if k % 9 == 0 else random.normal(90, 5):.1f},{k % 2}" for k in range(90)]
    (tmp_path / "t.csv").write_text("\n".join(["client,crea,y", *rows]))
    with caplog.at_level("INFO"):
        build(tmp_path / "t.csv")
    assert caplog.text.count("t.csv: logistic loss (task.loss=auto; the labels are 0 and 1)") == 1
    assert caplog.text.count("t.csv: warning: column 'crea': 10 rows have -999, which may mean missing") == 1


def test_the_only_row_of_a_client_is_a_training_row():
    arrays = {"x": np.arange(10.0).reshape(5, 2), "y": np.arange(5.0), "client": np.array([*"aabbc"])}
    rows = from_arrays("here", arrays, min_samples=1)
    holdouts = Holdout("holdout", "val", "rows", 0.5, "rows"), Holdout("test", "test", "none", 0.2, "none")
    parts = split(rows, *holdouts, seed=0)
    assert parts.training.tolist()[4] is True
    assert parts.validation[:4].sum() == 2
