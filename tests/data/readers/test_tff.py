"""Error messages for damaged HDF5 files of TensorFlow Federated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest


class TestHdf5:
    """Files with links to others, and files with excessive declared sizes."""

    @pytest.fixture
    def file(self, tmp_path):
        h5py = pytest.importorskip("h5py")
        with h5py.File(tmp_path / "d.h5", "w") as file:
            for name in "ab":
                client = file.create_group(f"examples/{name}")
                client["pixels"] = np.ones((3, 2))
                client["label"] = np.arange(3)
            yield file

    @pytest.fixture
    def answer(self, error_message) -> Callable[..., str]:
        def closed(file) -> str:
            path = Path(file.filename)
            file.close()
            return error_message(path)

        return closed

    def test_links_are_not_followed(self, file, tmp_path, answer):
        import h5py

        for link in (h5py.ExternalLink("other.h5", "/"), h5py.SoftLink("/examples/b/pixels")):
            with h5py.File(tmp_path / "e.h5", "w") as other:
                file.copy("examples", other)
                del other["examples/a/pixels"]
                other["examples/a/pixels"] = link
                assert "/examples/a/pixels: is a link; links are not followed" in answer(other)
        del file["examples"]
        file["examples"] = h5py.ExternalLink("other.h5", "/")
        assert "//examples: is a link; links are not followed" in answer(file)

    def test_values_in_other_files_are_not_read(self, file, answer):
        del file["examples/a/pixels"]
        file["examples/a"].create_dataset("pixels", (3, 2), "u1", external=[("/etc/passwd", 0, 6)])
        assert "/examples/a/pixels: its values are in another file" in answer(file)

    def test_values_of_other_datasets_are_not_read(self, file, answer):
        import h5py

        del file["examples/a/pixels"]
        layout = h5py.VirtualLayout((3, 2), "f8")
        layout[:] = h5py.VirtualSource("other.h5", "pixels", (3, 2))
        file["examples/a"].create_virtual_dataset("pixels", layout)
        assert "/examples/a/pixels: its values are in another file" in answer(file)

    @pytest.mark.parametrize(
        ("shape", "expected_message"),
        [
            ((3, 10**9, 100), "would take 4.8 TB of memory; this machine has"),
            ((3, 10**7), "possibly a decompression bomb"),
        ],
    )
    def test_a_bomb_is_refused(self, file, shape, expected_message, answer):
        del file["examples/a/pixels"]
        file["examples/a"].create_dataset("pixels", shape, "f8", chunks=True, compression="gzip")
        assert expected_message in answer(file)

    @pytest.mark.parametrize(
        ("values", "expected_message"),
        [
            (np.ones((2, 2)), "pixels have shape (2, 2), label (3,)"),
            (1.0, "pixels have shape (), label (3,)"),
            (["a", "b", "c"], "must hold numbers, not object"),
        ],
    )
    def test_values_of_a_wrong_kind(self, file, values, expected_message, answer):
        del file["examples/a/pixels"]
        file["examples/a/pixels"] = values
        assert expected_message in answer(file)

    def test_a_group_in_the_place_of_values(self, file, answer):
        del file["examples/a/pixels"]
        file["examples/a"].create_group("pixels")
        assert "/examples/a/pixels: is not a dataset" in answer(file)

    def test_a_name_that_is_not_text(self, file, answer):
        file.move("examples/a", b"examples/\xff")
        assert "client b'\\xff': its name is not text" in answer(file)

    def test_what_is_not_there(self, file, answer):
        del file["examples/b/label"]
        assert "/examples/b/label: not found" in answer(file)
