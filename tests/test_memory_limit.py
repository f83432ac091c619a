"""How much memory there is, and the refusal of what needs more."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fco_cli import memory_limit
from fco_cli.errors import UserError
from fco_cli.memory_limit import in_units, machine_memory, require_memory


def test_a_machine_has_some_memory_and_no_more_than_an_address_can_name():
    assert 1 << 28 < machine_memory() <= sys.maxsize


def test_the_tightest_cgroup_on_the_way_up_counts(tmp_path):
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
def test_a_limit_of_the_shell_counts():
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)); "
        "from fco_cli.memory_limit import machine_memory; print(machine_memory())"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(answer.stdout) == 1 << 30


@pytest.mark.parametrize(
    ("count", "says"),
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
def test_bytes_are_said_in_the_unit_that_suits_them(count, says):
    assert in_units(count) == says


def test_what_needs_more_than_there_is_is_refused_with_both_numbers(monkeypatch):
    monkeypatch.setattr(memory_limit, "machine_memory", lambda: 2_000_000)
    require_memory("d.npz", 2_000_000)
    with pytest.raises(UserError, match=r"^d.npz would take 3 MB of memory; this machine has 2 MB$"):
        require_memory("d.npz", 3_000_000)
