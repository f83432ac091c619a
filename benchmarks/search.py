"""Best F1 of a search with 16 runs and of the paper's grid with 49, on lasso I to IV (docs/search.md).

    python -m benchmarks.search FOLDER --seeds 12

The grid runs once; the searches choose among its 49 pairs of learning rates and reuse its records.
"""

from __future__ import annotations

import argparse
import csv
import shutil
from pathlib import Path
from statistics import median

from fco_cli.api import load, sweep

PROBLEMS, ALGORITHMS, BUDGET = ("i", "ii", "iii", "iv"), ("feddualavg", "fedmid"), 16
LAST = 100  # rounds of the mean, the experiments' rule
MARGIN = 0.01


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=12, help="number of searches per problem and algorithm")
    options = parser.parse_args()
    print(
        "| problem | algorithm | best of 49 | best of 16: median | smallest | within 0.01 |\n|---|---|---|---|---|---|"
    )
    total = 0
    for problem in PROBLEMS:
        folder = options.folder / problem
        common = [f"experiment=lasso_{problem}", f"algo={','.join(ALGORITHMS)}", "seeds=1", f"output_dir={folder}"]
        sweep(*common)
        grid = _best_of_grid(folder)
        found: dict[str, list[float]] = {algo: [] for algo in ALGORITHMS}
        for seed in range(options.seeds):
            shutil.rmtree(folder / "search", ignore_errors=True)
            keys = [f"search.seed={seed}", f"search.budget={BUDGET}"]
            sweep("hydra/sweeper=search", *common, *keys)
            for algo, best in _best_of_search(folder).items():
                found[algo].append(best)
        for algo, values in found.items():
            within = sum(value >= grid[algo] - MARGIN for value in values)
            total += within
            shown = [f"{value:.4f}" for value in (grid[algo], median(values), min(values))]
            print(
                f"| lasso {problem.upper()} | `{algo}` | {' | '.join(shown)} | {within} of {len(values)} |", flush=True
            )
    print(f"{total} of {len(PROBLEMS) * len(ALGORITHMS) * options.seeds} searches within {MARGIN} of the grid")


def _best_of_grid(folder: Path) -> dict[str, float]:
    rounds = load(folder, per="round")
    rounds = rounds[(rounds["status"] == "finished") & (rounds["round"] > rounds["round"].max() - LAST)]
    return rounds.groupby(["algo", "run_id"])["f1"].mean().groupby("algo").max().to_dict()


def _best_of_search(folder: Path) -> dict[str, float]:
    """Return the best value of every algorithm's search."""
    best = {}
    for path in folder.glob("search/*/trials.csv"):
        with path.open() as file:
            values = [float(row["f1"]) for row in csv.DictReader(file) if row["state"] == "finished"]
        text = (path.parent / "best.yaml").read_text()
        best[next(algo for algo in ALGORITHMS if f"- algo={algo}\n" in text)] = max(values)
    return best


if __name__ == "__main__":
    main()
