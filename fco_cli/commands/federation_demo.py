"""`make federation-demo`: a coordinator and four hospitals on this machine, and a path of sparse models between them.

The same is simulated, the bits are compared, and everything is cleaned up.
"""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fco_cli.commands.loopback import Loopback

FEATURES = [
    "age",
    "sex",
    "chest_pain",
    "pressure",
    "cholesterol",
    "sugar",
    "heart_rate",
    "angina",
    "depression",
    "slope",
]
TRUTH = np.array([0.8, 0.6, 1.1, 0.0, 0.0, 0.0, -0.9, 0.7, 0.9, 0.0])
HOSPITALS = {"cleveland": 303, "hungarian": 294, "long-beach": 200, "zurich": 123}
STRENGTHS = "0.2,0.1,0.05,0.02,0.01"


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # asked to stop, it cleans up too
    with tempfile.TemporaryDirectory() as folder:
        demonstrate(Path(folder))


def demonstrate(folder: Path) -> None:
    data = simulated_hospitals(folder)
    begin = time.monotonic()
    with Loopback(folder / "parties", data, ["--label", "diagnosis"]) as federation:
        federation.up()
        print(f"a coordinator and {len(data)} hospitals have enrolled and joined: {time.monotonic() - begin:.0f} s")
        common = ["-m", "task=custom", "task.loss=logistic", "algo=zhj", f"regularizer.strength={STRENGTHS}"]
        common += ["hparams.client_lr=auto", "hparams.rounds=60", "hparams.clients_per_round=4"]
        home, sites = federation.home("coordinator"), f"[{','.join(data)}]"
        where = ["federation=flare", f"federation.sites={sites}", f"federation.home={home}"]
        call("run", *common, *where, f"output_dir={folder}/sites")
    rates = {result["client_lr"] for result, _ in records(folder / "sites")}
    common[-3] = f"hparams.client_lr={rates.pop()}"  # the simulation looks at other batches for its `auto`
    call("data", "convert", f"{folder}/pooled", f"{folder}/pooled.npz", "--label", "diagnosis")
    call("run", *common, f"task.path={folder}/pooled.npz", f"output_dir={folder}/here")
    compare(records(folder / "sites"), records(folder / "here"))


def simulated_hospitals(folder: Path) -> dict[str, Path]:
    """A table for each, with patients of its own kind, and a folder that has them all."""
    random = np.random.default_rng(0)
    (folder / "pooled").mkdir()
    paths = {}
    for name, rows in HOSPITALS.items():
        x = random.normal(random.normal(0, 0.5, len(FEATURES)), 1, (rows, len(FEATURES)))
        y = random.random(rows) < 1 / (1 + np.exp(-(x @ TRUTH)))
        paths[name] = folder / "pooled" / f"{name}.csv"
        with paths[name].open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow([*FEATURES, "diagnosis"])
            table.writerows([*map(float, row), int(label)] for row, label in zip(x, y, strict=True))
    return paths


def call(command: str, *words: str) -> None:
    subprocess.run([sys.executable, "-m", f"fco_cli.commands.{command}", *words], check=True)


def records(output: Path) -> list[tuple[dict, Path]]:
    """Results by strength, strongest first."""
    found = [(json.loads(path.read_text()), path.parent) for path in output.rglob("result.json")]
    return sorted(found, key=lambda one: one[0]["final"]["nonzeros"])


def compare(sites: list[tuple[dict, Path]], here: list[tuple[dict, Path]]) -> None:
    print("nonzeros  validation loss  AUC     KKT residual  bits of the simulation")
    for (result, folder), (_, other) in zip(sites, here, strict=True):
        final = result["final"]
        ours, theirs = np.load(folder / "model.npz"), np.load(other / "model.npz")
        same = all(np.array_equal(ours[name], theirs[name]) for name in ours.files)
        print(
            f"{final['nonzeros']:8.0f}  {final['validation_loss']:15.4f}  {final['validation_auc']:.4f}  "
            f"{final['kkt_residual']:12.1e}  {'the same' if same else 'OTHERS'}"
        )
        if not same:
            sys.exit(1)


if __name__ == "__main__":
    main()
