"""Sphinx extension: links from a page to files of the repository outside of docs/ become plain file names.

The Markdown pages are also read in the repository, where such links lead to the files.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?!https?:|mailto:|#)[^)\s#]+)(#[^)\s]*)?\)")


def rewrite(folder: Path, text: str) -> str:
    """Return a page's text without links to files that are not pages of the site."""

    def replace(match: re.Match[str]) -> str:
        label, target = match[1], (folder / match[2]).resolve()
        if not target.exists() or (target.is_relative_to(DOCS) and target.suffix in (".md", ".html", ".png")):
            return match[0]
        name = target.relative_to(DOCS.parent).as_posix() if target.is_relative_to(DOCS.parent) else match[2]
        return label if f"`{name}`" in label or name == label else f"{label} (`{name}`)"

    return LINK.sub(replace, text)


def read_source(app: Any, page: str, source: list[str]) -> None:
    source[0] = rewrite(Path(app.env.doc2path(page)).parent, source[0])


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", read_source)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
