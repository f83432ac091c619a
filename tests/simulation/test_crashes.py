"""Whatever happens while a run writes, the same command afterwards leaves the bytes of a run that nothing happened to.

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
PASSING = ("seconds", "finished_at", "git_revision")  # what may differ between two runs alike


def content(record: Path) -> dict[str, object]:
    """All files of a record by name, without what is of the moment; run.log, which tells the story, by its presence."""
    files = {path.name: path.read_bytes() for path in record.iterdir() if path.name != "run.log"}
    files["config.yaml"] = re.sub(rb"output_dir: .*", b"", files["config.yaml"])
    result = json.loads(files.pop("result.json"))
    return {**files, "result": {key: value for key, value in result.items() if key not in PASSING}}


@pytest.fixture(scope="module")
def moments(tmp_path_factory) -> tuple[dict[str, int], dict[str, object]]:
    """How many moments of each kind a run has, and what it leaves."""
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
    """All moments, or about so many of them, the first and the last included."""
    return sorted({1 + round(i * (count - 1) / max(1, some - 1)) for i in range(min(some, count))})


BUDGETS = [pytest.param(2, id="some"), pytest.param(1000, id="all", marks=pytest.mark.slow)]


@pytest.mark.parametrize("some", BUDGETS)
@pytest.mark.parametrize("code", ["ENOSPC", "EIO", "EACCES"])
@pytest.mark.parametrize("kind", KINDS[:3])
def test_a_disk_that_fails(tmp_path, moments, kind, code, some):
    """One line that names the file; afterwards the run goes on from what it had."""
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
    """New processes in no time: they split from one that has loaded everything and done nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fco_cli.sweeps.runner", "hydra", "numba", "scipy.sparse.linalg", "sklearn"])
    return context


@pytest.mark.ci
@pytest.mark.parametrize("some", BUDGETS)
@pytest.mark.parametrize("kind", KINDS[2:])
def test_a_kill(tmp_path, moments, processes, kind, some):
    """SIGKILL, on both sides of every rename."""
    counts, expected = moments
    for n in chosen(counts[kind], some):
        chosen_end = {"CHOSEN_END": (tmp_path / str(n), kind, n)}
        child = processes.Process(target=runpy.run_path, args=(crashing.__file__, chosen_end, "killed"))
        child.start()
        child.join(120)
        assert child.exitcode == -9
        assert content(crashing.run(tmp_path / str(n))) == expected
