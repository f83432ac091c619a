"""Secret keys in files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from fco_cli.errors import UserError
from fco_cli.federation.keys import KEY_BYTES, read_or_create_key

KILLED_AT = """
import os, signal, sys
from pathlib import Path
from fco_cli.federation.keys import read_or_create_key

def kill(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

setattr(os, sys.argv[2], kill)
read_or_create_key(Path(sys.argv[1]))
"""


def test_a_key_is_created_once_and_is_private(tmp_path):
    path = tmp_path / "secret"
    key = read_or_create_key(path)
    assert len(key) == KEY_BYTES
    assert read_or_create_key(path) == key
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("size", [0, 1, KEY_BYTES - 1, KEY_BYTES + 1])
def test_a_key_of_another_size_is_refused(tmp_path, size):
    path = tmp_path / "secret"
    path.write_bytes(b"k" * size)
    with pytest.raises(UserError, match=f"secret: has {size} bytes, must have {KEY_BYTES}; delete it"):
        read_or_create_key(path)


@pytest.mark.parametrize("function", ["open", "fdopen", "fsync", "link"])
def test_a_killed_process_leaves_no_incomplete_key(tmp_path, function):
    path = tmp_path / "secret"
    done = subprocess.run([sys.executable, "-c", KILLED_AT, str(path), function], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not path.exists()
    assert len(read_or_create_key(path)) == KEY_BYTES


def test_the_key_of_the_faster_process_is_used(tmp_path, monkeypatch):
    path, link = tmp_path / "secret", os.link

    def link_late(source, target):
        path.write_bytes(b"1" * KEY_BYTES)
        link(source, target)

    monkeypatch.setattr(os, "link", link_late)
    assert read_or_create_key(path) == b"1" * KEY_BYTES
    assert list(tmp_path.iterdir()) == [path]
