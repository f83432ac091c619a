"""Run every member of the registries at a small size and print a digest of each result: `registry_runs.py FOLDER`.

With `--reversed` in the opposite order, so that kernels are compiled and loaded after other ones.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
from hydra import compose, initialize_config_module

from fco_cli.algorithms import all_algorithms
from fco_cli.algorithms.transforms import all_transforms
from fco_cli.config import Run, register
from fco_cli.errors import UserError
from fco_cli.problem.losses import all_losses
from fco_cli.problem.regularizers import all_regularizers
from fco_cli.simulation.execute import Outcome, execute
from fco_cli.simulation.process import Stop

FEW = ["hparams.rounds=3", "hparams.client_lr=0.01", "hparams.clients_per_round=3", "threads=1"]
LASSO = ["task=lasso", "task.dimension=35", "task.ones=5", "task.clients=3", "task.samples=23"]
MATRIX = ["task=nuclear", "task.dimension=7", "task.rank=2", "task.clients=3", "task.samples=23"]
NUMBERS = {
    "blockwise": ["regularizer.blocks={weights:{name:l1,strength:0.1}}"],
    "group_lasso": ["regularizer.group_size=5"],
    "l0_ball": ["regularizer.nonzeros=5"],
}
TASKS = ("mixture", "piecewise", "monotone", "group_sparse", "digits", "fmri_sim")
SHARDS = ("algorithms", "regularizers", "losses and transforms", "tasks")


class Silent:
    """An observer that ignores everything."""

    def on_start(self, runs: list[Run], rounds: int) -> None: ...

    def on_round(self, simulation: object) -> None: ...

    def on_outcome(self, outcome: Outcome) -> None: ...


def table(folder: Path, loss: str) -> str:
    """A table of unequal clients whose labels suit a loss."""
    random = np.random.default_rng(0)
    x = random.standard_normal((60, 11))
    times = (np.abs(x[:, 2]) + 0.1) * np.tile([1, 1, -1], 20)  # negative: censored
    y = {"squared": x[:, 0], "huber": x[:, 1], "cox": times}.get(loss, np.tile([0, 1, 1], 20))
    columns = {"x": x, "y": y, "client": np.repeat([0, 1, 2], (10, 20, 30))}
    np.savez(folder / f"{loss}.npz", **columns)
    return f"task.path={folder / loss}.npz"


def configurations(folder: Path, shard: str) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield a name and the overrides to try, the first that is not refused counts."""
    if shard == "algorithms":
        for name in all_algorithms():
            tries = [[*LASSO, f"algo={name}", f"regularizer={psi}"] for psi in ("l1", "l1_ball", "none")]
            tries.append([*LASSO, "task.samples=60", f"algo={name}"])  # more rows than parameters at every client
            yield f"algorithm {name}", tries
    if shard == "regularizers":
        for name in all_regularizers():
            task = MATRIX if name.startswith("nuclear") else LASSO
            yield f"regularizer {name}", [[*task, f"regularizer={name}", *NUMBERS.get(name, [])]]
    if shard == "losses and transforms":
        for name in all_losses():
            chosen = ["task=custom", f"task.loss={name}", table(folder, name), "hparams.batch_size=100"]
            yield f"loss {name}", [chosen]
        for name in all_transforms():
            yield f"transform {name}", [[*LASSO, f"transform={name}"]]
    if shard == "tasks":
        for name in TASKS:
            yield f"task {name}", [[f"task={name}", "hparams.rounds=1"]]


def digest(folder: Path) -> str:
    """Return the digest of the numbers of a record, without result.json, which has times and dates."""
    content = b"".join((folder / name).read_bytes() for name in ("metrics.csv", "model.npz"))
    return hashlib.sha256(content).hexdigest()[:16]


def run(folder: Path, tries: list[list[str]]) -> str:
    for overrides in tries:
        with suppress(UserError):
            one = Run.of(compose("config", overrides=[*FEW, *overrides, f"output_dir={folder}"]))
            execute([one], Silent(), Stop())
            return f"{one.run_id} {digest(one.folder)}"
    raise AssertionError(tries)


def main(folder: Path, shard: str, backwards: bool) -> None:
    register()
    folder.mkdir(exist_ok=True)
    with initialize_config_module("fco_cli.conf", version_base="1.3"):
        work = list(configurations(folder, shard))
        for name, tries in reversed(work) if backwards else work:
            print(name, run(folder / "out", tries), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], "--reversed" in sys.argv)
