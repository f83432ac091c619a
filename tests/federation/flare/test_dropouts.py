"""Masked rounds between real processes, one of which is killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fco_cli.commands.federation_demo import Loopback
from fco_cli.federation.site.audit import read_entries

pytest.importorskip("nvflare")
pytestmark = pytest.mark.ci

SITES = ["east", "north", "south", "west"]
ROUNDS = 3000
RUN = [
    "task=custom", "task.loss=logistic", "regularizer.strength=0.05", "algo=feddualavg", "hparams.client_lr=0.05",
    "hparams.clients_per_round=all", "hparams.batch_size=4", f"hparams.rounds={ROUNDS}", "hparams.eval_every=500",
    "hparams.fraction_bits=40", "threads=1",
]  # fmt: skip
SAVING_OFTEN = """
from fco_cli.commands.run import main
from fco_cli.simulation import execute
execute.CHECKPOINT_SECONDS = 1.0
main()
"""
# Simulates a run without some messages: {round: [client, ...]}.
SIMULATION = """
import dataclasses, json, sys
import numpy as np
from fco_cli.commands.run import main
from fco_cli.simulation.clients import Sampler
missing, sample = json.loads(sys.argv.pop(1)), Sampler.cohort
def cohort(self, round_index):
    made = sample(self, round_index)
    return dataclasses.replace(made, absent=np.isin(made.clients, missing.get(str(round_index + 1), [])))
Sampler.cohort = cohort
main()
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> dict[str, Path]:
    """Write one file per site, and pooled.npz beside them."""
    folder, random, parts = tmp_path_factory.mktemp("four"), np.random.default_rng(2), []
    for k, name in enumerate(SITES):
        x = random.normal(random.normal(0, 0.5, 5), 1, (20 + 5 * k, 5))
        parts.append((x, (x @ [1.0, -1, 0.5, 0, 0] > 0).astype(float), np.full(len(x), name)))
    for name, (x, y, client) in zip(SITES, parts, strict=True):
        np.savez(folder / f"{name}.npz", x=x, y=y, client=client)
    x, y, client = (np.concatenate(column) for column in zip(*parts, strict=True))
    np.savez(folder / "pooled.npz", x=x, y=y, client=client)
    return {name: folder / f"{name}.npz" for name in SITES}


@pytest.fixture(scope="module")
def federation(data, tmp_path_factory) -> Iterator[Loopback]:
    with Loopback(tmp_path_factory.mktemp("federation"), data) as made:
        made.up()
        yield made


def rounds_of(federation: Loopback, name: str) -> int:
    path = federation.home(name) / "audit.jsonl"
    return sum(entry.kind == "train" for entry in read_entries(path.read_text() if path.exists() else ""))


def record(output: Path) -> tuple[dict, dict[str, np.ndarray]]:
    (path,) = output.rglob("result.json")
    return json.loads(path.read_text()), dict(np.load(path.with_name("model.npz")))


def test_a_killed_site_does_not_stop_the_run(federation, data, tmp_path):
    """It goes on without the site, which joins again; bits are those of a simulation without the missing messages."""
    home = federation.home("coordinator")
    where = [
        "federation=flare", f"federation.sites=[{','.join(SITES)}]", f"federation.home={home}",
        "federation.masks=true", "federation.min_sites=3", "federation.timeout=5", f"output_dir={tmp_path / 'sites'}",
    ]  # fmt: skip
    command = [sys.executable, "-c", SAVING_OFTEN, *RUN, *where]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as analyst:
        try:
            federation.wait(lambda: rounds_of(federation, "south") >= 20, "rounds")
            federation.stop("south")
            died = rounds_of(federation, "south")
            federation.wait(lambda: rounds_of(federation, "east") > died + 50, "the run continues")
            federation.join("south")
            _, errors = analyst.communicate(timeout=600)
        finally:
            analyst.kill()
    assert analyst.returncode == 0, errors
    assert errors.count("continuing from the last checkpoint") == errors.count("south joined again; continuing") == 1
    result, model = record(tmp_path / "sites")
    rounds = sorted(map(int, result["missing"]))
    assert rounds == list(range(died + 1, rounds[-1] + 1)) or rounds == list(range(died, rounds[-1] + 1))
    assert rounds[-1] < ROUNDS
    assert set(map(tuple, result["missing"].values())) == {("south",)}
    missing = {done: [SITES.index("south")] for done in result["missing"]}
    pooled = data["south"].with_name("pooled.npz")
    arguments = [json.dumps(missing), *RUN, f"task.path={pooled}", f"output_dir={tmp_path / 'simulated'}"]
    subprocess.run([sys.executable, "-c", SIMULATION, *arguments], check=True)
    for name, values in record(tmp_path / "simulated")[1].items():
        np.testing.assert_array_equal(values, model[name])
