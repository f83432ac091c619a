"""`make federation-demo`: cross-validation of a sparse model by a coordinator and four hospitals on this machine.

The same run is simulated, the models are compared bitwise, and all files and processes are removed.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fco_cli.commands.loopback import Loopback
from fco_cli.csv_writer import as_csv
from fco_cli.results import PathResult, read_result

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
PATH = ["experiment=path", "path.strengths=20", "path.folds=5"]


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # clean up on SIGTERM too
    with tempfile.TemporaryDirectory() as folder:
        demonstrate(Path(folder))


def demonstrate(folder: Path) -> None:
    data = simulated_hospitals(folder)
    start = time.monotonic()
    with Loopback(folder / "parties", data, ["--label", "diagnosis"]) as federation:
        federation.up()
        print(f"a coordinator and {len(data)} hospitals have joined: {time.monotonic() - start:.0f} s")
        home, sites = federation.home("coordinator"), f"[{','.join(data)}]"
        where = ["federation=flare", f"federation.sites={sites}", f"federation.home={home}"]
        call("run", *PATH, "task.loss=logistic", *where, f"output_dir={folder}/sites")
    call("data", "convert", f"{folder}/pooled", f"{folder}/pooled.npz", "--label", "diagnosis")
    call("run", *PATH, "task.loss=logistic", f"task.path={folder}/pooled.npz", f"output_dir={folder}/simulated")
    compare(record(folder / "sites"), record(folder / "simulated"))


def simulated_hospitals(folder: Path) -> dict[str, Path]:
    """Write one table per hospital, with different distributions, to one folder; return their paths."""
    random = np.random.default_rng(0)
    (folder / "pooled").mkdir()
    paths = {}
    for name, rows in HOSPITALS.items():
        x = random.normal(random.normal(0, 0.5, len(FEATURES)), 1, (rows, len(FEATURES)))
        y = random.random(rows) < 1 / (1 + np.exp(-(x @ TRUTH)))
        paths[name] = folder / "pooled" / f"{name}.csv"
        table = ([*map(float, row), int(label)] for row, label in zip(x, y, strict=True))
        paths[name].write_text(as_csv([*FEATURES, "diagnosis"], table), encoding="utf-8")
    return paths


def call(command: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", f"fco_cli.commands.{command}", *arguments], check=True)


def record(output: Path) -> Path:
    """Return the record folder of the only path in `output`."""
    (result,) = output.rglob("result.json")
    return result.parent


def compare(sites: Path, simulated: Path) -> None:
    """Print the chosen models; exit with 1 unless all models are bitwise equal to the simulation's."""
    files = ["path.npz", "min/model.npz", "1se/model.npz"]
    same = all(_same(sites / name, simulated / name) for name in files)
    for name, choice in read_result(sites, PathResult)["chosen"].items():
        print(f"{name}: strength {choice['strength']:.4f}, {choice['nonzeros']} features, KKT {choice['kkt']:.0e}")
    print(f"models of the hospitals and of the simulation, bitwise: {'OK' if same else 'DIFFERENT'}")
    if not same:
        sys.exit(1)


def _same(one: Path, other: Path) -> bool:
    ours, theirs = np.load(one), np.load(other)
    return ours.files == theirs.files and all(np.array_equal(ours[name], theirs[name]) for name in ours.files)


if __name__ == "__main__":
    main()
