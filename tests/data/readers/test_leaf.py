"""Error messages for damaged LEAF shards."""

from __future__ import annotations

import json

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
