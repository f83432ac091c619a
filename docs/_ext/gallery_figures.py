"""Image scraper of sphinx-gallery for matplotlib figures without pyplot, as fco's functions return them."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from matplotlib.figure import Figure
from sphinx_gallery.scrapers import figure_rst

DPI = 200
_saved: WeakSet[Figure] = WeakSet()


def scrape_figures(block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any], **options: Any) -> str:
    """Save the figures among a script's variables, each once, and return the reStructuredText that shows them."""
    paths = []
    for value in list(block_vars["example_globals"].values()):
        is_new = isinstance(value, Figure) and value not in _saved
        if is_new and not hasattr(value, "number"):  # pyplot numbers its figures; the scraper "matplotlib" saves those
            _saved.add(value)
            paths.append(next(block_vars["image_path_iterator"]))
            value.savefig(paths[-1], dpi=DPI)
    return figure_rst(paths, gallery_conf["src_dir"]) if paths else ""
