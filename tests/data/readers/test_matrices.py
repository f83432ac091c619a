"""Error messages for NumPy files with wrong declarations or excessive sizes."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest

from fco_cli.data.readers import fingerprint
from fco_cli.errors import UserError


def arrays(**changes) -> dict[str, np.ndarray]:
    good = {"x": np.arange(8.0).reshape(4, 2), "y": np.array([0, 1, 0, 1]), "client": np.array(["a", "a", "b", "b"])}
    return good | changes


@pytest.mark.parametrize(
    ("changes", "expected_message"),
    [
        ({"features": np.array(["h", "h"])}, "features: given more than once: h"),
        ({"classes": np.array(["no", "no"])}, "classes: given more than once: no"),
        ({"x": np.zeros((4, 2), "M8[s]")}, "'x' must hold numbers, not datetime64[s]"),
        ({"client": np.array([b"\xff", b"a", b"b", b"b"])}, "'client' holds bytes that are not valid text"),
        ({"client": np.array(["a", "\ud800", "b", "b"])}, "'client' holds invalid Unicode code points"),
        (
            {"client": np.full(4, 0x110000, np.uint32).view("U1")},
            "'client' holds invalid Unicode code points",
        ),
        ({"x": np.zeros((4, 2), [("a", "f8")])}, "'x' must hold numbers"),
    ],
)
def test_npz(tmp_path, changes, expected_message, error_message):
    np.savez(tmp_path / "d.npz", **arrays(**changes))
    assert expected_message in error_message(tmp_path / "d.npz")


def npy_header(descr: str, shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def test_empty_names_take_memory_but_no_bytes_in_the_file(tmp_path, error_message):
    np.savez(tmp_path / "d.npz", **arrays())
    with zipfile.ZipFile(tmp_path / "d.npz", "a") as archive:
        archive.writestr("classes.npy", npy_header("|S0", (10**15,)))
    assert "array 'classes' would take 4 PB of memory" in error_message(tmp_path / "d.npz")


def test_headers_that_numpy_never_writes_are_refused(tmp_path, error_message):
    path = tmp_path / "d.npz"
    np.savez(path, **arrays())
    content = path.read_bytes()
    local, central = content.index(b"PK\3\4"), content.index(b"PK\1\2")
    encrypted = bytearray(content)
    encrypted[local + 6] |= 1
    encrypted[central + 8] |= 1
    path.write_bytes(encrypted)
    assert "'x.npy' is encrypted" in error_message(path)
    unknown = bytearray(content)
    unknown[local + 8] = unknown[central + 10] = 97
    path.write_bytes(unknown)
    assert "'x.npy' uses a compression method that NumPy does not support" in error_message(path)
    path.write_bytes(content)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("x.npy", b"another")
    assert "arrays: given more than once: x" in error_message(path)


@pytest.mark.parametrize(
    "header",
    [
        "(" * 5000,
        "{'descr': '<f8', 'fortran_order': False, 'shape': (" + "9" * 5000 + ",)}",
        "'''",
        "\\",
        "{" * 200,
        "-" * 9000,
    ],
)
def test_a_header_that_raises_in_the_parser_is_refused(tmp_path, header, error_message):
    content = header.encode("latin-1")
    np.savez(tmp_path / "d.npz", **arrays())
    with zipfile.ZipFile(tmp_path / "e.npz", "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\1\0" + len(content).to_bytes(2, "little") + content)
    assert "e.npz: " in error_message(tmp_path / "e.npz")


def test_the_fingerprint_of_an_array_with_a_wrong_size_is_refused(tmp_path):
    for name, array in arrays().items():
        np.save(tmp_path / f"{name}.npy", array)
    (tmp_path / "x.npy").write_bytes(npy_header("<f8", (10**12, 2)) + b"few")
    with pytest.raises(UserError, match=r"x.npy declares 16 TB but holds 3 bytes"):
        fingerprint(tmp_path)
