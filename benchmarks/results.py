"""Results as data: `python -m benchmarks.results` writes the tables of README.md and the page of the documentation.

A benchmark saves a JSON file in `results/` with its command, machine, date and commit. A cell is a text, a number, or a
curve: a list of points (size, cost) or (size, cost, MB).
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FOLDER, README = HERE / "results", HERE / "README.md"
PAGE = HERE.parent / "docs" / "reference" / "benchmarks.md"
TABLE = re.compile(r"(<!-- result (\w+) -->\n).*?(<!-- end of result -->)", re.DOTALL)
HEADING = """# Benchmarks

Generated from `benchmarks/results/*.json` by `python -m benchmarks.results`. The [README of the
benchmarks](../../benchmarks/README.md) describes what is measured. Other processes may run on the machine: a ratio
within one run is meaningful, milliseconds less so.
"""

Cell = str | float | list[list[float]]


def save(name: str, command: str, columns: list[str], rows: list[list[Cell]], only_some: bool = False) -> None:
    """Write a result and all tables; if `only_some`, rows with other names in their first cell are kept."""
    path = FOLDER / f"{name}.json"
    if only_some and path.exists():
        measured = {row[0]: row for row in rows}
        old = json.loads(path.read_text())["rows"]
        rows = [measured.pop(row[0], row) for row in old] + list(measured.values())
    date = f"{datetime.now(UTC):%Y-%m-%d}"
    result = {"command": command, "machine": machine(), "date": date, "commit": commit()}
    write(name, result | {"columns": columns, "rows": [[_rounded(cell) for cell in row] for row in rows]})
    write_tables()


def _rounded(cell: Cell) -> Cell:
    """Return a number with six digits; other cells as they are."""
    return float(f"{cell:.6g}") if isinstance(cell, float) else cell


def write(name: str, result: dict[str, Any]) -> None:
    """Write the JSON file of a result, with one row a line."""
    rows = ",\n".join(f"  {json.dumps(row)}" for row in result["rows"])
    head = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in result.items() if key != "rows")
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json").write_text(f'{{\n{head},\n "rows": [\n{rows}\n ]\n}}\n')


def machine() -> str:
    """Return the processor and the number of cores."""
    names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{names[0] if names else 'unknown processor'}, {os.cpu_count()} cores"


def commit() -> str:
    """Return the commit that is measured, with a + if files were changed since."""
    command = ["git", "-C", str(HERE), "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def format_cell(cell: Cell) -> str:
    """Return a cell of a table; numbers have three digits."""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, list):
        return ", ".join(
            f"{size:,}: {format_cell(cost)}" + "".join(f" ({megabytes:.0f} MB)" for megabytes in memory)
            for size, cost, *memory in cell
        )
    return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.3g}"


def slope(points: list[list[float]]) -> float:
    """Return the slope of the last two points in logarithms: 1 is proportional, 0 is constant."""
    (n, before, *_), (m, after, *_) = points[-2:]
    return round(math.log(after / before) / math.log(m / n), 2)


def as_markdown(result: dict[str, Any]) -> str:
    """Return the table of a result, with its origin below."""
    lines = [result["columns"], ["---"] * len(result["columns"]), *[map(format_cell, row) for row in result["rows"]]]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    origin = f"{result['date']}, commit {result['commit']}, {result['machine']}"
    return f"{table}\n\n`{result['command']}`: {origin}.\n"


def results() -> dict[str, dict[str, Any]]:
    """Return all results by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def texts() -> dict[Path, str]:
    """Return the contents of the files with tables."""
    found = results()
    readme = TABLE.sub(lambda match: match[1] + as_markdown(found[match[2]]) + match[3], README.read_text())
    page = HEADING + "".join(
        f"\n## {name.replace('_', ' ').capitalize()}\n\n{as_markdown(found[name])}" for name in found
    )
    return {README: readme, PAGE: page}


def write_tables() -> None:
    """Write the tables of README.md and the page of the documentation."""
    for path, text in texts().items():
        path.write_text(text)


if __name__ == "__main__":
    write_tables()
