"""A default site in real processes: the attack by two ordinary commands, the audit command, a deleted policy."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fco_cli.commands.federation_demo import Loopback

pytest.importorskip("nvflare")
pytestmark = pytest.mark.ci

RUN = [
    "task=custom", "task.loss=logistic", "federation=flare", "federation.sites=[north]", "hparams.rounds=1",
    "hparams.clients_per_round=1", "hparams.client_lr=0.1", "algo=fista", "regularizer.strength=0.05", "threads=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def federation(tmp_path_factory) -> Iterator[Loopback]:
    folder, random = tmp_path_factory.mktemp("strict"), np.random.default_rng(0)
    x = random.normal(size=(200, 3))
    np.savez(folder / "north.npz", x=x, y=(x[:, 0] > 0).astype(float), client=np.full(200, "north"))
    with Loopback(folder / "parties", {"north": folder / "north.npz"}, policy="strict") as made:
        made.up()
        yield made


def fco_run(federation: Loopback, output: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    where = [f"federation.home={federation.home('coordinator')}", f"output_dir={output}", *arguments]
    command = [sys.executable, "-m", "fco_cli.commands.run", *RUN, *where]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2
    return done.stderr.splitlines()[-1]


def test_two_ordinary_commands_do_not_recover_a_patient(federation, tmp_path):
    """The difference of the two preparations would be the held-out row; the site continues after the refusal."""
    first = fco_run(federation, tmp_path / "1", "task.holdout=none")
    assert first.returncode == 0, first.stderr
    second = fco_run(federation, tmp_path / "2", "task.holdout=rows", "task.holdout_fraction=0.0001", "seed=0")
    expected = "fco-run: north: a part (held-out rows) of 1 row requested; the site's policy allows 10 or more"
    assert last_line(second).startswith(expected)
    batches = ["algo=fedavg", "hparams.batch_size=1", "task.holdout=none"]
    assert "north: a batch of 1 row requested" in last_line(fco_run(federation, tmp_path / "3", *batches))
    assert fco_run(federation, tmp_path / "4", "task.holdout=none", "seed=3").returncode == 0


def test_the_audit_command(federation):
    text = federation.call("north", "audit")
    assert "answered describe 1, prepare 1" in text
    assert "1 x prepare: refused: a part (held-out rows) of 1 row requested" in text
    assert "left (max_equations_per_value)" in text
    assert federation.call("north", "audit", "--verify").startswith("OK: ")


def test_a_deleted_policy(federation, tmp_path):
    """The running site answers nothing, and a restart does not write a weaker policy."""
    path = federation.home("north") / "site.yaml"
    text = path.read_text()
    path.unlink()
    done = fco_run(federation, tmp_path / "5", "task.holdout=none", "seed=4")
    assert last_line(done).startswith("fco-run: north: the site cannot read its site.yaml")
    federation.stop("north", signal.SIGTERM)
    federation.options[-1] = "research"
    federation.join("north")
    assert federation.processes["north"].wait(60) == 2
    assert "can only start from strict again" in federation.log("north").splitlines()[-1]
    del federation.processes["north"]
    assert not path.exists()
    path.write_text(text)
