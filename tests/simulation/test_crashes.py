"""After any failure while a run writes, the same command produces the same bytes as an undisturbed run.

CONTRIBUTING.md, "When the disk or the machine fails", is the table of what is tried here.
"""

from __future__ import annotations

import errno
import importlib.util
import json
import multiprocessing
import re
import runpy
import sys
from pathlib import Path

import pytest

from fco_cli.errors import UserError

_specification = importlib.util.spec_from_file_location("crashing", Path(__file__).with_name("crashing.py"))
crashing = importlib.util.module_from_spec(_specification)
sys.modules["crashing"] = crashing
_specification.loader.exec_module(crashing)

KINDS = ("write", "flush", "before the rename", "after the rename")
PASSING = ("seconds", "finished_at", "git_revision")  # may differ between two equal runs


def content(record: Path) -> dict[str, object]:
    """Return all files of a record by name, without values that depend on the time; run.log is left out."""
    files = {path.name: path.read_bytes() for path in record.iterdir() if path.name != "run.log"}
    files["config.yaml"] = re.sub(rb"output_dir: .*", b"", files["config.yaml"])
    result = json.loads(files.pop("result.json"))
    return {**files, "result": {key: value for key, value in result.items() if key not in PASSING}}


@pytest.fixture(scope="module")
def moments(tmp_path_factory) -> tuple[dict[str, int], dict[str, object]]:
    """Return the number of moments of each kind in an undisturbed run, and the content of its record."""
    crashing.run(tmp_path_factory.mktemp("first"))  # fills the caches of the user's account
    seen: list[str] = []
    with crashing.watched(seen.append):
        record = crashing.run(tmp_path_factory.mktemp("undisturbed"))
    counts = {kind: seen.count(kind) for kind in KINDS}
    assert (
        counts["before the rename"] == counts["after the rename"] == 7
    )  # config, 2 checkpoints, metrics, model, clients, result
    assert counts["write"] > counts["before the rename"]  # the clients' memory too
    return counts, content(record)


def chosen(count: int, some: int) -> list[int]:
    """Return all moments, or about `some` of them, including the first and the last."""
    return sorted({1 + round(i * (count - 1) / max(1, some - 1)) for i in range(min(some, count))})


BUDGETS = [pytest.param(2, id="some"), pytest.param(1000, id="all", marks=pytest.mark.slow)]


@pytest.mark.ci
@pytest.mark.parametrize("some", BUDGETS)
@pytest.mark.parametrize("code", ["ENOSPC", "EIO", "EACCES"])
@pytest.mark.parametrize("kind", KINDS[:3])
def test_a_disk_that_fails(tmp_path, moments, kind, code, some):
    """The run fails with one line that names the file, and then continues from its checkpoint."""
    counts, expected = moments
    for n in chosen(counts[kind], some):
        with (
            pytest.raises(UserError, match=r"^\S+: cannot be written: ") as problem,
            crashing.watched(crashing.At(kind, n, crashing.fail(getattr(errno, code)))),
        ):
            crashing.run(tmp_path / str(n))
        assert str(problem.value).count("\n") == 0
        assert content(crashing.run(tmp_path / str(n))) == expected


@pytest.fixture(scope="module")
def processes():
    """Return a fork server that has loaded all modules, so that processes start quickly."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fco_cli.simulation.execute", "hydra", "numba", "scipy.sparse.linalg", "sklearn"])
    return context


@pytest.mark.ci
@pytest.mark.parametrize("some", BUDGETS)
@pytest.mark.parametrize("kind", KINDS[2:])
def test_a_kill(tmp_path, moments, processes, kind, some):
    """The process is killed with SIGKILL before and after every rename."""
    counts, expected = moments
    for n in chosen(counts[kind], some):
        chosen_end = {"CHOSEN_END": (tmp_path / str(n), kind, n)}
        child = processes.Process(target=runpy.run_path, args=(crashing.__file__, chosen_end, "killed"))
        child.start()
        child.join(120)
        assert child.exitcode == -9
        assert content(crashing.run(tmp_path / str(n))) == expected
