"""A user's sparse rows."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

from fco_cli.commands.predict import predictions
from fco_cli.data.readers import read
from fco_cli.errors import UserError
from fco_cli.problem.models.linear import SparseLinear


@pytest.fixture
def sparse(data) -> Path:
    """Return the rows of `data` in sparse format."""
    arrays = dict(np.load(data))
    x = csr_array(arrays.pop("x"))
    path = data.with_name("sparse.npz")
    np.savez(path, data=x.data, indices=x.indices, indptr=x.indptr, shape=x.shape, **arrays)
    return path


def test_sparse_rows_are_the_same_problem(build, data, sparse):
    settings = ["task.standardize=false", "task.test=clients", "task.class_weight=balanced"]
    _, dense = build(data, *settings)
    _, other = build(sparse, *settings)
    assert isinstance(other.model, SparseLinear)
    w = np.array([[0.1, -0.02, 0.003, 0.5]])
    for mine, theirs in ((other.risk(w), dense.risk(w)), (other.validation(w), dense.validation(w))):
        np.testing.assert_allclose(mine.value, theirs.value, rtol=1e-12)
        np.testing.assert_allclose(mine.gradient, theirs.gradient, rtol=1e-10)
    np.testing.assert_allclose(other.scores_on(other.test, w), dense.scores_on(dense.test, w), rtol=1e-12)


def test_sparse_rows_are_not_centered(build, sparse):
    with pytest.raises(UserError, match=r"task\.standardize: got True, must be false: centering would make "):
        build(sparse)


@pytest.mark.parametrize("way", ["quantity", "features"])
def test_sparse_rows_are_dealt(build, sparse, way, with_changes):
    settings = ["task.standardize=false", f"task.partition={way}", "task.partition_clients=3", "task.holdout=none"]
    _, problem = build(with_changes(sparse, client=np.full(60, "all")), *settings)
    assert problem.data.clients == 3
    assert problem.data.sizes.sum() == 60


def test_a_model_of_sparse_rows_predicts(run_stack, sparse, tmp_path):
    settings = ["hparams.rounds=2", "task.standardize=false", "hparams.client_lr=1e-4"]
    run_stack([["task=custom", f"task.path={sparse}", *settings]])
    (record,) = (tmp_path / "outputs" / "custom" / "feddualavg").iterdir()
    model = np.load(record / "linear_model.npz")
    assert {row["feature"] for row in csv.DictReader((record / "model.csv").read_text().splitlines())} <= {
        "x0",
        "x1",
        "x2",
        "(intercept)",
    }
    scores = read(sparse).x @ model["coef"][0] + model["intercept"]
    shares = pd.read_csv(io.StringIO(predictions(record, sparse)))["probability of 1"]
    np.testing.assert_allclose(shares, 1 / (1 + np.exp(-scores)), rtol=1e-8)
    (tmp_path / "new.svm").write_text("0 1:2.5\n")
    assert predictions(record, tmp_path / "new.svm").count("\n") == 2
    (tmp_path / "new.svm").write_text("0 3:2.5\n")
    with pytest.raises(UserError, match=r"new\.svm: its rows have 4 features, the model has 3"):
        predictions(record, tmp_path / "new.svm")
    (tmp_path / "new.csv").write_text("x0,x1,x2\n1,2,3\n")
    with pytest.raises(UserError, match="must hold sparse rows"):
        predictions(record, tmp_path / "new.csv")
