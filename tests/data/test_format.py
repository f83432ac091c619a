"""The neutral format: round trips and error messages."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fco_cli.data import FederatedData, read, save
from fco_cli.data.format import check_labels, from_arrays
from fco_cli.errors import UserError
from fco_cli.problem.losses import Softmax, Squared, all_losses


def good() -> dict[str, np.ndarray]:
    return {
        "x": np.arange(12.0).reshape(6, 2),
        "y": np.array([0, 1, 0, 1, 2, 2]),
        "client": np.array(["b", "a", "b", "a", "c", "c"]),
        "split": np.array(["train", "train", "test", "val", "train", "test"]),
        "features": np.array(["height", "weight"]),
    }


def error_message(path: Path) -> str:
    with pytest.raises(UserError) as problem:
        read(path)
    assert str(path) in str(problem.value)
    assert "\n" not in str(problem.value)
    return str(problem.value)


def test_saved_data_round_trip(tmp_path):
    save(from_arrays("here", good()), tmp_path / "d.npz")
    data = read(tmp_path / "d.npz")
    for name, array in good().items():
        assert (getattr(data, name) == array).all()
    assert [path.name for path in tmp_path.iterdir()] == ["d.npz"]


def test_rows_are_grouped_by_client_and_keep_their_order():
    clients = from_arrays("here", good()).as_clients("float32")
    assert clients.offsets.tolist() == [0, 2, 4, 6]
    assert clients.x[:, 0].tolist() == [2, 6, 0, 4, 8, 10]
    assert clients.y.tolist() == [1, 1, 0, 0, 2, 2]
    assert clients.x.dtype == np.float32


def test_training_index_of_held_out_clients():
    """Clients b and c have training rows; a, b and c have held-out rows."""
    data = from_arrays("here", good())
    training, held_out = (np.isin(np.arange(6), rows) for rows in ([0, 4], [1, 2, 5]))
    assert data.training_index(training, held_out).tolist() == [-1, 0, 1]
    assert data.training_index(training, np.zeros(6, dtype=bool)).tolist() == []


@pytest.mark.parametrize(
    ("changes", "expected_message"),
    [
        ({"client": None}, "array 'client' is missing"),
        ({"splits": np.zeros(6)}, "array 'splits' is unknown"),
        ({"x": np.zeros(6)}, "array 'x' has shape (6,)"),
        ({"y": np.zeros(5)}, "array 'y' has shape (5,)"),
        ({"x": np.full((6, 2), "a")}, "array 'x' must hold numbers"),
        ({"client": np.zeros(6)}, "array 'client' must hold names or whole numbers"),
        ({"split": np.array(["train"] * 5 + ["tset"])}, "client 'c', row 5: split is 'tset'"),
        ({"features": np.array(["height"])}, "1 names for 2 columns"),
        ({"x": np.where(np.arange(12).reshape(6, 2) == 7, np.inf, 1.0)}, "client 'a', row 3: feature 'weight' is inf"),
        ({"weights": np.array([1, 1, 1, 1, 1, -0.5])}, "client 'c', row 5: its weight is -0.5; a weight must be"),
        ({"weights": np.ones(5)}, "array 'weights' has shape (5,)"),
        ({"categories": np.array(["a"])}, "arrays 'categories' and 'category_of' must have the same length"),
        ({"categories": np.array(["a"]), "category_of": np.array([2])}, "'category_of' must hold indices from 0 to 1"),
        (
            {"categories": np.array(["a"]), "category_of": np.array([1])},
            "client 'b', row 0: feature 'weight' is 1; it must",
        ),
        (
            {"categories": np.array(["a", "a"]), "category_of": np.array([1, 1])},
            "categories of 'weight': given more than",
        ),
        ({"y": np.array([0, 1, 0, 1, np.inf, 0])}, "client 'c', row 4: the label is inf"),
        ({"client": np.array(["a"] * 6)}, "has 1 client; at least 2 are required"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0), "client": np.array([], str)}, "d.npz: has no rows"),
        ({"client": np.array(["a", "a", "b", "c", "c", "c"])}, "client 'b', row 2: the client's only sample"),
    ],
)
def test_errors_name_the_invalid_content(tmp_path, changes, expected_message):
    arrays = {name: array for name, array in (good() | changes).items() if array is not None}
    np.savez(tmp_path / "d.npz", **arrays)
    assert expected_message in error_message(tmp_path / "d.npz")


def test_the_error_names_the_option_that_drops_all_clients():
    with pytest.raises(UserError, match="has 0 clients with min_samples=9, which drops smaller ones; at least 2 are"):
        from_arrays("here", good(), min_samples=9)


def test_small_clients_can_be_dropped():
    arrays = good() | {"client": np.array(["a", "a", "b", "c", "c", "c"])}
    data = from_arrays("here", arrays, min_samples=2)
    assert data.clients.tolist() == ["a", "c"]
    assert data.x[:, 0].tolist() == [0, 2, 6, 8, 10]


def test_clients_with_a_single_row_can_be_kept():
    arrays = good() | {"client": np.array(["a", "a", "b", "c", "c", "c"])}
    assert from_arrays("here", arrays, min_samples=1).clients.tolist() == ["a", "b", "c"]


def test_objects_are_refused_and_not_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (Path(tmp_path / "sprung").touch, ())

    trap = np.empty((6, 2), dtype=object)
    trap[0, 0] = Trap()
    np.savez(tmp_path / "d.npz", **(good() | {"x": trap}))
    assert "array 'x' holds Python objects" in error_message(tmp_path / "d.npz")
    assert not (tmp_path / "sprung").exists()


def header(shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def test_a_header_that_declares_ten_gigabytes_is_refused_before_reading(tmp_path):
    np.savez(tmp_path / "d.npz", **{name: array for name, array in good().items() if name != "x"})
    with zipfile.ZipFile(tmp_path / "d.npz", "a") as archive:
        archive.writestr("x.npy", header((10**9, 10 // 8 + 1)) + b"few")
    assert "declares 16 GB but holds 3 bytes" in error_message(tmp_path / "d.npz")


def test_a_zip_bomb_is_refused_before_reading(tmp_path):
    with zipfile.ZipFile(tmp_path / "d.npz", "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as file:
        file.write(header((100 << 17, 1)))
        for _ in range(100):
            file.write(bytes(1 << 20))
    assert "possibly a decompression bomb" in error_message(tmp_path / "d.npz")


def test_more_than_the_memory_is_refused_before_reading(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "d.npz", **(good() | {"x": np.zeros((6, 2000)), "features": np.arange(2000)}))
    monkeypatch.setattr("fco_cli.memory_limit.machine_memory", lambda: 100_000)
    assert "reading it would take 112.2 kB of memory; this machine has 100 kB" in error_message(tmp_path / "d.npz")


@pytest.mark.parametrize("content", [b"not a zip", b"PK\x03\x04 cut off"])
def test_invalid_npz_files(tmp_path, content):
    (tmp_path / "d.npz").write_bytes(content)
    assert "is not an .npz file" in error_message(tmp_path / "d.npz")


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "d.npz"
    np.savez(path, **good())
    content = bytearray(path.read_bytes())
    place = content.index(np.arange(12.0).tobytes())
    content[place + 8] ^= 255
    path.write_bytes(content)
    assert "Bad CRC-32" in error_message(path)


def test_the_error_names_a_missing_file(tmp_path):
    assert "no such file" in error_message(tmp_path / "d.npz")


@pytest.mark.parametrize(
    ("loss", "y", "classes", "expected_message"),
    [
        ("logistic", [0, 1, 0, 1, 1, 2], None, "client 'c', row 5: label 2; the logistic loss needs"),
        ("logistic", [0, -1, 0, 1, 1, 1], None, "client 'a', row 1: label -1"),
        ("softmax", [0, 1, 0.5, 1, 1, 1], None, "client 'b', row 2: label 0.5"),
        ("softmax", [0, 1, 2, 1, 1, 10**6], None, "client 'c', row 5: label 1e+06"),
        ("softmax", [0, 1, 2, 1, 1, 1], ["no", "yes"], "client 'b', row 2: label 2; the softmax loss needs"),
        ("softmax", [0] * 6, None, "at least 2 classes"),
        ("cox", [-1, -2, -1, -3, -1, -1], None, "here: no label is valid: the cox loss needs"),
    ],
)
def test_errors_name_labels_that_the_loss_does_not_accept(loss, y, classes, expected_message):
    arrays = good() | {"y": np.array(y)} | ({} if classes is None else {"classes": np.array(classes)})
    with pytest.raises(UserError) as problem:
        check_labels(from_arrays("here", arrays), all_losses()[loss]())
    assert expected_message in str(problem.value)


def test_labels_determine_the_number_of_outputs():
    data = from_arrays("here", good())
    assert check_labels(data, Squared()) == 1
    assert check_labels(data, Softmax()) == 3


@pytest.mark.skipif(np.dtype(np.longdouble).itemsize == 8, reason="there is no extended precision here")
def test_extended_precision_is_read_as_double(tmp_path):
    x, y, client = np.arange(8.0).reshape(4, 2) / 3, np.array([0, 1, 0, 1]), np.array(list("aabb"))
    wide = {"x": x.astype(np.longdouble), "y": y.astype(np.longdouble), "weights": np.ones(4, np.longdouble)}
    np.savez(tmp_path / "t.npz", client=client, **wide)
    data = read(tmp_path / "t.npz")
    assert {array.dtype for array in (data.x, data.y, data.weights)} == {np.dtype(float)}
    assert (data.x == x).all()
    wide["x"][0, 0] = np.longdouble("1e4000")
    np.savez(tmp_path / "t.npz", client=client, **wide)
    with pytest.raises(UserError, match="must be finite"):
        read(tmp_path / "t.npz")


@pytest.mark.parametrize(("dtype", "size"), [("float64", 1e300), ("float64", -1e154), ("float32", 2e19)])
def test_values_whose_squares_overflow_are_refused(dtype, size):
    x = np.array([[1.0, size], [2.0, 0], [3.0, 1], [1.0, 2]])
    data = FederatedData("here", x, np.array([0, 1, 0, 1]), np.array(list("aabb")))
    with pytest.raises(
        UserError, match=r"^here: a feature value of magnitude .* is too large; the limit is .*: standardize"
    ):
        data.model_clients(dtype)
    data.x[0, 1] = 1e18
    assert data.model_clients(dtype).clients == 2
