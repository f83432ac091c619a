"""Draw the README's badges, docs/images/badges/*.svg: `python docs/badges.py`. Nothing is requested from a network.

Their values come from pyproject.toml and from the table of docs/results.md; a test compares the files.
"""

from __future__ import annotations

import re
import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "images" / "badges"
GRAY, BLUE, GREEN = "#555555", "#005a9c", "#00664f"
CHARACTER, PADDING = 6.6, 7  # pixels


def values() -> dict[str, tuple[str, str, str]]:
    """Return label, value and color of the badges by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = [one.rpartition(" ")[2] for one in project["classifiers"] if re.search(r"Python :: 3\.\d+$", one)]
    reproduced, total = claims()
    return {
        "python": ("python", f"{versions[0]} to {versions[-1]}", BLUE),
        "claims": ("claims of the paper", f"{reproduced} of {total} reproduced", GREEN),
        "license": ("license", project["license"], BLUE),
    }


def claims() -> tuple[int, int]:
    """Return how many claims are reproduced, and their number, from the table of docs/results.md."""
    columns = ledger()
    return columns["reproduced"], sum(columns.values())


def ledger() -> dict[str, int]:
    """Return the sums of the columns of the table of claims in docs/results.md."""
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    head, _, *rows = re.search(r"^\| claims about \|.*?\n\n", text, re.MULTILINE | re.DOTALL)[0].strip().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (head, *rows)]
    return {cells[0][k]: sum(int(row[k] or 0) for row in cells[1:]) for k in range(1, len(cells[0]))}


def badge(label: str, value: str, color: str) -> str:
    """Return an SVG image: the label on gray, the value on a color."""
    parts, x = [], 0
    for text, fill in ((label, GRAY), (value, color)):
        length = round(CHARACTER * len(text))
        width = length + 2 * PADDING
        parts.append(
            f'<rect x="{x}" width="{width}" height="20" fill="{fill}"/>'
            f'<text x="{x + PADDING}" y="14" textLength="{length}">{escape(text)}</text>'
        )
        x += width
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{x}" height="20" role="img" aria-label="{escape(label)}: '
        f'{escape(value)}"><g fill="#ffffff" font-family="DejaVu Sans,Verdana,sans-serif" font-size="11">'
        f"{''.join(parts)}</g></svg>\n"
    )


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, (label, value, color) in values().items():
        (FOLDER / f"{name}.svg").write_text(badge(label, value, color), encoding="utf-8")


if __name__ == "__main__":
    main()
