"""`make federation-demo`: a coordinator and four hospitals on this machine choose a sparse model by cross-validation.

The same is simulated, the bits are compared, and everything is cleaned up.
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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # asked to stop, it cleans up too
    with tempfile.TemporaryDirectory() as folder:
        demonstrate(Path(folder))


def demonstrate(folder: Path) -> None:
    data = simulated_hospitals(folder)
    begin = time.monotonic()
    with Loopback(folder / "parties", data, ["--label", "diagnosis"]) as federation:
        federation.up()
        print(f"a coordinator and {len(data)} hospitals have enrolled and joined: {time.monotonic() - begin:.0f} s")
        home, sites = federation.home("coordinator"), f"[{','.join(data)}]"
        where = ["federation=flare", f"federation.sites={sites}", f"federation.home={home}"]
        call("run", *PATH, "task.loss=logistic", *where, f"output_dir={folder}/sites")
    call("data", "convert", f"{folder}/pooled", f"{folder}/pooled.npz", "--label", "diagnosis")
    call("run", *PATH, "task.loss=logistic", f"task.path={folder}/pooled.npz", f"output_dir={folder}/here")
    compare(record(folder / "sites"), record(folder / "here"))


def simulated_hospitals(folder: Path) -> dict[str, Path]:
    """A table for each, with patients of its own kind, and a folder that has them all."""
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


def call(command: str, *words: str) -> None:
    subprocess.run([sys.executable, "-m", f"fco_cli.commands.{command}", *words], check=True)


def record(output: Path) -> Path:
    """The folder of the one path in there."""
    (result,) = output.rglob("result.json")
    return result.parent


def compare(sites: Path, here: Path) -> None:
    """Whether every model of the path and both that were chosen have the same bits, and what is chosen."""
    files = ["path.npz", "min/model.npz", "1se/model.npz"]
    same = all(_same(sites / name, here / name) for name in files)
    for name, choice in read_result(sites, PathResult)["chosen"].items():
        print(f"{name}: strength {choice['strength']:.4f}, {choice['nonzeros']} features, KKT {choice['kkt']:.0e}")
    print(f"between the hospitals and in a simulation, to the bit: {'the same' if same else 'OTHERS'}")
    if not same:
        sys.exit(1)


def _same(one: Path, other: Path) -> bool:
    ours, theirs = np.load(one), np.load(other)
    return ours.files == theirs.files and all(np.array_equal(ours[name], theirs[name]) for name in ours.files)


if __name__ == "__main__":
    main()
