"""Sparse rows from .npz and svmlight files: content and error messages."""

from __future__ import annotations

import io

import numpy as np
import pytest
from scipy.sparse import csr_array, csr_matrix, issparse, save_npz
from sklearn.datasets import dump_svmlight_file

from fco_cli.data import read, save
from fco_cli.data.readers import read_single_client
from fco_cli.data.readers.source import Columns

DENSE = np.array([[0, 1.5, 0, 0], [2, 0, 0, -3], [0, 0, 0, 0], [0, 4, 0, 5.0]])
Y, CLIENT = np.array([0.0, 1, 1, 0]), np.array(["a", "a", "b", "b"])


def arrays(**changes) -> dict[str, np.ndarray]:
    x = csr_array(DENSE)
    good = {"data": x.data, "indices": x.indices, "indptr": x.indptr, "shape": x.shape, "y": Y, "client": CLIENT}
    return good | changes


@pytest.fixture
def npz(tmp_path):
    def write(**changes):
        np.savez(tmp_path / "d.npz", **{name: a for name, a in arrays(**changes).items() if a is not None})
        return tmp_path / "d.npz"

    return write


@pytest.fixture
def svm(tmp_path):
    def write(text: str):
        (tmp_path / "d.svm").write_text(text)
        return tmp_path / "d.svm"

    return write


def test_an_npz_file_round_trips(npz, tmp_path):
    data = read(npz(features=np.array(list("pqrs"))))
    assert issparse(data.x)
    np.testing.assert_array_equal(data.x.toarray(), DENSE)
    rows = data.take(np.array([3, 1, 0, 2])).as_clients("float32").x  # sorted by client: row 1, 0, 3, 2
    assert rows.values.dtype == np.float32
    assert rows.values.tolist() == [2, -3, 1.5, 4, 5]
    assert rows.columns.tolist() == [0, 3, 1, 1, 3]
    assert rows.starts.tolist() == [0, 2, 3, 5, 5]
    save(data, tmp_path / "again.npz")
    again = read(tmp_path / "again.npz")
    np.testing.assert_array_equal(again.x.toarray(), DENSE)
    assert again.feature_names == list("pqrs")


def test_arrays_of_scipy_need_only_labels_and_clients(tmp_path):
    file = io.BytesIO()
    save_npz(file, csr_matrix(DENSE))
    file.seek(0)
    np.savez(tmp_path / "d.npz", **np.load(file), y=Y, client=CLIENT)
    np.testing.assert_array_equal(read(tmp_path / "d.npz").x.toarray(), DENSE)


def test_a_folder_of_npy_files_is_the_same(tmp_path):
    for name, array in arrays().items():
        np.save(tmp_path / f"{name}.npy", array)
    np.testing.assert_array_equal(read(tmp_path).x.toarray(), DENSE)


def test_entries_of_a_row_may_have_any_order(npz):
    data = read(npz(data=[1.5, -3, 2, 5, 4], indices=[1, 3, 0, 3, 1]))
    np.testing.assert_array_equal(data.x.toarray(), DENSE)


@pytest.mark.parametrize(
    ("changes", "expected_message"),
    [
        ({"indices": [1, 0, 4, 1, 3]}, "array 'indices' holds 4, must hold columns from 0 to 3"),
        ({"indices": [1, 0, -1, 1, 3]}, "array 'indices' holds -1, must hold columns from 0 to 3"),
        ({"indices": [1, 3, 3, 1, 3]}, "row 1: column 3 is stored twice"),
        ({"indices": [1, 0, 3]}, "array 'indices' holds int64 (3,), must be 5 whole numbers"),
        ({"indices": [1.0, 0, 3, 1, 3]}, "array 'indices' holds float64 (5,), must be 5 whole numbers"),
        ({"indptr": [0, 1, 3, 2, 5]}, "array 'indptr' must be 5 row starts: nondecreasing whole numbers from 0 to 5"),
        ({"indptr": [0, 1, 3, 3, 9]}, "array 'indptr' must be 5 row starts"),
        ({"indptr": [0, 1, 3, 5]}, "array 'indptr' must be 5 row starts"),
        ({"data": [1.5, 2, np.nan, 4, 5]}, "client 'a', row 1: feature 'x3' is nan; every stored value must be finite"),
        ({"data": [1.5, 2, np.inf, 4, 5]}, "feature 'x3' is inf"),
        ({"data": list("abcde")}, "array 'data' holds str32 (5,), must be 5 numbers"),
        ({"shape": [4, 10**15]}, "array 'shape' is 4 x 1000000000000000, must be at least 1 x 1"),
        ({"shape": [4, -1]}, "array 'shape' is 4 x -1"),
        ({"shape": [4, 4, 4]}, "array 'shape' holds int64 (3,), must be 2 whole numbers"),
        ({"shape": None}, "array 'shape' is missing; sparse rows need data, indices, indptr, shape"),
        ({"format": b"csc"}, "holds a sparse matrix that is not in CSR format; save x.tocsr()"),
        ({"x": DENSE}, "array 'data' is unknown"),
        ({"y": Y[:3]}, "array 'y' has shape (3,), must be one value for each of the 4 rows of x"),
        ({"client": None}, "array 'client' is missing"),
        ({"categories": ["a"], "category_of": [0]}, "sparse rows cannot have categories"),
        ({"features": ["p", "q"]}, "array 'features' has 2 names for 4 columns of x"),
    ],
)
def test_invalid_arrays_are_refused(npz, error_message, changes, expected_message):
    assert expected_message in error_message(npz(**changes))


def test_a_model_that_exceeds_memory_is_refused_before_allocation(npz, error_message, monkeypatch):
    monkeypatch.setattr("fco_cli.memory_limit.machine_memory", lambda: 10**9)
    assert "a model of its 2000000000 features would take 16 GB" in error_message(npz(shape=[4, 2 * 10**9]))


def test_pickles_are_refused(npz, error_message):
    assert "Python objects (a pickle)" in error_message(npz(data=np.array([{}] * 5, dtype=object)))


def test_svmlight_by_qid(tmp_path):
    dump_svmlight_file(DENSE, 2 * Y - 1, str(tmp_path / "d.libsvm"), zero_based=False, query_id=[7, 7, 12, 12])
    data = read(tmp_path / "d.libsvm")
    np.testing.assert_array_equal(data.x.toarray()[:, 1:], DENSE)  # x1 is column 1 of the file
    assert data.client.tolist() == ["7", "7", "12", "12"]
    assert data.y.tolist() == Y.tolist()


def test_svmlight_in_a_folder_has_one_file_per_client(tmp_path):
    (tmp_path / "a.svm").write_text("3 0:1 # a comment\n\n1 2:4\n")
    (tmp_path / "b.svm").write_text("2 1:2\n1 1:1 4:1\n")
    data = read(tmp_path, Columns(label="y>1"))
    assert data.x.toarray().tolist() == [[1, 0, 0, 0, 0], [0, 0, 4, 0, 0], [0, 2, 0, 0, 0], [0, 1, 0, 0, 1]]
    assert (data.client.tolist(), data.y.tolist()) == (["a", "a", "b", "b"], [1, 0, 1, 0])
    assert data.classes.tolist() == ["not y>1", "y>1"]


def test_svmlight_rows_without_clients_are_partitioned(svm):
    path = svm("1 1:1\n0 2:1\n")
    assert read(path, Columns(dealt=True), min_clients=1).client.tolist() == ["all", "all"]


@pytest.mark.parametrize(
    ("text", "expected_message"),
    [
        ("1 qid:1 2:1 1:1\n", "sorted and unique"),
        ("1 qid:1 2:1 2:3\n", "sorted and unique"),
        ("1 qid:1 -2:1\n", "Invalid index -2"),
        ("1 qid:1 99999999999999999999:1\n", "is not an svmlight file that can be read"),
        ("1 qid:1 2:nan\n1 qid:2 1:1\n", "client '1', row 0: feature 'x2' is nan; every stored value must be finite"),
        ("nan qid:1 2:1\n1 qid:2 1:1\n", "the label is nan; every label must be finite"),
        ("one qid:1 2:1\n", "could not convert string to float"),
        ("1 qid:1 2:\n", "is not an svmlight file that can be read"),
        ("1 2:1\n1 2:3\n", "its lines have no qid with the client"),
        ("1 qid:1 2:1\n1 2:3\n", "1 of its 2 lines have a qid"),
        ("# nothing\n", "d.svm: has no rows"),
        ("\x80\x04pickle", "is not an svmlight file that can be read"),
    ],
)
def test_invalid_svmlight_is_refused(svm, error_message, text, expected_message):
    message = error_message(svm(text))
    assert expected_message in message
    assert "d.svm: " in message


def test_other_columns_are_refused(svm, error_message):
    path = svm("1 qid:1 2:1\n0 qid:2 2:1\n")
    assert "column 'died' not found; the label of an svmlight file is called y" in error_message(
        path, columns=Columns("died")
    )


def test_a_line_that_is_too_long_is_refused(svm, error_message, monkeypatch):
    monkeypatch.setattr("fco_cli.data.readers.matrices.MAX_LINE", 100)
    assert "has a line of more than 100 characters" in error_message(svm("1 " + "1:1 " * 100))


def test_sparse_rows_of_a_site_are_refused(npz):
    with pytest.raises(Exception, match="supported only in simulations"):
        read_single_client(npz(), "north")
