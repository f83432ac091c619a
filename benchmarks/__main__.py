"""Measure, print the ratios and rewrite the table of benchmarks/README.md."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.cases import all_cases
from benchmarks.measure import peak_memory_mb, wall_seconds

README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, one repeat, nothing written")
    quick = parser.parse_args().quick
    rows = ["| | plain NumPy, ms | engine, ms | ratio |", "|---|---|---|---|"]
    for timing in all_cases(1 if quick else 3, quick):
        rows.append(f"| {timing.name} | {timing.baseline:.2f} | {timing.engine:.3f} | {timing.ratio:.1f} |")
        print(rows[-1], flush=True)
    command = str(Path(sys.executable).with_name("fco-run"))
    one_round = [command, "task=lasso", "hparams.rounds=1", "force=true", "output_dir=/tmp/fco-benchmark"]
    rows += [
        "",
        f"`fco-run --help`: {wall_seconds(command, '--help'):.2f} s. "
        f"A lasso I run of one round, start-up included: {wall_seconds(*one_round, repeats=3):.2f} s, "
        f"{peak_memory_mb(*one_round):.0f} MB at its peak.",
    ]
    print(rows[-1])
    if not quick:
        before, rest = README.read_text().split(BEGIN)
        README.write_text(before + BEGIN + "\n".join(rows) + "\n" + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
