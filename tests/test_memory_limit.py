"""Tests of the memory limit of the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fco_cli import memory_limit
from fco_cli.errors import UserError
from fco_cli.memory_limit import in_units, machine_memory, require_memory


def test_the_memory_limit_is_positive_and_addressable():
    assert 1 << 28 < machine_memory() <= sys.maxsize


def test_the_smallest_limit_of_a_cgroup_and_its_parents_counts(tmp_path):
    own = tmp_path / "own"
    (tmp_path / "v2/slice/job").mkdir(parents=True)
    (tmp_path / "v2/slice/job/memory.max").write_text("max\n")
    (tmp_path / "v2/slice/memory.max").write_text("123456\n")
    own.write_text("0::/slice/job\n")
    assert list(memory_limit._cgroup_limits(tmp_path / "v2", own)) == [123456]
    (tmp_path / "v1/memory/docker").mkdir(parents=True)
    (tmp_path / "v1/memory/docker/memory.limit_in_bytes").write_text("777\n")
    own.write_text("7:cpu,cpuacct:/docker\n5:memory:/docker\n")
    assert list(memory_limit._cgroup_limits(tmp_path / "v1", own)) == [777]
    assert list(memory_limit._cgroup_limits(tmp_path, tmp_path / "none")) == []


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit a process's addresses")
def test_the_limit_of_ulimit_counts():
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)); "
        "from fco_cli.memory_limit import machine_memory; print(machine_memory())"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(answer.stdout) == 1 << 30


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (41_000_000, "41 MB"),
        (5_800_000_000, "5.8 GB"),
        (10**21 - 1, "1000 EB"),
        (10**400, "more than 1000 EB"),
    ],
)
def test_bytes_are_printed_with_a_suitable_unit(count, text):
    assert in_units(count) == text


def test_the_message_has_the_needed_and_the_available_memory(monkeypatch):
    monkeypatch.setattr(memory_limit, "machine_memory", lambda: 2_000_000)
    require_memory("d.npz", 2_000_000)
    with pytest.raises(UserError, match=r"^d.npz would take 3 MB of memory; this machine has 2 MB$"):
        require_memory("d.npz", 3_000_000)
