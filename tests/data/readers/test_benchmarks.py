"""Tests of the readers of LEAF and TensorFlow Federated."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fco_cli.data.readers import read


def shard(**changes) -> bytes:
    user = {"x": [[0.5, 1], [2, 3]], "y": [0, 1]}
    return json.dumps(
        {"users": ["a", "b"], "num_samples": [2, 2], "user_data": {"a": user, "b": user}} | changes
    ).encode()


@pytest.mark.parametrize(
    ("content", "expected_message"),
    [
        (b"[" * 100_000, "does not start with a brace"),
        (b'{"users":' + b"[" * 100_000, "its lists are nested too deeply"),
        (b"{}", "must have users and user_data"),
        (shard(users="ab"), "users must be a list of names"),
        (shard(users=5), "users must be a list of names"),
        (shard(users=[["a"], "b"]), "users must be a list of names"),
        (shard(users=["a", "a"]), "users: given more than once: a"),
        (shard(users=["a"]), "the keys of user_data must be the users"),
        (shard(user_data=[1, 2]), "the keys of user_data must be the users"),
        (shard(user_data={"a": 1, "b": 2}), "client 'a': must have x and y"),
        (shard(user_data={"a": {"x": 1, "y": 2}, "b": 2}), "client 'a': x has shape (), y ()"),
        (shard(user_data={"a": {"x": [["1"]], "y": [1]}, "b": 2}), "client 'a': x must be lists of numbers"),
        (shard(user_data={"a": {"x": [[10**400]], "y": [1]}, "b": 2}), "client 'a': x must be lists of numbers"),
        (shard(user_data={"a": {"x": [[1e300]], "y": [1]}, "b": 2}), "client 'a'"),
        (shard(user_data={"a": {"x": [[None]], "y": [1]}, "b": 2}), "client 'a': x must be lists of numbers"),
        (shard(num_samples={"a": 2, "b": 2}), "2 users but num_samples that is not a list"),
        (shard(num_samples=[2, "2"]), "num_samples is 2"),
        (shard().replace(b'"b": {', b'"a": {'), "keys: given more than once: a"),
        (shard().replace(b'"b"', b'"\\ud800"'), "holds invalid Unicode code points"),
        (b'{"users": ' + b"9" * 5000 + b"}", "is not valid JSON"),
        (b"\xff\xfe{", "does not start with a brace"),
    ],
)
def test_leaf(tmp_path, content, expected_message, error_message):
    (tmp_path / "d.json").write_bytes(content)
    assert expected_message in error_message(tmp_path / "d.json")


def test_each_shard_must_fit_into_memory_but_not_their_sum(tmp_path, monkeypatch, error_message):
    for name in "abcdefgh":
        (tmp_path / f"{name}.json").write_bytes(shard())
    monkeypatch.setattr("fco_cli.memory_limit.machine_memory", lambda: 5000)
    assert len(read(tmp_path).y) == 32
    monkeypatch.setattr("fco_cli.memory_limit.machine_memory", lambda: 1500)
    assert "a.json: reading it would take" in error_message(tmp_path)


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
