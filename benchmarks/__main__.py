"""Measure, print the ratios and save the tables (results.py) and the scaling figure."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks import results, scaling
from benchmarks.cases import JAX, all_cases, projection_share
from benchmarks.measure import peak_memory_mb, wall_seconds
from benchmarks.results import Cell, format_cell

COMMAND = "python -m benchmarks"


def main() -> None:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one repeat, no scaling figure, nothing written")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only the lines with this in their name, not written"
    )
    options = parser.parse_args()
    rows: list[list[Cell]] = []
    for case in all_cases():
        if options.only in case.name:
            timing = case.measure(1 if options.quick else 3)
            rows.append([case.name, timing.baseline, timing.engine, timing.ratio, case.target])
            _print(rows[-1])
    if options.only:
        return
    commands, projections = _commands(), _projections()
    for row in commands + projections:
        _print(row)
    if not options.quick:
        columns = ["case", "plain NumPy, ms", "engine, ms", "ratio", "at least (goal)"]
        results.save("engine", COMMAND, columns, [row for row in rows if JAX not in str(row[0])])
        if jax := [[str(name).replace(JAX, ""), *row] for name, *row, _ in rows if JAX in str(name)]:
            results.save("jax", COMMAND, ["case", "plain NumPy, ms", "JAX, ms", "ratio"], jax)
        results.save("commands", COMMAND, ["command", "seconds, start-up included", "MB at its peak"], commands)
        columns = ["task", "share of a round for the projection onto the l1 ball", "in a ball of radius 10"]
        results.save("projections", COMMAND, columns, projections)
        scaling.draw()


def _print(row: list[Cell]) -> None:
    print(f"| {' | '.join(map(format_cell, row))} |", flush=True)


def _commands() -> list[list[Cell]]:
    """Return start-up times and peak memory of whole commands."""
    command = str(Path(sys.executable).with_name("fco-run"))
    rows: list[list[Cell]] = []
    with tempfile.TemporaryDirectory() as folder:
        for arguments in ("--help", "task=lasso hparams.rounds=1", "task=lasso", "task=nuclear"):
            options = [] if arguments == "--help" else [f"output_dir={folder}", "force=true"]
            line = [command, *arguments.split(), *options]
            rows.append([f"`fco-run {arguments}`", wall_seconds(*line), peak_memory_mb(*line)])
    return rows


def _projections() -> list[list[Cell]]:
    """Return the shares of a round that the projection takes; every step leaves a ball of radius 10."""
    tasks = ("femnist10_l1", "femnist62_mlp")
    return [[task, *(f"{projection_share(task, radius):.0%}" for radius in (1000, 10))] for task in tasks]


if __name__ == "__main__":
    main()
