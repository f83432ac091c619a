"""Measure, print the ratios and rewrite the table of benchmarks/README.md and the scaling figure."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks import scaling
from benchmarks.cases import all_cases, projection_share
from benchmarks.measure import peak_memory_mb, wall_seconds

README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one repeat, no scaling figure, nothing written")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only the lines with this in their name, not written"
    )
    options = parser.parse_args()
    rows = ["| | plain NumPy, ms | engine, ms | ratio | at least (hoped for) |", "|---|---|---|---|---|"]
    for case in all_cases():
        if options.only in case.name:
            timing = case.measure(1 if options.quick else 3)
            columns = (case.name, f"{timing.baseline:.2f}", f"{timing.engine:.3f}", f"{timing.ratio:.3g}", case.target)
            rows.append("| " + " | ".join(columns) + " |")
            print(rows[-1], flush=True)
    if options.only:
        return
    rows += ["", *_commands(), "", _projections()]
    print("\n".join(rows[-6:]))
    if not options.quick:
        before, rest = README.read_text().split(BEGIN)
        README.write_text(before + BEGIN + "\n".join(rows) + "\n" + END + rest.split(END)[1])
        scaling.draw()


def _commands() -> list[str]:
    """Start-up and peak memory of whole commands."""
    command = str(Path(sys.executable).with_name("fco-run"))
    rows = ["| command | seconds, start-up included | MB at its peak |", "|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        for arguments in ("--help", "task=lasso hparams.rounds=1", "task=lasso", "task=nuclear"):
            options = [] if arguments == "--help" else [f"output_dir={folder}", "force=true"]
            line = [command, *arguments.split(), *options]
            rows.append(f"| `fco-run {arguments}` | {wall_seconds(*line):.2f} | {peak_memory_mb(*line):.0f} |")
    return rows


def _projections() -> str:
    tasks = ("femnist10_l1", "femnist62_mlp")
    paper, tight = ([f"{projection_share(task, radius):.0%}" for task in tasks] for radius in (1000, 10))
    return (
        f"The projection onto the l1 ball takes {paper[0]} of a round of femnist10_l1 and {paper[1]} of one of "
        f"femnist62_mlp; {tight[0]} and {tight[1]} in a ball of radius 10, which every step leaves."
    )


if __name__ == "__main__":
    main()
