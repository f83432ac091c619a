"""Tests of worker processes that are copies of a fork server."""

import os
import sys
from pathlib import Path

import pytest

from fco_cli.sweeps.starting import PRELOADED, has_fork_server, preload_workers, start_process

pytestmark = pytest.mark.skipif(sys.platform != "linux" or os.cpu_count() == 1, reason="the fork server needs Linux")


def children():
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_a_process_finds_the_code_loaded_and_nothing_of_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "numba.py").write_text("open('taken', 'w')")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "numba.py"), raising=False)
    with preload_workers():
        found = "open('found', 'w').write(str([name in __import__('sys').modules for name in ['numba', *names]]))"
        process = start_process(exec, found, {"names": PRELOADED})
        process.join()
        assert process.exitcode == 0
    assert Path("found").read_text() == str([True] * (1 + len(PRELOADED)))
    assert not Path("taken").exists()


def test_no_process_is_left_however_the_body_ends():
    with preload_workers():
        pass  # it also starts Python's resource tracker, which stays
    before, processes = children(), []

    def body():
        assert has_fork_server()
        assert children() > before
        processes.append(start_process(exec, "import signal; signal.pause()"))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), preload_workers():
        body()
    assert children() == before
    assert processes[0].exitcode == -9
    assert not has_fork_server()
